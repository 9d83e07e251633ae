//! A logged volume on two drives in memory.
#![allow(clippy::unwrap_used)]

use super::ram_drive::RamDrive;
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{LogOptions, LogVolume};
use ztier::log;
use ztier::log::disk::format::IDENTITY;

pub const BLOCK: u64 = 4096;
pub const BLOCKS: u64 = 2048;
pub const SEGMENT: u32 = 64 << 10;

/// The drives, which outlive the volume.
pub struct Pair {
    pub log: Arc<RamDrive>,
    pub backing: Arc<RamDrive>,
    opened: u64,
}

impl Pair {
    pub fn new(log_bytes: u64) -> Self {
        let log = Arc::new(RamDrive::new(log_bytes));
        let backing = Arc::new(RamDrive::new(BLOCKS * BLOCK));
        log::format(&*log, [7; 16], [0; IDENTITY], BLOCKS, SEGMENT).unwrap();
        Self { log, backing, opened: 0 }
    }

    pub fn open(&mut self) -> Arc<LogVolume> {
        self.open_with(LogOptions::default())
    }

    pub fn open_with(&mut self, options: LogOptions) -> Arc<LogVolume> {
        self.opened += 1;
        let (log, backing) = (Arc::clone(&self.log), Arc::clone(&self.backing));
        let volume = LogVolume::open(log, backing, options, 1000 + self.opened).unwrap();
        volume.start(None).unwrap();
        volume
    }
}

/// Waits until all blocks are written back.
pub fn drain(volume: &LogVolume) {
    let began = Instant::now();
    while !volume.stats().log.unwrap().clean {
        volume.drain(true);
        assert!(began.elapsed().as_secs() < 60, "{:?}", volume.stats().log);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
