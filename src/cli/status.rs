//! `ztier status`: what a running volume is, what it holds, and what holds it.

use super::{PATIENCE, adapting, check, client, gone, ill, named, output, print_all_but_last};
use crate::config::log::LogPlan;
use crate::config::plan::SpillPlan;
use crate::config::size::{exact, human, ratio};
use crate::config::{Paths, Usage};
use crate::control::{self, Request};
use crate::daemon::ballast;
use crate::daemon::survey::{Seen, Survey};
use crate::device::{self, Recompress};
use crate::error::{Error, Result};
use crate::remedy;
use crate::stats::drives::Failing;
use crate::stats::health::ranges;
use crate::stats::time::{self, with};
use crate::stats::{About, LogStats, ObjectStats, Stats, Trouble};
use crate::system::usage::{kept_twice, swap_with, swapped};
use clap::Args;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Show one running volume, or all
#[derive(Args)]
pub struct Status {
    /// Names of volumes [default: all that are up]
    #[arg(id = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON with all counters; without one name, a list
    #[arg(long)]
    json: bool,
    /// Print nothing while all is well, else a line for each trouble, and end with status 6; also
    /// for a volume that is filling or coming up
    #[arg(long, conflicts_with = "json")]
    check: bool,
}

impl Status {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        if self.check {
            return check::check(paths, &self.names);
        }
        if let [name] = &self.names[..] {
            let status = ask(&paths, name)?;
            if self.json { output::json(&status) } else { output::print(&text(&status)) }?;
            return ill(name, &status.stats).map_or(Ok(()), Err);
        }
        let mut survey = Survey::new(paths.clone());
        survey.look_around(PATIENCE)?;
        let (known, mut wrong) = named(&paths, &survey, &self.names);
        let mut all = Vec::new();
        for (name, seen) in known {
            match seen {
                Seen::Up { sample, .. } => {
                    wrong.extend(ill(name, &sample.stats));
                    all.push(control::Status::from((**sample).clone()));
                }
                Seen::Starting { .. } => output::remark(&format!("{name} is coming up")),
                Seen::Silent { .. } => wrong.push(Error::degraded(format!(
                    "the daemon of volume `{name}` does not answer, see `ztier list`"
                ))),
                Seen::Dead { .. } | Seen::Broken { .. } => wrong.push(gone(name)),
            }
        }
        match self.json {
            true => output::json(&all),
            false => output::print(&all.iter().map(text).collect::<Vec<_>>().join("\n")),
        }?;
        print_all_but_last(wrong)
    }
}

fn ask(paths: &Paths, name: &str) -> Result<control::Status> {
    client(paths, name)?.ask(&Request::Status, PATIENCE)
}

fn text(status: &control::Status) -> String {
    if let (Some(plan), Some(log)) = (&status.plan.log, &status.stats.log) {
        return logged(status, plan, log);
    }
    if let Some(backing) = &status.plan.backing {
        return passthrough(status, backing);
    }
    let (plan, stats) = (&status.plan, &status.stats);
    let mut rows = head(status);
    rows.extend([
        ("stored", stored(stats)),
        (
            "memory",
            format!(
                "{} of at most {} (most ever {})",
                human(stats.mem_used_bytes),
                human(plan.ram_limit_bytes),
                human(stats.mem_used_max_bytes)
            ),
        ),
        (
            "metadata",
            format!(
                "{}, {:.1} bytes a stored block",
                human(stats.metadata_bytes),
                stats.metadata_bytes_per_block
            ),
        ),
        ("segments", format!("{} of {}", stats.segments, exact(plan.segment_bytes.into()))),
        ("recompress", format!("{}: {}", recompress(plan.recompress), together(stats))),
    ]);
    rows.extend(adapting::rows(status));
    if let Some(spill) = &plan.spill {
        rows.extend(spilled(stats, spill, plan.segment_bytes));
    }
    rows.push(("errors", errors(stats)));
    rows.extend(drive_errors(stats));
    rows.extend([
        ("durable", "nowhere: gone after `ztier down` or a reboot".into()),
        ("daemon", daemon_of(status)),
    ]);
    if let Some(Usage::Swap { priority, .. }) = &plan.usage {
        let area = status.endpoints.first().and_then(|device| swap(Path::new(device), status));
        rows.push(("swap", format!("{}priority {priority}", area.unwrap_or_default())));
        let freed = (stats.freed_slots > 0).then(|| freed(stats));
        rows.extend(freed.map(|text| ("freed slots", text)));
        // The rows of a spill device report that themselves.
        let warning = short(stats).filter(|_| plan.spill.is_none());
        rows.extend(warning.map(|text| ("WARNING", text)));
    }
    output::pairs(&rows)
}

