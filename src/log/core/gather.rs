//! Gathers the segments of a window: the last record of each block, and the ranges to zero.
//!
//! Images of segments go in, in log order. Records and discards that are known without their chunk
//! go in at their own place in that order. Invariants: a zeroed range removes all older records of
//! its blocks, so zeroing first and writing afterwards gives the state at the end of the last
//! segment taken. Each entry costs time logarithmic in the number of blocks and ranges, and a step
//! takes a bounded number of entries. Only whole segments are taken: a window may end before any of
//! them.

use super::chunk::read_table;
use super::holes::Tombstone;
use super::judging::Part;
use super::window_state::Planned;
use crate::intervals::Intervals;
use crate::log::disk::format::{Data, Entry, HEADER, Header, Kind};
use crate::log::planted::{self, Bug, mark, visits};
use crate::media::ALIGN;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Entries that a step takes or forgets, approximately.
const STEP: usize = if cfg!(sim) { 3 } else { 2048 };
/// Blocks and ranges after which a window takes no more segments: all of them are in memory at
/// once, and no segment of a window is free before the last block is written.
const MOST: usize = if cfg!(sim) { 300 } else { 1 << 18 };

/// What was gathered so far.
#[derive(Default)]
pub(super) struct Gathering {
    /// The last record of each block: index of its segment in the plan, and the record.
    pub blocks: BTreeMap<u64, (usize, Data)>,
    /// Blocks that are zeroed before any is written.
    pub zeros: Intervals,
    /// Blocks whose content is lost at the end of what was gathered.
    pub lost: Intervals,
    /// Blocks with copies, which the backing store has already.
    pub copies: Vec<u64>,
    /// Parts of segments that cannot be read as chunks.
    pub unreadable: Vec<Part>,
    /// Number of segments of the plan that are taken.
    pub segments: usize,
    /// Bytes of these segments, and of the segment at work.
    pub bytes: u64,
    /// Discards that are known without their chunks, and not due yet, oldest first.
    stones: VecDeque<Tombstone>,
    /// Records that are known without their chunks, and not due yet, oldest first: segment, its
    /// index in the plan, and the record.
    records: VecDeque<(u64, usize, Data)>,
    /// The remaining entries of the chunk at work.
    entries: std::vec::IntoIter<Entry>,
    /// What is known without its chunk is due up to this place: segment, offset in it.
    turn: (u64, u32),
    /// Offset of the next chunk in the segment at work; `None` before the segment is begun.
    at: Option<u32>,
    /// Number of that chunk, and CRC of the header before it; without the CRC, any later number.
    after: (u64, Option<u32>),
    /// Offset in the segment at work where an unreadable part begins.
    broken: Option<u32>,
    /// Blocks and ranges that are enough for one window.
    most: usize,
}

impl Gathering {
    /// Begins to gather `plan`; `stones` and `records` are known without their chunks. A part of
    /// the plan is enough if it `may_be_cut`.
    pub(super) fn new(
        plan: &[Planned],
        mut stones: Vec<Tombstone>,
        records: &[(u64, Data)],
        may_be_cut: bool,
    ) -> Self {
        stones.sort_unstable();
        let index = |number: u64| plan.binary_search_by_key(&number, |p| p.number).ok();
        let known = records.iter().filter_map(|(of, data)| Some((*of, index(*of)?, *data)));
        let mut records: Vec<(u64, usize, Data)> = known.collect();
        records.sort_unstable_by_key(|(of, _, data)| (*of, data.offset, data.block));
        let turn = if planted::on(Bug::LostDiscardFirst) { (u64::MAX, 0) } else { (0, 0) };
        let most = if may_be_cut { MOST } else { usize::MAX };
        Self { stones: stones.into(), records: records.into(), turn, most, ..Self::default() }
    }

    /// Takes more of the first `end` segments of a plan, which have images; returns whether all of
    /// these are taken, or [enough](Self::is_full).
    pub(super) fn step(&mut self, plan: &[Planned], images: &[Option<Bytes>], end: usize) -> bool {
        let mut left = STEP;
        while left > 0 {
            if self.take_due(&mut left) {
                continue;
            }
            if self.at.is_none() && (self.segments >= end || self.is_full()) {
                return true;
            }
            if let Some((planned, image)) = plan.get(self.segments).zip(images.get(self.segments)) {
                self.next_chunk(planned, image.as_deref());
            }
            left -= 1;
        }
        mark("gather.goes_on");
        false
    }

    /// Whether there is enough for one window.
    pub(super) fn is_full(&self) -> bool {
        self.blocks.len() + self.zeros.ranges() + self.copies.len() >= self.most
    }

    /// Takes what is known without its chunk, up to segment `last`; returns whether that is all.
    pub(super) fn close(&mut self, last: u64) -> bool {
        self.turn = (last, u32::MAX);
        let mut left = STEP;
        while left > 0 {
            if !self.take_due(&mut left) {
                return true;
            }
        }
        false
    }

