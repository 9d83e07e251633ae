//! Waits of requests while the daemon of a device is replaced under load.

use super::random::{Op, Order, Uring, pools, work};
use super::{Context, SEED};
use crate::data::Kind;
use crate::report::{Row, Target as Goal};
use crate::rival::Disk;
use crate::rival::ztier::Up;
use crate::sys::map::AlignedBuf;
use crate::sys::{direct, interrupt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::error::{Context as _, Error, Result};

const SECTION: &str = "restart";
/// Compresses well, so that a small machine has room for many blocks.
const DATA: Kind = Kind::Ratio(16.0);
/// Duration of the load before and after the replacement.
const BESIDE: Duration = Duration::from_millis(500);

/// Runs the section.
pub fn run(context: &mut Context) -> Result<()> {
    let bytes: u64 = context.pick(1 << 30, 4 << 30);
    let up = match Up::new(bytes, "ublk") {
        Ok(up) => up,
        Err(e) => {
            context.report.missing(SECTION, "ztier, ublk", e);
            return Ok(());
        }
    };
    let mut pools = pools(DATA, 1)?;
    let about = format!("{} MiB of {}", bytes >> 20, pools[0]);
    context.report.note(SECTION, "data", about);
    let blocks = bytes / BLOCK_SIZE as u64;
    let target = Uring(up.path().to_owned(), "ztier");
    work(&target, Op::Write(0), Order::Each, blocks, &mut pools, SEED)?;
    let mut runs = Vec::new();
    for _ in 0..context.pick(3, 5) {
        runs.push(longest_wait(&up, blocks)?);
    }
    // No median: users remember one long wait in five.
    let longest = runs.iter().copied().fold(0.0, f64::max);
    context.report.row(Row {
        section: SECTION.into(),
        system: "ztier, ublk".into(),
        case: "the longest that a read or write took while the daemon was replaced".into(),
        unit: "s",
        runs,
        ..Row::default()
    });
    context.report.ratio("restart_stall_s", longest, Goal::AtMost(1.0));
    Ok(())
}

/// Reads and rewrites blocks all the time; returns the longest time.
fn longest_wait(up: &Up, blocks: u64) -> Result<f64> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads = [1, 2].map(|seed| {
            let (path, ended) = (up.path(), &ended);
            scope.spawn(move || load(path, blocks, seed, ended))
        });
        std::thread::sleep(BESIDE);
        let restarted = up.restart();
        std::thread::sleep(BESIDE);
        ended.store(true, Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        for load in loads {
            let gone = |_| Err(Error::failure("a thread of the benchmark panicked"));
            longest = longest.max(load.join().unwrap_or_else(gone)?);
        }
        restarted.map(|()| longest.as_secs_f64())
    })
}

fn load(path: &Path, blocks: u64, seed: u64, ended: &AtomicBool) -> Result<Duration> {
    let file = direct::open(path)?;
    let mut buf = AlignedBuf::new(BLOCK_SIZE)?;
    let mut rng = crate::data::Rng::new(seed);
    let mut longest = Duration::ZERO;
    while !ended.load(Ordering::Relaxed) {
        let at = rng.below(blocks) * BLOCK_SIZE as u64;
        let begun = Instant::now();
        file.read_exact_at(&mut buf, at).context("reading during a restart")?;
        longest = longest.max(begun.elapsed());
        let begun = Instant::now();
        file.write_all_at(&buf, at).context("writing during a restart")?;
        longest = longest.max(begun.elapsed());
        interrupt::check()?;
    }
    Ok(longest)
}
