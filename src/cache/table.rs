//! The index of a shard: which blocks have a copy, and where it is, in 8 bytes a slot.
//!
//! Open addressing, every entry at or behind its home, no tombstones. It is filled to 7/8 and then
//! grows by 1/8, so a cached block takes 9.2 to 10.3 bytes, and 19.5 for the moment in which it
//! grows. (A table that doubles takes 17 to 39 with the same entries.)
//!
//! Invariants: no slot is empty between an entry and its home; an entry's home is a monotonic
//! function of its hash, whatever the number of slots.

/// A slot without an entry.
const EMPTY: u32 = u32::MAX;
/// All keys are below this.
pub const KEYS: u64 = EMPTY as u64;
/// Slots of the smallest table.
const LEAST: usize = 32;

/// Bits of a [`Place`]: hits, then unit, then segment.
const HITS_BITS: u32 = 2;
const UNIT_BITS: u32 = 12;
/// The most segments that a shard can have.
pub const SEGMENTS_MAX: u32 = 1 << (32 - UNIT_BITS - HITS_BITS);
/// Bytes of a unit: records begin at multiples of it.
pub const UNIT: usize = 16;
/// The largest segment in bytes.
pub const SEGMENT_MAX: usize = UNIT << UNIT_BITS;

/// Where a copy is, and how often it was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// The record at byte `at` of a segment.
    pub fn new(segment: u32, at: usize, hits: u8) -> Self {
        debug_assert!(segment < SEGMENTS_MAX && at < SEGMENT_MAX && at.is_multiple_of(UNIT));
        let unit = (at / UNIT) as u32;
        Self(segment << (UNIT_BITS + HITS_BITS) | unit << HITS_BITS | u32::from(hits & 3))
    }

    /// The number of the segment.
    pub fn segment(self) -> u32 {
        self.0 >> (UNIT_BITS + HITS_BITS)
    }

    /// The byte in the segment at which the record begins.
    pub fn at(self) -> usize {
        (self.0 >> HITS_BITS) as usize % (1 << UNIT_BITS) * UNIT
    }

    /// Hits that are still counted.
    pub fn hits(self) -> u8 {
        (self.0 & 3) as u8
    }

    /// The same place with other hits.
    #[must_use]
    pub fn with_hits(self, hits: u8) -> Self {
        Self(self.0 & !3 | u32::from(hits & 3))
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u32,
    place: u32,
}

/// The index.
#[derive(Debug, Default)]
pub struct Table {
    slots: Vec<Slot>,
    len: usize,
}

