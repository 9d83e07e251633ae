//! 4 KiB blocks, read and written by threads that share only the device.
//!
//! Invariants: every system gets the same data in the same way; every read checks that its block is
//! the requested one; the generation of a write is its round, so contents are reproducible.

use crate::data::{Kind, Pool, Rng, claim};
use crate::report::Row;
use crate::sys::direct;
use crate::sys::interrupt;
use crate::sys::map::AlignedBuf;
use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::device::{Channel, Device, Request};
use ztier::error::{Context as _, Error, Result};

/// Blocks in a batch, between two checks of the clock; also the queue depth of io_uring.
const BATCH: usize = 32;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// A read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads whole blocks and checks them.
    Read,
    /// Writes whole blocks of this generation.
    Write(u32),
}

/// A device that several threads can access.
pub trait Target: Sync {
    /// Name in reports.
    fn name(&self) -> String;

    /// Access for one thread.
    fn lane(&self) -> Result<Box<dyn Lane + '_>>;
}

/// One thread's access.
pub trait Lane: Send {
    /// Reads or writes at most [`BATCH`] blocks.
    fn run(&mut self, op: Op, blocks: &[u64], pool: &mut Pool) -> Result<()>;
}

/// A device in this process.
pub struct InProcess<D>(pub Arc<D>);

struct InProcessLane {
    channel: Box<dyn Channel>,
    buf: AlignedBuf,
}

impl<D: Device> Target for InProcess<D> {
    fn name(&self) -> String {
        "ztier (in process)".into()
    }

    fn lane(&self) -> Result<Box<dyn Lane + '_>> {
        let channel = Arc::clone(&self.0).channel();
        Ok(Box::new(InProcessLane { channel, buf: AlignedBuf::new(BLOCK_SIZE)? }))
    }
}

impl Lane for InProcessLane {
    fn run(&mut self, op: Op, blocks: &[u64], pool: &mut Pool) -> Result<()> {
        // The end of one request is the arrival of the next.
        let arrived = Instant::now();
        for &block in blocks {
            let offset = block * BLOCK;
            let done = match op {
                Op::Read => {
                    let request = Request::Read { offset, buf: &mut self.buf };
                    self.channel.submit(request, arrived)
                }
                Op::Write(generation) => {
                    let data = pool.record(offset, generation, BLOCK_SIZE);
                    self.channel.submit(Request::Write { offset, data, fua: false }, arrived)
                }
            };
            done.context(format!("{op:?} of block {block}"))?;
            if op == Op::Read {
                check(block, &self.buf)?;
            }
        }
        Ok(())
    }
}

/// A block device, by `pread` and `pwrite` with O_DIRECT.
pub struct Direct(pub PathBuf, pub &'static str);

struct DirectLane {
    file: File,
    buf: AlignedBuf,
}

impl Target for Direct {
    fn name(&self) -> String {
        format!("{} (pread/pwrite)", self.1)
    }

    fn lane(&self) -> Result<Box<dyn Lane + '_>> {
        Ok(Box::new(DirectLane { file: direct::open(&self.0)?, buf: AlignedBuf::new(BLOCK_SIZE)? }))
    }
}

impl Lane for DirectLane {
    fn run(&mut self, op: Op, blocks: &[u64], pool: &mut Pool) -> Result<()> {
        for &block in blocks {
            let offset = block * BLOCK;
            match op {
                Op::Read => {
                    self.file.read_exact_at(&mut self.buf, offset).context("direct read")?;
                    check(block, &self.buf)?;
                }
                Op::Write(generation) => {
                    let data = pool.record(offset, generation, BLOCK_SIZE);
                    self.file.write_all_at(data, offset).context("direct write")?;
                }
            }
        }
        Ok(())
    }
}

/// A block device, by io_uring at queue depth [`BATCH`] with O_DIRECT.
pub struct Uring(pub PathBuf, pub &'static str);

struct UringLane {
    ring: IoUring,
    file: File,
    bufs: AlignedBuf,
}

impl Target for Uring {
    fn name(&self) -> String {
        format!("{} (io_uring, QD{BATCH})", self.1)
    }

    fn lane(&self) -> Result<Box<dyn Lane + '_>> {
        let ring = IoUring::new(64).context("cannot set up io_uring")?;
        let bufs = AlignedBuf::new(BATCH * BLOCK_SIZE)?;
        Ok(Box::new(UringLane { ring, file: direct::open(&self.0)?, bufs }))
    }
}

