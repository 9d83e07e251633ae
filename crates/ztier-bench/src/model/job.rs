//! Loads on models: in virtual time without waiting, and by threads on a drive in real time.
//!
//! Invariants: `depth` requests are in flight all the time, each replaced as it completes, as by
//! fio; offsets come from a seed. Requests that complete while the drive's cache fills do not
//! count.

use super::{Done, Model, Nanos, Request};
use crate::data::Rng;
use crate::sys::interrupt;
use crate::sys::map::AlignedBuf;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use ztier::error::{Context as _, Error, Result};
use ztier::media::Drive;

/// The action of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Writes, with a flush after this number of writes of one lane; only the last of these writes
    /// includes the flush in its time.
    SyncWrite(u64),
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The action of each request.
    pub action: Action,
    /// Whether offsets are random (as fio's `norandommap`: blocks may repeat) or sequential.
    pub random: bool,
    /// Bytes in a request.
    pub block: u64,
    /// Requests in flight.
    pub depth: u64,
    /// Bytes from the beginning of the drive that the job covers.
    pub span: u64,
    /// Requests at the beginning that do not count.
    pub warm_up: u64,
    /// Requests that count, in virtual time.
    pub count: u64,
}

/// The result of a job.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Bytes a second; infinite where no time passes.
    pub bytes_per_second: f64,
    /// Median time of a request, in nanoseconds.
    pub median: f64,
    /// 99th percentile of the time of a request, in nanoseconds.
    pub p99: f64,
}

impl Action {
    /// Whether a flush comes after the `n`-th write (from 1 on) of a lane.
    fn flushes(self, n: u64) -> bool {
        matches!(self, Self::SyncWrite(each) if n.is_multiple_of(each))
    }
}

impl Reached {
    fn new(bytes: u64, time: Nanos, mut latencies: Vec<Nanos>) -> Self {
        latencies.sort_unstable();
        let quantile = |part: f64| {
            let n = (latencies.len() as f64 * part) as usize;
            latencies.get(n).map_or(f64::NAN, |&ns| ns as f64)
        };
        Self {
            bytes_per_second: bytes as f64 * 1e9 / time as f64,
            median: quantile(0.5),
            p99: quantile(0.99),
        }
    }
}

/// The offsets of a job, in order.
struct Offsets {
    job: Job,
    rng: Rng,
}

impl Offsets {
    /// The offset of the `n`-th request.
    fn at(&mut self, n: u64) -> u64 {
        let blocks = (self.job.span / self.job.block).max(1);
        let block = if self.job.random { self.rng.below(blocks) } else { n % blocks };
        block * self.job.block
    }
}

/// A request in flight.
#[derive(Clone, Copy, Default)]
struct Under {
    begun: Nanos,
    /// Whether its flush is still to come.
    flush: bool,
    /// Number of this request in its lane, from 1 on.
    count: u64,
}

/// A job in virtual time.
struct Simulation<'a> {
    job: Job,
    model: &'a mut Model,
    offsets: Offsets,
    /// Number of requests begun.
    begun: u64,
    lanes: Vec<Under>,
    /// Completion times of the requests in flight, with their lanes.
    ends: BinaryHeap<Reverse<(Nanos, u64)>>,
    done: Vec<Done>,
}

impl Simulation<'_> {
    fn begin(&mut self, now: Nanos, lane: u64) {
        let (at, len) = (self.offsets.at(self.begun), self.job.block);
        self.begun += 1;
        let count = self.lanes[lane as usize].count + 1;
        let flush = self.job.action.flushes(count);
        self.lanes[lane as usize] = Under { begun: now, flush, count };
        let request = match self.job.action {
            Action::Read => Request::Read { at, len },
            Action::Write | Action::SyncWrite(_) => Request::Write { at, len },
        };
        self.model.submit(now, lane, request, &mut self.done);
    }

    /// The next request to complete: its time, and its lane.
    fn next(&mut self) -> (Nanos, u64) {
        loop {
            self.ends.extend(self.done.drain(..).map(|(lane, end)| Reverse((end, lane))));
            let first = self.ends.peek().map(|Reverse(end)| *end);
            match (first, self.model.next()) {
                (Some((end, lane)), next) if next.is_none_or(|next| end <= next) => {
                    self.ends.pop();
                    return (end, lane);
                }
                (_, Some(next)) => self.model.advance(next, &mut self.done),
                (_, None) => unreachable!("a request is under way, so something is to come"),
            }
        }
    }
}

