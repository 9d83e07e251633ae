//! The kernel's write caches on the same two devices, in turn: dm-writecache, bcache, ztier with
//! the best export, and the backing store alone.
//!
//! Invariant: no system finds data of another; each round makes every cache anew, and all writes
//! fit into the cache.

use super::{BLOCK, Plan};
use crate::data::Pool;
use crate::report::{Report, Row, Target as Goal, median};
use crate::rival::Disk;
use crate::rival::bcache::{self, Bcache};
use crate::rival::writecache::{self, Writecache};
use crate::rival::ztier::Up;
use crate::workload::over_ublk;
use crate::workload::random::{Op, Order, Synced, Target, Uring, pools, work};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use ztier::error::{Context, Result};

const SECTION: &str = "kernel";
/// Bytes at each end of a device that may contain signatures.
const ENDS: usize = 4 << 20;
/// Writers that wait for their flush.
const WRITERS: usize = 8;
/// Test, name in ratios, and targets of ztier relative to dm-writecache and to bcache.
const CASES: [(&str, &str, [f64; 2]); 2] = [
    ("random write, 4 KiB, QD32", "randwrite", [1.2, 1.5]),
    ("write and flush, 4 KiB, 8 writers", "fsync", [1.0, 1.0]),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Ztier,
    Writecache,
    Bcache,
    Backing,
}

impl System {
    const ALL: [Self; 4] = [Self::Ztier, Self::Writecache, Self::Bcache, Self::Backing];

    fn name(self) -> &'static str {
        match self {
            Self::Ztier => "ztier",
            Self::Writecache => writecache::NAME,
            Self::Bcache => bcache::NAME,
            Self::Backing => "backing store alone",
        }
    }

    fn up(self, log: &Path, backing: &Path) -> Result<Box<dyn Disk>> {
        for device in [log, backing] {
            wipe(device).context(format!("cannot wipe {}", device.display()))?;
        }
        Ok(match self {
            Self::Ztier => Box::new(Up::with_log(log, backing, 1 << 20, "auto")?),
            Self::Writecache => Box::new(Writecache::new(log, backing)?),
            Self::Bcache => Box::new(Bcache::new(log, backing)?),
            Self::Backing => Box::new(Alone(backing.to_owned())),
        })
    }
}

struct Alone(PathBuf);

impl Disk for Alone {
    fn path(&self) -> &Path {
        &self.0
    }

    fn about(&self) -> String {
        self.0.display().to_string()
    }
}

/// Zeroes both ends.
fn wipe(device: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).open(device)?;
    let size = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0))?;
    let zeros = vec![0; ENDS.min(size as usize)];
    file.write_all_at(&zeros, 0)?;
    file.write_all_at(&zeros, size - zeros.len() as u64)?;
    file.sync_all()
}

impl Plan<'_> {
    /// Measures all systems.
    pub(super) fn kernel(&self, report: &mut Report, quick: bool) -> Result<()> {
        let (Some(log), Some(backing)) = (self.drives.log.path(), self.drives.backing.path())
        else {
            report.missing(SECTION, "all", "the kernel takes no models: give --log and --backing");
            return Ok(());
        };
        let mut pools = pools(self.data, WRITERS)?;
        report.note(SECTION, "data", &pools[0]);
        // A quarter of the smaller one, so that no cache gets near its watermark during the test.
        let blocks = self.log_bytes.min(self.span) / 4 / BLOCK;
        let mut runs = vec![[Vec::new(), Vec::new()]; System::ALL.len()];
        let mut missing = [false; System::ALL.len()];
        let mut by_ublk = false;
        for round in 0..if quick { 2 } else { 5 } {
            for (i, system) in System::ALL.into_iter().enumerate() {
                if missing[i] {
                    continue;
                }
                let disk = match system.up(log, backing) {
                    Ok(disk) => disk,
                    Err(e) if system == System::Ztier => return Err(e),
                    Err(e) => {
                        report.missing(SECTION, system.name(), e);
                        missing[i] = true;
                        continue;
                    }
                };
                if round == 0 {
                    report.note(SECTION, system.name(), disk.about());
                }
                by_ublk |= system == System::Ztier && over_ublk(disk.path());
                self.round(system, disk.path(), blocks, round, &mut pools, &mut runs[i])?;
            }
        }
        state(report, &runs, by_ublk);
        Ok(())
    }

    fn round(
        &self,
        system: System,
        device: &Path,
        blocks: u64,
        round: u32,
        pools: &mut [Pool],
        runs: &mut [Vec<f64>; 2],
    ) -> Result<()> {
        let (path, name) = (device.to_owned(), system.name());
        let targets: [(Box<dyn Target>, usize); 2] =
            [(Box::new(Uring(path.clone(), name)), 1), (Box::new(Synced(path, name)), WRITERS)];
        for ((target, writers), runs) in targets.iter().zip(runs) {
            let (pools, seed) = (&mut pools[..*writers], u64::from(round) + 1);
            let (op, order) = (Op::Write(round), Order::For(self.time));
            let begun = Instant::now();
            let done = work(&**target, op, order, blocks, pools, seed)?.blocks;
            // Data in memory counts only when it is on a drive.
            let synced = File::open(device).and_then(|file| file.sync_all());
            synced.context(format!("cannot flush {}", device.display()))?;
            runs.push(done as f64 / begun.elapsed().as_secs_f64());
        }
        Ok(())
    }
}

fn state(report: &mut Report, runs: &[[Vec<f64>; 2]], by_ublk: bool) {
    for (case, (about, name, goals)) in CASES.into_iter().enumerate() {
        for (system, runs) in System::ALL.into_iter().zip(runs) {
            if !runs[case].is_empty() {
                report.row(Row {
                    section: SECTION.into(),
                    system: system.name().into(),
                    case: about.into(),
                    unit: "IOPS",
                    runs: runs[case].clone(),
                    ..Row::default()
                });
            }
        }
        let ours = median(&runs[0][case]);
        let rivals =
            [("dm_writecache", Some(goals[0])), ("bcache", Some(goals[1])), ("backing", None)];
        for ((rival, goal), runs) in rivals.into_iter().zip(&runs[1..]) {
            if !runs[case].is_empty() {
                let goal = goal.filter(|_| by_ublk).map_or(Goal::None, Goal::AtLeast);
                report.ratio(&format!("{name}_vs_{rival}"), ours / median(&runs[case]), goal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_ends_of_a_device_are_wiped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 3 * ENDS]).unwrap();
        wipe(file.path()).unwrap();
        let left = std::fs::read(file.path()).unwrap();
        assert_eq!(left.iter().filter(|byte| **byte == 7).count(), ENDS);
        assert_eq!((left[ENDS - 1], left[ENDS], left[2 * ENDS]), (0, 7, 0));
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        let error = System::Backing.up(Path::new("/nonexistent"), Path::new("/nonexistent"));
        assert!(error.err().map(|e| e.to_string()).unwrap().contains("cannot wipe"));
    }
}
