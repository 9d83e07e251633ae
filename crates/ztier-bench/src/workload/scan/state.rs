//! Rows, a table, notes and ratios of the results.
//!
//! Invariant: the first run of a system counts only in its own row, unless there is no other run.

use super::limit::Limit;
use super::measure::{Measured, Shape};
use super::system::Slow;
use super::{Plan, Runs, System, cluster_here, load};
use crate::report::{Report, Row, Table, Target as Goal, median, print};
use ztier::error::Result;
use ztier::stats::Latency;

const MIB: f64 = (1 << 20) as f64;

/// A figure of a run: its name, its unit, and its getter.
type Figure = (&'static str, &'static str, fn(&Measured) -> Option<f64>);

const FIGURES: [Figure; 21] = [
    ("elapsed", "s", |m| Some(m.outcome.elapsed_s)),
    ("filling", "s", |m| Some(m.outcome.fill_s)),
    ("a pass", "s", |m| pass(m)),
    ("user time of the load", "s", |m| Some(m.outcome.user_s)),
    ("system time of the load", "s", |m| Some(m.outcome.system_s)),
    ("CPU use of the load", "%", |m| Some(cpu_percent(m))),
    ("ready without a CPU", "s", |m| m.outcome.queued_s),
    ("waiting for pages", "s", |m| waiting(m)),
    ("a fault that waited", "us", |m| Some(1e6 * waiting(m)? / faults(m)?)),
    ("a fault with I/O, median", "us", |m| fault(m, |took| took.p50_ns)),
    ("a fault with I/O, 99 of 100", "us", |m| fault(m, |took| took.p99_ns)),
    ("CPU time of the serving process", "s", |m| Some(m.serving?.as_secs_f64())),
    ("swap in use, least", "MiB", |m| Some(m.range?.least / MIB)),
    ("swap in use, mean", "MiB", |m| Some(m.range?.mean / MIB)),
    ("swap in use, most", "MiB", |m| Some(m.range?.most / MIB)),
    ("memory of compressed pages, most", "MiB", |m| Some(m.store? as f64 / MIB)),
    ("memory of load and compressed pages, most", "MiB", |m| Some(all_memory(m)? / MIB)),
    ("swapped out", "MiB", |m| Some(m.bytes_out as f64 / MIB)),
    ("swapped in", "MiB", |m| Some(m.bytes_in as f64 / MIB)),
    ("written to a disk", "MiB", |m| Some(m.written as f64 / MIB)),
    ("asked of ztier to write", "MiB", |m| Some(m.counters?.asked as f64 / MIB)),
];

/// The median time of the passes.
fn pass(m: &Measured) -> Option<f64> {
    let passes = &m.outcome.passes_s;
    (!passes.is_empty()).then(|| median(passes))
}

fn cpu_percent(m: &Measured) -> f64 {
    100.0 * (m.outcome.user_s + m.outcome.system_s) / m.outcome.elapsed_s.max(1e-9)
}

/// The time in which the load neither ran nor queued for a CPU.
fn waiting(m: &Measured) -> Option<f64> {
    let busy = m.outcome.running_s? + m.outcome.queued_s?;
    Some((m.outcome.elapsed_s - busy).max(0.0))
}

fn faults(m: &Measured) -> Option<f64> {
    (m.outcome.major_faults > 0).then_some(m.outcome.major_faults as f64)
}

/// Microseconds that a fault took, as the load saw it.
fn fault(m: &Measured, ns: fn(&Latency) -> u64) -> Option<f64> {
    let took = &m.outcome.faults;
    (took.count > 0).then(|| ns(took) as f64 / 1e3)
}

fn all_memory(m: &Measured) -> Option<f64> {
    Some((m.peak? + m.store?) as f64)
}

/// Reports the conditions common to all systems.
///
/// # Errors
/// No memory; no group with a limit can be made here.
pub fn conditions(report: &mut Report, plan: &Plan) -> Result<()> {
    report.note("scan", "load", plan.shape.about());
    if let Some(mib) = plan.shape.limit_mib {
        report.note("scan", "limit", Limit::new(mib << 20)?.about());
    }
    report.note("scan", "data", load::data()?);
    let (clusters, own) = (&plan.clusters, cluster_here());
    let text = format!("{clusters:?}, the same for all systems; it was {own} on this machine");
    report.note("scan", "vm.page-cluster", text);
    Ok(())
}

impl Runs {
    /// The runs that count: without the first, if there are more.
    fn counted(&self) -> &[Measured] {
        match &self.found[..] {
            [_, rest @ ..] if !rest.is_empty() => rest,
            all => all,
        }
    }

