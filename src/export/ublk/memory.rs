//! The memory that a queue shares with the kernel: descriptors of requests, and buffers.
//!
//! Invariant: descriptors are read, never borrowed, since the kernel writes them.

use super::abi::{self, Descriptor};
use crate::media::{Hint, MappedFor, Mapping};
use rustix::fd::AsFd;

/// The requests of a queue, which the kernel writes.
pub(super) struct Descriptors {
    mapping: Mapping,
    depth: u16,
}

impl Descriptors {
    /// Maps the descriptors of `queue` of the character device `node`.
    pub(super) fn map(node: impl AsFd, queue: u16, depth: u16) -> rustix::io::Result<Self> {
        let (offset, len) = abi::descriptors_at(queue, depth, rustix::param::page_size());
        Ok(Self { mapping: Mapping::shared(node, MappedFor::ReadingAll, offset, len)?, depth })
    }

    /// The request of `tag`, which must have been delivered.
    pub(super) fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} in a queue of {}", self.depth);
        // SAFETY: inside the mapping, which has `depth` descriptors (just checked), aligned since
        // it begins a page; any bytes are a descriptor. The kernel wrote it before it told the
        // tag, and leaves it alone until the tag is answered.
        unsafe { self.mapping.at(0).cast::<Descriptor>().add(usize::from(tag)).read_volatile() }
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
        let mapping = Mapping::anonymous(count * piece)?;
        // Without the right to it the device works, but must not carry swap, which the daemon says.
        let _ = mapping.lock_on_fault();
        mapping.prefer(Hint::DontDump);
        Ok(Self { mapping, piece })
    }

    /// Bytes of all buffers together.
    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The first `len` bytes of buffer `at`; `None` if it is not that large.
    pub(super) fn get(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        if len > self.piece || at >= self.mapping.len() / self.piece {
            return None;
        }
        // SAFETY: inside the mapping (just checked), which is initialized with zeros and borrowed
        // for as long as the slice lives. The kernel moves bytes of a buffer only between a
        // request's answer and the next delivery of its tag, when no slice of it exists.
        Some(unsafe { std::slice::from_raw_parts_mut(self.mapping.at(at * self.piece), len) })
    }

    /// The whole buffer `at`, which must exist.
    pub(super) fn whole(&mut self, at: usize) -> &mut [u8] {
        let piece = self.piece;
        self.get(at, piece).unwrap_or_default()
    }

    /// The address of buffer `at`.
    pub(super) fn address(&self, at: usize) -> u64 {
        self.mapping.at(at * self.piece) as u64
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
