//! Explores thread interleavings with shuttle, and requires that each planted bug is found.
//!
//! The crate is empty without `--cfg shuttle` (`scripts/rustc-shuttle`).
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Schedules in which each planted bug must be found, where schedules hold single threads up. The
/// rarest bug takes 4000 schedules in the mean, so one run in hundreds of thousands misses it.
const HELD_UP: usize = 50_000;
/// The same for schedules that are all random; few bugs need these.
const AT_RANDOM: usize = 10_000;

/// Limit on the steps of a schedule; a schedule that ends takes a few thousand.
const STEPS: usize = 100_000;

fn explore(test: impl Fn() + Send + Sync + 'static, scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    // A schedule with more steps never ends: threads wait for each other in a circle.
    config.max_steps = MaxSteps::FailAfter(STEPS);
    // The tests build a channel on the stack before they box it.
    config.stack_size = 1 << 20;
    Runner::new(scheduler, config).run(test);
}

/// Whether no schedule makes `test` fail. Adds the schedules tried to `tried`.
fn is_missed(test: fn(), tried: &Arc<AtomicUsize>) -> bool {
    let counted = || {
        let tried = Arc::clone(tried);
        move || {
            tried.fetch_add(1, Relaxed);
            test();
        }
    };
    std::panic::catch_unwind(|| {
        explore(counted(), PctScheduler::new(3, HELD_UP));
        explore(counted(), RandomScheduler::new(AT_RANDOM));
    })
    .is_ok()
}

/// Runs each test in many schedules (`ZTIER_SCHEDULES`, by default 2000), and each bug, planted by
/// `plant`, in the test that must fail for it. A planted bug holds for the whole process, so no
/// other test may run meanwhile.
pub fn hold_and_find<B: Copy + Debug>(
    tests: &[fn()],
    bugs: &[(B, fn())],
    plant: impl Fn(Option<B>),
) {
    let orders = std::env::var("ZTIER_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    for test in tests {
        explore(*test, RandomScheduler::new(orders));
        explore(*test, PctScheduler::new(3, orders / 2));
    }
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for (bug, test) in bugs {
        plant(Some(*bug));
        let tried = Arc::new(AtomicUsize::new(0));
        if is_missed(*test, &tried) {
            missed.push(*bug);
        }
        println!("{bug:?}: {} orders", tried.load(Relaxed));
    }
    plant(None);
    std::panic::set_hook(quiet);
    assert!(missed.is_empty(), "planted and not found: {missed:?}");
}