    fn figure(&self, figure: fn(&Measured) -> Option<f64>) -> Vec<f64> {
        self.counted().iter().filter_map(figure).collect()
    }

    /// The median of a figure; NaN without runs.
    fn middle(&self, figure: fn(&Measured) -> Option<f64>) -> f64 {
        median(&self.figure(figure))
    }
}

/// Rows of each figure, and a table of the most important ones.
pub fn table(report: &mut Report, section: &str, shape: &Shape, all: &[Runs]) {
    let case = |what: &str| format!("{what}, {}", shape.about());
    let table = Table::new(&[
        ("system", 26),
        ("first s", 8),
        ("elapsed s", 9),
        ("user s", 7),
        ("sys s", 7),
        ("CPU %", 5),
        ("serving s", 9),
        ("swap MiB", 11),
        ("memory MiB", 10),
        ("disk MiB", 8),
    ]);
    print(&format!("\n{section}: {}", shape.about()));
    print(&table.head());
    for runs in all.iter().filter(|runs| !runs.found.is_empty()) {
        print(&table.line(&cells(runs)));
        let mut row = |what: &str, unit, values: Vec<f64>, cpu: Option<(f64, f64)>| {
            if !values.is_empty() {
                report.silent_row(Row {
                    section: section.into(),
                    system: runs.system.name().into(),
                    case: case(what),
                    unit,
                    runs: values,
                    cpu_own_percent: cpu.map(|cpu| cpu.0),
                    cpu_machine_percent: cpu.map(|cpu| cpu.1),
                    ..Row::default()
                });
            }
        };
        let first = runs.found[0].outcome.elapsed_s;
        row("elapsed, first run", "s", vec![first], None);
        for (i, (what, unit, figure)) in FIGURES.into_iter().enumerate() {
            let own = runs.middle(|m| Some(cpu_percent(m)));
            let cpu = (own, runs.middle(|m| Some(m.machine_percent)));
            row(what, unit, runs.figure(figure), (i == 0).then_some(cpu));
        }
        if let Some(last) = runs.found.last() {
            let used = last.samples.iter().map(|sample| sample.swap as f64 / MIB).collect();
            let each = shape.look.as_millis();
            row(&format!("swap in use each {each} ms, last run"), "MiB", used, None);
        }
    }
    for runs in all.iter().filter(|runs| !runs.found.is_empty()) {
        if let Some(text) = account(runs) {
            report.note(section, runs.system.name(), text);
        }
    }
}

fn cells(runs: &Runs) -> Vec<String> {
    let number = |value: f64, digits: usize| match value.is_finite() {
        true => format!("{value:.digits$}"),
        false => "–".to_owned(),
    };
    let figure = |figure, digits| number(runs.middle(figure), digits);
    let swap = format!(
        "{}…{}",
        figure(|m| Some(m.range?.least / MIB), 0),
        figure(|m| Some(m.range?.most / MIB), 0)
    );
    vec![
        runs.system.name().into(),
        number(runs.found[0].outcome.elapsed_s, 2),
        figure(|m| Some(m.outcome.elapsed_s), 2),
        figure(|m| Some(m.outcome.user_s), 2),
        figure(|m| Some(m.outcome.system_s), 2),
        figure(|m| Some(cpu_percent(m)), 0),
        figure(|m| Some(m.serving?.as_secs_f64()), 2),
        swap,
        figure(|m| Some(m.store? as f64 / MIB), 1),
        figure(|m| Some(m.written as f64 / MIB), 0),
    ]
}

/// The distribution of a run's time: the source's question.
fn account(runs: &Runs) -> Option<String> {
    let of = |figure: fn(&Measured) -> Option<f64>| {
        let value = runs.middle(figure);
        value.is_finite().then_some(value)
    };
    let elapsed = of(|m| Some(m.outcome.elapsed_s))?;
    let share = |value: f64| format!("{:.0} %", 100.0 * value / elapsed);
    let (user, system) = (of(|m| Some(m.outcome.user_s))?, of(|m| Some(m.outcome.system_s))?);
    let mut text = format!(
        "CPU use of the load {} (user {}, system {})",
        share(user + system),
        share(user),
        share(system)
    );
    if let (Some(queued), Some(waited)) = (of(|m| m.outcome.queued_s), of(waiting)) {
        text += &format!(", ready without a CPU {}, waiting {}", share(queued), share(waited));
        let each = of(|m| Some(1e6 * waiting(m)? / faults(m)?));
        if let (Some(faults), Some(each)) = (of(faults), each) {
            text += &format!(" in {faults:.0} faults of {each:.0} us each");
        }
    }
    if let (Some(half), Some(most)) =
        (of(|m| fault(m, |took| took.p50_ns)), of(|m| fault(m, |took| took.p99_ns)))
    {
        text += &format!(" (to the load: half take {half:.0} us, 99 of 100 {most:.0})");
    }
    if let Some(serving) = of(|m| Some(m.serving?.as_secs_f64())) {
        text += &format!("; the process that serves the pages {}", share(serving));
    }
    let machine = of(|m| Some(m.machine_percent))?;
    Some(text + &format!("; all of the machine {machine:.0} % of one CPU"))
}

