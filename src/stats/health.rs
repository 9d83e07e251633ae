//! The health of a volume, judged by its counters: one word, and the list of its troubles.
//!
//! Invariant: commands, the daemon's log and metrics report the health of a volume from here.

use super::drives::{Failure, Operation, Role};
use super::time::with;
use super::{LogStats, ObjectStats, Stats};
use serde::{Deserialize, Serialize};

/// How long a drive that has failed a request is reported, in seconds.
const RECENT: u64 = 3600;
/// Most ranges of blocks that are named.
const RANGES_SHOWN: usize = 20;

/// The health of a volume in one word: the worst that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should be.
    #[default]
    Ok,
    /// It works, and is about to have no room for data.
    Filling,
    /// It works, but something below does not, or did not within the last hour.
    Degraded,
    /// It takes nothing more.
    Failed,
    /// Data is lost that no user has taken note of.
    Lost,
}

impl Health {
    /// All there are, best first.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Filling, Self::Degraded, Self::Failed, Self::Lost];

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Filling => "filling",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// The subject of a trouble; at most one trouble has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// Blocks are lost.
    Loss,
    /// The log has failed.
    Log,
    /// The spill device takes nothing.
    Spill,
    /// Memory, and the spill device, will be full before the volume is.
    Room,
    /// The machine's memory and swap are nearly full.
    Swap,
    /// The store of objects fails, or has another owner.
    Store,
    /// A drive has failed requests of a kind, for a reason (an errno).
    Drive(Role, Operation, i32),
}

impl About {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Log => "log",
            Self::Spill => "spill",
            Self::Room => "memory",
            Self::Swap => "swap",
            Self::Store => "store",
            Self::Drive(..) => "drive",
        }
    }
}

/// Something that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// How bad it is.
    pub health: Health,
    /// What it is about.
    pub about: About,
    /// What it is, in one line.
    pub text: String,
}

impl Trouble {
    fn new(health: Health, about: About, text: impl Into<String>) -> Self {
        Self { health, about, text: text.into() }
    }
}

/// What is wrong with a store of objects.
fn of_store(store: &ObjectStats) -> Option<Trouble> {
    let ObjectStats { place, successor, trouble, damaged_object, lost_blocks, .. } = store;
    if let Some(successor) = successor {
        let text = format!("the volume in {place} was taken over by {successor}");
        return Some(Trouble::new(Health::Failed, About::Store, text));
    }
    if let Some(object) = damaged_object {
        let text = format!("{place}/{object} is damaged or gone");
        return Some(Trouble::new(Health::Degraded, About::Store, text));
    }
    if let Some(trouble) = trouble {
        let text = format!("the store fails, and is asked again: {trouble}");
        return Some(Trouble::new(Health::Degraded, About::Store, text));
    }
    (*lost_blocks > 0).then(|| {
        let text =
            format!("{lost_blocks} blocks are lost: a damaged log had them; write them anew");
        Trouble::new(Health::Degraded, About::Store, text)
    })
}

impl Stats {
    /// What is wrong at the time `now`, in seconds since 1970; the worst first.
    pub fn troubles(&self, now: u64) -> Vec<Trouble> {
        let mut all = Vec::new();
        all.extend(self.loss().map(|text| Trouble::new(Health::Lost, About::Loss, text)));
        all.extend(self.log.as_ref().and_then(failed_log));
        if self.spill_failed {
            let text = "the spill device does not take what it is given: memory has to hold it, and \
                        it is tried again in at most a minute";
            all.push(Trouble::new(Health::Degraded, About::Spill, text));
        }
        all.extend(self.short_of().map(|room| {
            let text = format!(
                "as what is stored compresses, there is room for {} MiB more: discard something, or \
                 give more memory (`ztier set`)",
                room >> 20
            );
            Trouble::new(Health::Filling, About::Room, text)
        }));
        if self.swap_nearly_full {
            let room = self.swap_room_bytes.unwrap_or(0) >> 20;
            let text = format!(
                "the machine's memory and swap are nearly full: there is room for {room} MiB more, \
                 then the kernel ends programs; end some first"
            );
            all.push(Trouble::new(Health::Filling, About::Swap, text));
        }
        all.extend(self.object.iter().flat_map(of_store));
        for drive in &self.drives {
            let recent = |failure: &&Failure| failure.last_unix_s + RECENT > now;
            all.extend(drive.failures.iter().filter(recent).map(|failure| {
                let about = About::Drive(drive.role, failure.operation, failure.errno);
                Trouble::new(Health::Degraded, about, drive.describe(failure))
            }));
        }
        all.sort_by_key(|trouble| std::cmp::Reverse(trouble.health));
        all
    }

    /// The health of the volume at the time `now`, in seconds since 1970.
    pub fn health_at(&self, now: u64) -> Health {
        self.troubles(now).iter().map(|trouble| trouble.health).max().unwrap_or_default()
    }

