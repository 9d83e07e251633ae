//! The comparison: each trace at each size by each policy, and what share of the best the default
//! reaches.

use super::levels::Exclusive;
use super::product::{Blocks, Segments};
use super::rivals::{Lru, Random, Sieve, next_reads, optimum};
use super::synth::{self, Scale};
use super::trace::{Replay, Trace};
use super::{Cache, hits, recorded};
use crate::report::{Report, Row, Table, Target, median, print};
use crate::sys::interrupt;
use std::sync::atomic::{AtomicUsize, Ordering};
use ztier::cache::policy::Rules;
use ztier::error::{Error, Result};

const HITS: &str = "hits";
const BELOW_PAGE_CACHE: &str = "below a page cache";
const EXCLUSIVE: &str = "exclusive";
/// Width of the name column.
const NAME: usize = 27;
/// Share of the best that the default should reach.
const KEEP: f64 = 0.9;
/// Cache sizes, in percent of the distinct blocks of a trace.
pub const SIZES: [u32; 5] = [1, 5, 10, 20, 40];
/// Share of hits among all reads below which a comparison is meaningless.
const WORTH: f64 = 0.01;
/// Numbers of segments in a cache.
const SEGMENTS: [usize; 3] = [16, 32, 64];
/// Index of the number of segments closest to the product's caches.
const USUAL: usize = 1;

/// What a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// What is read and written, as the page cache above does.
    Requests,
    /// What the page cache above drops.
    Dropped,
}

impl Keeps {
    /// The product's rules.
    fn rules(self) -> Rules {
        match self {
            Self::Requests => Rules::default(),
            Self::Dropped => Rules::default().exclusive(),
        }
    }
}

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Shorter traces.
    pub quick: bool,
}

/// Policies without knowledge of the future, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Online {
    Random,
    Lru,
    Clock,
    Sieve,
    S3Fifo,
    Default,
}

impl Online {
    const ALL: [Self; 6] =
        [Self::Random, Self::Lru, Self::Clock, Self::Sieve, Self::S3Fifo, Self::Default];

    fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Lru => "LRU",
            Self::Clock => "CLOCK",
            Self::Sieve => "SIEVE",
            Self::S3Fifo => "S3-FIFO",
            Self::Default => "default",
        }
    }

    fn cache(self, blocks: u32, most: usize, keeps: Keeps) -> Box<dyn Cache> {
        match self {
            Self::Random => Box::new(Random::new(blocks, most)),
            Self::Lru => Box::new(Lru::new(blocks, most)),
            Self::Clock => Box::new(Blocks::new(Rules::CLOCK, blocks, most)),
            Self::Sieve => Box::new(Sieve::new(blocks, most)),
            Self::S3Fifo => Box::new(Blocks::new(Rules::S3_FIFO, blocks, most)),
            Self::Default => Box::new(Blocks::new(keeps.rules(), blocks, most)),
        }
    }
}

/// Hit ratios of one trace at one size.
#[derive(Clone, Copy, Debug)]
struct Cell {
    percent: u32,
    online: [f64; Online::ALL.len()],
    /// For each number of segments, the default's hit ratio, and copies appended again for each one
    /// added.
    segments: [(f64, f64); SEGMENTS.len()],
    optimum: f64,
}

impl Cell {
    fn new(replay: &Replay, next: &[Option<u32>], percent: u32, keeps: Keeps) -> Self {
        let most = (replay.blocks as usize * percent as usize / 100).max(8);
        let reads = replay.reads().max(1) as f64;
        let ratio = |cache: &mut dyn Cache| {
            let hits = match keeps {
                Keeps::Requests => hits(cache, replay),
                Keeps::Dropped => hits(&mut Exclusive::new(cache, &replay.numbers), replay),
            };
            hits as f64 / reads
        };
        Self {
            percent,
            online: Online::ALL.map(|p| ratio(&mut *p.cache(replay.blocks, most, keeps))),
            segments: SEGMENTS.map(|count| {
                let mut cache = Segments::new(keeps.rules(), replay.blocks, most, count);
                (ratio(&mut cache), cache.copied())
            }),
            optimum: optimum(next, most) as f64 / reads,
        }
    }

    fn of(&self, policy: Online) -> f64 {
        self.online[policy as usize]
    }

    fn best(&self) -> f64 {
        self.online.iter().copied().fold(0.0, f64::max)
    }