fn runs_of(all: &[Runs], system: System) -> Option<&Runs> {
    all.iter().find(|runs| runs.system == system && !runs.found.is_empty())
}

/// ztier relative to each rival. Targets count at the first page-cluster, which has no suffix.
pub fn ratios(report: &mut Report, suffix: &str, all: &[Runs]) {
    let mut ratio = |name: &str, value: f64, goal: Goal| {
        let goal = if suffix.is_empty() { goal } else { Goal::None };
        report.ratio(&format!("{name}{suffix}"), value, goal);
    };
    // The full time of a run that was cut is unknown.
    let elapsed = |runs: &Runs| match runs.counted().iter().any(|m| m.outcome.cut) {
        true => f64::NAN,
        false => runs.middle(|m| Some(m.outcome.elapsed_s)),
    };
    if let Some(ours) = runs_of(all, System::Ztier) {
        let zram = if ours.found[0].ublk { 1.0 } else { 0.95 };
        if let Some(zram) = runs_of(all, System::ZramLz4) {
            let value = ours.middle(all_memory) / zram.middle(all_memory);
            ratio("memory_vs_kernel_zram", value, Goal::AtMost(1.08));
        }
        for (system, name, goal) in [
            // A virtual disk as quick as memory is no disk: the modelled drives have targets.
            (System::Disk, "vs_disk_swap", Goal::None),
            (System::ZramLz4, "vs_kernel_zram", Goal::AtLeast(zram)),
            (System::Zram, "vs_kernel_zram_default", Goal::None),
            (System::Zswap, "vs_zswap", Goal::None),
        ] {
            if let Some(rival) = runs_of(all, system) {
                ratio(name, elapsed(rival) / elapsed(ours), goal);
            }
        }
        // Counted since the volume came up; the last run has the final value.
        let last = ours.found.last().and_then(|m| m.counters).filter(|c| c.reads > 0);
        if let Some(counters) = last {
            let value = counters.read_p99_ns / counters.read_p50_ns;
            ratio("swap_in_p99_vs_median", value, Goal::AtMost(3.0));
        }
    }
    let Some(spill) = runs_of(all, System::Spill) else { return };
    let written = |runs: &Runs| runs.middle(|m| Some(m.written as f64));
    if let Some(disk) = runs_of(all, System::Disk) {
        ratio("spill_vs_disk_swap", elapsed(disk) / elapsed(spill), Goal::None);
        // Half of what disk swap writes: the pages that are spilled, one by one and uncompressed.
        let value = written(spill) / (written(disk) / 2.0);
        ratio("spill_bytes_vs_uncompressed", value, Goal::AtMost(0.45));
    }
    if let Some(zswap) = runs_of(all, System::Zswap) {
        // A pool that holds everything is a different system.
        let counts = written(zswap) > 0.0;
        let goal = |most| if counts { Goal::AtMost(most) } else { Goal::None };
        ratio("spill_vs_zswap", elapsed(spill) / elapsed(zswap), goal(1.0));
        if counts {
            ratio("spill_bytes_vs_zswap", written(spill) / written(zswap), goal(0.5));
        }
    }
}

/// ztier at the first setting relative to the kernel's zram at its better setting.
pub fn at_its_best(report: &mut Report, first: &[Runs], other: &[Runs]) {
    let elapsed = |runs: &Runs| runs.middle(|m| Some(m.outcome.elapsed_s));
    let zram = |all: &[Runs]| runs_of(all, System::ZramLz4).map(elapsed);
    if let (Some(ours), Some(one), Some(two)) =
        (runs_of(first, System::Ztier), zram(first), zram(other))
    {
        report.ratio("vs_kernel_zram_at_its_best", one.min(two) / elapsed(ours), Goal::None);
    }
}

/// The time of a pass, or of the unfinished first one: a lower bound.
fn pass_at_least(m: &Measured) -> Option<f64> {
    pass(m).or(m.outcome.cut.then_some(m.outcome.elapsed_s - m.outcome.fill_s))
}