    /// Bytes of data that still fit, if they are less than an eighth of the volume and less than
    /// what was not written yet.
    fn short_of(&self) -> Option<u64> {
        let written = self.orig_data_bytes + self.blocks_same * crate::BLOCK_SIZE as u64;
        let unwritten = self.disk_size_bytes.saturating_sub(written);
        self.room_bytes.filter(|&room| room < self.disk_size_bytes / 8 && room < unwritten)
    }

    /// Number of lost blocks.
    pub fn lost_blocks(&self) -> u64 {
        self.log_lost_blocks.iter().map(|(_, count)| count).sum()
    }

    /// What is lost that no user has taken note of, in words.
    pub fn loss(&self) -> Option<String> {
        let count = self.lost_blocks();
        let lost = count > 0 && !self.log_loss_noted;
        lost.then(|| format!("{count} blocks are lost: {}", ranges(&self.log_lost_blocks)))
    }
}

fn failed_log(log: &LogStats) -> Option<Trouble> {
    let failed = with(" at", log.failed_unix_s);
    let (health, text) = match (log.failed, log.rescuing, log.through) {
        (false, ..) => return None,
        (_, true, _) => (
            Health::Degraded,
            format!("the log failed{failed}: what it holds is being brought to the backing store"),
        ),
        (.., true) => (
            Health::Degraded,
            format!(
                "the log failed{failed}: writes go to the backing store{}",
                with(" since", log.through_unix_s)
            ),
        ),
        _ => (Health::Failed, format!("the log failed{failed}, and nothing more is taken")),
    };
    Some(Trouble::new(health, About::Log, text))
}

/// Ranges of blocks, given as first block and count, in words; of many, the first.
pub fn ranges(all: &[(u64, u64)]) -> String {
    let range = |&(block, count): &(u64, u64)| match count {
        1 => block.to_string(),
        _ => format!("{block}-{}", block + count - 1),
    };
    let named: Vec<String> = all.iter().take(RANGES_SHOWN).map(range).collect();
    match all.len().saturating_sub(RANGES_SHOWN) {
        0 => named.join(", "),
        more => format!("{} and {more} ranges more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::drives::Failing;
    use super::*;

    fn failing(last_unix_s: u64) -> Failing {
        let failure = Failure {
            operation: Operation::Read,
            errno: 5,
            reason: "EIO: Input/output error".into(),
            count: 1,
            offset: 0,
            bytes: 4096,
            first_unix_s: last_unix_s,
            last_unix_s,
        };
        Failing { role: Role::Backing, path: "/dev/x".into(), failures: vec![failure] }
    }

    #[test]
    fn the_worst_counts_and_a_failure_is_told_of_for_an_hour() {
        let now = 1_700_000_000;
        let mut stats = Stats::default();
        assert_eq!(stats.health_at(now), Health::Ok);
        stats.drives = vec![failing(now - RECENT)];
        assert_eq!(stats.health_at(now), Health::Ok);
        stats.drives = vec![failing(now - RECENT + 1)];
        assert_eq!(stats.health_at(now), Health::Degraded);
        stats.log = Some(LogStats { failed: true, ..LogStats::default() });
        assert_eq!(stats.health_at(now), Health::Failed);
        let text = &stats.troubles(now)[0].text;
        assert_eq!(text, "the log failed, and nothing more is taken", "no time is known");
        stats.log_lost_blocks = vec![(0, 4000), (5000, 1)];
        assert_eq!(stats.health_at(now), Health::Lost);
        assert_eq!(stats.loss().unwrap_or_default(), "4001 blocks are lost: 0-3999, 5000");
        stats.log_loss_noted = true;
        assert_eq!((stats.health_at(now), stats.loss()), (Health::Failed, None));
        assert_eq!(stats.lost_blocks(), 4001);
    }

    #[test]
    fn a_volume_that_is_filling_says_so() {
        let stats = |room: Option<u64>, written: u64| Stats {
            disk_size_bytes: 64 << 20,
            orig_data_bytes: written << 20,
            room_bytes: room.map(|mib| mib << 20),
            ..Stats::default()
        };
        for (room, written) in [(None, 50), (Some(8), 30), (Some(5), 60), (Some(5), 59)] {
            assert_eq!(stats(room, written).health_at(0), Health::Ok, "{room:?} {written}");
        }
        let short = stats(Some(5), 50);
        assert_eq!(short.health_at(0), Health::Filling);
        assert!(short.troubles(0)[0].text.contains("room for 5 MiB more"));
    }

    #[test]
    fn of_many_ranges_the_first_are_named() {
        let all: Vec<_> = (0..30).map(|i| (i * 10, 1)).collect();
        let text = ranges(&all);
        assert!(
            text.starts_with("0, 10, 20") && text.ends_with("190 and 10 ranges more"),
            "{text}"
        );
    }
}
