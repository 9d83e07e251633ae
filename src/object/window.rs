//! Writes that are not in the store yet.
//!
//! Invariant: of a block, the last write or zeroing counts.

use super::format::{ENTRIES_MAX, Entry, PAYLOADS_MAX, Part, Seed, table};
use super::mark::{MARK, Mark};
use crate::intervals::Intervals;
use crate::media::PackedBlock;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes that a block in a window takes beside its payload.
const BESIDE: usize = 64;
/// Blocks that one entry of zeros can name.
const ZEROS_MAX: u64 = u32::MAX as u64;

/// What a window has of a block.
#[derive(Clone, Debug)]
pub enum Had {
    /// This payload.
    Payload(PackedBlock),
    /// It reads as zeros.
    Zeros,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Window {
    blocks: BTreeMap<u64, PackedBlock>,
    /// What was zeroed, before the writes of blocks in it.
    zeroed: Intervals,
    bytes: usize,
}

impl Window {
    /// Writes a block.
    pub fn write(&mut self, block: u64, payload: PackedBlock) {
        self.bytes += payload.bytes.len() + BESIDE;
        if let Some(before) = self.blocks.insert(block, payload) {
            self.bytes -= before.bytes.len() + BESIDE;
        }
    }

    /// Makes blocks read as zeros.
    pub fn zero(&mut self, blocks: Range<u64>) {
        let written: Vec<u64> =
            self.blocks.range(blocks.clone()).map(|(block, _)| *block).collect();
        for block in written {
            if let Some(before) = self.blocks.remove(&block) {
                self.bytes -= before.bytes.len() + BESIDE;
            }
        }
        self.zeroed.insert(blocks);
    }

    /// What it has of `block`; `None`: nothing.
    pub fn get(&self, block: u64) -> Option<Had> {
        match self.blocks.get(&block) {
            Some(payload) => Some(Had::Payload(payload.clone())),
            None => self.zeroed.contains(block).then_some(Had::Zeros),
        }
    }

    /// Whether nothing was written or zeroed.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.zeroed.total() == 0
    }

    /// Memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.zeroed.ranges() * BESIDE
    }

    /// Its content as parts: at least one, zeros first.
    pub fn parts(&self) -> Vec<Draft> {
        let zeros = self.zeroed.iter().flat_map(pieces);
        let zeros = zeros.map(|(first, count)| Item::Zeros(first, count));
        let blocks =
            self.blocks.iter().map(|(block, payload)| Item::Block(*block, payload.clone()));
        filled(Draft::default(), zeros.chain(blocks))
    }
}

/// A range as first blocks and numbers of blocks that an entry has room for.
fn pieces(range: Range<u64>) -> impl Iterator<Item = (u64, u32)> {
    let end = range.end;
    let starts = range.step_by(ZEROS_MAX as usize);
    starts.map(move |first| (first, (end - first).min(ZEROS_MAX) as u32))
}

/// `first` with more items, and as many parts more as they need.
fn filled(first: Draft, items: impl Iterator<Item = Item>) -> Vec<Draft> {
    let mut parts = vec![first];
    for item in items {
        if parts.last().is_none_or(|part| !part.has_room(&item)) {
            parts.push(Draft::default());
        }
        if let Some(part) = parts.last_mut() {
            part.bytes += item.len();
            part.items.push(item);
        }
    }
    parts
}

/// The end of a log's window: its last part, what is lost, and the log's mark.
pub fn ending(last: Draft, lost: &[(u64, u64)], mark: &Mark) -> Vec<Draft> {
    let lost = lost.iter().flat_map(|(first, count)| pieces(*first..first + count));
    let lost = lost.map(|(first, count)| Item::Lost(first, count));
    filled(last, lost.chain([Item::Mark(*mark)]))
}

