//! The index, where each block is in the log: a tree of two levels above sorted pages, 16 bytes a
//! block.
//!
//! Invariants: pages and branches are never empty, and blocks ascend, within a page and from page
//! to page; `firsts[i]` is the first block of the `i`-th page, or branch. A page splits in halves
//! when it is full and joins its neighbour when both are small, so that a page is two thirds full
//! on average and an entry takes less than 24 bytes. Inserting or removing a page moves at most
//! [`BRANCH`] others; only rarely does it move branches, of which 10⁹ blocks have 20,000.

use crate::log::disk::format::{Data, GRANULE, Kind, LEN_BITS};
use crate::log::planted::{visit, visits};

/// Entries in a full page: 4 KiB.
const FULL: usize = 256;
/// Entries in a page that is filled in order: this leaves room for blocks between them.
const LOADED: usize = FULL * 3 / 4;
/// A page with fewer looks for a neighbour to join.
const SMALL: usize = FULL / 4;
/// Pages in a full branch.
const BRANCH: usize = if cfg!(any(test, sim)) { 8 } else { 512 };

/// Added to the kind of a copy.
const COPY: u64 = 8;

/// The first step of the search for an entry: a cache line.
const NEAR: usize = 4;

/// Where a block's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Slot of the segment: its number modulo the count of segments. Less than 2²².
    pub slot: u32,
    /// Offset in the segment, in bytes.
    pub offset: u32,
    /// Length in bytes, in the range of [`Data::len`].
    pub len: u32,
    /// How to decode it.
    pub kind: Kind,
    /// Its check word.
    pub check: u32,
    /// Whether its record is a copy of what the backing store has, see [`Data`].
    pub copy: bool,
}

impl Place {
    /// The record at this place, for `block`.
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

    /// Checks the two words of an entry; `None` if they are invalid.
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

/// Neighbouring pages, at most [`BRANCH`].
struct Branch {
    firsts: Vec<u64>,
    pages: Vec<Vec<Packed>>,
}

impl Branch {
    fn new() -> Self {
        Self { firsts: Vec::with_capacity(BRANCH + 1), pages: Vec::with_capacity(BRANCH + 1) }
    }

    /// The page that has the block, if this branch has it.
    fn page_of(&self, block: u64) -> usize {
        self.firsts.partition_point(|&first| first <= block).saturating_sub(1)
    }

    fn push(&mut self, first: u64, page: Vec<Packed>) {
        self.firsts.push(first);
        self.pages.push(page);
    }

    /// Restores the invariants of a page that has just lost or got entries.
    fn tidy(&mut self, page: usize) {
        let Some(first) = self.pages[page].first() else {
            self.firsts.remove(page);
            self.pages.remove(page);
            return visits(self.pages.len() - page);
        };
        self.firsts[page] = first.block();
        let len = self.pages[page].len();
        let joins = |other: usize| {
            self.pages.get(other).is_some_and(|p| p.len() + len <= FULL / 2) && len < SMALL
        };
        let Some(left) = left_of_pair(page, joins) else { return };
        let moved = self.pages.remove(left + 1);
        self.firsts.remove(left + 1);
        visits(self.pages.len() - left);
        self.pages[left].extend(moved);
    }

    /// Removes the blocks `start..end`; returns how many. The gap that pages leave is closed once,
    /// at the end: removing each page alone would move all pages behind it.
    fn cut(&mut self, start: u64, end: u64, gone: &mut impl FnMut(Place)) -> usize {
        let pages = self.page_of(start)..self.firsts.partition_point(|&first| first < end);
        let (mut kept, mut cut) = (pages.start, 0);
        for page in pages.clone() {
            let mut entries = std::mem::take(&mut self.pages[page]);
            let from = entries.partition_point(|e| e.block() < start);
            let to = entries.partition_point(|e| e.block() < end);
            cut += to - from;
            entries.drain(from..to).for_each(|entry| gone(entry.place()));
            let Some(first) = entries.first().map(|entry| entry.block()) else { continue };
            match self.pages[..kept].last_mut() {
                Some(last) if last.len() + entries.len() <= FULL / 2 => last.extend(entries),
                _ => {
                    (self.firsts[kept], self.pages[kept]) = (first, entries);
                    kept += 1;
                }
            }
        }
        visits(cut + pages.len() + if kept < pages.end { self.pages.len() - kept } else { 0 });
        self.firsts.drain(kept..pages.end);
        self.pages.drain(kept..pages.end);
        if let Some(last) = kept.checked_sub(1) {
            self.tidy(last);
        }
        cut
    }
}

/// The index of a log.
#[derive(Default)]
pub struct Map {
    firsts: Vec<u64>,
    branches: Vec<Branch>,
    pages: usize,
    len: usize,
}

impl Map {
    /// Blocks in the map.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Memory that the map takes, in bytes.
    pub fn memory(&self) -> usize {
        let beside = size_of::<u64>() + size_of::<Vec<Packed>>();
        let branch = size_of::<u64>() + size_of::<Branch>() + (BRANCH + 1) * beside;
        self.pages * FULL * size_of::<Packed>() + self.branches.capacity() * branch
    }

