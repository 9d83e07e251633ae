//! From figures to advice: which role would help, how much, and what to type.
//!
//! Invariants: pure functions; each piece of advice has its reason with the figures that it rests
//! on. A role is advised only if what it saves is worth more than [`WORTH`], and a figure that is
//! missing is never a reason to advise.

use super::commands::{self, NEW_SWAP, Put};
use super::figures::{
    Compression, Disk, DiskKind, Figures, From, Memory, Requests, Swap, SwapKind,
};
use crate::config::size::{exact, human, ratio};
use serde::Serialize;

/// Requests from which on their mean time says something.
const ENOUGH: u64 = 20;
/// Seconds of waiting in a second, summed over requests, that are worth saving; and the part of the
/// time in which a disk must be busy.
const WORTH: f64 = 0.05;
/// A request that takes less (ms) is not worth a cache or log: one to user space takes a part of
/// that, and compressing a block some microseconds more.
const FAST_MS: f64 = 0.3;
/// As [`FAST_MS`], for flushes, which no drive does at once.
const FAST_FLUSH_MS: f64 = 1.0;
/// Writes of this size are no scattered ones: a log would only write them twice.
const LARGE: f64 = (256 << 10) as f64;
/// Pages of files that are read again in a second, from which on a cache is thought of.
const AGAIN: f64 = 10.0;
/// Data that shrinks less only takes memory.
const SHRINKS: f64 = 1.3;
/// From this ratio on, a cache has a fixed limit; below, one that adapts: `./bench zcache` found a
/// fixed one at 2:1 slower than no cache, because the page cache has less memory.
const SHRINKS_WELL: f64 = 4.0;
/// Of memory that records could take, the part that they do; the rest is for writing and cleaning.
const FILLED: f64 = 0.9;
/// The part of memory below which available memory is short, and very short.
const SHORT: f64 = 0.1;
const VERY_SHORT: f64 = 0.05;
/// The part of memory from which on available memory is ample.
const AMPLE: f64 = 0.5;
/// The part of the time in which tasks wait for memory, from which on it is short, and very short.
const WAITED: f64 = 0.05;
const WAITED_LONG: f64 = 0.2;
/// Pages swapped in a second that show that memory is short.
const SWAPPED: f64 = 50.0;
/// The part of a swap area that makes it full.
const FULL: f64 = 0.8;
/// The smallest cache, and the unit of limits.
const UNIT: u64 = 64 << 20;
/// Bytes of memory that a RAM disk takes for one of payload, under load.
const UNDER_LOAD: f64 = 1.23;
const PAGE: f64 = 4096.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    RamDisk,
    Swap,
    SpilledSwap,
    Cache,
    Log,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Helps,
    No,
    Harms,
    /// A figure is missing.
    Unknown,
}

/// What is said about one role.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    pub role: Role,
    pub disk: Option<String>,
    pub verdict: Verdict,
    /// How much, or why not, in a few words.
    pub short: String,
    /// The figures and the arithmetic.
    pub why: Vec<String>,
    /// What root types.
    pub commands: Vec<String>,
}

impl Advice {
    fn new(role: Role, verdict: Verdict, short: impl Into<String>) -> Self {
        let (why, commands) = (Vec::new(), Vec::new());
        Self { role, disk: None, verdict, short: short.into(), why, commands }
    }

    fn about(self, disk: &Disk) -> Self {
        Self { disk: Some(disk.name.clone()), ..self }
    }

    fn because(mut self, why: impl Into<String>) -> Self {
        self.why.push(why.into());
        self
    }
}

/// The advice for a machine, role by role.
pub fn advise(figures: &Figures) -> Vec<Advice> {
    let mut all = vec![ram_disk(figures), swap(figures), spilled_swap(figures)];
    for disk in figures.disks.iter().filter(|disk| disk.target.is_some() || is_used(disk)) {
        let cache = cache(figures, disk);
        let log = log(figures, disk, cache.verdict == Verdict::Helps);
        all.extend([cache, log]);
    }
    all
}

