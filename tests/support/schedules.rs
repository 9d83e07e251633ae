//! Exploring the orders in which threads can run, and the bugs that this must find.
#![allow(clippy::unwrap_used)]

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::fmt::Debug;

/// Orders in which each planted bug must be found, by either way of choosing them.
const ENOUGH: usize = 10_000;

fn explore(test: fn(), scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    // A channel is made on the stack before it is boxed.
    config.stack_size = 1 << 20;
    Runner::new(scheduler, config).run(test);
}

/// Runs each test in many orders (`ZTIER_SCHEDULES`, by default 2000), and each bug, planted by
/// `plant`, in the test that must fail for it. Planting is for the whole process, so nothing may
/// run beside.
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
    let is_missed = |test: fn()| {
        std::panic::catch_unwind(|| {
            explore(test, RandomScheduler::new(ENOUGH));
            explore(test, PctScheduler::new(3, ENOUGH));
        })
        .is_ok()
    };
    let mut missed = Vec::new();
    for (bug, test) in bugs {
        plant(Some(*bug));
        if is_missed(*test) {
            missed.push(*bug);
        }
    }
    plant(None);
    std::panic::set_hook(quiet);
    assert!(missed.is_empty(), "planted and not found: {missed:?}");
}