    /// Takes one discard, record or entry that comes before the next chunk; `false` if there is
    /// none. Counts down `left` by what was taken and forgotten.
    fn take_due(&mut self, left: &mut usize) -> bool {
        let due = |place: &(u64, u32)| *place <= self.turn;
        let stone = self.stones.front().map(|s| (s.segment, s.offset)).filter(due);
        let record = self.records.front().map(|(of, _, data)| (*of, data.offset)).filter(due);
        let first = stone.is_some_and(|stone| record.is_none_or(|record| stone <= record));
        let forgotten = if first {
            self.stones.pop_front().map(|stone| self.zero(stone.start, stone.end))
        } else if record.is_some() {
            mark("gather.by_index");
            self.records.pop_front().map(|(_, segment, data)| self.name(segment, data))
        } else {
            self.entries.next().map(|entry| self.note(&entry))
        };
        let Some(forgotten) = forgotten else { return false };
        visits(1 + forgotten);
        *left = left.saturating_sub(1 + forgotten);
        true
    }

    /// Takes an entry of the chunk at work; returns how many records were forgotten.
    fn note(&mut self, entry: &Entry) -> usize {
        match *entry {
            Entry::Data(Data { kind: Kind::Summary, .. }) => 0,
            Entry::Data(data) if data.copy && !planted::on(Bug::WriteCopies) => {
                mark("gather.copy");
                self.copies.push(data.block);
                0
            }
            Entry::Data(data) => self.name(self.segments, data),
            Entry::Range { kind: Kind::Zeros, block, count } => self.zero(block, block + count),
            Entry::Range { block, count, .. } => {
                self.lost.insert(block..block + count);
                self.forget(block, block + count)
            }
        }
    }

    fn name(&mut self, segment: usize, data: Data) -> usize {
        if planted::on(Bug::OldestWins) {
            self.blocks.entry(data.block).or_insert((segment, data));
        } else {
            self.blocks.insert(data.block, (segment, data));
        }
        self.lost.remove(data.block..data.block + 1);
        0
    }

    fn zero(&mut self, start: u64, end: u64) -> usize {
        self.zeros.insert(start..end);
        self.lost.remove(start..end);
        self.forget(start, end)
    }

    /// Forgets older data of a range: it must not be written after the zeros. A record is forgotten
    /// at most once, so this costs no more than taking the records did.
    fn forget(&mut self, start: u64, end: u64) -> usize {
        self.blocks.extract_if(start..end, |_, _| true).count()
    }

    /// Goes on to the next chunk of a segment, or over a place where none can be read; at the
    /// segment's end, to the next segment.
    fn next_chunk(&mut self, planned: &Planned, image: Option<&[u8]>) {
        let Planned { number, from, used, chunk, prev, .. } = *planned;
        let Some(at) = self.at else {
            (self.at, self.after, self.turn) = (Some(from), (chunk, Some(prev)), (number, from));
            return;
        };
        if at >= used {
            if let Some(from) = self.broken.take() {
                mark("gather.unreadable");
                self.unreadable.push((number, from..used));
            }
            self.at = None;
            self.segments += 1;
            return;
        }
        let Some((header, sum, entries)) = read_chunk(planned, image, at, self.after) else {
            // Chunks behind a damaged one count on their own.
            self.broken = self.broken.or(Some(at));
            self.after.1 = None;
            self.at = Some(at + ALIGN as u32);
            self.bytes += ALIGN as u64;
            return;
        };
        if let Some(from) = self.broken.take() {
            mark("gather.resumed");
            self.unreadable.push((number, from..at));
        }
        self.turn = (number, at);
        self.entries = entries.into_iter();
        self.at = Some(at + header.len);
        self.bytes += u64::from(header.len);
        self.after = (header.chunk + 1, Some(sum));
    }
}

/// The chunk at offset `at`: number `chunk`, following the header with CRC `prev`; without that
/// CRC, any later number.
fn read_chunk(
    planned: &Planned,
    image: Option<&[u8]>,
    at: u32,
    (chunk, prev): (u64, Option<u32>),
) -> Option<(Header, u32, Vec<Entry>)> {
    let image = image?.get(at as usize..planned.used as usize)?;
    let (header, sum) = Header::decode(image.get(..HEADER)?)?;
    let follows = match prev {
        Some(prev) => header.chunk == chunk && header.prev == prev,
        None => header.chunk > chunk,
    };
    let expected = follows
        && header.segment == planned.number
        && header.offset == at
        && header.epoch == planned.epoch;
    let table = image.get(header.table_at()..header.len as usize)?;
    let entries = expected.then(|| read_table(&header, table))??;
    (header.len as usize >= ALIGN).then_some((header, sum, entries))
}

