//! The spill device: the place of its slots, its counters, how reads and writes take turns there,
//! and whether it still takes writes.
//!
//! Invariants: a failed write loses nothing, because its segment is still in memory; after a failed
//! write nothing is written for a while, then writing is tried again ([`Pause`]); after a failed
//! read of a whole slot none is emptied for a while; a failed read fails the requests for its
//! blocks, and no others.

use super::seek_cost::SeekCost;
use super::write_budget::TokenBucket;
use crate::media::{ALIGN, Buffer, Drive, DriveError, Failures};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device for segments that memory has no room for.
#[derive(Clone)]
pub struct SpillTo {
    /// The device.
    pub drive: Arc<dyn Drive>,
    /// Slots of one segment each, behind a first place that is not used for segments.
    pub slots: u32,
    /// Bytes that may be written in a day; 0: no limit.
    pub daily: u64,
}

/// Counters of the spill device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Nanoseconds that reads took.
    pub reading_ns: u64,
    /// Nanoseconds that writes took.
    pub writing_ns: u64,
    /// Reads and writes that failed.
    pub errors: u64,
}

/// How long nothing is written after a failed write, or no slot is emptied after a failed read;
/// doubles with each failure in a row, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
/// See [`PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The time that a piece of a segment may take to be written, about.
const TURN: Duration = Duration::from_millis(10);
/// The least piece, in bytes.
const PIECE: usize = 128 << 10;
/// How long the write of a segment lets reads go first, in all.
const COURTESY: Duration = Duration::from_millis(100);
/// How often it looks whether they have ended.
const NAP: Duration = Duration::from_micros(200);

/// When a device is tried again after a failure. Times are in milliseconds.
struct Pause {
    /// Length of the pause; 0 while requests succeed.
    length: AtomicU64,
    /// The time when the pause ends.
    until: AtomicU64,
}

impl Pause {
    fn new() -> Self {
        Self { length: AtomicU64::new(0), until: AtomicU64::new(0) }
    }

    /// Whether the last request failed.
    fn is_on(&self) -> bool {
        self.length.load(Ordering::Acquire) > 0
    }

    /// Whether nothing may be tried now.
    fn holds(&self, now: Duration) -> bool {
        self.is_on() && (now.as_millis() as u64) < self.until.load(Ordering::Acquire)
    }

    /// Begins or lengthens the pause after a failure.
    fn begin(&self, now: Duration) {
        let before = self.length.load(Ordering::Acquire);
        let length = (before * 2).clamp(PAUSE.as_millis() as u64, LONGEST_PAUSE.as_millis() as u64);
        self.until.store(now.as_millis() as u64 + length, Ordering::Release);
        self.length.store(length, Ordering::Release);
    }

    /// Ends the pause after a success.
    fn end(&self) {
        if self.is_on() {
            self.length.store(0, Ordering::Release);
        }
    }
}

/// See [`SpillTo`].
pub(super) struct Spill {
    drive: Arc<dyn Drive>,
    segment: u32,
    began: Instant,
    write_budget: Mutex<TokenBucket>,
    pause: Pause,
    /// After reads of whole slots: of those whose last such read had not failed, and of the others,
    /// so that one bad slot holds up no other.
    emptying: Pause,
    retrying: Pause,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    reading_ns: AtomicU64,
    writing_ns: AtomicU64,
    errors: AtomicU64,
    seek: Mutex<SeekCost>,
    /// Reads under way.
    reading: AtomicU64,
}