/// What the kernel does not tell, and what advice rests on without it.
pub fn missing(figures: &Figures) -> Vec<String> {
    let without = [
        (
            figures.pressure.memory.is_none(),
            "no /proc/pressure (CONFIG_PSI, psi=1): whether memory is short is told by available \
             memory and swap alone",
        ),
        (
            figures.paging.refaults_file.is_none(),
            "no refaults in /proc/vmstat: no cache is advised",
        ),
        (figures.disks.is_empty(), "no disk in /proc/diskstats: no cache and no log is advised"),
    ];
    let mut all: Vec<String> =
        without.iter().filter(|(is, _)| *is).map(|(_, text)| (*text).to_owned()).collect();
    all.extend(figures.network.iter().take(3).map(|point| {
        format!(
            "{} is of a server: cache and log need a block device, and do not help there",
            point.display()
        )
    }));
    all
}

fn is_used(disk: &Disk) -> bool {
    disk.reads.count + disk.writes.count + disk.flushes.count >= ENOUGH
}

/// Whether less than a part of memory is available, as a reason.
fn little_available(figures: &Figures, part: f64) -> Option<String> {
    let Memory { available_bytes, total_bytes, .. } = figures.memory;
    let is_little = (available_bytes as f64) < total_bytes as f64 * part;
    is_little.then(|| {
        let (available, total) = (human(available_bytes), human(total_bytes));
        format!("only {available} of {total} of memory are available")
    })
}

/// Why memory is short, if it is. Tasks also wait for memory where a control group's limit, or
/// refaults of files, make them: while half of the memory is available, that is no shortage.
fn shortage(figures: &Figures, available: f64, waited: f64) -> Option<String> {
    little_available(figures, available).or_else(|| {
        let stalled = figures.pressure.memory.filter(|share| *share >= waited)?;
        little_available(figures, AMPLE)?;
        Some(format!("tasks waited for memory {:.0} % of the time", stalled * 100.0))
    })
}

/// As [`shortage`], or by what is swapped.
fn short_of_memory(figures: &Figures) -> Option<String> {
    let paging = &figures.paging;
    let swapped = paging.swapped_in + paging.swapped_out;
    shortage(figures, SHORT, WAITED).or_else(|| {
        (swapped >= SWAPPED).then(|| {
            format!(
                "{:.0} pages/s are swapped out, {:.0} in",
                paging.swapped_out, paging.swapped_in
            )
        })
    })
}

fn not_short(figures: &Figures) -> String {
    let Memory { available_bytes, total_bytes, .. } = figures.memory;
    let text = format!("{} of {} available", human(available_bytes), human(total_bytes));
    match figures.pressure.memory {
        Some(share) if share >= WAITED => format!(
            "{text}; tasks that waited for memory, {:.0} % of the time, are in a control group with \
             a limit, or read files again",
            share * 100.0
        ),
        _ => text,
    }
}

/// `2.10x (by a sample: 2.00x to 2.20x)`.
fn shown(data: &Compression) -> String {
    let range = || format!("{} to {}", ratio(data.low), ratio(data.high));
    match data.from {
        From::Paths => format!("{} (by a sample: {})", ratio(data.ratio), range()),
        From::Programs => {
            format!("{} (by a sample of programs' pages: {})", ratio(data.ratio), range())
        }
        From::Assumed => format!("{} (assumed)", ratio(data.ratio)),
    }
}

fn ram_disk(figures: &Figures) -> Advice {
    let new = |verdict, short: &str| Advice::new(Role::RamDisk, verdict, short);
    let Some(named) = &figures.named else {
        return new(Verdict::No, "no files were named")
            .because("name the files that it would hold: ztier advise PATH");
    };
    let data = &figures.of_files;
    let needs = (named.data_bytes as f64 / data.ratio * UNDER_LOAD) as u64;
    let available = figures.memory.available_bytes;
    let sum = format!(
        "{} of files / {} x {UNDER_LOAD} = {} of memory under load; {} are available",
        human(named.data_bytes),
        shown(data),
        human(needs),
        human(available)
    );
    if !named.complete {
        return new(Verdict::Unknown, "more files than were found in the time").because(sum);
    }
    if data.ratio < SHRINKS {
        return new(Verdict::No, "these files do not shrink")
            .because(format!("{sum}; tmpfs does the same with less work"));
    }
    if needs > available / 2 {
        return new(Verdict::Harms, "takes more than half of what is available").because(sum);
    }
    let disk = figures.disks.iter().find(|disk| Some(&disk.name) == named.disk.as_ref());
    let Some((disk, ms)) = disk.and_then(|disk| Some((disk, time_of(disk)?))) else {
        return new(Verdict::Unknown, "the disk below was too quiet to be judged").because(sum);
    };
    if ms < FAST_MS {
        let text = format!("{sum}; a request to {} takes {ms:.2} ms", disk.name);
        return new(Verdict::No, "the disk below is fast already").because(text);
    }
    let mut advice = new(Verdict::Helps, format!("holds them in {}", human(needs)).as_str())
        .because(sum)
        .because(format!("a request to {} takes {ms:.1} ms", disk.name))
        .because("for files that may be gone after a reboot");
    if figures.zram {
        advice = advice.because("the kernel has zram, which costs less a request");
    }
    advice.commands = commands::ram_disk(named.data_bytes, needs);
    advice
}