    /// Share of the best that `hits` are; `None` where a comparison is meaningless.
    fn kept(&self, hits: f64) -> Option<f64> {
        let best = self.best();
        (best >= WORTH).then(|| hits / best)
    }
}

/// One trace at all sizes.
#[derive(Clone, Debug)]
struct Found {
    name: String,
    cells: Vec<Cell>,
}

impl Found {
    fn new(name: &str, replay: &Replay, sizes: &[u32], keeps: Keeps) -> Result<Self> {
        let next = next_reads(replay, keeps == Keeps::Dropped);
        let mut cells = Vec::new();
        for &percent in sizes {
            interrupt::check()?;
            cells.push(Cell::new(replay, &next, percent, keeps));
        }
        Ok(Self { name: name.into(), cells })
    }
}

/// Runs `work` on each item, on all processors; results are in the order of the items.
fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some((i, item)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            items.get(i).map(|item| (i, item))
        } {
            done.push((i, work(item)?));
        }
        Ok(done)
    };
    let mut all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<_, Error>(all)
    })?;
    all.sort_by_key(|(i, _)| *i);
    Ok(all.into_iter().map(|(_, result)| result).collect())
}

/// Runs the table.
///
/// # Errors
/// It is interrupted, or a recorded trace is damaged.
pub fn run(report: &mut Report, choice: &Choice) -> Result<()> {
    let generated = synth::all(if choice.quick { Scale::QUICK } else { Scale::FULL });
    let recorded = recorded::all()?;
    print(&format!(
        "\n== {HITS}: percent of the blocks that are read; * is the best of those that"
    ));
    print("know nothing of what comes. Sizes are percent of the blocks of a trace.");
    let traces = [&generated[..], &recorded].concat();
    let found = each(&traces, |trace| {
        let replay = trace.replay();
        let found = Found::new(&trace.name, &replay, &SIZES, Keeps::Requests)?;
        Ok((replay.blocks, replay.reads(), found))
    })?;
    for (trace, (blocks, reads, _)) in traces.iter().zip(&found) {
        let about = format!("{}; {reads} reads of {blocks} blocks", trace.about);
        report.quiet_note(HITS, &trace.name, about);
    }
    let found: Vec<Found> = found.into_iter().map(|(_, _, found)| found).collect();
    tell(report, HITS, &found);
    summary(report, "", Target::AtLeast(KEEP), &found);
    ratios(report, "", &found);
    below(report, &generated)?;
    exclusive(report)
}

/// Prints the lines of a table under their headings, and adds the figures to the report.
fn tell(report: &mut Report, section: &str, all: &[Found]) {
    let mut columns = vec![("trace", NAME), ("size", 4)];
    columns.extend(Online::ALL.map(|policy| (policy.name(), 7)));
    columns.extend([("optimum", 7), ("of best", 7)]);
    columns.extend([("16 seg.", 7), ("32 seg.", 7), ("64 seg.", 7), ("copied", 6)]);
    let table = Table::new(&columns);
    print(&table.head());
    for found in all {
        for (i, cell) in found.cells.iter().enumerate() {
            let name = if i == 0 { found.name.as_str() } else { "" };
            let mut line = vec![name.to_owned(), format!("{} %", cell.percent)];
            let mut hits = |system: &str, hits: f64, best: bool| {
                figure(report, section, &found.name, cell.percent, system, hits);
                line.push(format!("{:.1}{}", 100.0 * hits, if best { "*" } else { " " }));
            };
            let best = cell.best();
            for policy in Online::ALL {
                hits(policy.name(), cell.of(policy), best >= WORTH && cell.of(policy) >= best);
            }
            hits("optimum", cell.optimum, false);
            let kept = cell.kept(cell.of(Online::Default));
            line.push(kept.map_or("-".into(), |kept| format!("{kept:.2}")));
            for (count, (ratio, copied)) in SEGMENTS.iter().zip(cell.segments) {
                let system = format!("default, {count} segments");
                figure(report, section, &found.name, cell.percent, &system, ratio);
                report.silent_row(Row {
                    section: section.into(),
                    system,
                    case: format!("{}, {} %, copied", found.name, cell.percent),
                    unit: "a copy",
                    runs: vec![copied],
                    ..Row::default()
                });
                line.push(format!("{:.1}", 100.0 * ratio));
            }
            line.push(format!("{:.2}", cell.segments[USUAL].1));
            print(&table.line(&line));
        }
    }
}