impl Spill {
    pub(super) fn new(to: SpillTo, segment: u32) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            drive: to.drive,
            segment,
            began: Instant::now(),
            write_budget: Mutex::new(TokenBucket::new(to.daily, Duration::ZERO)),
            pause: Pause::new(),
            emptying: Pause::new(),
            retrying: Pause::new(),
            reads: zero(),
            read_bytes: zero(),
            writes: zero(),
            written_bytes: zero(),
            reading_ns: zero(),
            writing_ns: zero(),
            errors: zero(),
            seek: Mutex::default(),
            reading: zero(),
        }
    }

    /// Bytes that the device reads in the time of a seek, as far as its reads have told.
    pub(super) fn seek_bytes(&self) -> u32 {
        self.seek.lock().bytes()
    }

    /// Whether the last write failed: then nothing is spilled for a while.
    pub(super) fn has_failed(&self) -> bool {
        self.pause.is_on()
    }

    /// The failures of the device.
    pub(super) fn failures(&self) -> Option<&Failures> {
        self.drive.failures()
    }

    /// What errors call the device.
    pub(super) fn name(&self) -> String {
        let path = self.failures().map(|failures| failures.path().display().to_string());
        path.unwrap_or_else(|| "the spill device".into())
    }

    /// Whether a segment may be written now.
    pub(super) fn takes(&self) -> bool {
        let has = || self.write_budget.lock().has(self.segment.into(), self.began.elapsed());
        !self.pause.holds(self.began.elapsed()) && has()
    }

    /// Bytes that may still be written now; `None` when there is no limit.
    pub(super) fn allowed(&self) -> Option<u64> {
        self.write_budget.lock().left(self.began.elapsed())
    }

    /// Changes the bytes that may be written a day; 0: no limit.
    pub(super) fn set_daily(&self, bytes: u64) {
        self.write_budget.lock().set_daily(bytes, self.began.elapsed());
    }

    fn at(&self, slot: u32, from: u32) -> u64 {
        (u64::from(slot) + 1) * u64::from(self.segment) + u64::from(from)
    }

    /// Writes `bytes` to the start of a slot. `false` when that failed.
    pub(super) fn write(&self, slot: u32, bytes: &[u8]) -> bool {
        let len = bytes.len() as u64;
        self.write_budget.lock().take(len, self.began.elapsed());
        let start = Instant::now();
        let done = self.write_pieces(slot, bytes);
        self.writing_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        match done {
            Ok(()) => {
                self.pause.end();
                self.written_bytes.fetch_add(len, Ordering::Relaxed)
            }
            Err(_) => {
                self.pause.begin(self.began.elapsed());
                self.errors.fetch_add(1, Ordering::Relaxed)
            }
        };
        done.is_ok()
    }

    /// Writes `bytes` to the start of a slot, in pieces between which reads go first: a device that
    /// takes one request at a time would let them wait for the whole segment.
    fn write_pieces(&self, slot: u32, bytes: &[u8]) -> Result<(), DriveError> {
        let piece = self.piece();
        let mut patience = COURTESY;
        for (n, part) in bytes.chunks(piece).enumerate() {
            while n > 0 && self.reading.load(Ordering::Relaxed) > 0 && !patience.is_zero() {
                std::thread::sleep(NAP);
                patience = patience.saturating_sub(NAP);
            }
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.drive.write(self.at(slot, (n * piece) as u32), part)?;
        }
        Ok(())
    }

    /// What the device writes in about [`TURN`]; a whole segment on a quick one.
    fn piece(&self) -> usize {
        let written = self.written_bytes.load(Ordering::Relaxed);
        let rate = written as f64 / self.writing_ns.load(Ordering::Relaxed).max(1) as f64;
        let bytes = (rate * TURN.as_nanos() as f64) as usize;
        (bytes / PIECE * PIECE).max(PIECE).min(self.segment as usize)
    }

    /// Zeroes the label. A device that cannot be written to keeps its label, which does no harm.
    pub(super) fn disown(&self) {
        let _ = self.drive.write(0, &Buffer::new(ALIGN));
    }

    /// Reads a part of a slot.
    ///
    /// # Errors
    /// The drive's error.
    pub(super) fn read(&self, slot: u32, from: u32, buf: &mut [u8]) -> Result<(), DriveError> {
        debug_assert!(buf.len().is_multiple_of(ALIGN));
        self.reads.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        self.reading.fetch_add(1, Ordering::Relaxed);
        let read = self.drive.read(self.at(slot, from), buf);
        self.reading.fetch_sub(1, Ordering::Relaxed);
        let took = start.elapsed().as_nanos() as u64;
        self.reading_ns.fetch_add(took, Ordering::Relaxed);
        match read {
            Ok(()) => {
                self.seek.lock().note(buf.len() as u64, took);
                self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed)
            }
            Err(_) => self.errors.fetch_add(1, Ordering::Relaxed),
        };
        read
    }

    /// Whether a slot may be read to be emptied now: one whose last such read has not failed, and
    /// one whose last such read has.
    pub(super) fn may_empty(&self) -> [bool; 2] {
        let now = self.began.elapsed();
        [&self.emptying, &self.retrying].map(|pause| !pause.holds(now))
    }

    /// Reads a slot from its start on to empty it; `again`: the last such read of it failed.
    /// `false` when this one failed.
    pub(super) fn read_whole(&self, slot: u32, buf: &mut [u8], again: bool) -> bool {
        let done = self.read(slot, 0, buf).is_ok();
        let now = self.began.elapsed();
        match (done, again) {
            (true, false) => self.emptying.end(),
            (true, true) => {
                self.emptying.end();
                self.retrying.end();
            }
            (false, false) => {
                self.emptying.begin(now);
                self.retrying.begin(now);
            }
            (false, true) => self.retrying.begin(now),
        }
        done
    }

    pub(super) fn counts(&self) -> SpillCounts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        SpillCounts {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            writes: get(&self.writes),
            written_bytes: get(&self.written_bytes),
            reading_ns: get(&self.reading_ns),
            writing_ns: get(&self.writing_ns),
            errors: get(&self.errors),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_failed_is_tried_again_less_and_less_often() {
        let (pause, seconds) = (Pause::new(), Duration::from_secs);
        assert!(!pause.is_on() && !pause.holds(seconds(0)));
        let mut now = seconds(10);
        for length in [1, 2, 4, 8, 16, 32, 60, 60] {
            pause.begin(now);
            assert!(pause.is_on() && pause.holds(now + seconds(length) - Duration::from_millis(1)));
            now += seconds(length);
            assert!(!pause.holds(now), "{length}");
        }
        pause.end();
        assert!(!pause.is_on() && !pause.holds(now));
        pause.begin(now);
        assert!(!pause.holds(now + seconds(1)), "as at the first time");
    }
}