#[derive(Clone, Debug)]
enum Item {
    Zeros(u64, u32),
    Block(u64, PackedBlock),
    Lost(u64, u32),
    Mark(Mark),
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Self::Zeros(..) | Self::Lost(..) => 0,
            Self::Block(_, payload) => payload.bytes.len(),
            Self::Mark(_) => MARK,
        }
    }

    fn entry(&self, seed: &Seed) -> Entry {
        match self {
            Self::Zeros(first, count) => Entry::Zeros { first: *first, count: *count },
            Self::Block(block, PackedBlock { coding, bytes }) => {
                let check = seed.payload(*block, *coding, bytes);
                let (block, coding, len) = (*block, *coding, bytes.len() as u16);
                Entry::Block { block, coding, len, check }
            }
            Self::Lost(first, count) => Entry::Lost { first: *first, count: *count },
            Self::Mark(mark) => Entry::Mark { len: MARK as u16, check: seed.mark(&mark.encode()) },
        }
    }
}

/// The content of a part that has no slot yet.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    items: Vec<Item>,
    bytes: usize,
}

impl Draft {
    fn has_room(&self, item: &Item) -> bool {
        self.bytes + item.len() <= PAYLOADS_MAX && self.items.len() < ENTRIES_MAX
    }

    /// Its entries, and the object that has them and their payloads: the table, then each payload.
    pub fn encode(&self, seed: &Seed, of: Part) -> (Vec<Entry>, Vec<Bytes>) {
        let entries: Vec<Entry> = self.items.iter().map(|item| item.entry(seed)).collect();
        let payload = |item: &Item| match item {
            Item::Block(_, packed) => Some(packed.bytes.clone()),
            Item::Mark(mark) => Some(Bytes::copy_from_slice(&mark.encode())),
            Item::Zeros(..) | Item::Lost(..) => None,
        };
        let table = table(seed, of, &entries).into();
        let pieces = std::iter::once(table).chain(self.items.iter().filter_map(payload)).collect();
        (entries, pieces)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::Coding;

    fn payload(byte: u8, len: usize) -> PackedBlock {
        PackedBlock { coding: Coding::Raw, bytes: vec![byte; len].into() }
    }

    #[test]
    fn the_last_write_or_zeroing_counts() {
        let mut window = Window::default();
        assert!(window.is_empty());
        window.write(7, payload(1, 100));
        window.write(7, payload(2, 50));
        window.zero(0..7);
        window.write(3, payload(3, 10));
        let byte = |had: Option<Had>| match had {
            Some(Had::Payload(payload)) => payload.bytes[0],
            Some(Had::Zeros) => 0,
            None => 255,
        };
        assert_eq!([2, 3, 7, 8].map(|block| byte(window.get(block))), [0, 3, 2, 255]);
        window.zero(7..8);
        assert_eq!(byte(window.get(7)), 0);
        assert!(!window.is_empty() && window.bytes() < 300);
    }

    #[test]
    fn a_large_window_has_several_parts_and_zeros_come_first() {
        let mut window = Window::default();
        window.zero(0..1 << 33);
        for block in 0..3000 {
            window.write(block, payload(1, 4096));
        }
        let parts = window.parts();
        assert_eq!(parts.len(), 2);
        let seed = Seed { volume: [1; 16], session: [2; 16], slot: 3 };
        let of = Part { window: 0, part: 0, commits: false, before: 0 };
        let (entries, object) = parts[0].encode(&seed, of);
        let object = object.concat();
        assert_eq!(entries[0], Entry::Zeros { first: 0, count: u32::MAX });
        assert_eq!(entries[1], Entry::Zeros { first: u64::from(u32::MAX), count: u32::MAX });
        assert!(matches!(entries[2], Entry::Zeros { count: 2, .. }));
        assert!(matches!(entries[3], Entry::Block { block: 0, len: 4096, .. }));
        let table = table(&seed, of, &entries);
        assert!(object.starts_with(&table) && object.len() == table.len() + PAYLOADS_MAX);
        assert!(object[table.len()..].iter().all(|byte| *byte == 1));
        let count: usize = parts.iter().map(|part| part.encode(&seed, of).0.len()).sum();
        assert_eq!(count, 3003);
    }
}
