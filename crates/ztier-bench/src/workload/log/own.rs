//! A log in this process, and loads for the log and for a drive alone.
//!
//! Invariant: a write counts when the flush after it has returned, so data in the log's memory does
//! not count.

use super::drives::{Drives, Opened};
use crate::data::{Kind, Pool, RECORD_MAX, Rng};
use crate::model::Nanos;
use crate::sys::interrupt;
use crate::workload::SEED;
use crate::workload::random::{InProcess, Op, Order, work};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use ztier::BLOCK_SIZE;
use ztier::device::{Algorithm, Device, LogOptions, LogVolume, Request};
use ztier::error::{Context as _, Error, Result};
use ztier::log;
use ztier::log::disk::format::IDENTITY;
use ztier::media::{Action, Drive, DriveError};
use ztier::stats::LogStats;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A log in front of a backing store, with its threads.
pub struct OwnLog {
    /// The volume.
    pub volume: Arc<LogVolume>,
    backing: Arc<Gate>,
}

/// A drive that can be closed: a window of writeback on a slow disk takes minutes, and the rest of
/// it is useless when the measurement is over.
struct Gate {
    drive: Arc<dyn Drive>,
    closed: AtomicBool,
}

impl Gate {
    fn pass(&self, action: Action, at: u64, len: usize) -> std::result::Result<(), DriveError> {
        match self.closed.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(DriveError { action, at, len: len as u64, errno: 5 }), // EIO
        }
    }
}

impl Drive for Gate {
    fn size(&self) -> u64 {
        self.drive.size()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> std::result::Result<(), DriveError> {
        self.drive.read(at, buf)
    }

    fn write(&self, at: u64, data: &[u8]) -> std::result::Result<(), DriveError> {
        self.pass(Action::Write, at, data.len())?;
        self.drive.write(at, data)
    }

    fn zero(&self, at: u64, len: u64) -> std::result::Result<(), DriveError> {
        self.pass(Action::Zero, at, 0)?;
        self.drive.zero(at, len)
    }

    fn zeroes_quickly(&self) -> bool {
        self.drive.zeroes_quickly()
    }

    fn flush(&self) -> std::result::Result<(), DriveError> {
        self.pass(Action::Flush, 0, 0)?;
        self.drive.flush()
    }
}

/// A random number that no earlier log on the same drive used.
pub fn epoch() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Rng::new(now.as_nanos() as u64 ^ NEXT.fetch_add(1 << 48, Ordering::Relaxed)).next()
}

impl OwnLog {
    /// A new log of `log_bytes` on `drives`.
    pub fn new(drives: &Drives, log_bytes: u64, segment: u32) -> Result<Self> {
        Self::on(&drives.log.open(log_bytes)?, drives.backing.open(super::SPAN)?.drive, segment)
    }

    /// A new log on open drives.
    pub fn on(log: &Opened, backing: Arc<dyn Drive>, segment: u32) -> Result<Self> {
        let options = LogOptions { algorithm: Algorithm::Lz4, ..LogOptions::default() };
        Self::with(log, backing, segment, options)
    }

    /// A new log on open drives, with other options.
    pub fn with(
        log: &Opened,
        backing: Arc<dyn Drive>,
        segment: u32,
        options: LogOptions,
    ) -> Result<Self> {
        let backing = Arc::new(Gate { drive: backing, closed: AtomicBool::new(false) });
        let blocks = backing.size() / BLOCK;
        log::format(&*log.drive, [0; 16], [0; IDENTITY], blocks, segment).context("a new log")?;
        let volume =
            LogVolume::open(Arc::clone(&log.drive), Arc::clone(&backing) as _, options, epoch())
                .context("the new log")?;
        volume.start(log.ring()?)?;
        Ok(Self { volume, backing })
    }

    /// The device for front-ends.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.volume) as Arc<dyn Device>
    }

    /// Makes everything durable.
    pub fn flush(&self) -> Result<()> {
        let mut channel = Arc::clone(&self.volume).channel();
        channel.submit(Request::Flush, Instant::now()).context("flush")
    }

    /// Its counters.
    pub fn stats(&self) -> LogStats {
        self.volume.stats().log.unwrap_or_default()
    }

    /// Bytes written to the log's drive for each byte requested.
    pub fn amplification(&self) -> f64 {
        let stats = self.stats();
        stats.written_bytes as f64 / stats.asked_bytes.max(1) as f64
    }

    /// Writes random blocks for `time` with a thread for each pool, and flushes; returns 10^6 bytes
    /// a second.
    pub fn write(&self, pools: &mut [Pool], time: Duration, round: u32) -> Result<f64> {
        self.run(pools, Order::For(time), round)
    }

    /// Writes `bytes` of random blocks with a thread for each pool, and flushes; returns 10^6 bytes
    /// a second.
    pub fn write_bytes(&self, pools: &mut [Pool], bytes: u64, round: u32) -> Result<f64> {
        self.run(pools, Order::Some(bytes / BLOCK), round)
    }

    fn run(&self, pools: &mut [Pool], order: Order, round: u32) -> Result<f64> {
        let target = InProcess(Arc::clone(&self.volume));
        let (start, before) = (Instant::now(), self.stats().asked_bytes);
        let (seed, blocks) = (SEED + u64::from(round), self.volume.size() / BLOCK);
        work(&target, Op::Write(round), order, blocks, pools, seed)?;
        self.flush()?;
        let written = self.stats().asked_bytes - before;
        Ok(written as f64 / 1e6 / start.elapsed().as_secs_f64())
    }
}