/// Spreads keys over 32 bits; no two have the same (the finalizer of MurmurHash3).
pub fn spread(key: u32) -> u32 {
    let mut x = key;
    x ^= x >> 16;
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

impl Table {
    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        (self.slots.capacity() * size_of::<Slot>()) as u64
    }

    /// Whether it must grow before another entry comes.
    pub fn is_full(&self) -> bool {
        self.len + 1 > most(self.slots.len())
    }

    /// Memory in bytes after the next growth.
    pub fn next_bytes(&self) -> u64 {
        (self.next() * size_of::<Slot>()) as u64
    }

    fn next(&self) -> usize {
        let now = self.slots.len();
        (now + now / 8).next_multiple_of(8).max(LEAST)
    }

    /// Grows; `false` if the machine has no memory for that.
    pub fn grow(&mut self) -> bool {
        self.rebuild(self.next())
    }

    /// Becomes as small as its entries allow; `false` if it cannot become smaller.
    pub fn shrink(&mut self) -> bool {
        let least = match self.len {
            0 => 0,
            len => (len + len / 7 + 1).next_multiple_of(8).max(LEAST),
        };
        least < self.slots.len() && self.rebuild(least)
    }

    fn rebuild(&mut self, slots: usize) -> bool {
        let mut new: Vec<Slot> = Vec::new();
        if new.try_reserve_exact(slots).is_err() {
            return false;
        }
        new.resize(slots, Slot { key: EMPTY, place: 0 });
        let old = std::mem::replace(&mut self.slots, new);
        for slot in old.into_iter().filter(|slot| slot.key != EMPTY) {
            self.put(slot);
        }
        true
    }

    fn home(&self, key: u32) -> usize {
        ((u64::from(spread(key)) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    fn find(&self, key: u32) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.home(key);
        loop {
            match self.slots[at].key {
                found if found == key => return Some(at),
                EMPTY => return None,
                _ => at = self.after(at),
            }
        }
    }

    /// Where the copy of a block is.
    pub fn get(&self, key: u32) -> Option<Place> {
        self.find(key).map(|at| Place(self.slots[at].place))
    }

    /// Changes the place of an entry; `false` if there is none.
    pub fn set(&mut self, key: u32, place: Place) -> bool {
        let found = self.find(key);
        if let Some(at) = found {
            self.slots[at].place = place.0;
        }
        found.is_some()
    }

    /// Adds an entry for a key that has none.
    ///
    /// # Panics
    /// The table is full.
    pub fn insert(&mut self, key: u32, place: Place) {
        assert!(!self.is_full(), "an index of {} slots is full", self.slots.len());
        debug_assert!(key != EMPTY && self.find(key).is_none());
        self.put(Slot { key, place: place.0 });
        self.len += 1;
    }

    fn put(&mut self, slot: Slot) {
        let mut at = self.home(slot.key);
        while self.slots[at].key != EMPTY {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    /// Removes an entry; returns its place.
    pub fn remove(&mut self, key: u32) -> Option<Place> {
        let at = self.find(key)?;
        let place = Place(self.slots[at].place);
        self.close_gap(at);
        self.len -= 1;
        Some(place)
    }

    /// Moves following entries back, so that no entry has a gap between it and its home.
    fn close_gap(&mut self, mut gap: usize) {
        let slots = self.slots.len();
        let distance =
            |from: usize, to: usize| if to >= from { to - from } else { to + slots - from };
        let mut at = gap;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot.key == EMPTY {
                break;
            }
            if distance(self.home(slot.key), at) >= distance(gap, at) {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = Slot { key: EMPTY, place: 0 };
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = (u32, Place)> + '_ {
        let full = self.slots.iter().filter(|slot| slot.key != EMPTY);
        full.map(|slot| (slot.key, Place(slot.place)))
    }

    /// The next entry at or behind slot `from` for which `which` is true: its slot and its key. To
    /// remove all such entries, a caller begins at 0 and continues at the slot that was found. That
    /// slot may hold another entry then, but no entry that `which` has not seen moves to a slot
    /// before it.
    pub fn seek(&self, from: usize, which: impl Fn(u32, Place) -> bool) -> Option<(usize, u32)> {
        let rest = self.slots.iter().enumerate().skip(from);
        let mut full = rest.filter(|(_, slot)| slot.key != EMPTY);
        full.find(|(_, slot)| which(slot.key, Place(slot.place))).map(|(at, slot)| (at, slot.key))
    }
}

/// Most entries in `slots` slots: one is always empty, or a search would never end.
fn most(slots: usize) -> usize {
    slots - slots.div_ceil(8)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn places_keep_what_they_are_made_of() {
        let place = Place::new(SEGMENTS_MAX - 1, SEGMENT_MAX - UNIT, 2);
        assert_eq!((place.segment(), place.at()), (SEGMENTS_MAX - 1, SEGMENT_MAX - UNIT));
        assert_eq!((place.hits(), place.with_hits(3).hits()), (2, 3));
        assert_eq!(place.with_hits(0).at(), SEGMENT_MAX - UNIT);
    }

    #[test]
    fn bytes_a_block_at_every_growth() {
        let mut table = Table::default();
        for key in 0..300_000 {
            if table.is_full() {
                let (old, entries) = (table.bytes(), table.len() as u64);
                let new = table.next_bytes();
                assert!(table.grow());
                assert_eq!(table.bytes(), new);
                if entries > 500 {
                    // For a moment there are two tables.
                    assert!(old + new <= entries * 20, "{old} + {new} for {entries}");
                    assert!(new * 10 <= (entries + 1) * 105, "{new} for {entries}");
                }
            }
            table.insert(key, Place::new(key % 1000, 0, 0));
        }
        for key in 0..290_000 {
            table.remove(key).unwrap();
        }
        assert!(table.shrink() && !table.shrink());
        assert!(table.bytes() <= 10_000 * 10);
        assert!((290_000..300_000).all(|key| table.get(key).unwrap().segment() == key % 1000));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32),
        Remove(u32),
        Set(u32),
        Shrink,
        Sweep(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..200u32).prop_map(Step::Insert),
            4 => (0..200u32).prop_map(Step::Remove),
            2 => (0..200u32).prop_map(Step::Set),
            1 => Just(Step::Shrink),
            1 => (2..7u32).prop_map(Step::Sweep),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec(step(), 1..300)) {
            let (mut table, mut model) = (Table::default(), HashMap::new());
            for (i, step) in steps.into_iter().enumerate() {
                let place = Place::new(i as u32, i % 4096 * UNIT, 1);
                match step {
                    Step::Insert(key) if !model.contains_key(&key) => {
                        if table.is_full() {
                            prop_assert!(table.grow());
                        }
                        table.insert(key, place);
                        model.insert(key, place);
                    }
                    Step::Insert(key) | Step::Remove(key) => {
                        prop_assert_eq!(table.remove(key), model.remove(&key));
                    }
                    Step::Set(key) => {
                        let there = model.contains_key(&key);
                        prop_assert_eq!(table.set(key, place), there);
                        if there {
                            model.insert(key, place);
                        }
                    }
                    Step::Shrink => {
                        table.shrink();
                    }
                    Step::Sweep(n) => {
                        let mut from = 0;
                        while let Some((at, key)) = table.seek(from, |key, _| key % n == 0) {
                            table.remove(key);
                            from = at;
                        }
                        model.retain(|key, _| key % n != 0);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                for key in 0..200 {
                    prop_assert_eq!(table.get(key), model.get(&key).copied());
                }
            }
        }
    }
}