fn figure(report: &mut Report, section: &str, name: &str, percent: u32, system: &str, hits: f64) {
    report.silent_row(Row {
        section: section.into(),
        system: system.into(),
        case: format!("{name}, {percent} %"),
        unit: "%",
        runs: vec![100.0 * hits],
        ..Row::default()
    });
}

/// The distance of each policy from the best, over all traces and sizes with a meaningful
/// comparison: which policy wins.
fn summary(report: &mut Report, prefix: &str, goal: Target, all: &[Found]) {
    let cells = || all.iter().flat_map(|found| found.cells.iter().map(move |c| (found, c)));
    print("\n== of the best, over all traces and sizes");
    let columns = [("policy", 10), ("mean", 6), ("least", 6), ("below 0.9", 9), ("where least", 0)];
    let table = Table::new(&columns);
    print(&table.head());
    for policy in Online::ALL {
        let kept: Vec<(f64, String)> = cells()
            .filter_map(|(found, cell)| {
                let kept = cell.kept(cell.of(policy))?;
                Some((kept, format!("{}, {} %", found.name, cell.percent)))
            })
            .collect();
        let mean = kept.iter().map(|(k, _)| k).sum::<f64>() / kept.len() as f64;
        let under = kept.iter().filter(|(k, _)| *k < KEEP).count();
        let Some((least, place)) = kept.iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        print(&table.line(&[
            policy.name().to_owned(),
            format!("{mean:.3}"),
            format!("{least:.3}"),
            format!("{under} of {}", kept.len()),
            place.clone(),
        ]));
        let word = policy.name().to_lowercase().replace('-', "_");
        report.ratio(&format!("{prefix}{word}_vs_best_mean"), mean, Target::None);
        let target = match policy {
            Online::Default => goal,
            _ => Target::None,
        };
        report.ratio(&format!("{prefix}{word}_vs_best_least"), *least, target);
    }
    for (i, count) in SEGMENTS.into_iter().enumerate() {
        let share = |(_, cell): (&Found, &Cell)| {
            let blocks = cell.of(Online::Default);
            (blocks >= WORTH).then(|| cell.segments[i].0 / blocks)
        };
        let shares: Vec<f64> = cells().filter_map(share).collect();
        report.ratio(&format!("{prefix}segments_{count}_vs_blocks"), median(&shares), Target::None);
    }
}

/// For each trace, the least share of the best policy without knowledge of the future that the
/// default reaches at any size.
fn ratios(report: &mut Report, prefix: &str, all: &[Found]) {
    for found in all {
        let kept = found.cells.iter().filter_map(|cell| cell.kept(cell.of(Online::Default)));
        if let Some(least) = kept.reduce(f64::min) {
            let name = format!("{prefix}{}_vs_best", found.name);
            report.ratio(&name, least, Target::AtLeast(KEEP));
        }
    }
}

/// Sizes of page caches, in percent of the blocks of a trace.
const PAGE_CACHES: [u32; 4] = [0, 5, 10, 20];
/// Traces that make sense below a page cache; recorded ones come from below one.
const BELOW: [&str; 5] = ["zipf-0.8", "zipf-1.0", "zipf-1.2", "scan+hot", "shifting"];

/// The same below page caches, modelled as LRU.
fn below(report: &mut Report, traces: &[Trace]) -> Result<()> {
    print(&format!("\n== {BELOW_PAGE_CACHE}: what a page cache of a size leaves; a cache of 10 %"));
    let wanted: Vec<(&Trace, u32)> = traces
        .iter()
        .filter(|trace| BELOW.contains(&trace.name.as_str()))
        .flat_map(|trace| PAGE_CACHES.map(|percent| (trace, percent)))
        .collect();
    let found = each(&wanted, |(trace, percent)| {
        let whole = trace.replay();
        let left = match percent {
            0 => whole.clone(),
            _ => whole.below(whole.blocks as usize * *percent as usize / 100),
        };
        let share = left.reads() as f64 / whole.reads() as f64;
        let name = format!("{}, {percent} %, {:.0} % left", trace.name, 100.0 * share);
        Found::new(&name, &left, &[10], Keeps::Requests)
    })?;
    tell(report, BELOW_PAGE_CACHE, &found);
    let found: Vec<Found> =
        found.into_iter().zip(&wanted).filter(|(_, (_, p))| *p > 0).map(|(f, _)| f).collect();
    summary(report, "below_page_cache_", Target::None, &found);
    Ok(())
}