impl Drop for OwnLog {
    fn drop(&mut self) {
        self.backing.closed.store(true, Ordering::Relaxed);
        if let Err(e) = self.volume.close() {
            crate::report::warn(&e.to_string());
        }
    }
}

/// Small pools for `count` threads.
pub fn small_pools(kind: Kind, count: usize) -> Result<Vec<Pool>> {
    let first = Pool::build(kind, RECORD_MAX, SEED)?;
    let copies = (1..count).map(|_| first.duplicate()).collect::<Result<Vec<_>>>();
    let mut pools = copies?;
    pools.push(first);
    Ok(pools)
}

/// Times of requests, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<Nanos>);

impl Latencies {
    /// Adds a time.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time.as_nanos() as Nanos);
    }

    /// Adds all of `other`.
    pub fn append(&mut self, other: &mut Self) {
        self.0.append(&mut other.0);
    }

    /// The quantile `part` in milliseconds; NaN for no times.
    pub fn quantile_ms(&mut self, part: f64) -> f64 {
        self.0.sort_unstable();
        let n = (self.0.len() as f64 * part) as usize;
        self.0.get(n.min(self.0.len().saturating_sub(1))).map_or(f64::NAN, |&ns| ns as f64 / 1e6)
    }
}

/// Writers that flush.
#[derive(Clone, Copy, Debug)]
pub struct Synced {
    /// Number of concurrent writers.
    pub writers: usize,
    /// Blocks that a writer writes before each flush.
    pub each: u64,
    /// Bytes over which the blocks are spread.
    pub span: u64,
    /// Duration.
    pub time: Duration,
}

/// The results of the writers.
#[derive(Debug, Default)]
pub struct Flushed {
    /// Flushed blocks a second.
    pub blocks_per_second: f64,
    /// Times of the flushes.
    pub flushes: Latencies,
}

impl Synced {
    /// Runs the writers on a device, each with its own pool.
    ///
    /// # Errors
    /// The device fails; interrupted.
    pub fn run(&self, device: &Arc<dyn Device>, pools: &mut [Pool], round: u32) -> Result<Flushed> {
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        let mut reached = Flushed::default();
        let mut blocks = 0;
        std::thread::scope(|scope| -> Result<()> {
            let mut lanes = Vec::new();
            for (writer, pool) in (0..).zip(pools.iter_mut().take(self.writers)) {
                let stop = &stop;
                lanes.push(scope.spawn(move || self.lane(device, pool, writer, round, stop)));
            }
            let slept = interrupt::sleep(self.time);
            stop.store(true, Ordering::Relaxed);
            for lane in lanes {
                let lane = lane.join().map_err(|_| Error::failure("a writer panicked"))?;
                let (done, mut latencies) = lane?;
                blocks += done;
                reached.flushes.append(&mut latencies);
            }
            slept
        })?;
        reached.blocks_per_second = blocks as f64 / start.elapsed().as_secs_f64();
        Ok(reached)
    }

    fn lane(
        &self,
        device: &Arc<dyn Device>,
        pool: &mut Pool,
        writer: u64,
        round: u32,
        stop: &AtomicBool,
    ) -> Result<(u64, Latencies)> {
        let mut channel = Arc::clone(device).channel();
        let mut rng = Rng::new(SEED + writer + u64::from(round) * 100);
        let (mut blocks, mut latencies) = (0, Latencies::default());
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..self.each {
                let offset = rng.below(self.span / BLOCK) * BLOCK;
                let data = pool.record(offset, round, BLOCK_SIZE);
                let write = Request::Write { offset, data, fua: false };
                channel.submit(write, Instant::now()).context("write")?;
            }
            let begun = Instant::now();
            channel.submit(Request::Flush, begun).context("flush")?;
            latencies.push(begun.elapsed());
            blocks += self.each;
        }
        Ok((blocks, latencies))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::{Kind as Model, ModelDrive, Name};
    use crate::rival::raw::RawDevice;

    #[test]
    fn quantiles_are_of_the_sorted_times() {
        let mut latencies = Latencies::default();
        assert!(latencies.quantile_ms(0.5).is_nan());
        for ms in (1..=1000).rev() {
            latencies.push(Duration::from_millis(ms));
        }
        for (part, ms) in [(0.0, 1.0), (0.5, 501.0), (0.999, 1000.0), (1.0, 1000.0)] {
            assert!((latencies.quantile_ms(part) - ms).abs() < 1e-9, "{part}");
        }
    }

    #[test]
    fn flushes_are_timed_and_the_blocks_between_them_count() {
        let name = Name { kind: Model::Ssd840Pro, size: 64 << 20 };
        let device: Arc<dyn Device> =
            Arc::new(RawDevice(Arc::new(ModelDrive::real_time(name)) as Arc<dyn Drive>));
        let mut pools = small_pools(Kind::Ratio(1.0), 2).unwrap();
        let time = Duration::from_millis(100);
        let load = Synced { writers: 2, each: 8, span: 64 << 20, time };
        let mut found = load.run(&device, &mut pools, 0).unwrap();
        // A flush takes 2 ms of the model's time, and 16 blocks are written between two flushes.
        assert!(found.flushes.quantile_ms(0.5) >= 1.0);
        let flushes = found.flushes.0.len() as f64;
        assert!(found.blocks_per_second > 0.0);
        assert!(found.blocks_per_second <= flushes * 8.0 / time.as_secs_f64());
    }
}
