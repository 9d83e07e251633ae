//! The memory that a queue shares with the kernel: descriptors of requests, and buffers.
//!
//! Invariants: a mapping has a fixed place for as long as it lives; descriptors are read, never
//! borrowed, since the kernel writes them.

use super::abi::{self, Descriptor};
use rustix::fd::AsFd;
use rustix::mm::{
    Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, mmap_anonymous, munmap,
};
use std::ffi::c_void;

struct Mapping {
    base: *mut c_void,
    len: usize,
}

// SAFETY: a `Mapping` is an address range that belongs to no thread; what is done with it is in the
// two types below.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrowed from it lives longer than its owner.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

/// The requests of a queue, which the kernel writes.
pub(super) struct Descriptors {
    mapping: Mapping,
    depth: u16,
}

impl Descriptors {
    /// Maps the descriptors of `queue` of the character device `node`.
    pub(super) fn map(node: impl AsFd, queue: u16, depth: u16) -> rustix::io::Result<Self> {
        let (offset, len) = abi::descriptors_at(queue, depth, rustix::param::page_size());
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, node, offset)?
        };
        Ok(Self { mapping: Mapping { base, len }, depth })
    }

    /// The request of `tag`, which must have been delivered.
    pub(super) fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} in a queue of {}", self.depth);
        // SAFETY: inside the mapping, which has `depth` descriptors (just checked), aligned since
        // it begins a page; any bytes are a descriptor. The kernel wrote it before it told the
        // tag, and leaves it alone until the tag is answered.
        unsafe { self.mapping.base.cast::<Descriptor>().add(usize::from(tag)).read_volatile() }
    }
}

/// Buffers of equal size, aligned to pages.
pub(super) struct Buffers {
    mapping: Mapping,
    piece: usize,
}

impl Buffers {
    /// `count` buffers of `piece` bytes, a multiple of the block size. They take memory at first
    /// use and keep it: they are locked, if the process may lock memory.
    pub(super) fn new(count: usize, piece: usize) -> rustix::io::Result<Self> {
        let len = count * piece;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        // SAFETY: locking a mapping of our own changes no contents. Without the right to it the
        // device works, but must not carry swap, which the daemon says.
        let _ = unsafe { mlock_with(base, len, MlockFlags::ONFAULT) };
        // A core dump would contain the content.
        // SAFETY: advice on our own mapping changes no contents.
        let _ = unsafe { madvise(base, len, Advice::LinuxDontDump) };
        Ok(Self { mapping: Mapping { base, len }, piece })
    }

    /// Bytes of all buffers together.
    pub(super) fn len(&self) -> usize {
        self.mapping.len
    }

    /// The first `len` bytes of buffer `at`; `None` if it is not that large.
    pub(super) fn get(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        if len > self.piece || at >= self.mapping.len / self.piece {
            return None;
        }
        // SAFETY: inside the mapping (just checked), which is initialized with zeros and borrowed
        // for as long as the slice lives. The kernel moves bytes of a buffer only between a
        // request's answer and the next delivery of its tag, when no slice of it exists.
        Some(unsafe {
            let start = self.mapping.base.cast::<u8>().add(at * self.piece);
            std::slice::from_raw_parts_mut(start, len)
        })
    }

    /// The whole buffer `at`, which must exist.
    pub(super) fn whole(&mut self, at: usize) -> &mut [u8] {
        let piece = self.piece;
        self.get(at, piece).unwrap_or_default()
    }

    /// The address of buffer `at`.
    pub(super) fn address(&self, at: usize) -> u64 {
        (self.mapping.base as usize + at * self.piece) as u64
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn buffers_are_apart_and_bounded() {
        let mut buffers = Buffers::new(3, 8192).unwrap();
        for at in 0..3 {
            buffers.get(at, 8192).unwrap().fill(at as u8 + 1);
        }
        assert!((0..3).all(|at| buffers.get(at, 8192).unwrap().iter().all(|b| *b == at as u8 + 1)));
        assert!(buffers.get(3, 1).is_none() && buffers.get(0, 8193).is_none());
        assert_eq!(buffers.address(1) - buffers.address(0), 8192);
        assert_eq!(buffers.address(0) % 4096, 0);
    }
}