impl Lane for UringLane {
    fn run(&mut self, op: Op, blocks: &[u64], pool: &mut Pool) -> Result<()> {
        assert!(blocks.len() <= BATCH, "a buffer each");
        let fd = types::Fd(self.file.as_raw_fd());
        for (&block, buf) in blocks.iter().zip(self.bufs.chunks_exact_mut(BLOCK_SIZE)) {
            let entry = match op {
                Op::Read => opcode::Read::new(fd, buf.as_mut_ptr(), BLOCK as u32)
                    .offset(block * BLOCK)
                    .build(),
                Op::Write(generation) => {
                    buf.copy_from_slice(pool.record(block * BLOCK, generation, BLOCK_SIZE));
                    opcode::Write::new(fd, buf.as_ptr(), BLOCK as u32).offset(block * BLOCK).build()
                }
            };
            // SAFETY: the buffer belongs to `self`, and this process does not touch it before all
            // completions are in, which this function waits for; should it fail before, `ring` is
            // dropped first and the kernel ends or cancels the requests in flight on it while the
            // buffers still exist.
            unsafe { self.ring.submission().push(&entry) }.context("cannot queue a request")?;
        }
        let mut left = blocks.len();
        while left > 0 {
            self.ring.submit_and_wait(left).context("cannot submit to io_uring")?;
            for completion in self.ring.completion() {
                left -= 1;
                if completion.result() != BLOCK as i32 {
                    return Err(Error::failure(format!(
                        "io_uring: result {}",
                        completion.result()
                    )));
                }
            }
        }
        if op == Op::Read {
            for (&block, buf) in blocks.iter().zip(self.bufs.chunks_exact(BLOCK_SIZE)) {
                check(block, buf)?;
            }
        }
        Ok(())
    }
}

/// A block device, by `pwrite` with O_DIRECT, with an `fdatasync` after each write.
pub struct Synced(pub PathBuf, pub &'static str);

struct SyncedLane(DirectLane);

impl Target for Synced {
    fn name(&self) -> String {
        format!("{} (pwrite and fdatasync)", self.1)
    }

    fn lane(&self) -> Result<Box<dyn Lane + '_>> {
        let lane = DirectLane { file: direct::open(&self.0)?, buf: AlignedBuf::new(BLOCK_SIZE)? };
        Ok(Box::new(SyncedLane(lane)))
    }
}

impl Lane for SyncedLane {
    fn run(&mut self, op: Op, blocks: &[u64], pool: &mut Pool) -> Result<()> {
        for block in blocks {
            self.0.run(op, std::slice::from_ref(block), pool)?;
            self.0.file.sync_data().context("flush")?;
        }
        Ok(())
    }
}

fn check(block: u64, data: &[u8]) -> Result<()> {
    match claim(data) {
        Some((found, _)) if found == block => Ok(()),
        other => Err(Error::failure(format!("block {block} reads as {other:?}"))),
    }
}

/// The blocks of a thread, and their order.
#[derive(Clone, Copy)]
pub enum Order {
    /// All blocks once, divided evenly among the threads.
    Each,
    /// Random blocks, as many as there are blocks: about 63 % of them, some several times.
    Draws,
    /// Random blocks until the time is over.
    For(Duration),
    /// This number of random blocks, divided evenly among the threads.
    Some(u64),
}

/// The result of some work.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Blocks, all threads together.
    pub blocks: u64,
    /// Blocks a second, all threads together.
    pub iops: f64,
    /// CPU time of the threads, in percent of one CPU.
    pub cpu_own_percent: f64,
    /// Busy time of the machine, in percent of one CPU.
    pub cpu_machine_percent: f64,
}

