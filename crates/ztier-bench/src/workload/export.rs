//! The share of an export's speed that remains with ztier's engine behind it instead of plain
//! memory: the same front-end, requests and data, in turn.

use super::engine::OwnVolume;
use super::random::{Direct, Op, Order, pools, work};
use super::{Context, SEED, sequential};
use crate::data::{Kind, Pool};
use crate::report::{Report, Row, Target as Goal, geomean};
use crate::rival::fio::{self, Job};
use crate::rival::plain::PlainMemory;
use crate::rival::served::{Served, ServedNbd};
use crate::sys::command::exists;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ztier::BLOCK_SIZE;
use ztier::device::Device;
use ztier::error::Result;

const SECTION: &str = "export";
/// ztier first, then the divisor.
const SYSTEMS: [&str; 2] = ["ztier", "plain memory"];
/// Data as fio makes it: each block has random bytes, then zeros.
const FIO_LIKE: Kind = Kind::Runs(2.0);
const GOAL: Goal = Goal::AtLeast(0.8);

/// Runs the section.
pub fn run(context: &mut Context) -> Result<()> {
    let bytes: u64 = context.pick(128 << 20, 1 << 30);
    let volume = OwnVolume::new(bytes, 2 * bytes)?;
    let ours: Arc<dyn Device> = Arc::clone(&volume.0) as Arc<dyn Device>;
    let devices = [ours, PlainMemory::new(bytes)? as Arc<dyn Device>];
    let plan = Plan {
        bytes,
        kind: context.data[0],
        rounds: context.pick(2, 5),
        time: Duration::from_millis(context.pick(200, 1500)),
    };
    // The cost of LZ4 depends on the data, and with it the remaining share of the export's speed:
    // the NBD rows use fio's data, so FUSE shows both.
    let both = [
        (plan.kind, "fuse", "export_efficiency"),
        (FIO_LIKE, "fuse, fio-like data", "export_efficiency_fio_like"),
    ];
    for (kind, export, name) in both {
        match plan.fuse(&mut context.report, &devices, kind)? {
            Ok(figures) => state(&mut context.report, export, name, &figures),
            Err(reason) => context.report.missing(SECTION, "FUSE + loop", reason),
        }
    }
    if !exists("fio") {
        context.report.missing(SECTION, "NBD", "fio is not installed");
        return Ok(());
    }
    let figures = plan.nbd(&mut context.report, &devices)?;
    state(&mut context.report, "nbd", "export_efficiency_nbd", &figures);
    Ok(())
}

/// Runs of one case, for both systems.
struct Figures {
    case: &'static str,
    unit: &'static str,
    runs: [Vec<f64>; 2],
}

struct Plan {
    bytes: u64,
    kind: Kind,
    rounds: u32,
    time: Duration,
}

impl Plan {
    /// Random 4 KiB by two threads and sequential 1 MiB, direct, on the loop devices. The inner
    /// error is the reason why this machine cannot run the test.
    fn fuse(
        &self,
        report: &mut Report,
        devices: &[Arc<dyn Device>; 2],
        kind: Kind,
    ) -> Result<std::result::Result<Vec<Figures>, String>> {
        if let Err(reason) = ztier::export::fuse::available(true) {
            return Ok(Err(reason));
        }
        let served = [
            Served::new(Arc::clone(&devices[0]), "ours")?,
            Served::new(Arc::clone(&devices[1]), "plain")?,
        ];
        let mut pools = pools(kind, 2)?;
        let text = format!("FUSE + loop: {} MiB of {}", self.bytes >> 20, pools[0]);
        report.note(SECTION, "data", text);
        let mut figures =
            ["seq write 1M", "seq read 1M", "random write 4K", "random read 4K"].map(|case| {
                let unit = if case.starts_with("seq") { "MiB/s" } else { "IOPS" };
                Figures { case, unit, runs: [Vec::new(), Vec::new()] }
            });
        for round in 0..self.rounds {
            for (i, served) in served.iter().enumerate() {
                let results = self.fuse_round(served.path(), &mut pools, round)?;
                for (figure, result) in figures.iter_mut().zip(results) {
                    figure.runs[i].push(result);
                }
            }
        }
        Ok(Ok(figures.into()))
    }

    fn fuse_round(&self, device: &Path, pools: &mut [Pool], round: u32) -> Result<[f64; 4]> {
        let mib = self.bytes as f64 / f64::from(1 << 20);
        let mut sequential = |write| -> Result<f64> {
            let spent = sequential::pass(device, self.bytes, &mut pools[0], round, write)?;
            Ok(mib / spent.wall.as_secs_f64())
        };
        let (seq_write, seq_read) = (sequential(true)?, sequential(false)?);
        let target = Direct(device.to_owned(), "export");
        let blocks = self.bytes / BLOCK_SIZE as u64;
        let mut random = |op| -> Result<f64> {
            Ok(work(&target, op, Order::For(self.time), blocks, pools, SEED)?.iops)
        };
        let (write, read) = (random(Op::Write(round))?, random(Op::Read)?);
        Ok([seq_write, seq_read, write, read])
    }

    /// Random 4 KiB at queue depth 32 and sequential 1 MiB, by fio over Unix sockets, on fio's
    /// data.
    fn nbd(&self, report: &mut Report, devices: &[Arc<dyn Device>; 2]) -> Result<Vec<Figures>> {
        let text = format!("NBD: {} MiB of {}", self.bytes >> 20, fio::DATA);
        report.note(SECTION, "data", text);
        let serve = |(device, name): (&Arc<_>, &str)| ServedNbd::new(Arc::clone(device), name);
        let servers: Vec<ServedNbd> =
            devices.iter().zip(["ours", "plain"]).map(serve).collect::<Result<_>>()?;
        let mut figures = Vec::new();
        for (case, pattern, block, depth) in [
            ("seq write 1M, nbd", "write", 1u64 << 20, 4),
            ("seq read 1M, nbd", "read", 1 << 20, 4),
            ("random write 4K, nbd", "randwrite", 4096, 32),
            ("random read 4K, nbd", "randread", 4096, 32),
        ] {
            let mut runs = [Vec::new(), Vec::new()];
            for _ in 0..self.rounds {
                for (server, runs) in servers.iter().zip(&mut runs) {
                    let time = (block == 4096).then_some(self.time);
                    let target = fio::Target::Nbd(server.uri());
                    let job =
                        Job { target, pattern, block, depth, size: self.bytes, time, ..fio::LIKE };
                    let result = fio::measure(&job)?;
                    runs.push(if block == 4096 {
                        result.iops
                    } else {
                        result.bytes_per_second / f64::from(1 << 20)
                    });
                }
            }
            let unit = if block == 4096 { "IOPS" } else { "MiB/s" };
            figures.push(Figures { case, unit, runs });
        }
        Ok(figures)
    }
}

/// Adds the rows of both systems, each case's ratio, and the geometric mean against the target.
fn state(report: &mut Report, export: &str, name: &str, figures: &[Figures]) {
    let mut ratios = Vec::new();
    for figure in figures {
        let [ours, plain] = [0, 1].map(|i| {
            report.row(Row {
                section: SECTION.into(),
                system: format!("{} over {export}", SYSTEMS[i]),
                case: figure.case.into(),
                unit: figure.unit,
                runs: figure.runs[i].clone(),
                ..Row::default()
            })
        });
        let case = figure.case.trim_end_matches(", nbd").replace(' ', "_").to_lowercase();
        report.ratio(&format!("{name}_{case}"), ours / plain, Goal::None);
        ratios.push(ours / plain);
    }
    report.ratio(name, geomean(&ratios), GOAL);
}
