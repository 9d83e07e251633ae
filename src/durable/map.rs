//! Which block is where in the log: a sorted list of sorted pages, 16 bytes a block.
//!
//! Invariants: pages are never empty and their blocks ascend, within a page and from page to page;
//! `firsts[i]` is the first block of `pages[i]`. A page splits in halves when it is full and joins
//! its neighbour when both are small, so that a page is two thirds full in the mean and an entry
//! takes less than 24 bytes.

use super::format::{Data, GRANULE, Kind, LEN_BITS};
use std::ops::Range;

/// Entries in a full page: 4 KiB.
const FULL: usize = 256;
/// Entries in a page that is filled in order, with room for what comes between them.
const LOADED: usize = FULL * 3 / 4;
/// A page with fewer looks for a neighbour to join.
const SMALL: usize = FULL / 4;

/// What is added to the kind of a copy.
const COPY: u64 = 8;

/// Steps in which the search for an entry begins: a cache line.
const NEAR: usize = 4;

/// Where a block's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Slot of the segment: its number modulo the count of segments. Less than 2²².
    pub slot: u32,
    /// From the segment's begin, in bytes.
    pub offset: u32,
    /// Bytes, as many as [`Data::len`] may say.
    pub len: u32,
    /// How to read it.
    pub kind: Kind,
    /// Its check word.
    pub check: u32,
    /// Its record is a copy of what the backing store has, see [`Data`].
    pub copy: bool,
}

impl Place {
    /// The record there, of a block.
    pub fn record(&self, block: u64) -> Data {
        let Self { kind, len, offset, check, copy, .. } = *self;
        Data { block, kind, len, offset, check, copy }
    }
}

/// `block` (38 bits), slot (22), kind without its highest bit (3), that bit; check (32), granule
/// (20), length (12). Kinds of copies are 8 more than those of others.
///
/// The same 16 bytes, little-endian, are an entry of a checkpoint.
#[derive(Clone, Copy)]
pub struct Packed([u64; 2]);

impl Packed {
    fn new(block: u64, at: Place) -> Self {
        let kind = at.kind as u64 + if at.copy { COPY } else { 0 };
        let first = block << 26 | u64::from(at.slot) << 4 | (kind & 7) << 1 | kind >> 3;
        let where_to = u64::from(at.offset / GRANULE) << LEN_BITS | at.kind.len_bits(at.len);
        Self([first, u64::from(at.check) << 32 | where_to])
    }

    /// The two words of an entry; `None` when they say what cannot be.
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        let (kind, _) = kind_of(words[0])?;
        kind.len_of(words[1])?;
        let stored = [Kind::Raw, Kind::Lz4, Kind::Zstd, Kind::Same, Kind::Cluster];
        stored.contains(&kind).then_some(Self(words))
    }

    /// The two words.
    pub fn words(self) -> [u64; 2] {
        self.0
    }

    /// The block.
    pub fn block(self) -> u64 {
        self.0[0] >> 26
    }

    /// The slot of its segment.
    pub fn slot(self) -> u32 {
        (self.0[0] >> 4) as u32 & ((1 << 22) - 1)
    }

    /// Whether its record is a copy.
    pub fn is_copy(self) -> bool {
        kind_bits(self.0[0]) > COPY
    }

    /// Where the block is.
    pub fn place(self) -> Place {
        let [first, second] = self.0;
        let (kind, copy) = kind_of(first).unwrap_or((Kind::Lost, false));
        Place {
            slot: self.slot(),
            offset: (second as u32 >> LEN_BITS) * GRANULE,
            len: kind.len_of(second).unwrap_or(1),
            kind,
            check: (second >> 32) as u32,
            copy,
        }
    }
}

/// The bits of a kind in the first word of an entry.
fn kind_bits(first: u64) -> u64 {
    first >> 1 & 7 | (first & 1) << 3
}

/// The kind in the first word of an entry, and whether it is of a copy.
fn kind_of(first: u64) -> Option<(Kind, bool)> {
    let bits = kind_bits(first);
    let copy = bits > COPY;
    Some((Kind::from_bits(if copy { bits - COPY } else { bits })?, copy))
}

/// Pages that are filled in order, for [`Map::push_page`].
#[derive(Default)]
pub struct Pages(Vec<Vec<Packed>>);

impl Pages {
    /// Adds an entry; `None` if its block does not come after the one before.
    pub fn push(&mut self, entry: Packed) -> Option<()> {
        let page = match self.0.last_mut() {
            Some(page) if page.len() < LOADED => page,
            full => {
                if full.is_some_and(|page| !follows(page, entry)) {
                    return None;
                }
                self.0.push(Vec::with_capacity(FULL));
                self.0.last_mut()?
            }
        };
        follows(page, entry).then(|| page.push(entry))
    }

