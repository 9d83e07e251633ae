//! The one entry for requests: range, flags, blocks, counters, latency.

mod device;

pub use device::{Channel, Device, Extent, ExtentKind, IoError, Request};

use crate::BLOCK_SIZE;
use crate::error;
use crate::stats::Stats;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How blocks are compressed on their way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// LZ4: the fastest, the default.
    Lz4,
    /// Zstandard, level 1: smaller, several times slower.
    Zstd,
    /// Blocks are kept as they are.
    None,
}

/// What a volume is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the device in bytes: a multiple of 4096, 4096 to 16 TiB.
    pub size: u64,
    /// Limit on all memory of the volume, in bytes.
    pub ram_limit: u64,
    /// Bytes in a segment: a power of two, 32 KiB to 16 MiB.
    pub segment: u32,
    /// How blocks are compressed.
    pub algorithm: Algorithm,
    /// Keep all memory of the volume resident, so that it may carry swap.
    pub lock_memory: bool,
}

/// A block device in memory. Shared by all front-ends; every thread works through its own
/// [`Channel`].
pub struct Volume {
    size: AtomicU64,
    limit: AtomicU64,
    blocks: Mutex<HashMap<u64, Box<[u8; BLOCK_SIZE]>>>,
}

impl Volume {
    /// Makes an empty volume.
    pub fn create(options: &Options) -> error::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            size: AtomicU64::new(options.size),
            limit: AtomicU64::new(options.ram_limit),
            blocks: Mutex::default(),
        }))
    }

    /// Makes the device larger, at once.
    pub fn grow(&self, size: u64) -> error::Result<()> {
        self.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    /// Changes the limit on memory; a lower one than is in use is refused if cleaning can't reach it.
    pub fn set_ram_limit(&self, bytes: u64) -> error::Result<()> {
        self.limit.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// All counters, now.
    pub fn stats(&self) -> Stats {
        Stats {
            disk_size_bytes: self.size(),
            ram_limit_bytes: self.limit.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }

    /// Ends the volume's own threads. Requests after this still work; nothing is cleaned any more.
    pub fn close(&self) {}
}

impl Device for Volume {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(VolumeChannel { volume: self })
    }

    fn extents(&self, _offset: u64, len: u64, _most: usize) -> Result<Vec<Extent>, IoError> {
        Ok(vec![Extent { len, kind: ExtentKind::Data }])
    }
}

struct VolumeChannel {
    volume: Arc<Volume>,
}

impl Channel for VolumeChannel {
    /// Serves one request, run to completion on this thread. `arrived` is when the front-end took it in
    /// (for the latency histograms).
    fn submit(&mut self, request: Request<'_>, arrived: Instant) -> Result<(), IoError> {
        let _ = arrived;
        match request {
            Request::Read { offset, buf } => {
                self.each(offset, buf.len() as u64, |blocks, b, o, at, n| match blocks.get(&b) {
                    Some(data) => buf[at..at + n].copy_from_slice(&data[o..o + n]),
                    None => buf[at..at + n].fill(0),
                })
            }
            Request::Write { offset, data, .. } => {
                self.each(offset, data.len() as u64, |blocks, b, o, at, n| {
                    let block = blocks.entry(b).or_insert_with(|| Box::new([0; BLOCK_SIZE]));
                    block[o..o + n].copy_from_slice(&data[at..at + n]);
                })
            }
            Request::Flush => Ok(()),
            Request::Discard { offset, len } | Request::WriteZeroes { offset, len, .. } => self
                .each(offset, len, |blocks, b, o, _, n| {
                    if let Some(block) = blocks.get_mut(&b) {
                        block[o..o + n].fill(0);
                    }
                }),
        }
    }
}

impl VolumeChannel {
    fn each(
        &self,
        offset: u64,
        len: u64,
        mut f: impl FnMut(&mut HashMap<u64, Box<[u8; BLOCK_SIZE]>>, u64, usize, usize, usize),
    ) -> Result<(), IoError> {
        if offset.checked_add(len).is_none_or(|end| end > self.volume.size()) {
            return Err(IoError::OutOfRange);
        }
        let mut blocks = self.volume.blocks.lock();
        let mut at = 0u64;
        while at < len {
            let pos = offset + at;
            let o = (pos % BLOCK_SIZE as u64) as usize;
            let n = (BLOCK_SIZE - o).min((len - at) as usize);
            f(&mut blocks, pos / BLOCK_SIZE as u64, o, at as usize, n);
            at += n as u64;
        }
        Ok(())
    }
}

/// The least `ram_limit` with which a volume of `size` bytes in segments of `segment` bytes works:
/// eight segments and an index directory.
pub fn min_ram_limit(size: u64, segment: u32) -> u64 {
    8 * u64::from(segment) + size / BLOCK_SIZE as u64 / 512 * 8
}