    /// The branch and the page that have the block, if the map has it.
    fn page_of(&self, block: u64) -> (usize, usize) {
        let branch = self.firsts.partition_point(|&first| first <= block).saturating_sub(1);
        (branch, self.branches.get(branch).map_or(0, |branch| branch.page_of(block)))
    }

    fn find(&self, block: u64) -> Option<(usize, usize, usize)> {
        let (branch, page) = self.page_of(block);
        self.branches.get(branch)?;
        Some((branch, page, self.search((branch, page), block).ok()?))
    }

    /// Position of a block in a page, or where it would be. Blocks are often spread evenly, so the
    /// search begins where the block would be then, and goes on in growing steps: that touches
    /// fewer cache lines than halving the page does.
    fn search(&self, (at, page): (usize, usize), block: u64) -> Result<usize, usize> {
        let branch = &self.branches[at];
        let (entries, first) = (&branch.pages[page], branch.firsts[page]);
        let next = branch.firsts.get(page + 1).or_else(|| self.firsts.get(at + 1)).copied();
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
        let (branch, page, at) = self.find(block)?;
        Some(self.branches[branch].pages[page][at].place())
    }

    /// Sets the place of a block; returns the old one.
    pub fn insert(&mut self, block: u64, place: Place) -> Option<Place> {
        visit();
        let entry = Packed::new(block, place);
        if self.branches.is_empty() {
            self.push_page_of(block, Vec::with_capacity(FULL));
        }
        let (on, page) = self.page_of(block);
        let at = match self.search((on, page), block) {
            Ok(at) => {
                let old = &mut self.branches[on].pages[page][at];
                return Some(std::mem::replace(old, entry).place());
            }
            Err(at) => at,
        };
        self.len += 1;
        let (branch, mut page, mut at) = (&mut self.branches[on], page, at);
        if branch.pages[page].len() == FULL {
            // Blocks that arrive in order leave full pages behind, not half-full ones.
            let cut = if at == FULL || at == 0 { at } else { FULL / 2 };
            let mut upper = Vec::with_capacity(FULL);
            upper.extend(branch.pages[page].drain(cut..));
            visits(branch.pages.len() - page);
            branch.firsts.insert(page + 1, upper.first().map_or(block, |e| e.block()));
            branch.pages.insert(page + 1, upper);
            self.pages += 1;
            if at >= cut && (at > cut || cut == FULL) {
                (page, at) = (page + 1, at - cut);
            }
        }
        branch.pages[page].insert(at, entry);
        branch.firsts[page] = branch.pages[page][0].block();
        self.firsts[on] = branch.firsts[0];
        if branch.pages.len() > BRANCH {
            self.split(on, page);
        }
        None
    }

    /// Makes two branches of one that is full; `page` is where it has grown.
    fn split(&mut self, on: usize, page: usize) {
        let full = &mut self.branches[on];
        // As with pages: a branch that grows at its end leaves full branches behind.
        let cut = if page + 1 == full.pages.len() { page } else { full.pages.len() / 2 };
        let mut upper = Branch::new();
        upper.firsts.extend(full.firsts.drain(cut..));
        upper.pages.extend(full.pages.drain(cut..));
        visits(upper.pages.len() + self.branches.len() - on);
        self.firsts.insert(on + 1, upper.firsts[0]);
        self.branches.insert(on + 1, upper);
    }

    /// Removes a block; returns the place that it had.
    pub fn remove(&mut self, block: u64) -> Option<Place> {
        visit();
        let (branch, page, at) = self.find(block)?;
        let before = self.branches[branch].pages.len();
        let gone = self.branches[branch].pages[page].remove(at);
        self.len -= 1;
        self.branches[branch].tidy(page);
        self.pages -= before - self.branches[branch].pages.len();
        self.tidy(branch);
        Some(gone.place())
    }

    /// Removes the blocks `start..end`; calls `gone` with the place of each.
    pub fn remove_range(&mut self, start: u64, end: u64, mut gone: impl FnMut(Place)) {
        let from = self.page_of(start).0;
        let to = self.firsts.partition_point(|&first| first < end).max(from);
        let mut kept = from;
        for at in from..to {
            let before = self.branches[at].pages.len();
            self.len -= self.branches[at].cut(start, end, &mut gone);
            self.pages -= before - self.branches[at].pages.len();
            if let Some(&first) = self.branches[at].firsts.first() {
                self.firsts[kept] = first;
                self.branches.swap(kept, at);
                kept += 1;
            }
        }
        if kept < to {
            visits(self.branches.len() - kept);
        }
        self.firsts.drain(kept..to);
        self.branches.drain(kept..to);
        if let Some(last) = kept.checked_sub(1) {
            self.tidy(last);
        }
        // The first branch of the range has lost entries, too. If it is no longer at `from`, it is
        // part of the one that was just tidied.
        if from < self.branches.len() {
            self.tidy(from);
        }
    }