/// The first rows of each volume.
fn head(status: &control::Status) -> Vec<(&'static str, String)> {
    let plan = &status.plan;
    vec![
        ("volume", plan.name.clone()),
        ("state", state(&status.stats)),
        ("open", status.endpoints.join(" ")),
        ("held by", holders(status)),
        ("export", plan.export.kind().into()),
        ("size", human(plan.size_bytes)),
    ]
}

/// How the swap area on `device` is used; `None` if there is none.
fn swap(device: &Path, status: &control::Status) -> Option<String> {
    let area = swapped(device)?;
    // The kernel counts these pages for all swap together.
    let alone = swap_with(device).is_some_and(|swap| swap.alone);
    let twice = kept_twice().filter(|_| alone).unwrap_or(0);
    Some(ballast::describe(&area, status.ballast_bytes, twice) + ", ")
}

/// What was dropped because the kernel had freed its slots.
fn freed(stats: &Stats) -> String {
    format!("{} dropped so far", human(stats.freed_slots * crate::BLOCK_SIZE as u64))
}

/// When cold data is recompressed, as the settings spell it.
pub(super) fn recompress(when: Recompress) -> &'static str {
    match when {
        Recompress::Idle => "idle",
        Recompress::Off => "off",
    }
}

/// How much is compressed in clusters.
pub(super) fn together(stats: &Stats) -> String {
    let blocks = stats.blocks_clustered * crate::BLOCK_SIZE as u64;
    let now = if stats.recompressing { ", under way" } else { "" };
    match stats.blocks_recompressed {
        0 => format!("{} in clusters{now}", human(blocks)),
        _ => format!(
            "{} in clusters as {}; {} saved so far in {:.1} s{now}",
            human(blocks),
            human(stats.cluster_bytes),
            human(stats.recompress_saved_bytes),
            stats.recompress_ms as f64 / 1000.0
        ),
    }
}

/// The rows about a spill device.
fn spilled(stats: &Stats, spill: &SpillPlan, segment: u32) -> Vec<(&'static str, String)> {
    let (used, slots) = (stats.spill_slots_used, stats.spill_slots);
    let mut rows = vec![
        ("spill", spill.device.display().to_string()),
        (
            "spilled",
            format!(
                "{} as {}, in {used} of {slots} slots of {}",
                human(stats.spilled_blocks * crate::BLOCK_SIZE as u64),
                human(stats.spilled_bytes),
                exact(segment.into())
            ),
        ),
        (
            "spill written",
            format!(
                "{}, read {}; {}",
                human(stats.spill_written_bytes),
                human(stats.spill_read_bytes),
                spill_limit(spill)
            ),
        ),
    ];
    let left = stats.spill_allowed_bytes.is_some_and(|left| left < segment.into());
    let state = match () {
        () if stats.spill_failed => format!(
            "takes nothing for now, and is tried again in at most a minute: {} errors",
            stats.spill_errors
        ),
        () if left => "used up for today: nothing more goes down for now".into(),
        () if stats.spill_errors > 0 => format!("{} errors", stats.spill_errors),
        () => "takes what memory has no room for".into(),
    };
    rows.push(("spill state", state));
    rows
}

