//! The commands: which cases each runs, and which result it requires.

use crate::case::Case;
use crate::exhaustive;
use crate::fault::Kind;
use crate::program::{Side, WORKLOADS};
use crate::runner::{self, Summary};
use std::ops::Range;

/// Every seed, with `cuts` power cuts each.
pub fn cuts(jobs: usize, seeds: Range<u64>, cuts: u32) -> Summary {
    runner::run("cuts", jobs, seeds.map(|seed| Case::Cuts(seed, cuts)), |_| false)
}

/// Every seed, with `kills` deaths of the process each.
pub fn kills(jobs: usize, seeds: Range<u64>, kills: u32) -> Summary {
    runner::run("kills", jobs, seeds.map(|seed| Case::Kills(seed, kills)), |_| false)
}

/// Every seed, with one lie.
pub fn corruption(jobs: usize, seeds: Range<u64>) -> Summary {
    runner::run("corruption", jobs, seeds.map(Case::Corruption), |_| false)
}

/// Every sequence.
pub fn exhaustive(jobs: usize, length: u32) -> Summary {
    let cases = exhaustive::all(length).map(Case::Exhaustive);
    runner::run("exhaustive", jobs, cases, |_| false)
}

/// Every workload, drive, kind of fault and operation; the workloads without a fault first.
pub fn errors(jobs: usize, only: Option<u32>) -> Summary {
    let workloads = only.map_or(0..WORKLOADS, |number| number..number + 1);
    let mut sum = Summary::default();
    for workload in workloads {
        let whole = match Case::Errors(workload, None).run(None, false) {
            Ok(stats) => stats,
            Err(trouble) => {
                sum.failure = Some((Case::Errors(workload, None), trouble));
                return sum;
            }
        };
        // A fault can make a run longer; the sweep leaves out the additional operations.
        let cases = Side::BOTH.into_iter().zip(whole.operations).flat_map(move |(side, count)| {
            Kind::SWEPT.into_iter().flat_map(move |kind| {
                (0..count).map(move |nth| Case::Errors(workload, Some((side, kind, nth))))
            })
        });
        let found = runner::run(&format!("errors of workload {workload}"), jobs, cases, |_| false);
        sum.cases += found.cases;
        sum.stats.add(&found.stats);
        if found.failure.is_some() {
            sum.failure = found.failure;
            return sum;
        }
    }
    sum
}

#[cfg(not(sim))]
mod planted {
    const WHY: &str =
        "this build has no planted bugs and no marks; build it with --cfg sim (CONTRIBUTING.md)";

    /// Plants a bug by its name.
    pub fn plant(_name: &str) -> Result<(), String> {
        Err(WHY.into())
    }

    /// Every planted bug must be found.
    pub fn bugs(_jobs: usize, _cuts: u64) -> Result<String, String> {
        Err(WHY.into())
    }

    /// Every mark must be passed.
    pub fn marks(_jobs: usize) -> Result<String, String> {
        Err(WHY.into())
    }
}

#[cfg(sim)]
mod planted {
    use super::{Case, Kind, Side, Summary, exhaustive, runner};
    use crate::program::WORKLOADS;
    use crate::world::Stats;
    use std::collections::BTreeSet;
    use std::fs;
    use std::sync::atomic::{AtomicU64, Ordering};
    use ztier::log::planted::{self, BUGS, Bug};

    /// Plants a bug by its name.
    pub fn plant(name: &str) -> Result<(), String> {
        let found = BUGS.into_iter().find(|bug| format!("{bug:?}") == name);
        let names = || BUGS.map(|bug| format!("{bug:?}")).join(", ");
        planted::plant(Some(found.ok_or_else(|| format!("{name:?} is none of {}", names()))?));
        Ok(())
    }