    /// Restores the invariants of a branch that has lost entries.
    fn tidy(&mut self, at: usize) {
        let Some(&first) = self.branches[at].firsts.first() else {
            self.firsts.remove(at);
            self.branches.remove(at);
            return visits(self.branches.len() - at);
        };
        self.firsts[at] = first;
        // The pages at the border may join, too, so that there is room for another branch.
        let mut next = Some(at);
        while let Some(at) = next {
            next = self.join(at);
        }
    }

    /// Joins a small branch with a neighbour; returns where both are then, `None` if none fits.
    fn join(&mut self, at: usize) -> Option<usize> {
        let len = self.branches[at].pages.len();
        let joins = |other: usize| {
            let other = self.branches.get(other).map(|branch| branch.pages.len());
            len <= BRANCH / 4 && other.is_some_and(|other| other + len <= BRANCH / 2)
        };
        let left = left_of_pair(at, joins)?;
        let moved = self.branches.remove(left + 1);
        self.firsts.remove(left + 1);
        visits(self.branches.len() - left + moved.pages.len());
        let branch = &mut self.branches[left];
        let border = branch.pages.len();
        branch.firsts.extend(moved.firsts);
        branch.pages.extend(moved.pages);
        let before = branch.pages.len();
        branch.tidy(border);
        self.pages -= before - branch.pages.len();
        Some(left)
    }

    /// Every page from this branch and page on.
    fn pages_from(&self, (at, page): (usize, usize)) -> impl Iterator<Item = &Vec<Packed>> + '_ {
        let first = self.branches.get(at).map_or(&[][..], |branch| &branch.pages[page..]);
        let others = self.branches.iter().skip(at + 1);
        first.iter().chain(others.flat_map(|branch| &branch.pages))
    }

    /// Every entry from this block on, ascending.
    pub fn packed_from(&self, block: u64) -> impl Iterator<Item = Packed> + '_ {
        let at = self.page_of(block);
        let first = self.pages_from(at).next();
        let skip = first.map_or(0, |page| page.partition_point(|e| e.block() < block));
        self.pages_from(at).flatten().copied().skip(skip)
    }

    /// The block of the entry that comes after `count` others from `block` on.
    pub fn block_after(&self, block: u64, count: usize) -> Option<u64> {
        let at = self.page_of(block);
        let mut skip = count;
        for (i, page) in self.pages_from(at).enumerate() {
            let from = if i == 0 { page.partition_point(|e| e.block() < block) } else { 0 };
            match page.get(from + skip) {
                Some(entry) => return Some(entry.block()),
                None => skip -= page.len() - from,
            }
        }
        None
    }

    fn push_page_of(&mut self, first: u64, page: Vec<Packed>) {
        if self.branches.last().is_none_or(|last| last.pages.len() == BRANCH) {
            self.firsts.push(first);
            self.branches.push(Branch::new());
        }
        self.len += page.len();
        self.pages += 1;
        if let Some(last) = self.branches.last_mut() {
            last.push(first, page);
        }
    }

    /// Adds a page whose blocks come after all others; `None` if they do not.
    pub fn push_page(&mut self, page: Vec<Packed>) -> Option<()> {
        let Some(first) = page.first().map(|entry| entry.block()) else { return Some(()) };
        let last = self.branches.last().and_then(|branch| branch.pages.last()?.last());
        if last.is_some_and(|last| last.block() >= first) {
            return None;
        }
        self.push_page_of(first, page);
        Some(())
    }

    /// This map without the blocks for which `goes` is true, and with the entries of `newer` in
    /// place of its own for the same blocks; `None` if `newer` does not ascend. `goes` is called in
    /// the order of blocks.
    pub fn with(
        self,
        newer: impl Iterator<Item = Packed>,
        mut goes: impl FnMut(u64) -> bool,
    ) -> Option<Self> {
        let mut pages = Pages::default();
        let mut newer = newer.peekable();
        for entry in self.branches.into_iter().flat_map(|branch| branch.pages).flatten() {
            visit();
            while let Some(other) = newer.next_if(|other| other.block() < entry.block()) {
                pages.push(other)?;
            }
            match newer.next_if(|other| other.block() == entry.block()) {
                Some(same) => pages.push(same)?,
                None if goes(entry.block()) => {}
                None => pages.push(entry)?,
            }
        }
        newer.try_for_each(|entry| pages.push(entry))?;
        let mut all = Self::default();
        pages.into_inner().into_iter().try_for_each(|page| all.push_page(page))?;
        Some(all)
    }

    /// Every block with its place, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        self.pages_from((0, 0)).flatten().map(|e| (e.block(), e.place()))
    }
}

