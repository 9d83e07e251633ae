//! Takeovers of a chain of objects, simulated: hosts that die, stand still and come back, and a
//! network that loses, delays and repeats requests. `ztier::object` is the real code.
//!
//! The modules are in the order of a run: the run, its processes, what they share, the oracle, and
//! the store.

mod run;

mod checkpointer;
mod owner;
mod process;

mod oracle;
mod scene;
mod store;

use crate::trouble::{Trouble, WORKER};
use scene::Stats;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Lines of a trace that a failure prints.
const LINES: usize = 40;

/// The results of many runs.
#[derive(Default)]
struct Summary {
    runs: u64,
    stats: Stats,
    /// The lowest seed that failed.
    failure: Option<(u64, Trouble)>,
}

impl Summary {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.stats.add(&other.stats);
        let first = [self.failure.take(), other.failure].into_iter().flatten();
        self.failure = first.min_by_key(|(seed, _)| *seed);
    }
}

/// Runs seeds on `jobs` threads until one fails, and all below it have ended.
fn seeds(jobs: usize, seeds: &Range<u64>) -> Summary {
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let work = || {
        let mut sum = Summary::default();
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let ended = run::run(seed, false);
            sum.runs += 1;
            sum.stats.add(&ended.stats);
            if let Err(trouble) = ended.result {
                stop.store(true, Ordering::Relaxed);
                sum.failure = Some((seed, trouble));
            }
        }
        sum
    };
    let mut all = Summary::default();
    thread::scope(|scope| {
        let spawn = |job| {
            let named = thread::Builder::new().name(format!("{WORKER}{job}"));
            named.spawn_scoped(scope, work).expect("a thread can be started")
        };
        let workers: Vec<_> = (0..jobs).map(spawn).collect();
        for worker in workers {
            all.add(worker.join().expect("a worker catches panics"));
        }
    });
    all
}

/// Every seed; none may fail. Prints what happened before a failure.
///
/// # Errors
/// What is wrong, and how to see it again.
pub fn hunt(jobs: usize, range: Range<u64>, bug: Option<&str>) -> Result<String, String> {
    let Summary { runs, stats, failure } = seeds(jobs, &range);
    let Some((seed, trouble)) = failure else {
        return Ok(format!(
            "{runs} runs, {} takeovers ({} began again), {} windows, {} flushes acknowledged, {} \
             owners fenced, {} deaths, {} lost answers, {} late requests, {} copies, {} \
             checkpoints, {} of which takeovers began with",
            stats.takeovers,
            stats.again,
            stats.windows,
            stats.acknowledged,
            stats.fenced,
            stats.deaths,
            stats.lost,
            stats.late,
            stats.copies,
            stats.checkpoints,
            stats.restored,
        ));
    };
    let trace = run::run(seed, true).trace;
    trace[trace.len().saturating_sub(LINES)..].iter().for_each(|line| eprintln!("  {line}"));
    let bug = bug.map(|bug| format!(" --bug {bug}")).unwrap_or_default();
    Err(format!("{trouble}; again with: ztier-sim chain --runs 1 --from {seed}{bug}"))
}

#[cfg(not(sim))]
mod planted {
    use std::ops::Range;

    const WHY: &str = "this build has no planted bugs; build it with --cfg sim (CONTRIBUTING.md)";

    /// Plants a bug by its name.
    pub fn plant(_name: &str) -> Result<(), String> {
        Err(WHY.into())
    }

    /// Every planted bug must be found.
    pub fn bugs(_jobs: usize, _range: &Range<u64>) -> Result<String, String> {
        Err(WHY.into())
    }
}

#[cfg(sim)]
mod planted {
    use super::seeds;
    use std::ops::Range;
    use ztier::object::planted::{Bug, plant as set};

    const BUGS: [Bug; 21] = [
        Bug::TryNextSlot,
        Bug::DurableWithHole,
        Bug::FenceAboveHole,
        Bug::KeepSession,
        Bug::IgnoreChangedRoot,
        Bug::SessionIsEnough,
        Bug::CommitByPart,
        Bug::ReviveParts,
        Bug::OneAhead,
        Bug::ContinueEarly,
        Bug::FailureIsFree,
        Bug::RootAfterWalk,
        Bug::IgnoreFence,
        Bug::AssumeSwapped,
        Bug::IgnoreBefore,
        Bug::ChangeAnothersRoot,
        Bug::CheckpointAhead,
        Bug::CheckpointOfNone,
        Bug::RemoveFence,
        Bug::CreateReplaces,
        Bug::CutAnswer,
    ];

    /// Plants a bug by its name.
    pub fn plant(name: &str) -> Result<(), String> {
        let found = BUGS.into_iter().find(|bug| format!("{bug:?}") == name);
        let names = || BUGS.map(|bug| format!("{bug:?}")).join(", ");
        set(Some(found.ok_or_else(|| format!("{name:?} is none of {}", names()))?));
        Ok(())
    }

    /// Every planted bug must be found; without a planted bug no run may fail.
    pub fn bugs(jobs: usize, range: &Range<u64>) -> Result<String, String> {
        set(None);
        if let Some((seed, trouble)) = seeds(jobs, range).failure {
            return Err(format!("without a planted bug, seed {seed}: {trouble}"));
        }
        let mut missed = Vec::new();
        for bug in BUGS {
            set(Some(bug));
            let found = seeds(jobs, range);
            set(None);
            if let Some((seed, trouble)) = found.failure {
                let runs = seed - range.start + 1;
                eprintln!("{bug:?}: found in {runs} runs, seed {seed}: {trouble}");
            } else {
                eprintln!("{bug:?}: NOT found in {} runs", found.runs);
                missed.push(format!("{bug:?}"));
            }
        }
        if missed.is_empty() {
            Ok(format!("{} planted bugs, all found", BUGS.len()))
        } else {
            Err(format!("not found: {}", missed.join(", ")))
        }
    }
}

pub use planted::{bugs, plant};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_run() {
        for seed in 0..20 {
            let (one, two) = (run::run(seed, true), run::run(seed, true));
            assert!(!one.trace.is_empty());
            assert_eq!(one.trace, two.trace);
            let without = run::run(seed, false);
            assert_eq!(without.stats, two.stats);
            assert_eq!(without.result, Ok(()));
        }
    }

    #[test]
    fn runs_reach_what_they_are_for() {
        let Summary { stats, failure, .. } = seeds(1, &(0..500));
        assert_eq!(failure, None);
        let Stats { takeovers, again, windows, acknowledged, fenced, .. } = stats;
        let Stats { deaths, lost, late, copies, checkpoints, restored, .. } = stats;
        let counts = [takeovers, again, windows, acknowledged, fenced, deaths, lost, late];
        let counts = counts.into_iter().chain([copies, checkpoints, restored]);
        assert!(counts.into_iter().all(|count| count > 0), "{stats:?}");
    }
}