/// Works on the first `blocks` blocks with as many threads as there are `pools`.
///
/// # Errors
/// The error of the first thread that failed.
pub fn work(
    target: &dyn Target,
    op: Op,
    order: Order,
    blocks: u64,
    pools: &mut [Pool],
    seed: u64,
) -> Result<Rate> {
    let threads = pools.len() as u64;
    let barrier = Barrier::new(pools.len());
    let watch = crate::sys::cpu::Stopwatch::start();
    let results: Vec<Result<(u64, f64, f64)>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .zip(pools.iter_mut())
            .map(|(n, pool)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let lane = target.lane();
                    barrier.wait();
                    let share = Share { order, blocks, n, threads, seed };
                    share.work(lane?.as_mut(), op, pool)
                })
            })
            .collect();
        let gone = |_| Err(Error::failure("a thread of the benchmark panicked"));
        handles.into_iter().map(|h| h.join().unwrap_or_else(gone)).collect()
    });
    let machine = watch.stop();
    let (mut all, mut iops, mut own) = (0, 0.0, 0.0);
    for result in results {
        let (done, seconds, percent) = result?;
        all += done;
        iops += done as f64 / seconds;
        own += percent;
    }
    Ok(Rate {
        blocks: all,
        iops,
        cpu_own_percent: own,
        cpu_machine_percent: machine.machine_percent,
    })
}

/// One thread's share.
struct Share {
    order: Order,
    blocks: u64,
    n: u64,
    threads: u64,
    seed: u64,
}

impl Share {
    /// Returns the number of blocks, seconds and percent of CPU.
    fn work(&self, lane: &mut dyn Lane, op: Op, pool: &mut Pool) -> Result<(u64, f64, f64)> {
        let mut rng = Rng::new(self.seed ^ (self.n << 32));
        let first = self.blocks * self.n / self.threads;
        let end = self.blocks * (self.n + 1) / self.threads;
        let watch = crate::sys::cpu::Stopwatch::start();
        let start = Instant::now();
        let mut done = 0;
        let mut batch = [0u64; BATCH];
        loop {
            let left = match self.order {
                Order::Each | Order::Draws => end - first - done,
                Order::For(time) if start.elapsed() < time => BATCH as u64,
                Order::For(_) => 0,
                Order::Some(count) => count / self.threads - done,
            };
            let len = left.min(BATCH as u64) as usize;
            if len == 0 {
                break;
            }
            for (i, block) in (0u64..).zip(&mut batch[..len]) {
                *block = match self.order {
                    Order::Each => first + done + i,
                    Order::Draws | Order::For(_) | Order::Some(_) => rng.below(self.blocks),
                };
            }
            lane.run(op, &batch[..len], pool)?;
            done += len as u64;
            interrupt::check()?;
        }
        let spent = watch.stop();
        Ok((done, spent.wall.as_secs_f64(), spent.own_percent))
    }
}

/// A pool for each of `threads` threads.
pub fn pools(kind: Kind, threads: usize) -> Result<Vec<Pool>> {
    let first = Pool::build(kind, crate::data::POOL_BYTES, super::SEED)?;
    let mut pools = vec![first];
    while pools.len() < threads {
        let copy = pools[0].duplicate()?;
        pools.push(copy);
    }
    Ok(pools)
}

/// Rates of one system over several rounds.
pub struct Gathered {
    system: String,
    rates: Vec<Rate>,
}

impl Gathered {
    /// No rates yet.
    pub fn new(target: &dyn Target) -> Self {
        Self { system: target.name(), rates: Vec::new() }
    }

    /// Adds a rate.
    pub fn push(&mut self, rate: Rate) {
        self.rates.push(rate);
    }

    /// The row for the report.
    pub fn row(&self, section: &str, case: &str) -> Row {
        let median = |f: fn(&Rate) -> f64| {
            crate::report::median(&self.rates.iter().map(f).collect::<Vec<_>>())
        };
        Row {
            section: section.into(),
            system: self.system.clone(),
            case: case.into(),
            unit: "IOPS",
            runs: self.rates.iter().map(|r| r.iops).collect(),
            cpu_own_percent: Some(median(|r| r.cpu_own_percent)),
            cpu_machine_percent: Some(median(|r| r.cpu_machine_percent)),
            ..Row::default()
        }
    }
}

/// The two ways to drive a rival's device; the better result counts.
pub fn rival_targets(path: &Path, name: &'static str) -> [Box<dyn Target>; 2] {
    [Box::new(Direct(path.to_owned(), name)), Box::new(Uring(path.to_owned(), name))]
}