/// The left element of the pair that `at` joins with a neighbour (the right one, if it can); `None`
/// if it joins neither.
fn left_of_pair(at: usize, joins: impl Fn(usize) -> bool) -> Option<usize> {
    if joins(at + 1) {
        return Some(at);
    }
    at.checked_sub(1).filter(|before| joins(*before))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::log::planted::visited;
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
        assert!(map.firsts.iter().zip(&map.branches).all(|(f, b)| b.firsts[0] == *f));
        assert_eq!(map.firsts.len(), map.branches.len());
        for branch in &map.branches {
            assert!(branch.firsts.iter().zip(&branch.pages).all(|(f, p)| p[0].block() == *f));
            assert_eq!(branch.firsts.len(), branch.pages.len());
            assert!((1..=BRANCH).contains(&branch.pages.len()));
            assert!(branch.pages.iter().all(|page| page.capacity() == FULL));
        }
        assert_eq!(map.pages, map.branches.iter().map(|branch| branch.pages.len()).sum::<usize>());
    }

    /// However blocks went, neither pages nor branches are left nearly empty side by side.
    fn check_no_two_small(map: &Map) {
        let small = |pair: &[Vec<Packed>]| pair[0].len() + pair[1].len() <= SMALL;
        assert!(!map.branches.iter().any(|branch| branch.pages.windows(2).any(small)));
        let few = |pair: &[Branch]| pair[0].pages.len() + pair[1].pages.len() <= BRANCH / 4;
        assert!(!map.branches.windows(2).any(few));
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
            cuts in prop::collection::vec((0u64..70_000, 0u64..20_000), 1..8),
        ) {
            let (mut map, mut model) = (Map::default(), BTreeMap::new());
            for i in 0..20_000 {
                map.insert(i * steps, place(i as u32));
                model.insert(i * steps, place(i as u32));
            }
            for (start, count) in cuts {
                let after = model.range(start..).nth(count as usize).map(|(block, _)| *block);
                prop_assert_eq!(map.block_after(start, count as usize), after);
                let from = map.packed_from(start).map(|entry| entry.block());
                prop_assert!(from.eq(model.range(start..).map(|(block, _)| *block)));
                let mut gone = Vec::new();
                map.remove_range(start, start + count, |place| gone.push(place));
                let there = model.extract_if(start..start + count, |_, _| true);
                prop_assert!(gone.into_iter().eq(there.map(|(_, place)| place)));
                check(&map, &model);
            }
            check_no_two_small(&map);
        }

        /// Ranges that leave little of the branches at their ends.
        #[test]
        fn ranges_that_end_near_branches_go(
            cuts in prop::collection::vec((0usize..100, 0usize..100, 0u64..600, 0u64..600), 1..30),
        ) {
            let mut map = Map::default();
            (0..20_000).for_each(|i| { map.insert(i, place(i as u32)); });
            for (from, to, after, before) in cuts {
                if map.firsts.is_empty() { break }
                let first = |n: usize| map.firsts[n % map.firsts.len()];
                let ends = [first(from) + after, first(to).saturating_sub(before)];
                map.remove_range(ends[0].min(ends[1]), ends[0].max(ends[1]), |_| ());
                check(&map, &map.iter().collect());
                check_no_two_small(&map);
            }
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
            let entries = newer.iter().map(|b| Packed::new(*b, place(2)));
            model.retain(|block, _| block % 7 != 0);
            model.extend(newer.iter().map(|block| (*block, place(2))));
            let map = map.with(entries.clone(), |block| block % 7 == 0).unwrap();
            check(&map, &model);
            if newer.len() > 1 {
                prop_assert!(map.with(entries.rev(), |_| false).is_none());
            }
        }
    }

    #[test]
    fn a_page_that_comes_or_goes_moves_few_others() {
        let work = |n: u64| {
            let (mut map, before) = (Map::default(), visited());
            let order = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 26;
            for i in 0..n {
                map.insert(order(i), place(i as u32));
            }
            assert!((0..n).all(|i| map.remove(order(i)).is_some()));
            visited() - before
        };
        let (few, many) = (work(20_000), work(80_000));
        assert!(many < 5 * few, "{few} and {many}");
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
        for page in pages(0).into_iter().chain(pages(500)) {
            map.push_page(page).unwrap();
        }
        assert!(map.push_page(pages(700).remove(0)).is_none());
        let model = (0..1000).map(|b| (2 * b, place(b as u32))).collect();
        check(&map, &model);
        map.insert(999, place(7));
        assert_eq!(map.get(999), Some(place(7)));
    }
}