/// ztier relative to each modelled drive: by passes, since the drive's run may be stopped before
/// its last pass. If it is stopped before the end of the first, the ratio is a lower bound.
pub fn modelled(report: &mut Report, all: &[Runs]) {
    for slow in Slow::ALL {
        let Some(disk) = runs_of(all, System::ModelledDisk(slow)) else { continue };
        let mut ratio = |name, system, goal| {
            if let Some(ours) = runs_of(all, system) {
                let value = disk.middle(pass_at_least) / ours.middle(pass);
                report.ratio(&format!("{name}{}", slow.suffix()), value, goal);
            }
        };
        let all = if slow == Slow::Hdd { Goal::AtLeast(10.0) } else { Goal::None };
        ratio("vs_modelled_disk", System::Ztier, all);
        ratio("spill_vs_modelled_disk", System::ModelledSpill(slow), Goal::AtLeast(3.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::scan::load::Outcome;
    use crate::workload::scan::system::Counters;
    use std::time::Duration;

    fn measured(elapsed_s: f64, written: u64, ublk: bool) -> Measured {
        Measured {
            outcome: Outcome {
                elapsed_s,
                user_s: elapsed_s / 10.0,
                system_s: elapsed_s / 5.0,
                running_s: Some(elapsed_s * 0.3),
                queued_s: Some(elapsed_s * 0.1),
                major_faults: 1000,
                passes_s: vec![elapsed_s / 2.0, elapsed_s / 2.0],
                ..Outcome::default()
            },
            machine_percent: 120.0,
            serving: Some(Duration::from_secs_f64(elapsed_s / 4.0)),
            peak: Some(100 << 20),
            store: Some(20 << 20),
            range: None,
            samples: Vec::new(),
            bytes_in: 0,
            bytes_out: 0,
            written,
            ublk,
            counters: Some(Counters {
                reads: 10,
                read_p50_ns: 5.0,
                read_p99_ns: 20.0,
                ..Counters::default()
            }),
        }
    }

    fn runs(system: System, elapsed: &[f64], written: u64, ublk: bool) -> Runs {
        let found = elapsed.iter().map(|&elapsed| measured(elapsed, written, ublk)).collect();
        Runs { system, found }
    }

    fn ratios_of(all: &[Runs], suffix: &str) -> serde_json::Value {
        let mut report = Report::new("scan");
        ratios(&mut report, suffix, all);
        modelled(&mut report, all);
        serde_json::from_str(&report.json().unwrap_or_default()).unwrap_or_default()
    }

    #[test]
    fn the_first_run_counts_only_where_there_is_no_other() {
        let several = runs(System::Ztier, &[9.0, 2.0, 4.0], 0, false);
        assert!((several.middle(|m| Some(m.outcome.elapsed_s)) - 3.0).abs() < 1e-9);
        let one = runs(System::Ztier, &[9.0], 0, false);
        assert!((one.middle(|m| Some(m.outcome.elapsed_s)) - 9.0).abs() < 1e-9);
        assert!(runs(System::Ztier, &[], 0, false).middle(pass).is_nan());
    }

    #[test]
    fn ratios_say_how_many_times_as_fast_ours_is() {
        let all = |ublk| {
            let mut zram = runs(System::ZramLz4, &[9.0, 3.0], 0, false);
            zram.found.iter_mut().for_each(|m| m.store = Some(0));
            [
                runs(System::Ztier, &[9.0, 2.0], 0, ublk),
                zram,
                runs(System::Disk, &[9.0, 8.0], 1000, false),
                runs(System::Zswap, &[9.0, 5.0], 400, false),
                runs(System::Spill, &[9.0, 4.0], 200, ublk),
                runs(System::ModelledDisk(Slow::Hdd), &[60.0], 0, false),
                runs(System::ModelledSpill(Slow::Hdd), &[20.0], 0, false),
            ]
        };
        let json = ratios_of(&all(false), "");
        let expected = serde_json::json!({
            "vs_kernel_zram": 1.5, "vs_disk_swap": 4.0, "vs_zswap": 2.5, "vs_modelled_disk": 30.0,
            "spill_vs_modelled_disk": 3.0, "memory_vs_kernel_zram": 1.2,
            "swap_in_p99_vs_median": 4.0, "spill_vs_disk_swap": 2.0, "spill_vs_zswap": 0.8,
            "spill_bytes_vs_uncompressed": 0.4, "spill_bytes_vs_zswap": 0.5,
        });
        assert_eq!(json["ratios"], expected);
        assert_eq!(json["targets"]["vs_kernel_zram"], 0.95);
        assert!(json["targets"].get("vs_disk_swap").is_none());
        let mut kept = all(false);
        kept[3].found.iter_mut().for_each(|m| m.written = 0);
        let kept = ratios_of(&kept, "");
        assert_eq!(kept["ratios"]["spill_vs_zswap"], 0.8);
        assert!(kept["targets"].get("spill_vs_zswap").is_none());
        assert!(kept["ratios"].get("spill_bytes_vs_zswap").is_none());
        let json = ratios_of(&all(true), "");
        assert_eq!(json["targets"]["vs_kernel_zram"], 1.0);
        assert_eq!(json["targets"]["spill_bytes_vs_zswap"], 0.5);
        let json = ratios_of(&all(true), "_page_cluster_0");
        assert_eq!(json["ratios"]["vs_disk_swap_page_cluster_0"], 4.0);
        assert_eq!(
            json["targets"],
            serde_json::json!({ "vs_modelled_disk": 10.0, "spill_vs_modelled_disk": 3.0 })
        );
    }

    #[test]
    fn a_disk_that_was_stopped_in_its_first_pass_counts_with_what_it_took() {
        let mut disk = runs(System::ModelledDisk(Slow::Hdd), &[60.0], 0, false);
        let outcome = &mut disk.found[0].outcome;
        (outcome.passes_s, outcome.fill_s, outcome.cut) = (Vec::new(), 20.0, true);
        let json = ratios_of(&[runs(System::Ztier, &[2.0], 0, false), disk], "");
        assert_eq!(json["ratios"]["vs_modelled_disk"], 40.0);
    }

    #[test]
    fn each_modelled_drive_has_its_ratios() {
        let all = [
            runs(System::Ztier, &[2.0], 0, false),
            runs(System::ModelledDisk(Slow::Emmc), &[10.0], 0, false),
            runs(System::ModelledSpill(Slow::Emmc), &[5.0], 0, false),
            runs(System::ModelledDisk(Slow::Sd), &[40.0], 0, false),
            runs(System::ModelledSpill(Slow::Sd), &[8.0], 0, false),
        ];
        let json = ratios_of(&all, "");
        let expected = serde_json::json!({
            "swap_in_p99_vs_median": 4.0,
            "vs_modelled_disk_emmc_5_1": 5.0, "spill_vs_modelled_disk_emmc_5_1": 2.0,
            "vs_modelled_disk_sd_a1": 20.0, "spill_vs_modelled_disk_sd_a1": 5.0,
        });
        assert_eq!(json["ratios"], expected);
        let targets = serde_json::json!({
            "swap_in_p99_vs_median": 3.0,
            "spill_vs_modelled_disk_emmc_5_1": 3.0, "spill_vs_modelled_disk_sd_a1": 3.0,
        });
        assert_eq!(json["targets"], targets);
    }

    #[test]
    fn a_rival_at_its_best_is_the_faster_of_two() {
        let at = |ours, zram| {
            [runs(System::Ztier, &[ours], 0, false), runs(System::ZramLz4, &[zram], 0, false)]
        };
        let mut report = Report::new("scan");
        at_its_best(&mut report, &at(2.0, 4.0), &at(9.0, 3.0));
        let json: serde_json::Value =
            serde_json::from_str(&report.json().unwrap_or_default()).unwrap_or_default();
        assert_eq!(json["ratios"], serde_json::json!({ "vs_kernel_zram_at_its_best": 1.5 }));
    }

    #[test]
    fn a_run_that_was_cut_makes_no_ratio() {
        let mut all = [runs(System::Ztier, &[2.0], 0, false), runs(System::Disk, &[3.0], 0, false)];
        all[0].found[0].outcome.cut = true;
        assert!(ratios_of(&all, "")["ratios"].get("vs_disk_swap").is_none());
    }

    #[test]
    fn rivals_that_are_missing_make_no_ratio() {
        let all = [runs(System::Ztier, &[2.0], 0, false), runs(System::Disk, &[], 0, false)];
        let json = ratios_of(&all, "");
        assert_eq!(json["ratios"], serde_json::json!({ "swap_in_p99_vs_median": 4.0 }));
    }

    #[test]
    fn the_time_of_a_run_is_accounted_for() {
        let text = account(&runs(System::Ztier, &[10.0], 0, false)).unwrap_or_default();
        assert_eq!(
            text,
            "CPU use of the load 30 % (user 10 %, system 20 %), ready without a CPU 10 %, waiting \
             60 % in 1000 faults of 6000 us each; the process that serves the pages 25 %; all of \
             the machine 120 % of one CPU"
        );
    }
}