/// A cache that keeps what a real page cache has dropped, and beside it one that does not.
fn exclusive(report: &mut Report) -> Result<()> {
    let traces = recorded::with_drops()?;
    print(&format!(
        "\n== {EXCLUSIVE}: a cache of what the page cache has dropped, by traces that have"
    ));
    print("both; the optimum is that of such a cache");
    let found = each(&traces, |trace| {
        let replay = trace.replay();
        let of = |keeps| Found::new(&trace.name, &replay, &SIZES, keeps);
        Ok((replay.reads(), of(Keeps::Dropped)?, of(Keeps::Requests)?))
    })?;
    for (trace, (reads, found, _)) in traces.iter().zip(&found) {
        let about = format!("{}; {reads} blocks read", trace.about);
        report.quiet_note(EXCLUSIVE, &found.name, about);
    }
    let (exclusive, inclusive): (Vec<_>, Vec<_>) =
        found.into_iter().map(|(_, exclusive, inclusive)| (exclusive, inclusive)).unzip();
    tell(report, EXCLUSIVE, &exclusive);
    summary(report, "exclusive_", Target::AtLeast(KEEP), &exclusive);
    ratios(report, "exclusive_", &exclusive);
    print(
        "\n== percent of the blocks that are read: a cache that is exclusive, and one that is not",
    );
    let table = Table::new(&[("trace", NAME), ("size", 4), ("exclusive", 9), ("not", 9)]);
    print(&table.head());
    for (exclusive, inclusive) in exclusive.iter().zip(&inclusive) {
        for (one, other) in exclusive.cells.iter().zip(&inclusive.cells) {
            let hits = [one, other].map(|cell| cell.of(Online::Default));
            let shown = hits.map(|hits| format!("{:.1}", 100.0 * hits));
            let line = [vec![exclusive.name.clone(), format!("{} %", one.percent)], shown.into()];
            print(&table.line(&line.concat()));
            let system = "default, not exclusive";
            figure(report, EXCLUSIVE, &inclusive.name, other.percent, system, hits[1]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Of the blocks that a real page cache has dropped, the default keeps nearly as useful ones as
    /// the best policy, and none keeps better ones than the optimum.
    #[test]
    fn an_exclusive_cache_is_never_far_from_the_best() {
        let (traces, mut wrong) = (recorded::with_drops().unwrap(), Vec::new());
        for trace in &traces {
            let found = Found::new(&trace.name, &trace.replay(), &SIZES, Keeps::Dropped).unwrap();
            for cell in &found.cells {
                let kept = cell.kept(cell.of(Online::Default)).filter(|kept| *kept < KEEP);
                wrong
                    .extend(kept.map(|kept| format!("{}, {} %: {kept}", found.name, cell.percent)));
                assert!(cell.online.iter().all(|&hits| hits <= cell.optimum + 1e-9), "{cell:?}");
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    fn all() -> Vec<Found> {
        let traces = [synth::all(Scale::QUICK), recorded::all().unwrap()].concat();
        let found =
            |trace: &Trace| Found::new(&trace.name, &trace.replay(), &SIZES, Keeps::Requests);
        each(&traces, found).unwrap()
    }

    /// Where the default falls short, and the share that it reaches there. The best of the other
    /// policies hits 1.2 and 6.0 % of all reads of this trace in caches of these sizes.
    const KNOWN: [(&str, u32, f64); 2] = [("mixed-cached", 1, 0.3), ("mixed-cached", 5, 0.55)];

    /// Compares the default to every other policy on each trace at each size, and checks the cost
    /// of segments.
    #[test]
    fn the_default_is_never_far_from_the_best() {
        let (mut compared, mut wrong, mut shares) = (0, Vec::new(), Vec::new());
        for found in all() {
            for cell in &found.cells {
                let blocks = cell.of(Online::Default);
                let Some(kept) = cell.kept(blocks) else { continue };
                compared += 1;
                let known = KNOWN
                    .iter()
                    .find(|(name, size, _)| (*name, *size) == (found.name.as_str(), cell.percent));
                if kept < known.map_or(KEEP, |(_, _, least)| *least) {
                    wrong.push(format!("{}, {} %: {kept:.3}", found.name, cell.percent));
                }
                assert!(cell.online.iter().all(|&hits| hits <= cell.optimum + 1e-9), "{cell:?}");
                shares.extend((blocks >= WORTH).then(|| cell.segments[USUAL].0 / blocks));
            }
        }
        assert!(compared > 80, "{compared}");
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(median(&shares) >= 0.9, "{}", median(&shares));
    }
}
