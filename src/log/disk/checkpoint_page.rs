//! The pages of a checkpoint: pieces of one size, each of items of one kind. `docs/format.md`
//! draws them.
//!
//! Invariants: a page is believed only if it has the seed of its checkpoint and its own index among
//! the pages; all its items name slots as they were used when the page was begun.

use super::format::{ENTRY, crc, mix};
use crate::media::Buffer;

const MAGIC: u32 = u32::from_le_bytes(*b"zCKP");
/// Bytes before the items of a page.
pub(super) const FRONT: usize = 64;
/// Bytes that describe a segment, or a range.
pub(in crate::log) const ITEM: usize = 24;

/// The kind of a page's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::log) enum Content {
    Segments = 1,
    Ranges = 2,
    Blocks = 3,
}

impl Content {
    /// Bytes of an item.
    pub(in crate::log) fn size(self) -> usize {
        if self == Self::Blocks { ENTRY } else { ITEM }
    }

    /// Pages of `page` bytes that `items` take, but at least one.
    pub(in crate::log) fn pages(self, items: usize, page: u32) -> u64 {
        items.div_ceil((page as usize - FRONT) / self.size()).max(1) as u64
    }
}

/// The front of a page, before its items.
#[derive(Clone, Copy, Debug)]
pub(in crate::log) struct Front {
    pub content: Content,
    /// How many items there are.
    pub count: u32,
    /// The oldest segment in use when the page was begun.
    pub first: u64,
    /// Number of the first segment that it describes.
    pub base: u64,
}

impl Front {
    fn encode(&self, b: &mut [u8], seed: u64, index: u32) -> u32 {
        put(&mut b[..8], &[u64::from(MAGIC)]);
        put(&mut b[8..16], &[seed]);
        put(&mut b[16..24], &[u64::from(index) | (self.content as u64) << 32]);
        put(&mut b[24..48], &[u64::from(self.count), self.first, self.base]);
        let sum = crc(&b[8..]) ^ mix(seed, u64::from(index));
        b[4..8].copy_from_slice(&sum.to_le_bytes());
        sum
    }

    /// The front of the page with this seed and index, and its items; `None` if it is another page,
    /// or damaged.
    pub(in crate::log) fn decode(b: &[u8], seed: u64, index: u32) -> Option<(Self, &[u8])> {
        let sum = crc(b.get(8..)?) ^ mix(seed, u64::from(index));
        if get4(b, 0) != MAGIC || get4(b, 4) != sum || get8(b, 8) != seed || get4(b, 16) != index {
            return None;
        }
        let content = match get4(b, 20) {
            1 => Content::Segments,
            2 => Content::Ranges,
            3 => Content::Blocks,
            _ => return None,
        };
        let front = Self { content, count: get4(b, 24), first: get8(b, 32), base: get8(b, 40) };
        let len = (front.count as usize).checked_mul(content.size())?;
        Some((front, b.get(FRONT..)?.get(..len)?))
    }
}

/// The check word in the bytes of a page.
pub(in crate::log) fn check_of(page: &[u8]) -> u32 {
    get4(page, 4)
}

/// Extends the chained check words of the pages `before` by that of one more page.
pub(in crate::log) fn chain(before: u32, check: u32) -> u32 {
    crc(&(u64::from(before) | u64::from(check) << 32).to_le_bytes())
}

/// A page that is being filled.
#[derive(Debug)]
pub(in crate::log) struct Draft {
    front: Front,
    bytes: Buffer,
}

impl Draft {
    /// An empty page of `page` bytes.
    pub(in crate::log) fn new(content: Content, first: u64, base: u64, page: u32) -> Self {
        let front = Front { content, count: 0, first, base };
        Self { front, bytes: Buffer::new(page as usize) }
    }

    /// The oldest segment in use when it was begun.
    pub(in crate::log) fn first(&self) -> u64 {
        self.front.first
    }

    fn next_at(&self) -> usize {
        FRONT + self.front.count as usize * self.front.content.size()
    }

    /// Whether no other item fits.
    pub(in crate::log) fn is_full(&self) -> bool {
        self.next_at() + self.front.content.size() > self.bytes.len()
    }

    /// Adds an item, unless it is full.
    pub(in crate::log) fn push(&mut self, words: &[u64]) {
        if !self.is_full() {
            let at = self.next_at();
            put(&mut self.bytes[at..], words);
            self.front.count += 1;
        }
    }

    /// Completes the page; returns its bytes and its check word.
    pub(in crate::log) fn finish(mut self, seed: u64, index: u32) -> (Buffer, u32) {
        let check = self.front.encode(&mut self.bytes, seed, index);
        (self.bytes, check)
    }
}

fn put(out: &mut [u8], words: &[u64]) {
    for (slot, word) in out.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
}

pub(in crate::log) fn get8(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn get4(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}