/// Milliseconds of a read or write, whichever takes longer, where there were enough.
fn time_of(disk: &Disk) -> Option<f64> {
    let requests = [disk.reads, disk.writes].into_iter().filter(|r| r.count >= ENOUGH);
    requests.map(|requests| requests.mean_ms).reduce(f64::max)
}

fn swap(figures: &Figures) -> Advice {
    let new = |verdict, short: &str| Advice::new(Role::Swap, verdict, short);
    let of = |kind| figures.swaps.iter().find(|swap| swap.kind == kind);
    if let Some(swap) = of(SwapKind::Ztier) {
        return new(Verdict::No, &format!("{} is that already", swap.path.display()));
    }
    if let Some(swap) = of(SwapKind::Zram) {
        return new(Verdict::No, &format!("{} is that already", swap.path.display()))
            .because("zram costs less a page; it does not spill by itself");
    }
    let Some(why) = short_of_memory(figures) else {
        return new(Verdict::No, "memory is not short").because(not_short(figures));
    };
    let data = &figures.of_memory;
    if data.ratio < SHRINKS {
        return new(Verdict::Harms, "pages do not shrink")
            .because(format!("{why}, but programs' pages shrink only {}", shown(data)));
    }
    let out = figures.memory.anonymous_bytes / 2;
    let gain = (out as f64 * (1.0 - 1.0 / data.ratio)) as u64;
    let sum = format!(
        "half of the {} of programs, swapped out at {}, makes room for {} more",
        human(figures.memory.anonymous_bytes),
        shown(data),
        human(gain)
    );
    if figures.zram {
        return new(Verdict::No, "zram of the kernel costs less a page")
            .because(why)
            .because(format!("with zram, {sum}; ztier, if cold pages should be spilled"));
    }
    let mut advice =
        new(Verdict::Helps, &format!("room for {} more", human(gain))).because(why).because(sum);
    advice.commands = commands::swap(figures.zswap);
    advice
}

fn spilled_swap(figures: &Figures) -> Advice {
    let new = |verdict, short: &str| Advice::new(Role::SpilledSwap, verdict, short);
    if let Some(swap) = figures.swaps.iter().find(|swap| swap.kind == SwapKind::Ztier) {
        let text = format!("{} is swap of ztier: ztier status", swap.path.display());
        return new(Verdict::No, &text);
    }
    let Some(why) = short_of_memory(figures) else {
        return new(Verdict::No, "memory is not short").because(not_short(figures));
    };
    let data = &figures.of_memory;
    if data.ratio < SHRINKS {
        return new(Verdict::No, "pages do not shrink: plain swap does the same")
            .because(format!("{why}, but programs' pages shrink only {}", shown(data)));
    }
    let is_full = |swap: &&Swap| swap.used_bytes as f64 >= swap.size_bytes as f64 * FULL;
    let full = figures.swaps.iter().find(|s| s.kind == SwapKind::Zram && is_full(s));
    let plain = figures.swaps.iter().find(|s| s.kind == SwapKind::Partition && s.used_bytes > 0);
    let needed = shortage(figures, VERY_SHORT, WAITED_LONG);
    let (reason, used) = match (plain, full) {
        (Some(swap), _) => {
            let path = swap.path.display();
            let used = human(swap.used_bytes);
            (format!("{used} of pages are on {path} as they are"), swap.used_bytes)
        }
        (None, Some(swap)) => {
            let path = swap.path.display();
            (format!("{path} is full, and keeps the oldest pages"), swap.used_bytes)
        }
        (None, None) if needed.is_some() => {
            let half = figures.memory.anonymous_bytes / 2;
            (format!("half of the pages of programs are {}", human(half)), half)
        }
        (None, None) => {
            return new(Verdict::No, "first without a spill device: memory is enough").because(why);
        }
    };
    let packed = (used as f64 / data.ratio) as u64;
    let mut advice = new(Verdict::Helps, &format!("{} become {}", human(used), human(packed)))
        .because(why)
        .because(format!("{reason}: at {} they take {}", shown(data), human(packed)));
    if plain.or(full).is_some() {
        advice =
            advice.because("swapoff needs room for what is swapped out; else do it after a boot");
    }
    let (before, size) = (plain.or(full), NEW_SWAP.max(used));
    advice.commands = commands::spilled_swap(figures, before, size, &mut advice.why);
    advice
}

