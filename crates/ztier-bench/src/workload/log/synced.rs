//! Synced writes: one flush after 1, 8 and 64 blocks, by 1, 4 and 16 writers, on the log and on its
//! drive alone.

use super::own::{Flushed, OwnLog, Synced, small_pools};
use super::{BLOCK, Plan};
use crate::data::Pool;
use crate::model::job::{self, Action, Job};
use crate::report::{Report, Row, Table, Target as Goal, median, print};
use crate::rival::raw::RawDevice;
use crate::workload::SEED;
use std::sync::Arc;
use std::time::Duration;
use ztier::device::Device;
use ztier::error::Result;

const SECTION: &str = "synced";
const WRITERS: [usize; 3] = [1, 4, 16];
const EACH: [u64; 3] = [1, 8, 64];
/// A model keeps all writes in memory; a larger span changes nothing for an SSD.
const NEAR: u64 = 1 << 30;

/// Rounds of one system with one load.
#[derive(Default)]
struct Side {
    blocks: Vec<f64>,
    median: Vec<f64>,
    last: Vec<f64>,
}

impl Side {
    fn push(&mut self, mut reached: Flushed) {
        self.blocks.push(reached.blocks_per_second);
        self.median.push(reached.flushes.quantile_ms(0.5));
        self.last.push(reached.flushes.quantile_ms(0.999));
    }

    fn report(&self, report: &mut Report, system: &str, case: &str) {
        for (what, unit, runs) in [
            ("", "IOPS", &self.blocks),
            (", a flush", "ms", &self.median),
            (", a flush, 99.9 %", "ms", &self.last),
        ] {
            // A model only has the first.
            if runs.is_empty() {
                continue;
            }
            report.silent_row(Row {
                section: SECTION.into(),
                system: system.into(),
                case: format!("{case}{what}"),
                unit,
                runs: runs.clone(),
                ..Row::default()
            });
        }
    }
}

impl Plan<'_> {
    /// Blocks a second of the drive alone if waking threads took no time.
    fn modelled(&self, load: Synced) -> Option<f64> {
        let mut model = self.drives.log.model(NEAR)?;
        let job = Job {
            action: Action::SyncWrite(load.each),
            random: true,
            block: BLOCK,
            depth: load.writers as u64,
            span: load.span,
            warm_up: 1000,
            count: 10_000,
        };
        Some(job::simulate(&mut model, &job, SEED).bytes_per_second / BLOCK as f64)
    }

    /// Rounds of a load on the drive alone and on the log, in turn; and the bytes that the log
    /// wrote for each byte requested.
    fn sides(&self, load: Synced, pools: &mut [Pool]) -> Result<(Side, Side, Vec<f64>)> {
        let (mut raw, mut ours) = (Side::default(), Side::default());
        let mut written = Vec::new();
        for round in 0..self.rounds {
            let drive = self.drives.log.open(NEAR)?.drive;
            let alone: Arc<dyn Device> = Arc::new(RawDevice(drive));
            let span = load.span.min(alone.size());
            raw.push(Synced { span, ..load }.run(&alone, pools, round)?);
            drop(alone);
            let log = OwnLog::new(self.drives, NEAR, self.segment)?;
            ours.push(load.run(&log.device(), pools, round)?);
            written.push(log.amplification());
        }
        Ok((raw, ours, written))
    }

    /// Measures all loads.
    pub(super) fn synced(&self, report: &mut Report) -> Result<()> {
        let most = WRITERS.into_iter().max().unwrap_or(1);
        let mut pools = small_pools(self.data, most)?;
        // With fewer than a thousand flushes the 99.9th percentile would be the maximum.
        let time = self.time.min(Duration::from_secs(6)) / 2;
        report.note(SECTION, "data", &pools[0]);
        let table = Table::new(&[
            ("writers", 7),
            ("writes a flush", 14),
            ("drive alone, IOPS", 17),
            ("(its model)", 11),
            ("ztier, IOPS", 11),
            ("ratio", 7),
            ("target", 8),
            ("drive: flush, 99.9 %, ms", 24),
            ("ztier: flush, 99.9 %, ms", 24),
            ("written", 7),
        ]);
        print(&table.head());
        for each in EACH {
            for writers in WRITERS {
                let load = Synced { writers, each, span: self.span.min(NEAR), time };
                let (raw, ours, written) = self.sides(load, &mut pools)?;
                let case = format!("a flush after {each} writes, {writers} writers");
                raw.report(report, "drive alone", &case);
                let modelled = self.modelled(load);
                if let Some(iops) = modelled {
                    let (blocks, none) = (vec![iops], Side::default());
                    Side { blocks, ..none }.report(report, "drive alone, its model", &case);
                }
                ours.report(report, "ztier, in process", &case);
                let ratio = median(&ours.blocks) / median(&raw.blocks);
                let goal = if (writers, each) == (16, 1) { Goal::AtLeast(2.0) } else { Goal::None };
                let name = match each {
                    1 => format!("sync_write_vs_raw_{writers}"),
                    _ => format!("sync_write_vs_raw_{writers}_flush_after_{each}"),
                };
                report.ratio(&name, ratio, goal);
                let written = median(&written);
                if (writers, each) == (1, 1) {
                    report.ratio("write_amplification_synced", written, Goal::AtMost(2.1));
                }
                let times = |s: &Side| format!("{:.2} {:.2}", median(&s.median), median(&s.last));
                print(&table.line(&[
                    writers.to_string(),
                    each.to_string(),
                    format!("{:.0}", median(&raw.blocks)),
                    modelled.map_or(String::new(), |iops| format!("{iops:.0}")),
                    format!("{:.0}", median(&ours.blocks)),
                    format!("{ratio:.2}"),
                    goal.short(),
                    times(&raw),
                    times(&ours),
                    format!("{written:.2}"),
                ]));
            }
        }
        Ok(())
    }
}