    /// The pages.
    pub fn into_inner(self) -> Vec<Vec<Packed>> {
        self.0
    }
}

fn follows(page: &[Packed], entry: Packed) -> bool {
    page.last().is_none_or(|last| last.block() < entry.block())
}

/// The index of a log.
#[derive(Default)]
pub struct Map {
    firsts: Vec<u64>,
    pages: Vec<Vec<Packed>>,
    len: usize,
}

impl Map {
    /// Blocks in the map.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Memory that the map takes, in bytes.
    pub fn memory(&self) -> usize {
        let page = size_of::<u64>() + size_of::<Vec<Packed>>();
        self.pages.iter().map(|p| p.capacity() * size_of::<Packed>()).sum::<usize>()
            + self.firsts.capacity().max(self.pages.capacity()) * page
    }

    /// The page that has the block, if any has.
    fn page_of(&self, block: u64) -> usize {
        self.firsts.partition_point(|&first| first <= block).saturating_sub(1)
    }

    fn find(&self, block: u64) -> Option<(usize, usize)> {
        let page = self.page_of(block);
        self.pages.get(page)?;
        Some((page, self.search(page, block).ok()?))
    }

    /// Where in a page a block is, or would be. Blocks are often spread evenly, so the search
    /// begins where the block would be then, and goes on in growing steps: that touches fewer
    /// cache lines than halving the page does.
    fn search(&self, page: usize, block: u64) -> Result<usize, usize> {
        let (entries, first) = (&self.pages[page], self.firsts[page]);
        let next = self.firsts.get(page + 1).copied();
        let next = next.unwrap_or_else(|| entries.last().map_or(0, |e| e.block()) + 1);
        if block < first || block >= next || entries.is_empty() {
            return entries.binary_search_by_key(&block, |e| e.block());
        }
        let guess = (block - first) * entries.len() as u64 / (next - first);
        let (mut from, mut to, mut step) = (guess as usize, guess as usize, NEAR);
        if entries[from].block() <= block {
            to = from + step;
            while to < entries.len() && entries[to].block() <= block {
                (from, step) = (to, step * 2);
                to += step;
            }
            to = to.min(entries.len());
        } else {
            from = to.saturating_sub(step);
            while entries[from].block() > block {
                (to, step) = (from, step * 2);
                from = to.saturating_sub(step);
            }
        }
        match entries[from..to].binary_search_by_key(&block, |e| e.block()) {
            Ok(at) => Ok(from + at),
            Err(at) => Err(from + at),
        }
    }

    /// Where a block is.
    pub fn get(&self, block: u64) -> Option<Place> {
        let (page, at) = self.find(block)?;
        Some(self.pages[page][at].place())
    }

    /// Names a new place of a block; returns the one that it had.
    pub fn insert(&mut self, block: u64, place: Place) -> Option<Place> {
        let entry = Packed::new(block, place);
        if self.pages.is_empty() {
            self.firsts.push(block);
            self.pages.push(Vec::with_capacity(FULL));
        }
        let mut page = self.page_of(block);
        let at = match self.search(page, block) {
            Ok(at) => {
                return Some(std::mem::replace(&mut self.pages[page][at], entry).place());
            }
            Err(at) => at,
        };
        self.len += 1;
        let mut at = at;
        if self.pages[page].len() == FULL {
            // Blocks that arrive in order leave full pages behind, not half-full ones.
            let cut = if at == FULL || at == 0 { at } else { FULL / 2 };
            let mut upper = Vec::with_capacity(FULL);
            upper.extend(self.pages[page].drain(cut..));
            self.firsts.insert(page + 1, upper.first().map_or(block, |e| e.block()));
            self.pages.insert(page + 1, upper);
            if at >= cut && (at > cut || cut == FULL) {
                (page, at) = (page + 1, at - cut);
            }
        }
        self.pages[page].insert(at, entry);
        self.firsts[page] = self.pages[page][0].block();
        None
    }

    /// Forgets a block; where it was, if it was there.
    pub fn remove(&mut self, block: u64) -> Option<Place> {
        let (page, at) = self.find(block)?;
        let gone = self.pages[page].remove(at);
        self.len -= 1;
        self.tidy(page);
        Some(gone.place())
    }

    /// Forgets all blocks from `start` to before `end`; `gone` hears where each was.
    pub fn remove_range(&mut self, start: u64, end: u64, mut gone: impl FnMut(Place)) {
        let pages = self.page_of(start)..self.firsts.partition_point(|&first| first < end);
        self.thin(pages, |entries| {
            let from = entries.partition_point(|e| e.block() < start);
            let to = entries.partition_point(|e| e.block() < end);
            entries.drain(from..to).for_each(|entry| gone(entry.place()));
        });
    }

