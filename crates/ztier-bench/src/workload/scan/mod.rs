//! The linux-mm `scan` benchmark: repeated scans of memory that does not fit, with each system as
//! the swap space in turn.
//!
//! Invariants: rivals take turns in each round, under the same settings; the first run of each is
//! reported separately, as in the source; a wrong page ends the system's runs and fails the table.

pub mod load;

pub mod limit;
mod measure;
mod state;
pub mod swap;
mod system;
mod watch;

pub use system::{Place, System};

use crate::report::{Report, say, warn};
use crate::sys::interrupt;
use crate::sys::knob::{Knob, read};
use measure::{Measured, Shape};
use std::path::Path;
use std::time::Duration;
use system::{Contender, More};
use ztier::error::Result;

const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
/// The default of `ztier swapon`.
const CLUSTER: u32 = 5;
/// Runs of each system with any further setting.
const FEW: u32 = 2;
/// Limit on the time of one load, in a quick run and in a full one.
const TIME: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(300)];
/// The same on the modelled drives, which are slow in real time.
const MODELLED_TIME: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(240)];

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Whether to end within a minute.
    pub quick: bool,
    /// Whether to run in a virtual machine as small as the source's.
    pub inside: bool,
    /// `--mib`.
    pub mib: Option<u64>,
    /// `--passes`.
    pub passes: Option<u32>,
    /// `--runs`.
    pub runs: Option<u32>,
    /// `--limit`, in MiB; 0 for none.
    pub limit: Option<u64>,
    /// `--page-cluster`.
    pub clusters: Vec<u32>,
    /// `--zswap-percent`.
    pub zswap_percent: Option<u32>,
    /// `--only`.
    pub systems: Vec<System>,
}

/// The measurements of a table.
#[derive(Clone, Debug)]
struct Plan {
    shape: Shape,
    /// The load for the modelled drives.
    small: Shape,
    runs: u32,
    clusters: Vec<u32>,
    systems: Vec<System>,
}

/// All runs of one system.
struct Runs {
    system: System,
    /// In order; the first run is separate from the others.
    found: Vec<Measured>,
}

impl Choice {
    fn plan(&self) -> Plan {
        let pick = |quick: u64, full: u64| if self.quick { quick } else { full };
        // In the source's memory there is less room beside the compressed and locked memory.
        let mib = self.mib.unwrap_or(if self.inside { pick(96, 256) } else { pick(96, 480) });
        // The share that the source's machine had for the load, without its system's memory.
        let in_proportion = |mib: u64| (mib * 5 / 8).max(8);
        let limit = match self.limit {
            None => Some(in_proportion(mib)),
            Some(0) => None,
            Some(mib) => Some(mib),
        };
        let passes = self.passes.unwrap_or(if self.quick { 2 } else { 10 });
        let speed = usize::from(!self.quick || self.inside);
        let modelled = if self.quick { 64 } else { 480 };
        // A look reads some thirty files of /proc, which takes milliseconds of an emulated CPU.
        let look = if self.inside { 100 } else { pick(20, 100) };
        let shape = Shape {
            mib,
            passes,
            limit_mib: limit,
            time: TIME[speed],
            look: Duration::from_millis(look),
        };
        // Large enough that neither a drive's cache nor its readahead holds all swapped pages.
        let small = Shape {
            mib: mib.min(modelled),
            passes: passes.min(if self.quick { 1 } else { 2 }),
            limit_mib: Some(in_proportion(mib.min(modelled))),
            time: MODELLED_TIME[speed],
            ..shape
        };
        let mut systems = self.systems.clone();
        if systems.is_empty() {
            let all = <System as clap::ValueEnum>::value_variants().iter().copied();
            systems = all.filter(|system| system.is_default(self.quick)).collect();
        }
        let clusters = match &self.clusters[..] {
            [] if self.quick || self.inside => vec![CLUSTER],
            [] => vec![CLUSTER, 0],
            given => given.to_vec(),
        };
        let few = if self.inside { 2 } else { 3 };
        let runs = self.runs.unwrap_or(if self.quick { few } else { 5 });
        Plan { shape, small, runs, clusters, systems }
    }
}

