//! The error matrix: a drive of a real daemon fails in every way, at every operation, during every
//! command. Each request and each command has to end within a time limit, with an error or success.
//! When the drive works again the volume has to go on or report why not, with all acknowledged
//! data.
//!
//! By default a subset that covers each pair of (failure, operation, command); `ZTIER_MATRIX=all`
//! runs everything, and `ZTIER_MATRIX=TEXT` the cases with that text in their names.
#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![cfg(feature = "fuse")]

use crate::support::matrix::{BOUND, Case, DURINGS, FAILURES, SPOTS, run};
use parking_lot::Mutex;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of concurrent cases; they wait for most of their time.
const BESIDE: usize = 8;

fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (f, failure) in FAILURES.into_iter().enumerate() {
        for (s, spot) in SPOTS.into_iter().enumerate() {
            for (d, during) in DURINGS.into_iter().enumerate() {
                let writeback = (f + s + d) % 2 == 0;
                cases.push(Case { failure, spot, during, writeback });
            }
        }
    }
    cases
}

/// A subset that covers every pair of values.
fn pairs() -> Vec<Case> {
    let cases = all();
    let of = |case: &Case| {
        let d = DURINGS.iter().position(|during| *during == case.during).unwrap();
        let s = SPOTS.iter().position(|spot| *spot == case.spot).unwrap();
        let f = FAILURES.iter().position(|failure| *failure == case.failure).unwrap();
        (f, s, d)
    };
    // A Latin square of the shorter two dimensions, along the longest.
    let chosen = |case: &&Case| {
        let (f, s, d) = of(case);
        (s + d) % FAILURES.len() == f
    };
    cases.iter().filter(chosen).copied().collect()
}

#[test]
fn every_pair_of_values_is_in_the_subset() {
    let some = pairs();
    assert!(some.len() <= 60, "{}", some.len());
    for failure in FAILURES {
        assert!(SPOTS.iter().all(|s| some.iter().any(|c| c.failure == failure && c.spot == *s)));
        let with = |d| some.iter().any(|c| c.failure == failure && c.during == d);
        assert!(DURINGS.into_iter().all(with));
    }
    for spot in SPOTS {
        assert!(DURINGS.iter().all(|d| some.iter().any(|c| c.spot == spot && c.during == *d)));
    }
}

#[test]
fn a_failing_drive_hangs_nothing_and_loses_nothing() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("skipped: no /dev/fuse, or not root");
        return;
    }
    let cases = match std::env::var("ZTIER_MATRIX") {
        Err(_) => pairs(),
        Ok(part) if part == "all" => all(),
        Ok(part) => all().into_iter().filter(|case| case.to_string().contains(&part)).collect(),
    };
    let (began, count) = (Instant::now(), cases.len());
    let queue = Mutex::new(cases);
    let faults = Mutex::new(Vec::new());
    let longest = Mutex::new((Duration::ZERO, Duration::ZERO));
    std::thread::scope(|scope| {
        for _ in 0..BESIDE {
            scope.spawn(|| {
                while let Some(case) = { queue.lock().pop() } {
                    let found = run(case);
                    let mut longest = longest.lock();
                    longest.0 = longest.0.max(found.longest_request);
                    longest.1 = longest.1.max(found.longest_command);
                    drop(longest);
                    println!(
                        "{case}: {:?}, struck {}, request {:.1?}, command {:.1?} {}",
                        found.status,
                        found.struck,
                        found.longest_request,
                        found.longest_command,
                        found.text.trim_end()
                    );
                    faults.lock().extend(found.faults.into_iter().map(|f| format!("{case}: {f}")));
                }
            });
        }
    });
    let (faults, longest) = (faults.into_inner(), longest.into_inner());
    println!(
        "{count} cases in {:.0?}; longest request {:.1?}, command {:.1?} (bound {BOUND:?}); {} faults",
        began.elapsed(),
        longest.0,
        longest.1,
        faults.len()
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
