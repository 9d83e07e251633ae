//! Runs many cases on all processors, and reports the results.
//!
//! Each case is deterministic, and so is the reported one: the first failure, in the order of the
//! cases, before the run stopped. The clock only drives progress lines and a watchdog.

use crate::case::Case;
use crate::trouble::{Trouble, WORKER};
use crate::world::Stats;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A case that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(120);
/// Interval between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// The results of many cases.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cases that have ended.
    pub cases: u64,
    /// Their counters, added up.
    pub stats: Stats,
    /// The first case that failed.
    pub failure: Option<(Case, Trouble)>,
}

/// What the workers share.
struct Shared<I> {
    cases: I,
    taken: usize,
    done: Summary,
    /// Number of the case that failed.
    failed: usize,
    /// The case that each worker runs, and since when.
    busy: Vec<Option<(Case, Instant)>>,
}

/// Runs cases until one fails, none are left, or `enough` says so.
pub fn run(
    what: &str,
    jobs: usize,
    cases: impl Iterator<Item = Case> + Send,
    enough: impl Fn(&Stats) -> bool + Sync,
) -> Summary {
    let busy = vec![None; jobs];
    let done = Summary::default();
    let shared = Mutex::new(Shared { cases, taken: 0, done, failed: usize::MAX, busy });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (shared, stop, enough) = (&shared, &stop, &enough);
        let workers: Vec<_> = (0..jobs)
            .map(|job| {
                let work = move || work(job, shared, stop, enough);
                thread::Builder::new()
                    .name(format!("{WORKER}{job}"))
                    .spawn_scoped(scope, work)
                    .expect("a thread can be started")
            })
            .collect();
        watch(what, shared, || workers.iter().all(|worker| worker.is_finished()));
    });
    shared.into_inner().done
}

fn work<I: Iterator<Item = Case>>(
    job: usize,
    shared: &Mutex<Shared<I>>,
    stop: &AtomicBool,
    enough: &impl Fn(&Stats) -> bool,
) {
    while !stop.load(Ordering::Relaxed) {
        let (number, case) = {
            let mut shared = shared.lock();
            let Some(case) = shared.cases.next() else { return };
            shared.taken += 1;
            shared.busy[job] = Some((case.clone(), Instant::now()));
            (shared.taken, case)
        };
        let result = case.run(None, false);
        let mut shared = shared.lock();
        shared.busy[job] = None;
        shared.done.cases += 1;
        match result {
            Ok(stats) => shared.done.stats.add(&stats),
            Err(trouble) => {
                if number < shared.failed {
                    shared.failed = number;
                    shared.done.failure = Some((case, trouble));
                }
                stop.store(true, Ordering::Relaxed);
            }
        }
        if enough(&shared.done.stats) {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Prints progress until `over`. A case that hangs ends the program, as nothing else can end it.
fn watch<I>(what: &str, shared: &Mutex<Shared<I>>, over: impl Fn() -> bool) {
    let began = Instant::now();
    let mut said = began;
    while !over() {
        thread::sleep(Duration::from_millis(5));
        if said.elapsed() < PROGRESS {
            continue;
        }
        said = Instant::now();
        let shared = shared.lock();
        let Summary { cases, stats, .. } = &shared.done;
        eprintln!("{what}: {cases} cases, {} cuts, {} s", stats.cuts, began.elapsed().as_secs());
        for (case, since) in shared.busy.iter().flatten() {
            if since.elapsed() > LONGEST {
                eprintln!("{what}: {case} hangs");
                std::process::exit(1);
            }
        }
    }
}
