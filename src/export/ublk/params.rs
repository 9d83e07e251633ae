//! The parameters of a device for the kernel, and the decoding of requests.
//!
//! Invariant: pure functions; nothing here asks the kernel.

use super::abi::{self, Descriptor, Params};
use crate::BLOCK_SIZE;
use crate::device::Sector;

/// Bytes of a sector, the kernel's unit.
const SECTOR: u64 = 512;

/// The most bytes that one discard or write-zeroes may cover. The queue's thread serves it in one
/// go, while other requests of the queue wait.
const MAX_ZEROING: u64 = 256 << 20;

/// The kernel sends flushes and FUA only to a device that announces a volatile cache.
const CACHED: u32 = abi::ATTR_VOLATILE_CACHE | abi::ATTR_FUA;

/// What a device can do for its users.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ways {
    /// It takes discards.
    pub discards: bool,
    /// Written data is durable only after a flush, or if it was written with FUA.
    pub flushes: bool,
}

/// The kernel's parameters for a device of `size` bytes with this logical sector, and with requests
/// of up to `max_io` bytes.
pub(super) fn params(size: u64, sector: Sector, max_io: usize, ways: Ways) -> Params {
    let shift = BLOCK_SIZE.trailing_zeros() as u8;
    let zeroing = (MAX_ZEROING / SECTOR) as u32;
    let mut params = Params {
        len: size_of::<Params>() as u32,
        types: abi::PARAM_BASIC,
        attrs: if ways.flushes { CACHED } else { 0 },
        logical_block_shift: sector.bytes().trailing_zeros() as u8,
        physical_block_shift: shift,
        io_opt_shift: shift,
        io_min_shift: shift,
        max_sectors: (max_io as u64 / SECTOR) as u32,
        device_sectors: size / SECTOR,
        ..Params::default()
    };
    // A device without discards still takes write-zeroes.
    params.types |= abi::PARAM_DISCARD;
    params.discard_granularity = BLOCK_SIZE as u32;
    params.max_write_zeroes_sectors = zeroing;
    params.max_discard_segments = 1;
    if ways.discards {
        params.max_discard_sectors = zeroing;
    }
    params
}

/// The first difference that keeps another server from taking over a device; `None`: no difference.
pub(super) fn difference(device: &Params, ours: &Params) -> Option<String> {
    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR);
    if device.device_sectors != ours.device_sectors {
        let (was, is) = (bytes(device.device_sectors), bytes(ours.device_sectors));
        return Some(format!("it has {was} bytes, the volume {is}"));
    }
    if device.logical_block_shift != ours.logical_block_shift {
        return Some(format!(
            "it has blocks of {} bytes",
            1u64 << device.logical_block_shift.min(63)
        ));
    }
    if ours.attrs & CACHED & !device.attrs != 0 {
        return Some("it does not pass flushes on".to_owned());
    }
    if device.max_discard_sectors != 0 && ours.max_discard_sectors == 0 {
        return Some("it takes discards, which the volume does not".to_owned());
    }
    None
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        len: usize,
        fua: bool,
    },
    Flush,
    Discard {
        offset: u64,
        len: u64,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
        no_hole: bool,
        fua: bool,
    },
    /// An unknown operation.
    Unknown,
}

impl Asked {
    pub(super) fn of(descriptor: &Descriptor) -> Self {
        let offset = descriptor.start_sector.saturating_mul(SECTOR);
        let len = u64::from(descriptor.sectors) * SECTOR;
        let has = |flag| descriptor.op_flags & flag != 0;
        match descriptor.op_flags & 0xff {
            abi::OP_READ => Self::Read { offset, len: len as usize },
            abi::OP_WRITE => Self::Write { offset, len: len as usize, fua: has(abi::IO_FUA) },
            abi::OP_FLUSH => Self::Flush,
            abi::OP_DISCARD => Self::Discard { offset, len },
            abi::OP_WRITE_ZEROES => Self::WriteZeroes {
                offset,
                len,
                no_hole: has(abi::IO_NO_UNMAP),
                fua: has(abi::IO_FUA),
            },
            _ => Self::Unknown,
        }
    }

    /// The result that the kernel expects on success: the bytes moved.
    pub(super) fn moved(&self) -> i32 {
        match *self {
            Self::Read { len, .. } | Self::Write { len, .. } => i32::try_from(len).unwrap_or(0),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn asked(op_flags: u32) -> Asked {
        Asked::of(&Descriptor { op_flags, sectors: 16, start_sector: 8, addr: 0 })
    }

    #[test]
    fn requests_are_read() {
        assert_eq!(asked(abi::OP_READ), Asked::Read { offset: 4096, len: 8192 });
        assert_eq!(
            asked(abi::OP_WRITE | abi::IO_FUA),
            Asked::Write { offset: 4096, len: 8192, fua: true }
        );
        assert_eq!(
            asked(abi::OP_WRITE_ZEROES | abi::IO_NO_UNMAP),
            Asked::WriteZeroes { offset: 4096, len: 8192, no_hole: true, fua: false }
        );
        assert_eq!(asked(abi::OP_DISCARD), Asked::Discard { offset: 4096, len: 8192 });
        assert_eq!(asked(abi::OP_FLUSH), Asked::Flush);
        // WRITE_SAME, and an operation of the future.
        assert_eq!((asked(4), asked(200)), (Asked::Unknown, Asked::Unknown));
        assert_eq!(asked(abi::OP_READ).moved(), 8192);
        assert_eq!(asked(abi::OP_DISCARD).moved(), 0);
    }

    const ALL: Ways = Ways { discards: true, flushes: true };

    #[test]
    fn a_volatile_cache_is_announced() {
        let params = params(1 << 30, Sector::Block, 1 << 20, ALL);
        assert_eq!(params.attrs & abi::ATTR_VOLATILE_CACHE, abi::ATTR_VOLATILE_CACHE);
        assert_eq!(params.attrs & abi::ATTR_FUA, abi::ATTR_FUA);
        assert_eq!(params.device_sectors, 1 << 21);
        assert_eq!(params.max_sectors, 2048);
        assert_eq!(params.logical_block_shift, 12);
        assert!(params.max_discard_sectors > 0 && params.max_discard_segments == 1);
    }

    #[test]
    fn another_volume_does_not_take_over() {
        let ours = params(1 << 30, Sector::Block, 1 << 20, ALL);
        assert_eq!(difference(&ours, &ours), None);
        // Users do not depend on the size of requests.
        assert_eq!(difference(&params(1 << 30, Sector::Block, 1 << 16, ALL), &ours), None);
        let smaller = difference(&params(1 << 29, Sector::Block, 1 << 20, ALL), &ours).unwrap();
        assert_eq!(smaller, "it has 536870912 bytes, the volume 1073741824");
        let mut other = ours;
        other.logical_block_shift = 9;
        assert!(difference(&other, &ours).unwrap().contains("blocks of 512"));
        let mut other = ours;
        other.attrs = 0;
        assert!(difference(&other, &ours).unwrap().contains("flushes"));
        let keeping = params(1 << 30, Sector::Block, 1 << 20, Ways { discards: false, ..ALL });
        assert!(difference(&ours, &keeping).unwrap().contains("discards"));
        // A volume that needs no flushes may take over a device that sends them.
        let memory = params(1 << 30, Sector::Block, 1 << 20, Ways { flushes: false, ..ALL });
        assert_eq!((memory.attrs, difference(&ours, &memory)), (0, None));
        assert!(difference(&memory, &ours).unwrap().contains("flushes"));
    }
}
