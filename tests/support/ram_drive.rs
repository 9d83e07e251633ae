//! A drive in memory that counts its requests and fails on demand.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use ztier::media::{Action, Drive, DriveError};

/// A drive of bytes in memory. It loses no write until it is dropped.
pub struct RamDrive {
    bytes: Mutex<Vec<u8>>,
    size: u64,
    /// Whether writes and flushes fail.
    pub broken: AtomicBool,
    /// Whether reads fail.
    pub deaf: AtomicBool,
    /// Offset of a byte whose reads fail.
    pub bad: AtomicU64,
    /// Offset from which on writes fail.
    pub worn_from: AtomicU64,
    /// Flushes so far.
    pub flushes: AtomicU64,
    /// Duration of a flush in milliseconds.
    pub flush_ms: AtomicU64,
    /// Duration in milliseconds of a write, and of a read while there are writes.
    pub write_ms: AtomicU64,
    /// Duration of each read in milliseconds.
    pub read_ms: AtomicU64,
    /// Reads so far.
    pub reads: AtomicU64,
    /// Writes so far, and writes in flight.
    pub writes: AtomicU64,
    writing: AtomicU64,
}

impl RamDrive {
    /// A drive of zeros.
    pub fn new(size: u64) -> Self {
        Self {
            bytes: Mutex::new(vec![0; size as usize]),
            size,
            broken: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            bad: AtomicU64::new(u64::MAX),
            worn_from: AtomicU64::new(u64::MAX),
            flushes: AtomicU64::new(0),
            flush_ms: AtomicU64::new(0),
            write_ms: AtomicU64::new(0),
            read_ms: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            writing: AtomicU64::new(0),
        }
    }

    /// The drive's content.
    pub fn content(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    /// Flips a bit of a byte without a write request.
    pub fn damage(&self, at: u64) {
        self.bytes.lock().unwrap()[at as usize] ^= 0x40;
    }

    fn check(&self, action: Action, at: u64, len: u64) -> Result<(), DriveError> {
        assert!(at.is_multiple_of(4096) && len.is_multiple_of(4096), "{action} {len} at {at}");
        assert!(at + len <= self.size, "{action} {len} at {at}");
        let worn = at + len > self.worn_from.load(Ordering::SeqCst);
        if (self.broken.load(Ordering::SeqCst) || worn) && action != Action::Read {
            return Err(DriveError { action, at, len, errno: 5 });
        }
        let is_bad = (at..at + len).contains(&self.bad.load(Ordering::SeqCst));
        if (self.deaf.load(Ordering::SeqCst) || is_bad) && action == Action::Read {
            return Err(DriveError { action, at, len, errno: 5 });
        }
        Ok(())
    }
}

fn pause(ms: &AtomicU64) {
    match ms.load(Ordering::SeqCst) {
        0 => {}
        ms => std::thread::sleep(Duration::from_millis(ms)),
    }
}

impl Drive for RamDrive {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.check(Action::Read, at, buf.len() as u64)?;
        self.reads.fetch_add(1, Ordering::SeqCst);
        pause(&self.read_ms);
        if self.writing.load(Ordering::SeqCst) > 0 {
            pause(&self.write_ms);
        }
        buf.copy_from_slice(&self.bytes.lock().unwrap()[at as usize..][..buf.len()]);
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.check(Action::Write, at, data.len() as u64)?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.writing.fetch_add(1, Ordering::SeqCst);
        pause(&self.write_ms);
        self.writing.fetch_sub(1, Ordering::SeqCst);
        self.bytes.lock().unwrap()[at as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.check(Action::Zero, at, len)?;
        self.bytes.lock().unwrap()[at as usize..][..len as usize].fill(0);
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.check(Action::Flush, 0, 0)?;
        self.flushes.fetch_add(1, Ordering::SeqCst);
        pause(&self.flush_ms);
        Ok(())
    }
}