/// Runs a job on a model in virtual time.
pub fn simulate(model: &mut Model, job: &Job, seed: u64) -> Reached {
    let mut run = Simulation {
        job: *job,
        model,
        offsets: Offsets { job: *job, rng: Rng::new(seed) },
        begun: 0,
        lanes: vec![Under::default(); job.depth as usize],
        ends: BinaryHeap::new(),
        done: Vec::new(),
    };
    for lane in 0..job.depth {
        run.begin(0, lane);
    }
    let (mut completed, mut start, mut end) = (0, 0, 0);
    let mut latencies = Vec::new();
    while completed < job.warm_up + job.count {
        let (now, lane) = run.next();
        let Under { begun, flush, .. } = run.lanes[lane as usize];
        if flush {
            run.lanes[lane as usize].flush = false;
            run.model.submit(now, lane, Request::Flush, &mut run.done);
            continue;
        }
        completed += 1;
        end = now;
        if completed > job.warm_up {
            latencies.push(now - begun);
        } else if completed == job.warm_up {
            start = now;
        }
        run.begin(now, lane);
    }
    Reached::new(job.count * job.block, end - start, latencies)
}

/// Runs a job with a thread for each request in flight, for `warm_up` and then for `time`.
///
/// # Errors
/// No memory; the drive fails; interrupted.
pub fn measure(
    drive: &dyn Drive,
    job: &Job,
    (warm_up, time): (Duration, Duration),
    seed: u64,
) -> Result<Reached> {
    let (begun, counted) = (AtomicU64::new(0), AtomicU64::new(0));
    let (counts, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let lane = |n: u64| {
            let (begun, counted, counts, stop) = (&begun, &counted, &counts, &stop);
            move || -> Result<Vec<Nanos>> {
                let mut buf = AlignedBuf::new(job.block as usize)?;
                let mut rng = Rng::new(seed + n);
                rng.fill(&mut buf);
                let mut offsets = Offsets { job: *job, rng };
                let (mut latencies, mut writes) = (Vec::new(), 0);
                while !stop.load(Ordering::Relaxed) {
                    let at = offsets.at(begun.fetch_add(1, Ordering::Relaxed));
                    let start = Instant::now();
                    writes += 1;
                    let flush = job.action.flushes(writes);
                    perform(drive, job.action, flush, at, &mut buf).context("the job's drive")?;
                    if counts.load(Ordering::Relaxed) {
                        counted.fetch_add(1, Ordering::Relaxed);
                        latencies.push(start.elapsed().as_nanos() as Nanos);
                    }
                }
                Ok(latencies)
            }
        };
        let lanes: Vec<_> = (0..job.depth).map(|n| scope.spawn(lane(n))).collect();
        let slept = interrupt::sleep(warm_up).and_then(|()| {
            counts.store(true, Ordering::Relaxed);
            let start = Instant::now();
            interrupt::sleep(time)?;
            Ok((counted.load(Ordering::Relaxed), start.elapsed().as_nanos() as Nanos))
        });
        stop.store(true, Ordering::Relaxed);
        let mut latencies = Vec::new();
        for lane in lanes {
            let lane = lane.join().map_err(|_| Error::failure("a thread of the job panicked"))?;
            latencies.extend(lane?);
        }
        let (requests, time) = slept?;
        Ok(Reached::new(requests * job.block, time, latencies))
    })
}

fn perform(
    drive: &dyn Drive,
    action: Action,
    flush: bool,
    at: u64,
    buf: &mut [u8],
) -> std::result::Result<(), ztier::media::DriveError> {
    match action {
        Action::Read => drive.read(at, buf),
        Action::Write | Action::SyncWrite(_) => {
            drive.write(at, buf).and_then(|()| if flush { drive.flush() } else { Ok(()) })
        }
    }
}