/// Pages of a disk's files that are read again in a second, at most; `None` if the kernel does not
/// tell.
pub fn read_again(figures: &Figures, disk: &Disk) -> Option<f64> {
    let bytes = |disk: &Disk| disk.reads.per_second * disk.reads.mean_bytes;
    let all: f64 = figures.disks.iter().map(bytes).sum();
    let own = bytes(disk);
    let share = if all > 0.0 { own / all } else { 0.0 };
    Some((figures.paging.refaults_file? * share).min(own / PAGE))
}

/// Requests under way together are not waited for one by one: a disk that is hardly ever busy is
/// hardly ever waited for.
fn idle(disk: &Disk) -> String {
    format!("the disk is busy {:.0} % of the time", disk.busy * 100.0)
}

/// `320 reads/s of 16 KiB, 8.10 ms each`.
fn described(what: &str, requests: &Requests) -> String {
    format!(
        "{:.0} {what}/s of {}, {:.2} ms each",
        requests.per_second,
        human(requests.mean_bytes as u64),
        requests.mean_ms
    )
}

/// The most memory for copies of a disk's blocks: at most a quarter of all, and half of what is
/// available above what has to stay.
fn cache_limit(figures: &Figures) -> u64 {
    let memory = &figures.memory;
    let spare = memory.available_bytes.saturating_sub((memory.total_bytes as f64 * SHORT) as u64);
    (spare / 2).min(memory.total_bytes / 4) / UNIT * UNIT
}

fn cache(figures: &Figures, disk: &Disk) -> Advice {
    let new = |verdict, short: &str| Advice::new(Role::Cache, verdict, short).about(disk);
    let reads = &disk.reads;
    if reads.count < ENOUGH {
        return new(Verdict::No, &format!("{} reads in the time", reads.count));
    }
    if reads.mean_ms < FAST_MS {
        return new(Verdict::Harms, "the disk is fast already").because(format!(
            "{}: a request to user space, and compressing, would cost a good part of that",
            described("reads", reads)
        ));
    }
    let Some(again) = read_again(figures, disk) else {
        return new(Verdict::Unknown, "the kernel does not count refaults")
            .because(described("reads", reads));
    };
    // What is read again is read with requests of the size that all have.
    let requests = (again * PAGE / reads.mean_bytes.max(1.0)).min(reads.per_second);
    let saved = requests * reads.mean_ms / 1000.0;
    let sum = format!(
        "refaults of file pages {again:.0}/s = {}/s read again; {}: {saved:.2} s of waiting a \
         second",
        human((again * PAGE) as u64),
        described("reads", reads),
    );
    if again < AGAIN || saved < WORTH {
        return new(Verdict::No, "little is read again").because(sum);
    }
    if disk.busy < WORTH {
        return new(Verdict::No, &idle(disk)).because(sum);
    }
    // Waiting for memory says nothing here: refaults are a part of it.
    if let Some(why) = little_available(figures, SHORT) {
        return new(Verdict::Harms, "memory is short").because(sum).because(why);
    }
    let data = &figures.of_files;
    if data.ratio < SHRINKS {
        return new(Verdict::Harms, "the data does not shrink").because(sum).because(format!(
            "files shrink only {}: copies would take the page cache's memory and hold no more",
            shown(data)
        ));
    }
    let limit = cache_limit(figures);
    if limit < UNIT {
        return new(Verdict::Harms, "no memory to spare").because(sum);
    }
    let holds = (limit as f64 * data.ratio * FILLED) as u64;
    let mut advice = new(Verdict::Helps, &format!("up to {saved:.2} s of waiting a second"))
        .because(sum)
        .because(format!(
            "a cache of {} holds about {} at {}",
            human(limit),
            human(holds),
            shown(data)
        ));
    if !is_limit_fixed(figures) {
        advice = advice.because(auto_watches());
    }
    if little_available(figures, AMPLE).is_none() {
        advice = advice.because(
            "half of memory is available: a control group's limit drops these pages; a higher one \
             costs less",
        );
    }
    let limit = cache_flags(figures, limit);
    commands::put(&mut advice.why, &mut advice.commands, &Put { disk, flags: &limit });
    advice
}