#[cfg(all(test, not(miri), not(shuttle)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::answer::Refused;
    use super::super::fill::Fills;
    use super::super::kept::Kept;
    use super::super::options::Options;
    use super::super::state::Core;
    use super::super::writeback::Writeback;
    use super::*;
    use crate::BLOCK_SIZE;
    use crate::log::disk::format::{IDENTITY, crc, data_at};
    use crate::log::planted::visited;
    use crate::log::recovery::{format, open};
    use crate::media::{Access, Buffer, Drive, FileDrive, Memory};

    const SEGMENT: u32 = 256 << 10;

    /// What a log is filled with.
    #[derive(Clone, Copy, Debug)]
    enum Load {
        /// Discards of ranges that do not touch.
        Zeros,
        /// Blocks that have no neighbours.
        Blocks,
        /// Discards and blocks in turn.
        Alternating,
        /// The same, and every second chunk cannot be read afterwards.
        Damaged,
    }

    struct Machine {
        core: Core,
        log: FileDrive,
        backing: FileDrive,
    }

    impl Machine {
        fn new(n: u64) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let drive = |name, bytes| {
                let path = dir.path().join(name);
                std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
                FileDrive::open(&path, Access::Exclusive).unwrap()
            };
            let blocks = 8 * n;
            let log = drive("log", (n * 600).next_multiple_of(1 << 20) + (64 << 20));
            let backing = drive("backing", blocks * BLOCK_SIZE as u64);
            format(&log, [7; 16], [0; IDENTITY], blocks, SEGMENT).unwrap();
            let options = Options { checkpoint: 0, ..Options::default() };
            let kept = Kept::new(&Memory::default()).unwrap();
            Self { core: open(&log, options, 1, false, kept).unwrap().0, log, backing }
        }

        /// Carries out all commands of the log.
        fn work(&mut self) {
            loop {
                while let Some(command) = self.core.next_command() {
                    let outcome = command.carry_out(&self.log, &self.backing);
                    self.core.complete(command.id, &outcome);
                }
                if !self.core.is_stepping() {
                    return;
                }
            }
        }

        fn take(&mut self, mut change: impl FnMut(&mut Core) -> Result<(), Refused>) {
            while change(&mut self.core).is_err() {
                self.core.flush();
                self.work();
            }
        }

        /// Makes `n` changes durable, in an order that has nothing to do with where they are.
        fn fill(&mut self, n: u64, load: Load) {
            for i in 0..n {
                let block = (i * 0x9e37_79b1) % n * 8;
                let zeros = matches!(load, Load::Zeros) || i % 2 == 0;
                if zeros && !matches!(load, Load::Blocks) {
                    self.take(|core| core.discard(block, 2).map(drop));
                } else {
                    let word = (block | 1).to_le_bytes();
                    self.take(|core| {
                        let mut fills = Fills::default();
                        core.reserve(block, Kind::Same, (8, crc(&word)), &mut fills)?;
                        fills.fill(&word);
                        fills.finish();
                        Ok(())
                    });
                }
                if i % 50 == 0 {
                    self.core.flush();
                    self.work();
                }
            }
            self.core.finish_segment();
            self.core.flush();
            self.work();
        }

        /// Damages the header of every second chunk.
        fn damage(&self) {
            let (mut at, mut odd) = (data_at(self.log.size(), SEGMENT), false);
            let mut page = Buffer::new(ALIGN);
            while at < self.log.size() {
                self.log.read(at, &mut page).unwrap();
                let len = Header::decode(&page[..HEADER]).map(|(header, _)| u64::from(header.len));
                if len.is_some() {
                    odd = !odd;
                    page[10] ^= if odd { 0 } else { 0x40 };
                    self.log.write(at, &page).unwrap();
                }
                at += len.unwrap_or(ALIGN as u64);
            }
        }

        /// Writes all back.
        fn write_back(&mut self) {
            while let Some(plan) = self.core.begin_window(u64::MAX) {
                let mut writeback = Writeback::new(plan);
                let ended = loop {
                    while let Some(command) = writeback.next_command() {
                        let outcome = command.carry_out(&self.log, &self.backing);
                        writeback.complete(command.id, outcome);
                    }
                    match writeback.ended() {
                        Some(ended) => break ended,
                        None => writeback.proceed(),
                    }
                };
                self.core.end_window(ended);
                self.work();
                self.core.finish_segment();
                self.core.flush();
                self.work();
            }
        }
    }

    /// How often loops visit a block, a range or a segment until all is written back.
    fn visits_of(n: u64, load: Load) -> u64 {
        let mut machine = Machine::new(n);
        let before = visited();
        machine.fill(n, load);
        if matches!(load, Load::Damaged) {
            machine.damage();
        }
        machine.write_back();
        machine.core.lost();
        assert!(machine.core.is_clean(), "{load:?}: all is in the backing store");
        visited() - before
    }

    #[test]
    fn twice_the_changes_are_twice_the_work() {
        for load in [Load::Zeros, Load::Blocks, Load::Alternating, Load::Damaged] {
            let (few, many) = (visits_of(3000, load), visits_of(12_000, load));
            assert!(few > 3000 && many < 5 * few, "{load:?}: {few} and {many}");
        }
    }
}
