//! Counters of requests. Each thread has its own; a volume adds those of all its threads up on
//! demand.
//!
//! Invariant: what a thread has counted stays counted when the thread leaves.

use super::contract::Request;
use crate::stats::histogram::{Histogram, Sum};
use crate::stats::{Latencies, Requests, Spent, Stats};
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Kinds of request that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
    /// Write-zeroes.
    WriteZeroes,
}

impl Kind {
    /// The kind of a request, its first byte, and its length in bytes.
    pub fn of(request: &Request<'_>) -> (Self, u64, u64) {
        match request {
            Request::Read { offset, buf } => (Self::Read, *offset, buf.len() as u64),
            Request::Write { offset, data, .. } => (Self::Write, *offset, data.len() as u64),
            Request::Flush => (Self::Flush, 0, 0),
            Request::Discard { offset, len } => (Self::Discard, *offset, *len),
            Request::WriteZeroes { offset, len, .. } => (Self::WriteZeroes, *offset, *len),
        }
    }
}

/// The number of kinds.
pub const KINDS: usize = 5;

/// One thread's counters, in cache lines that no other thread writes to.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    kinds: [PerKind; KINDS],
    invalid: AtomicU64,
}

#[derive(Debug, Default)]
struct PerKind {
    requests: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    waiting: Histogram,
    serving: Histogram,
}

/// The result of one request.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Bytes that the request asked for.
    pub bytes: u64,
    /// Whether the request failed.
    pub failed: bool,
    /// See [`Requests::waiting`].
    pub waiting: Duration,
    /// See [`Requests::serving`].
    pub serving: Duration,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl Counters {
    /// Counts a request.
    pub fn count(&self, kind: Kind, outcome: Outcome) {
        let to = &self.kinds[kind as usize];
        add(&to.requests, 1);
        add(&to.bytes, outcome.bytes);
        if outcome.failed {
            add(&to.failed, 1);
        }
        to.waiting.record(outcome.waiting);
        to.serving.record(outcome.serving);
    }

    /// The number of counted requests.
    pub fn requests(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.requests.load(Ordering::Relaxed)).sum()
    }

    /// Counts a request that exceeds the device.
    pub fn count_invalid(&self) {
        add(&self.invalid, 1);
    }
}

/// The counters of all threads that work or worked for a volume.
#[derive(Debug, Default)]
pub struct Accounts {
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    live: Vec<Arc<Counters>>,
    past: Totals,
}

impl Accounts {
    /// Makes the counters of one more thread.
    pub fn enter(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.all.lock().live.push(Arc::clone(&counters));
        counters
    }

    /// Keeps the counts of a thread that leaves. The thread must not count any more.
    pub fn leave(&self, counters: &Arc<Counters>) {
        let mut all = self.all.lock();
        all.past.add(counters);
        all.live.retain(|other| !Arc::ptr_eq(other, counters));
    }

    /// The sum over all threads.
    pub fn totals(&self) -> Totals {
        let all = self.all.lock();
        let mut totals = all.past.clone();
        for counters in &all.live {
            totals.add(counters);
        }
        totals
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        let all = self.all.lock();
        let live = all.live.iter().map(|counters| counters.requests());
        all.past.requests() + live.sum::<u64>()
    }
}

/// Counters of many threads, added up.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    kinds: [KindTotal; KINDS],
    /// Requests that exceeded the device.
    pub invalid: u64,
}

#[derive(Clone, Debug, Default)]
struct KindTotal {
    requests: u64,
    bytes: u64,
    failed: u64,
    waiting: Sum,
    serving: Sum,
}

impl Totals {
    /// Adds one thread's counters.
    pub fn add(&mut self, counters: &Counters) {
        self.invalid += counters.invalid.load(Ordering::Relaxed);
        for (to, from) in self.kinds.iter_mut().zip(&counters.kinds) {
            to.requests += from.requests.load(Ordering::Relaxed);
            to.bytes += from.bytes.load(Ordering::Relaxed);
            to.failed += from.failed.load(Ordering::Relaxed);
            to.waiting.add(&from.waiting);
            to.serving.add(&from.serving);
        }
    }

    /// The number of requests.
    pub fn requests(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.requests).sum()
    }

    /// The counted fields of a volume's statistics; all other fields are 0.
    pub fn stats(&self) -> Stats {
        Stats {
            read: self.of(Kind::Read),
            write: self.of(Kind::Write),
            flush: self.of(Kind::Flush),
            discard: self.of(Kind::Discard),
            write_zeroes: self.of(Kind::WriteZeroes),
            invalid_io: self.invalid,
            ..Stats::default()
        }
    }

    /// How long requests took, with all buckets.
    pub fn latencies(&self) -> Latencies {
        let of = |kind: Kind| {
            let total = &self.kinds[kind as usize];
            Spent { waiting: total.waiting.distribution(), serving: total.serving.distribution() }
        };
        Latencies {
            read: of(Kind::Read),
            write: of(Kind::Write),
            flush: of(Kind::Flush),
            discard: of(Kind::Discard),
            write_zeroes: of(Kind::WriteZeroes),
        }
    }

    /// The totals of one kind, as reported.
    fn of(&self, kind: Kind) -> Requests {
        let total = &self.kinds[kind as usize];
        Requests {
            requests: total.requests,
            bytes: total.bytes,
            failed: total.failed,
            waiting: total.waiting.latency(),
            serving: total.serving.latency(),
        }
    }
}