/// How much may be written to a spill device.
pub(super) fn spill_limit(spill: &SpillPlan) -> String {
    match spill.daily_bytes {
        0 => "no daily limit".into(),
        bytes => format!("{} a day on average", human(bytes)),
    }
}

/// A warning for swap whose memory will be full before the swap is, at the present compression.
fn short(stats: &Stats) -> Option<String> {
    let Stats { mem_used_bytes: used, ram_limit_bytes: limit, disk_size_bytes: size, .. } = *stats;
    let held = stats.orig_data_bytes + stats.blocks_same * crate::BLOCK_SIZE as u64;
    let holds = (u128::from(held) * u128::from(limit) / u128::from(used.max(1))) as u64;
    // A small sample says little about the data that follows.
    (used > limit / 4 && holds < size / 100 * 95).then(|| {
        format!(
            "memory will be full with {} of {} in use: give a higher ram-limit (`ztier set`)",
            human(holds),
            human(size)
        )
    })
}

/// The health of a volume in one word, and the reasons.
fn state(stats: &Stats) -> String {
    let troubles = stats.troubles(time::now());
    let text = |trouble: Trouble| match trouble.about {
        // Drive errors have rows of their own.
        About::Drive(role, ..) => format!("the {} drive has failed requests", role.name()),
        _ => trouble.text,
    };
    let mut texts: Vec<String> = troubles.into_iter().map(text).collect();
    texts.dedup();
    let colon = if texts.is_empty() { "" } else { ": " };
    format!("{}{colon}{}", stats.health.name(), texts.join("; "))
}

/// The rows about drives with failed requests, one each.
fn drive_errors(stats: &Stats) -> impl Iterator<Item = (&'static str, String)> {
    stats.drives.iter().map(|drive| ("drive errors", drive.to_string()))
}

fn holders(status: &control::Status) -> String {
    match &status.holders {
        None => format!("`ztier status {}` says by what", status.plan.name),
        Some(all) if all.is_empty() => "nothing".into(),
        Some(all) => all.join(", "),
    }
}

fn daemon_of(status: &control::Status) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let up = output::duration(now.saturating_sub(status.started_unix_s));
    format!("process {}, ztier {}, up for {up}", status.pid, status.version)
}

/// The text for a passthrough volume.
fn passthrough(status: &control::Status, backing: &Path) -> String {
    let mut rows = head(status);
    rows.extend([("backing", backing.display().to_string()), ("log", "none".into())]);
    rows.extend(status.stats.object.iter().flat_map(in_store));
    rows.push(("cache", cache(&status.stats)));
    rows.extend(adapting::rows(status));
    rows.push(("errors", errors(&status.stats)));
    rows.extend(drive_errors(&status.stats));
    rows.extend([
        ("durable", "in the backing store when a flush returns".into()),
        ("daemon", daemon_of(status)),
    ]);
    output::pairs(&rows)
}