    /// Forgets all blocks whose places `goes` is true of; how many those are.
    pub fn remove_where(&mut self, mut goes: impl FnMut(Place) -> bool) -> usize {
        let before = self.len;
        self.thin(0..self.pages.len(), |entries| entries.retain(|entry| !goes(entry.place())));
        before - self.len
    }

    /// Takes entries out of some pages. The room that pages leave is closed once, at the end: each
    /// page that went alone would move all behind it.
    fn thin(&mut self, pages: Range<usize>, mut take_out: impl FnMut(&mut Vec<Packed>)) {
        let mut kept = pages.start;
        for page in pages.clone() {
            let mut entries = std::mem::take(&mut self.pages[page]);
            let before = entries.len();
            take_out(&mut entries);
            self.len -= before - entries.len();
            let Some(first) = entries.first().map(|entry| entry.block()) else { continue };
            match self.pages[..kept].last_mut() {
                Some(last) if last.len() + entries.len() <= FULL / 2 => last.extend(entries),
                _ => {
                    (self.firsts[kept], self.pages[kept]) = (first, entries);
                    kept += 1;
                }
            }
        }
        self.firsts.drain(kept..pages.end);
        self.pages.drain(kept..pages.end);
        if let Some(last) = kept.checked_sub(1) {
            self.tidy(last);
        }
    }

    /// Restores the invariants of a page that has lost entries.
    fn tidy(&mut self, page: usize) {
        let Some(first) = self.pages[page].first() else {
            self.firsts.remove(page);
            self.pages.remove(page);
            return;
        };
        self.firsts[page] = first.block();
        let len = self.pages[page].len();
        let joins = |other: usize| {
            self.pages.get(other).is_some_and(|p| p.len() + len <= FULL / 2) && len < SMALL
        };
        let left = if joins(page + 1) {
            page
        } else if page > 0 && joins(page - 1) {
            page - 1
        } else {
            return;
        };
        let moved = self.pages.remove(left + 1);
        self.firsts.remove(left + 1);
        self.pages[left].extend(moved);
    }

    /// The first block in the map from this one on.
    pub fn next_from(&self, block: u64) -> Option<u64> {
        let page = self.page_of(block);
        let inside = self.pages.get(page)?.iter().map(|e| e.block()).find(|b| *b >= block);
        inside.or_else(|| self.firsts.get(page + 1).copied())
    }