    /// Cases that find bugs, the likeliest first: power cuts, failing writes, lies.
    fn cases() -> impl Iterator<Item = Case> + Send {
        let nth = |n: u64| n * 7 % 160;
        let lasting = [Kind::Worn, Kind::ReadOnly, Kind::Forever];
        let mut short = exhaustive::all(4).map(Case::Exhaustive);
        (0..).flat_map(move |n: u64| {
            let side = Side::BOTH[(n % 2) as usize];
            let kind = Kind::HONEST[(n / 2 % 7) as usize];
            let workload = (n % u64::from(WORKLOADS)) as u32;
            [
                Case::Cuts(n, 20),
                Case::Kills(n, 20),
                Case::Errors(workload, Some((side, kind, nth(n)))),
                Case::Errors(workload, Some((Side::Log, Kind::Once, nth(n) / 2))),
                Case::Errors(workload, Some((Side::Log, lasting[(n % 3) as usize], nth(n)))),
                Case::Errors(workload, Some((Side::Log, Kind::BadPage, nth(n) / 4))),
                Case::Corruption(n),
                short.next().unwrap_or(Case::Corruption(n + (1 << 32))),
            ]
        })
    }

    fn hunt(jobs: usize, bug: Bug, most: u64) -> Summary {
        planted::plant(Some(bug));
        let name = format!("{bug:?}");
        let found = runner::run(&name, jobs, cases(), |stats| stats.cuts >= most);
        planted::plant(None);
        found
    }

    /// Every planted bug must be found; without a planted bug no case may fail.
    pub fn bugs(jobs: usize, most: u64) -> Result<String, String> {
        let sane = runner::run("no bug", jobs, cases(), |stats| stats.cuts >= most);
        if let Some((case, trouble)) = sane.failure {
            return Err(format!("without a planted bug, {case}: {trouble}"));
        }
        let mut missed = Vec::new();
        for bug in BUGS {
            let Summary { stats, failure, .. } = hunt(jobs, bug, most);
            match failure {
                Some((case, trouble)) => {
                    eprintln!("{bug:?}: found after {} cuts by {case}: {trouble}", stats.cuts);
                }
                None => {
                    eprintln!("{bug:?}: NOT found in {} cuts", stats.cuts);
                    missed.push(format!("{bug:?}"));
                }
            }
        }
        if missed.is_empty() {
            Ok(format!("{} planted bugs, all found", BUGS.len()))
        } else {
            Err(format!("not found: {}", missed.join(", ")))
        }
    }

    /// The names of all marks in the sources of the log.
    fn declared() -> Result<BTreeSet<String>, String> {
        let mut names = BTreeSet::new();
        for room in ["core", "disk", "recovery"] {
            let dir = format!("{}/../../src/log/{room}", env!("CARGO_MANIFEST_DIR"));
            let say = |e: std::io::Error| format!("{dir}: {e}");
            for entry in fs::read_dir(&dir).map_err(say)? {
                let text = fs::read_to_string(entry.map_err(say)?.path()).map_err(say)?;
                for (at, _) in text.match_indices("mark(") {
                    let call: String = text[at..].chars().take_while(|c| *c != ')').collect();
                    names.extend(call.split('"').skip(1).step_by(2).map(str::to_string));
                }
            }
        }
        Ok(names)
    }

    /// Limit on the cases in which every mark must be passed.
    const MARKED: usize = 12_000;
    /// Cases between two checks of the marks.
    const LOOK: u64 = 64;

    /// Every mark must be passed. Ends as soon as all are: the rarest may take most of the cases.
    pub fn marks(jobs: usize) -> Result<String, String> {
        let names = declared()?;
        let missed = || {
            let passed = planted::passed();
            names.iter().filter(|name| !passed.contains_key(name.as_str())).cloned().collect()
        };
        let cases = AtomicU64::new(0);
        let all_passed = |stats: &Stats| {
            let look = cases.fetch_add(1, Ordering::Relaxed) % LOOK == 0;
            look && stats.synced > 0 && Vec::is_empty(&missed())
        };
        let found = runner::run("marks", jobs, self::cases().take(MARKED), all_passed);
        if let Some((case, trouble)) = found.failure {
            return Err(format!("{case}: {trouble}"));
        }
        if found.stats.synced == 0 {
            return Err("no change waited until it was durable".into());
        }
        for (name, count) in &planted::passed() {
            eprintln!("{count:>10}  {name}");
        }
        let (missed, all): (Vec<String>, usize) = (missed(), names.len());
        if missed.is_empty() {
            Ok(format!("{all} marks, all passed in {} cases", found.cases))
        } else {
            Err(format!("of {all} marks, not passed: {}", missed.join(", ")))
        }
    }
}

pub use planted::{bugs, marks, plant};