/// Runs the table; returns the systems that failed, with errors.
///
/// # Errors
/// The run is interrupted; the settings cannot be changed.
pub fn run(report: &mut Report, choice: &Choice, place: &Place) -> Result<Vec<String>> {
    let plan = choice.plan();
    let mut failed = Vec::new();
    state::conditions(report, &plan)?;
    let (modelled, others): (Vec<_>, Vec<_>) =
        plan.systems.iter().copied().partition(|s| s.is_modelled());
    let mut first = Vec::new();
    for (i, &cluster) in plan.clusters.iter().enumerate() {
        // Disks need the same readahead as ztier; a few runs show the other effects of a setting.
        let in_memory = |system: &System| i == 0 || system.stays_in_memory();
        let systems: Vec<System> = others.iter().copied().filter(in_memory).collect();
        if systems.is_empty() {
            break;
        }
        let rounds = if i == 0 { plan.runs } else { plan.runs.min(FEW) };
        let _cluster = Knob::set(PAGE_CLUSTER, &cluster.to_string())?;
        let section = format!("scan, page-cluster {cluster}");
        let suffix = if i == 0 { String::new() } else { format!("_page_cluster_{cluster}") };
        let mut turns = Turns {
            report,
            section: &section,
            place,
            zswap_percent: choice.zswap_percent,
            failed: &mut failed,
        };
        let runs = turns.all(&systems, &plan.shape, rounds)?;
        state::table(report, &section, &plan.shape, &runs);
        state::ratios(report, &suffix, &runs);
        match i {
            0 => first = runs,
            _ => state::at_its_best(report, &first, &runs),
        }
    }
    if !modelled.is_empty() {
        let _cluster = Knob::set(PAGE_CLUSTER, &plan.clusters[0].to_string())?;
        let section = format!("modelled, page-cluster {}", plan.clusters[0]);
        let mut turns = Turns {
            report,
            section: &section,
            place,
            zswap_percent: choice.zswap_percent,
            failed: &mut failed,
        };
        let systems = [&[System::Ztier], &modelled[..]].concat();
        let runs = turns.all(&systems, &plan.small, 1)?;
        state::table(report, &section, &plan.small, &runs);
        state::modelled(report, &runs);
    }
    Ok(failed)
}

/// Systems that take turns.
struct Turns<'a> {
    report: &'a mut Report,
    section: &'a str,
    place: &'a Place,
    zswap_percent: Option<u32>,
    failed: &'a mut Vec<String>,
}

impl Turns<'_> {
    /// Runs `rounds` rounds; a system that fails is left out of the next. After its last run a
    /// system goes, because modelled drives are kept in memory.
    fn all(&mut self, systems: &[System], shape: &Shape, rounds: u32) -> Result<Vec<Runs>> {
        let mut all: Vec<Runs> =
            systems.iter().map(|&system| Runs { system, found: Vec::new() }).collect();
        let mut up: Vec<Option<Contender>> = systems.iter().map(|_| None).collect();
        let mut gone = vec![false; systems.len()];
        for round in 0..rounds {
            for i in 0..systems.len() {
                interrupt::check()?;
                if gone[i] {
                    continue;
                }
                let zswap_percent = self.zswap_percent;
                let more = More { limit: half_of_memory(&all), zswap_percent };
                match self.turn(&mut up[i], systems[i], shape, more, round) {
                    Ok(Some(found)) => all[i].found.push(found),
                    Ok(None) => gone[i] = true,
                    Err(e) => {
                        interrupt::check()?;
                        self.report.missing(self.section, systems[i].name(), &e);
                        self.failed.push(systems[i].name().into());
                        gone[i] = true;
                    }
                }
                if gone[i] || round + 1 == rounds {
                    up[i] = None;
                }
            }
        }
        Ok(all)
    }

    /// One run; `None` where the machine lacks the system.
    fn turn(
        &mut self,
        up: &mut Option<Contender>,
        system: System,
        shape: &Shape,
        more: More,
        round: u32,
    ) -> Result<Option<Measured>> {
        if up.is_none() {
            match Contender::up(system, shape.swap_bytes(), self.place, more) {
                Ok(contender) => {
                    self.report.note(self.section, system.name(), contender.about());
                    *up = Some(contender);
                }
                Err(e) => {
                    interrupt::check()?;
                    self.report.missing(self.section, system.name(), e);
                    return Ok(None);
                }
            }
        }
        let Some(contender) = up else { return Ok(None) };
        let found = contender.measure(shape)?;
        let (elapsed, name) = (found.outcome.elapsed_s, system.name());
        say(&format!("{name}, run {}: {elapsed:.2} s", round + 1));
        if found.outcome.cut {
            let ended = found.outcome.passes_s.len();
            warn(&format!("{name} was stopped after {ended} of {} passes", shape.passes));
        }
        Ok(Some(found))
    }
}

/// Half of ztier's maximum memory so far, with everything in memory, or the least that it takes.
fn half_of_memory(all: &[Runs]) -> Option<u64> {
    let ours = all.iter().find(|runs| runs.system == System::Ztier)?;
    let most = ours.found.last()?.counters?.memory_max;
    // For swap of 128 MiB, that of the smallest scan: each thread has buffers.
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 16));
    let least = (12 + 2 * threads as u64) << 20;
    Some((most / 2).max(least))
}

/// The machine's setting of vm.page-cluster.
fn cluster_here() -> String {
    read(Path::new(PAGE_CLUSTER)).unwrap_or_else(|_| "unknown".into())
}