    /// Every entry from this block on, ascending.
    pub fn packed_from(&self, block: u64) -> impl Iterator<Item = Packed> + '_ {
        let page = self.page_of(block);
        let skip = self.pages.get(page).map_or(0, |p| p.partition_point(|e| e.block() < block));
        self.pages.iter().skip(page).flatten().copied().skip(skip)
    }

    /// Adds a page whose blocks come after all others; `None` if they do not.
    pub fn push_page(&mut self, page: Vec<Packed>) -> Option<()> {
        let Some(first) = page.first().map(|entry| entry.block()) else { return Some(()) };
        let last = self.pages.last().and_then(|page| page.last());
        if last.is_some_and(|last| last.block() >= first) {
            return None;
        }
        self.len += page.len();
        self.firsts.push(first);
        self.pages.push(page);
        Some(())
    }

    /// The same map with these entries in place of what it has of their blocks; `None` if they do
    /// not ascend.
    pub fn with(self, newer: &[Packed]) -> Option<Self> {
        let mut pages = Pages::default();
        let mut newer = newer.iter().copied().peekable();
        for entry in self.pages.into_iter().flatten() {
            while let Some(other) = newer.next_if(|other| other.block() < entry.block()) {
                pages.push(other)?;
            }
            let same = newer.next_if(|other| other.block() == entry.block());
            pages.push(same.unwrap_or(entry))?;
        }
        newer.try_for_each(|entry| pages.push(entry))?;
        let mut all = Self::default();
        pages.into_inner().into_iter().try_for_each(|page| all.push_page(page))?;
        Some(all)
    }

    /// Every block with its place, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        self.pages.iter().flatten().map(|e| (e.block(), e.place()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn place(n: u32) -> Place {
        let kind = [Kind::Raw, Kind::Lz4, Kind::Zstd, Kind::Same, Kind::Cluster][n as usize % 5];
        let len = if kind == Kind::Cluster { n % 1023 * GRANULE + GRANULE } else { n % 4096 + 1 };
        Place {
            slot: n & ((1 << 22) - 1),
            offset: (n % (1 << 20)) * GRANULE,
            len,
            kind,
            check: n.wrapping_mul(0x9e37_79b9),
            copy: kind != Kind::Cluster && n.is_multiple_of(3),
        }
    }

    fn check(map: &Map, model: &BTreeMap<u64, Place>) {
        assert_eq!(map.len(), model.len());
        assert!(map.iter().eq(model.iter().map(|(b, p)| (*b, *p))));
        assert!(map.firsts.iter().zip(&map.pages).all(|(f, p)| p[0].block() == *f));
        assert_eq!(map.firsts.len(), map.pages.len());
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map(
            ops in prop::collection::vec((0u8..20, 0u64..3000, 1u64..400), 1..3000),
        ) {
            let (mut map, mut model) = (Map::default(), BTreeMap::new());
            for (i, (op, block, n)) in ops.iter().enumerate() {
                match op {
                    0 => {
                        map.remove_range(*block, block + n, |_| ());
                        model.retain(|b, _| b < block || *b >= block + n);
                    }
                    1..6 => prop_assert_eq!(map.remove(*block), model.remove(block)),
                    _ => {
                        map.insert(*block, place(i as u32));
                        model.insert(*block, place(i as u32));
                    }
                }
                prop_assert_eq!(map.get(*block), model.get(block).copied());
            }
            check(&map, &model);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn ranges_and_places_go_from_many_pages(
            steps in 1u64..4,
            cuts in prop::collection::vec((0u64..70_000, 0u64..20_000, 0u32..8), 1..8),
        ) {
            let (mut map, mut model) = (Map::default(), BTreeMap::new());
            for i in 0..20_000 {
                map.insert(i * steps, place(i as u32));
                model.insert(i * steps, place(i as u32));
            }
            for (start, count, slot) in cuts {
                let mut gone = Vec::new();
                map.remove_range(start, start + count, |place| gone.push(place));
                let there = model.extract_if(start..start + count, |_, _| true);
                prop_assert!(gone.into_iter().eq(there.map(|(_, place)| place)));
                check(&map, &model);
                let goes = |place: Place| place.slot % 8 == slot || place.slot / 1000 == slot;
                let before = model.len();
                model.retain(|_, place| !goes(*place));
                prop_assert_eq!(map.remove_where(goes), before - model.len());
                check(&map, &model);
            }
            // However they went, pages are not left nearly empty side by side.
            let small = |pair: &[Vec<Packed>]| pair[0].len() + pair[1].len() <= SMALL;
            prop_assert!(!map.pages.windows(2).any(small));
        }
    }

    proptest! {
        #[test]
        fn newer_entries_replace_and_join_older_ones(
            older in prop::collection::btree_set(0u64..5000, 0..2000),
            newer in prop::collection::btree_set(0u64..5000, 0..2000),
        ) {
            let (mut map, mut model) = (Map::default(), BTreeMap::new());
            for block in older {
                map.insert(block, place(1));
                model.insert(block, place(1));
            }
            let entries: Vec<_> = newer.iter().map(|b| Packed::new(*b, place(2))).collect();
            model.extend(newer.iter().map(|block| (*block, place(2))));
            let map = map.with(&entries).unwrap();
            check(&map, &model);
            if let [first, .., last] = entries[..] {
                prop_assert!(map.with(&[last, first]).is_none());
            }
        }
    }

    #[test]
    fn an_entry_takes_less_than_24_bytes_whatever_the_order() {
        let orders: [fn(u64) -> u64; 3] =
            [|i| i, |i| 100_000 - i, |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30];
        for order in orders {
            let mut map = Map::default();
            for i in 0..100_000 {
                map.insert(order(i), place(i as u32));
            }
            assert_eq!(map.len(), 100_000);
            assert!(map.memory() < 24 * map.len(), "{} bytes", map.memory());
            assert!(map.iter().zip(map.iter().skip(1)).all(|(a, b)| a.0 < b.0));
        }
    }

    #[test]
    fn pages_in_order_make_a_map_and_others_are_refused() {
        let entries = |from: u64| (from..from + 500).map(|b| Packed::new(2 * b, place(b as u32)));
        let pages = |from| {
            let mut pages = Pages::default();
            assert!(entries(from).all(|entry| pages.push(entry).is_some()));
            assert!(pages.push(Packed::new(2 * from, place(0))).is_none());
            pages.into_inner()
        };
        let mut map = Map::default();
        for page in [pages(0), pages(500)].concat() {
            map.push_page(page).unwrap();
        }
        assert!(map.push_page(pages(700).remove(0)).is_none());
        let model = (0..1000).map(|b| (2 * b, place(b as u32))).collect();
        check(&map, &model);
        map.insert(999, place(7));
        assert_eq!(map.get(999), Some(place(7)));
    }
}
