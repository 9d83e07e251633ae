//! Large writes of compressible data: the effect of compressing neighbours together, on the log's
//! drive and on a drive without cost.

use super::drives::{Drives, Source, Spec};
use super::own::{OwnLog, small_pools};
use super::{BLOCK, Plan};
use crate::data::{Kind, Pool, Rng};
use crate::model::Kind as Model;
use crate::report::{Report, Row, Table, median, print, say};
use crate::sys::cpu;
use crate::sys::interrupt;
use crate::workload::SEED;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ztier::device::{Algorithm, Device, LogOptions, Request};
use ztier::error::{Context as _, Error, Result};

const SECTION: &str = "large";
/// Each thread's part of the volume: a model keeps all writes in memory.
const SPAN: u64 = 4 << 30;
const THREADS: usize = 2;
const DATA: [Kind; 2] = [Kind::Ratio(2.0), Kind::Files];

/// Requests of one size, sequential or random.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    bytes: u64,
    random: bool,
}

const LOADS: [Load; 2] = [
    Load { name: "1 MiB, sequential", bytes: 1 << 20, random: false },
    Load { name: "64 KiB, random", bytes: 64 << 10, random: true },
];

/// The results of a load.
#[derive(Default)]
struct Runs {
    mb: Vec<f64>,
    /// Microseconds of CPU time of the process for each block.
    cpu: Vec<f64>,
    written: f64,
    clustered: f64,
}

impl Plan<'_> {
    /// Measures all loads.
    pub(super) fn large(&self, report: &mut Report) -> Result<()> {
        let free = || Source::new(Spec::Model(Model::SsdNull.into()));
        let free = Drives { log: free()?, backing: free()? };
        let table = Table::new(&[
            ("drives", 6),
            ("data", 5),
            ("writes", 17),
            ("algorithm", 9),
            ("MB/s", 6),
            ("CPU, µs/block", 13),
            ("written ÷ asked", 15),
            ("in clusters", 11),
        ]);
        print(&table.head());
        for kind in DATA {
            let mut pools = small_pools(kind, THREADS)?;
            report.note(SECTION, "data", &pools[0]);
            for load in LOADS {
                for (name, drives) in [("slow", self.drives), ("free", &free)] {
                    let mut both = [Runs::default(), Runs::default()];
                    for round in 0..self.rounds {
                        for (runs, algorithm) in
                            both.iter_mut().zip([Algorithm::Lz4, Algorithm::Zstd])
                        {
                            self.run_large(runs, (drives, algorithm), load, &mut pools, round)?;
                        }
                    }
                    for (runs, algorithm) in both.iter().zip(["lz4", "zstd"]) {
                        let cells = [
                            name.into(),
                            kind.to_string(),
                            load.name.into(),
                            algorithm.into(),
                            format!("{:.0}", median(&runs.mb)),
                            format!("{:.2}", median(&runs.cpu)),
                            format!("{:.3}", runs.written),
                            format!("{:.0} %", runs.clustered * 100.0),
                        ];
                        print(&table.line(&cells));
                        report.silent_row(Row {
                            section: SECTION.into(),
                            system: format!("ztier, {algorithm}, {name} drives"),
                            case: format!("{}, {kind}", load.name),
                            unit: "MB/s",
                            runs: runs.mb.clone(),
                            ..Row::default()
                        });
                    }
                }
            }
            say(&format!("{kind} done"));
        }
        Ok(())
    }

    fn run_large(
        &self,
        runs: &mut Runs,
        (drives, algorithm): (&Drives, Algorithm),
        load: Load,
        pools: &mut [Pool],
        round: u32,
    ) -> Result<()> {
        let options = LogOptions { algorithm, ..LogOptions::default() };
        let opened = drives.log.open(self.log_bytes)?;
        let backing = drives.backing.open(super::SPAN)?.drive;
        let log = OwnLog::with(&opened, backing, self.segment, options)?;
        let (start, cpu) = (Instant::now(), cpu::process());
        let blocks = write(&log.device(), load, self.time / 2, pools, round)?;
        log.flush()?;
        let seconds = start.elapsed().as_secs_f64();
        runs.mb.push(blocks as f64 * BLOCK as f64 / 1e6 / seconds);
        let cpu = cpu::process().saturating_sub(cpu);
        runs.cpu.push(cpu.as_secs_f64() * 1e6 / blocks as f64);
        let stats = log.stats();
        runs.written = log.amplification();
        runs.clustered = stats.blocks_clustered as f64 / stats.blocks_appended.max(1) as f64;
        Ok(())
    }
}

/// Writes for a time, with a thread for each pool; returns the number of blocks.
fn write(
    device: &Arc<dyn Device>,
    load: Load,
    time: Duration,
    pools: &mut [Pool],
    round: u32,
) -> Result<u64> {
    let stop = AtomicBool::new(false);
    let span = SPAN.min(device.size() / pools.len() as u64) / load.bytes * load.bytes;
    std::thread::scope(|scope| {
        let mut lanes = Vec::new();
        for (lane, pool) in (0..).zip(pools) {
            let stop = &stop;
            lanes.push(scope.spawn(move || -> Result<u64> {
                let mut channel = Arc::clone(device).channel();
                let mut rng = Rng::new(SEED + lane + u64::from(round) * 100);
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    let next = if load.random { rng.below(span / load.bytes) } else { done };
                    let offset = lane * span + next * load.bytes % span;
                    let data = pool.record(offset, round, load.bytes as usize);
                    let write = Request::Write { offset, data, fua: false };
                    channel.submit(write, Instant::now()).context("write")?;
                    done += 1;
                }
                Ok(done * load.bytes / BLOCK)
            }));
        }
        let slept = interrupt::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let mut blocks = 0;
        for lane in lanes {
            blocks += lane.join().map_err(|_| Error::failure("a writer panicked"))??;
        }
        slept.map(|()| blocks)
    })
}