/// What a volume holds in its store.
fn in_store(store: &ObjectStats) -> [(&'static str, String); 3] {
    let ObjectStats { blocks, live_bytes, stored_bytes, .. } = *store;
    let data = blocks * crate::BLOCK_SIZE as u64;
    let text = format!(
        "{} in {}, and {} that were overwritten",
        human(data),
        human(live_bytes),
        human(stored_bytes.saturating_sub(live_bytes))
    );
    let session = store.session.get(..8).unwrap_or_default();
    let own = || format!("{} (session {session})", store.owner);
    let owner = store.successor.clone().unwrap_or_else(own);
    let waits = format!("{} not in the store yet", human(store.waiting_bytes));
    [("stored", text), ("writes", waits), ("owner", owner)]
}

/// What the read cache holds.
fn cache(stats: &Stats) -> String {
    let Some(cache) = stats.cache.filter(|cache| cache.limit_bytes > 0) else {
        return "none".into();
    };
    let mut text = format!(
        "holds {} in {} of at most {}",
        human(cache.original_bytes),
        human(cache.used_bytes),
        human(cache.limit_bytes)
    );
    if cache.stored_bytes > 0 {
        let packed = cache.original_bytes as f64 / cache.stored_bytes as f64;
        text += &format!(", {}", ratio(packed));
    }
    let asked = cache.hit_blocks + cache.missed_blocks;
    if let Some(percent) = (100 * cache.hit_blocks).checked_div(asked) {
        text += &format!("; {percent} % of {asked} blocks read were hits");
    }
    if cache.exclusive {
        text += "; holds what the page cache drops";
    }
    if let Some(why) = &stats.not_exclusive {
        text += &format!("; also holds what the page cache has: {why}");
    }
    for (count, what) in [
        (cache.damaged_copies, "damaged copies, read again"),
        (cache.backing_errors, "errors of the backing store"),
    ] {
        if count > 0 {
            text += &format!("; {count} {what}");
        }
    }
    text
}

/// The text for a volume with a log.
fn logged(status: &control::Status, plan: &LogPlan, log: &LogStats) -> String {
    let dirty = human(log.left_bytes());
    let written = match log.asked_bytes {
        0 => String::new(),
        asked => format!(", {:.2} × what was asked", log.written_bytes as f64 / asked as f64),
    };
    let health = match log.windows_failed {
        0 => errors(&status.stats),
        n => format!(
            "{}; {n} windows of writeback failed, and are taken again",
            errors(&status.stats)
        ),
    };
    let mut rows = head(status);
    rows.extend([
        ("backing", plan.backing.display().to_string()),
        ("log", plan.log.display().to_string()),
        ("log used", format!("{} of {} segments", log.segments_used, log.segments)),
        (
            "not in backing",
            match log.clean {
                true => "nothing".into(),
                false => format!("{dirty}, the oldest for {} s", log.unsent_age_s),
            },
        ),
        ("kept", kept(plan, log)),
        ("backing alone", alone(log, status.stats.lost_blocks())),
        ("log written", format!("{}{written}", human(log.written_bytes))),
        ("writeback", writeback(plan)),
        ("commits", commits(log)),
        ("index", human(log.index_bytes)),
        ("cache", cache(&status.stats)),
    ]);
    rows.extend(status.stats.object.iter().flat_map(in_store));
    rows.extend(adapting::rows(status));
    rows.push(("errors", health));
    rows.extend(drive_errors(&status.stats));
    rows.extend([
        ("lost blocks", lost(&status.stats)),
        (
            "durable",
            match plan.sync_remote {
                true if !log.failed => "in the store when a flush returns".into(),
                _ => durable(log),
            },
        ),
        ("daemon", daemon_of(status)),
    ]);
    output::pairs(&rows)
}

/// How much of the backing store's content the log keeps for reads.
fn kept(plan: &LogPlan, log: &LogStats) -> String {
    if plan.keep_percent == 0 && log.blocks_clean == 0 {
        return "nothing of what the backing store has".into();
    }
    let text = format!(
        "{} of what the backing store has, in at most {} % of the log; {} blocks were read there",
        human(log.blocks_clean * crate::BLOCK_SIZE as u64),
        plan.keep_percent,
        log.reads_clean
    );
    if log.warm { text + "; warm since it came up" } else { text }
}

/// When and how much is written back.
pub(super) fn writeback(plan: &LogPlan) -> String {
    let window = exact(plan.writeback_window_bytes);
    let (percent, ms) = (plan.writeback_threshold_percent, plan.writeback_idle_ms);
    match plan.writeback {
        true if device::is_store(&plan.backing) => {
            let then = if plan.unsent.waits { "writers wait" } else { "the log fills" };
            format!(
                "windows up to 32M, so that the store lacks at most {} and {} s; beyond it {then}",
                exact(plan.unsent.bytes),
                plan.unsent.seconds
            )
        }
        true => format!("when idle for {ms} ms, and from {percent} % on; windows from {window} on"),
        false => "switched off, until the log is nearly full or drained".into(),
    }
}

/// How many flushes a commit serves, and how long it takes.
fn commits(log: &LogStats) -> String {
    let text = format!("{} for {} flushes", log.drive_flushes, log.flushes);
    if log.commits.count == 0 {
        return text;
    }
    let ms = |ns: u64| format!("{:.2} ms", ns as f64 / 1e6);
    format!("{text}; 50 % take {}, 99 % {}", ms(log.commits.p50_ns), ms(log.commits.p99_ns))
}

/// What the backing store would be without the log.
fn alone(log: &LogStats, lost: u64) -> String {
    match (log.clean, log.mixture_since_unix_s, log.past_unix_s) {
        (true, ..) if lost > 0 => format!("is the volume, but for {lost} lost blocks"),
        (true, ..) => "is the volume".into(),
        (_, 0, 0) => "a past state of the volume".into(),
        (_, 0, past) => match with("at", past) {
            at if at.is_empty() => "a past state of the volume".into(),
            at => format!("the volume as it was {at} at the latest"),
        },
        (_, since, _) => format!("a mixture of states{}", with(" since", since)),
    }
}

/// Where data is durable: elsewhere once the log has failed.
fn durable(log: &LogStats) -> String {
    let failed = with(" at", log.failed_unix_s);
    match (log.failed, log.rescuing, log.through) {
        (false, ..) => "in the log when a flush returns".into(),
        (_, true, _) => format!(
            "log failed{failed}: what it holds is being brought to the backing store, and \
             flushes wait"
        ),
        (.., true) => format!(
            "log failed: writing through{}; in the backing store when a flush returns",
            with(" since", log.through_unix_s)
        ),
        _ => format!(
            "log failed{failed}, and its superblocks cannot be written: nothing more is taken; {}",
            remedy::LOG_FAILED
        ),
    }
}

/// The ranges of lost blocks; of many, the first.
fn lost(stats: &Stats) -> String {
    match (stats.log_lost_blocks.len(), stats.log_loss_noted) {
        (0, _) => "none".into(),
        (_, true) => format!("{}; note was taken of these", ranges(&stats.log_lost_blocks)),
        (_, false) => ranges(&stats.log_lost_blocks),
    }
}

fn stored(stats: &Stats) -> String {
    let data = stats.orig_data_bytes + stats.blocks_same * crate::BLOCK_SIZE as u64;
    let times = match stats.mem_used_bytes {
        used if used > 0 && data > 0 => {
            format!(", {} its memory", ratio(data as f64 / used as f64))
        }
        _ => String::new(),
    };
    format!("{} ({} as payload{times})", human(data), human(stats.compr_data_bytes))
}

pub(super) fn errors(stats: &Stats) -> String {
    let list: Vec<String> = [
        ("failed reads", stats.read.failed),
        ("failed writes", stats.write.failed),
        ("requests outside the device", stats.invalid_io),
        ("writes without space", stats.no_space),
        ("damaged records", stats.corrupt_records),
        ("failed requests of drives", stats.drives.iter().map(Failing::count).sum()),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(what, count)| format!("{count} {what}"))
    .collect();
    if list.is_empty() { "none".into() } else { list.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::output::duration;
    use super::{Stats, short};

    #[test]
    fn swap_that_will_run_short_is_told() {
        let stats = |held: u64, used: u64| Stats {
            disk_size_bytes: 4 << 30,
            ram_limit_bytes: 1 << 30,
            orig_data_bytes: held << 20,
            mem_used_bytes: used << 20,
            ..Stats::default()
        };
        // Data compresses to a third: memory holds 3 GiB of 4.
        let text = short(&stats(1536, 512)).unwrap_or_default();
        assert!(text.starts_with("memory will be full with 3 GiB of 4 GiB in use"), "{text}");
        assert_eq!(short(&stats(2048, 512)), None);
        assert_eq!(short(&stats(100, 100)), None, "too early to tell");
        assert_eq!(short(&Stats::default()), None);
    }

    #[test]
    fn durations() {
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90_061, "1 d 1 h")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