/// Why the limit adapts.
fn auto_watches() -> String {
    let fixed = ratio(SHRINKS_WELL);
    format!(
        "below {fixed} a fixed limit can take more from the page cache than copies give: auto watches"
    )
}

fn is_limit_fixed(figures: &Figures) -> bool {
    figures.of_files.ratio >= SHRINKS_WELL
}

fn cache_flags(figures: &Figures, limit: u64) -> String {
    if is_limit_fixed(figures) {
        format!("--ram-limit {}", exact(limit))
    } else {
        format!("--ram-limit auto --ram-max {}", exact(limit))
    }
}

fn log(figures: &Figures, disk: &Disk, with_cache: bool) -> Advice {
    let new = |verdict, short: &str| Advice::new(Role::Log, verdict, short).about(disk);
    let (writes, flushes) = (&disk.writes, &disk.flushes);
    if writes.count + flushes.count < ENOUGH {
        return new(Verdict::No, &format!("{} writes in the time", writes.count));
    }
    let of_writes = writes.per_second * writes.mean_ms / 1000.0;
    let of_flushes = flushes.per_second * flushes.mean_ms / 1000.0;
    let waited = of_writes + of_flushes;
    let sum = format!(
        "{}; {:.0} flushes/s, {:.2} ms each: {waited:.2} s of waiting a second",
        described("writes", writes),
        flushes.per_second,
        flushes.mean_ms
    );
    if writes.mean_ms < FAST_MS && flushes.mean_ms < FAST_FLUSH_MS {
        return new(Verdict::Harms, "the disk is fast already")
            .because(format!("{sum}; a log only adds a copy"));
    }
    if waited < WORTH {
        return new(Verdict::No, "little is waited for").because(sum);
    }
    if disk.busy < WORTH {
        return new(Verdict::No, &idle(disk)).because(sum);
    }
    if writes.mean_bytes >= LARGE && of_flushes < WORTH {
        return new(Verdict::No, "writes are large").because(format!(
            "{sum}; a log would write them twice, and is for small, scattered writes"
        ));
    }
    let Some(fast) = log_drive(figures, disk) else {
        return new(Verdict::No, "no faster drive is here")
            .because(sum)
            .because("an SSD of a few GiB would help");
    };
    let mut advice = new(Verdict::Helps, &format!("up to {waited:.2} s of waiting a second"))
        .because(sum)
        .because(format!(
            "each joined with {:.1} neighbours: {}; counters do not tell the order",
            writes.merged,
            if writes.merged < 1.0 { "mostly scattered" } else { "partly in order" }
        ))
        .because(match fast.writes.count {
            0..ENOUGH => {
                format!("{} ({}) was too quiet to be measured", fast.name, fast.kind.name())
            }
            _ => format!(
                "{} ({}): {:.2} ms a write",
                fast.name,
                fast.kind.name(),
                fast.writes.mean_ms
            ),
        });
    let limit = cache_limit(figures).max(UNIT);
    let limit = if with_cache { cache_flags(figures, limit) } else { String::new() };
    let flags = commands::log_flags(disk, fast, &limit, &mut advice.why);
    commands::put(&mut advice.why, &mut advice.commands, &Put { disk, flags: &flags });
    advice
}

/// The drive for a log before `disk`: one that was measured and takes a quarter of its time, or one
/// that is fast by its kind.
fn log_drive<'a>(figures: &'a Figures, disk: &Disk) -> Option<&'a Disk> {
    let slow = disk.writes.mean_ms.max(disk.flushes.mean_ms);
    let is_fast = |other: &&Disk| {
        let by_kind = matches!(other.kind, DiskKind::Nvme | DiskKind::Flash);
        let is_measured = other.writes.count >= ENOUGH;
        let took = other.writes.mean_ms.max(other.flushes.mean_ms);
        other.kind.is_for_logs() && if is_measured { took * 4.0 <= slow } else { by_kind }
    };
    let others = figures.disks.iter().filter(|other| other.name != disk.name).filter(is_fast);
    others.min_by_key(|other| (other.kind != DiskKind::Nvme, other.target.is_none()))
}
