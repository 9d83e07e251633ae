//! Recompression: puts cold neighbours together into clusters, in segments that hold nothing else;
//! and moves clusters when their segment is cleaned.
//!
//! Making a cluster works like any change: its blocks are read, checked and compressed without a
//! lock. Then, under the group's stripe lock, each block that is still the version that was read
//! gets its new entry. The parts of the other blocks are garbage from the start.
//!
//! The cleaner moves a cluster unchanged if all of its owners are live. Otherwise it makes a new
//! cluster of the live ones, at most as long as the old, so cleaning never needs more room than it
//! frees. If the new cluster would be longer, the cleaner copies the record and gives it to the
//! live owners alone, so that no garbage is counted that cleaning cannot free. A damaged cluster
//! stays where it is, and its segment is set aside.
//!
//! Invariants:
//! - a thread is not pinned while it compresses;
//! - one [`Pack`] fills a segment of clusters, and seals it before another thread can claim it.

use super::cluster::{Cluster, ClusterBuilder, Packed, Pool, group_of, owners_of};
use super::format::{Entry, HEADER, Header, Home, Location, check_word};
use super::log::Reservation;
use super::planted::{Bug, on};
use super::records::{Records, Which};
use super::segment::{BYTES_PER_SEGMENT, Place, Sealed};
use super::version::Version;
use super::{Session, Store};
use crate::BLOCK_SIZE;
use crate::codec::CLUSTER;
use crate::media::budget::Taker;
use crate::stats::Counts;

/// Records with payloads shorter than this have nothing to gain.
const TINY: u32 = 64;

/// A cluster builder and the segment that it fills; one thread at a time uses it.
pub struct Pack {
    builder: ClusterBuilder,
    open: Option<Open>,
    /// The segment that was filled last, until [`Store::filled_pack`] takes it.
    full: Option<Sealed>,
}

/// A segment that is being filled with clusters.
#[derive(Clone, Copy)]
struct Open {
    segment: u32,
    offset: u32,
}

/// What is recompressed, and when it pays.
#[derive(Clone, Copy)]
pub struct How {
    /// The most bytes that a cluster may have, given the bytes that its blocks take apart.
    pub most: fn(u32) -> u32,
    /// Only blocks in segments below this sequence: newer ones were written too recently.
    pub before: u64,
    /// If set, a hot block keeps its whole group as it is, and the group's hot blocks in the
    /// segment become cold. Otherwise only the hot blocks themselves stay.
    pub cools: bool,
    /// Uses a higher zstd level: smaller clusters, more time.
    pub thorough: bool,
    /// `(patience, retry)`: after `patience` groups in a row that did not pay, only one in `retry`
    /// is tried.
    pub patience: (u32, u32),
}

/// Result of trying to recompress a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Blocks that were put into clusters.
    pub blocks: u32,
    /// Groups of blocks for which recompression did not pay.
    pub in_vain: u32,
    /// Blocks that stay as they are because they were read.
    pub hot: u32,
    /// How it ended.
    pub ended: Ended,
}

/// How the recompression of a segment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// There is nothing more to try.
    Tried,
    /// `stop` said so.
    Stopped,
    /// No segment could be opened for the clusters.
    NoRoom,
}

/// Result of trying a group of blocks.
enum Group {
    Nothing,
    InVain,
    NoRoom,
    Together(u32),
}

/// The blocks of a group that can be put together.
struct Gathered {
    versions: [Option<Version>; CLUSTER],
    /// Bytes that they take apart.
    bytes: u32,
    hot: u32,
}

/// Whether a packed record replaced others.
enum Installed {
    /// This many blocks are in it.
    Done(u32),
    /// The blocks are not the versions any more that were read.
    Changed,
    /// There is no room for the record.
    Full,
}

impl Store {
    /// Makes the memory that reading clusters takes, unless it is there.
    pub fn prepare_clusters(&self) {
        if self.clusters.get().is_none() {
            let pool = Pool::new();
            let bytes = pool.memory();
            if self.clusters.set(pool).is_ok() {
                self.budget.add(bytes);
            }
        }
    }

    /// Makes the memory that recompression takes, and that for reading clusters.
    pub fn pack(&self) -> Pack {
        self.prepare_clusters();
        let builder = ClusterBuilder::new();
        self.budget.add(builder.memory());
        Pack { builder, open: None, full: None }
    }

    /// Bytes of memory that [`Store::pack`] takes, approximately.
    pub fn pack_memory(&self) -> u64 {
        let builder = ClusterBuilder::new();
        let pool = self.clusters.get().map_or_else(|| Pool::new().memory(), |_| 0);
        builder.memory() + pool
    }

    /// Recompresses the cold blocks of a sealed segment that the caller has claimed, together with
    /// their neighbours in any segment. Stops early when `stop` says so.
    pub fn recompress_segment(
        &self,
        session: &Session,
        pack: &mut Pack,
        victim: Sealed,
        how: &How,
        stop: &dyn Fn() -> bool,
    ) -> Tried {
        let mut tried = Tried { blocks: 0, in_vain: 0, hot: 0, ended: Ended::Tried };
        let Some(frame) = self.segments.frame(victim.segment) else { return tried };
        // The claim keeps the frame.
        let bytes = self.frames.bytes(frame, 0, victim.end);
        pack.builder.try_hard(how.thorough);
        let (mut last, mut in_a_row) = (None, 0_u32);
        for (header, at) in Records::of(victim.segment, bytes) {
            let first = group_of(header.block);
            let is_new = at.parts == 0 && last != Some(first);
            if !is_new || !self.is_at(session, header.block, at) {
                continue;
            }
            last = Some(first);
            if stop() {
                tried.ended = Ended::Stopped;
                break;
            }
            let segment = victim.segment;
            let (patience, retry) = how.patience;
            if in_a_row >= patience && !in_a_row.is_multiple_of(retry) {
                in_a_row += 1;
                continue;
            }
            match self.recompress_group(session, pack, (first, segment), how, &mut tried.hot) {
                Group::Nothing => {}
                Group::NoRoom => {
                    tried.ended = Ended::NoRoom;
                    break;
                }
                Group::InVain => {
                    tried.in_vain += 1;
                    in_a_row += 1;
                }
                Group::Together(blocks) => {
                    tried.blocks += blocks;
                    in_a_row = 0;
                }
            }
        }
        let vain = i64::from(tried.in_vain);
        session.count(&Counts { recompress_in_vain: vain, ..Counts::default() });
        tried
    }

    /// Notes that what is left in a segment is not worth another try.
    pub fn give_up_on(&self, segment: u32) {
        self.segments.note_tried(segment);
    }

    /// Seals the segment that is being filled with clusters, if at least one part in `garbage_part`
    /// of it is garbage, or it is empty. `false` when it is not sealed.
    pub fn seal_pack(&self, pack: &mut Pack, garbage_part: u32) -> bool {
        let Some(Open { segment, offset }) = pack.open else { return false };
        let dead = u64::from(self.segments.dead_bytes(segment));
        let is_garbage = dead > 0 && dead * u64::from(garbage_part) >= u64::from(offset);
        let seals = offset == 0 || is_garbage;
        if seals {
            self.close(pack);
        }
        seals
    }

    /// Seals that segment whatever is in it, for a caller that needs its memory. `false` when none
    /// is being filled.
    pub fn end_pack(&self, pack: &mut Pack) -> bool {
        let was_open = pack.open.is_some();
        self.close(pack);
        was_open
    }

    fn close(&self, pack: &mut Pack) {
        let Some(Open { segment, offset }) = pack.open.take() else { return };
        if offset == 0 {
            self.give(self.segments.free(segment));
            return;
        }
        self.segments.seal(segment, offset);
        pack.full = self.segments.sealed(segment);
    }

    /// The last segment that was filled with clusters; returned once.
    pub fn filled_pack(&self, pack: &mut Pack) -> Option<Sealed> {
        pack.full.take()
    }

    /// Whether the index names `at` for `block`.
    fn is_at(&self, session: &Session, block: u64, at: Location) -> bool {
        let _pin = session.pin(self);
        block < self.index.blocks_max() && self.index.load(block).same_place(Entry::record(at))
    }

    fn recompress_group(
        &self,
        session: &Session,
        pack: &mut Pack,
        (first, segment): (u64, u32),
        how: &How,
        hot: &mut u32,
    ) -> Group {
        let gathered = self.gather(session, &mut pack.builder, (first, segment), how);
        *hot += gathered.hot;
        if pack.builder.parts().count_ones() < 2 {
            return Group::Nothing;
        }
        let Some(packed) = pack.builder.pack((how.most)(gathered.bytes)) else {
            return Group::InVain;
        };
        if !self.make_open(pack, packed.record_len) {
            return Group::NoRoom;
        }
        let Pack { builder, open: Some(open), .. } = pack else { return Group::NoRoom };
        let reserve = |len| {
            let room = Reservation { segment: open.segment, offset: open.offset, len };
            open.offset += len;
            Some(room)
        };
        let pays = |bytes| packed.record_len <= (how.most)(bytes);
        let expect = &gathered.versions;
        match self.install(session, (builder, &packed), first, expect, pays, reserve) {
            Installed::Done(blocks) => {
                let saved = i64::from(gathered.bytes) - i64::from(packed.record_len);
                session.count(&Counts {
                    blocks_recompressed: i64::from(blocks),
                    recompress_saved_bytes: saved,
                    ..Counts::default()
                });
                Group::Together(blocks)
            }
            Installed::Changed | Installed::Full => Group::Nothing,
        }
    }

    /// Makes sure that a record of `len` bytes fits into the segment that is being filled. `false`
    /// when there is no room for another segment.
    fn make_open(&self, pack: &mut Pack, len: u32) -> bool {
        if pack.open.is_some_and(|open| len <= self.shape.segment - open.offset) {
            return true;
        }
        let Some(frame) = self.frames.take(&self.budget, Taker::Ordinary) else { return false };
        let Some((segment, fresh)) = self.segments.open(frame) else {
            self.frames.give(frame);
            return false;
        };
        if fresh {
            self.budget.add(BYTES_PER_SEGMENT as u64);
        }
        self.segments.note_packed(segment);
        self.close(pack);
        pack.open = Some(Open { segment, offset: 0 });
        true
    }

    /// Reads the cold blocks of a group into `builder` for the segment that is being tried; returns
    /// which those are.
    fn gather(
        &self,
        session: &Session,
        builder: &mut ClusterBuilder,
        (first, segment): (u64, u32),
        how: &How,
    ) -> Gathered {
        builder.clear();
        let mut gathered = Gathered { versions: [None; CLUSTER], bytes: 0, hot: 0 };
        let mut found = [None; CLUSTER];
        let _pin = session.pin(self);
        for (found, block) in found.iter_mut().zip(first..self.index.blocks_max()) {
            let entry = self.index.load(block);
            let Home::Record(at) = entry.home() else { continue };
            if !self.may_be(at) || at.len < TINY {
                continue;
            }
            let sequence = self.segments.sequence(at.segment);
            if sequence >= how.before {
                continue;
            }
            let Some(Place::Frame(frame)) = self.segments.place(at.segment) else { continue };
            if entry.is_hot() {
                gathered.hot += 1;
                // A hot block of another segment may be reached later in the same pass.
                if how.cools && at.segment == segment {
                    self.index.warm(block, entry, entry.cold());
                }
                continue;
            }
            *found = Some((block, entry, at, frame, sequence));
        }
        if gathered.hot > 0 && how.cools {
            return gathered;
        }
        // A block that does not shrink alone would cost the others more than it gains.
        let raw = |at: &Location| at.parts == 0 && at.len as usize == BLOCK_SIZE;
        let any = found.iter().flatten().any(|(_, _, at, ..)| !raw(at));
        let is_new = found.iter().flatten().any(|(_, _, at, ..)| at.parts == 0 && any != raw(at));
        let chosen = found.iter().flatten().filter(|(_, _, at, ..)| is_new && any != raw(at));
        for (block, entry, at, frame, sequence) in chosen {
            let record = self.frames.bytes(*frame, at.offset, at.record_len());
            if builder.add(record, (*block, *sequence)) {
                gathered.versions[(block - first) as usize] = Some(self.version(*entry));
                gathered.bytes += at.share();
            }
        }
        gathered
    }

    /// Puts a packed record in place of those of its blocks that still are the versions that it was
    /// made from, if that pays for the bytes that these blocks take.
    fn install(
        &self,
        session: &Session,
        (builder, packed): (&ClusterBuilder, &Packed),
        first: u64,
        expect: &[Option<Version>; CLUSTER],
        pays: impl FnOnce(u32) -> bool,
        reserve: impl FnOnce(u32) -> Option<Reservation>,
    ) -> Installed {
        let _pin = session.pin(self);
        let Some(leaf) = self.index.retain_present(first) else { return Installed::Changed };
        let release = |result| {
            self.index.release(&leaf, 0);
            result
        };
        let guard = self.stripe(first);
        let each =
            || (first..).zip(expect).filter_map(|(block, version)| Some((block, (*version)?)));
        let is_still = |(block, version): &(u64, Version)| {
            self.version(self.index.load(*block)) == *version || on(Bug::PressWithoutCheck)
        };
        let apart = each().filter(is_still).map(|(_, version)| version.share()).sum::<u32>();
        if apart == 0 || !pays(apart) {
            drop(guard);
            return release(Installed::Changed);
        }
        let Some(room) = reserve(packed.record_len) else {
            drop(guard);
            return release(Installed::Full);
        };
        let at = self.put((builder, packed), first, room);
        let (mut blocks, mut counts) = (0, Counts::default());
        for (block, version) in each() {
            if is_still(&(block, version)) {
                let hot = self.index.load(block).is_hot();
                let new = Entry::record(at);
                let old = self.index.swap(&leaf, block, if hot { new.hot() } else { new });
                self.account(&mut counts, old.home(), Home::Record(at));
                blocks += 1;
            } else if !on(Bug::ForgetPartsThatChanged) {
                self.segments.dead(at.segment, at.share());
            }
        }
        self.segments.filled(room);
        drop(guard);
        session.count(&counts);
        release(Installed::Done(blocks))
    }

    /// Writes a packed record into its reservation.
    fn put(
        &self,
        (builder, packed): (&ClusterBuilder, &Packed),
        first: u64,
        room: Reservation,
    ) -> Location {
        let Some(frame) = self.segments.frame(room.segment) else {
            unreachable!("a segment that is written to has a frame")
        };
        let payload = builder.payload(packed);
        let (len, parts) = (payload.len() as u32, packed.coding.parts());
        // A record of one block has the number of that block.
        let alone = u64::from(builder.parts().trailing_zeros());
        let block = if parts > 0 { first } else { first + alone };
        let check = check_word(packed.digest, block, self.segments.sequence(room.segment));
        let header = Header { len, coding: packed.coding, block, check };
        self.frames.fill(frame, room.offset, &[&header.encode(), payload]);
        Location { segment: room.segment, offset: room.offset, len, parts }
    }

    /// The blocks that may own a record.
    pub(super) fn owners(
        &self,
        header: &Header,
        at: Location,
        bytes: &[u8],
    ) -> impl Iterator<Item = u64> + use<> {
        let record = bytes.get(at.offset as usize..).unwrap_or_default();
        let parts = match at.parts {
            0 => 1,
            _ => owners_of(record).filter(|_| group_of(header.block) == header.block).unwrap_or(0),
        };
        let (first, blocks) = (header.block, self.index.blocks_max());
        let each = (0..CLUSTER as u64).filter(move |n| parts & 1 << n != 0);
        each.map(move |n| first + n).filter(move |block| *block < blocks)
    }

    /// Bit masks of the cluster's live blocks, and of the hot ones among them.
    fn live_parts(&self, session: &Session, cluster: &Cluster<'_>) -> (u8, u8) {
        let _pin = session.pin(self);
        let (mut live, mut hot) = (0, 0);
        for block in self.owners(cluster.header, cluster.at, cluster.bytes) {
            let entry = self.index.load(block);
            let bit = 1 << (block - cluster.header.block);
            if entry.same_place(Entry::record(cluster.at)) {
                live |= bit;
                hot |= if entry.is_hot() { bit } else { 0 };
            }
        }
        (live, hot)
    }

    /// Moves a cluster's record, or its live blocks, if `which` includes it. `false` when there is
    /// no room.
    pub(super) fn relocate_cluster(
        &self,
        session: &Session,
        cluster: &Cluster<'_>,
        who: Taker,
        which: Which,
    ) -> bool {
        loop {
            let (live, hot) = self.live_parts(session, cluster);
            let owners = cluster.at.owners();
            let whole = live.count_ones() == owners;
            // A cluster of a segment that is spilled stays in memory only if it is whole and at
            // least half of its blocks are hot: a thread that spills a segment compresses nothing.
            let goes_down = which == Which::Hot && (!whole || hot.count_ones() * 2 < owners);
            if live == 0 || goes_down {
                return true;
            }
            let moved = match whole {
                true => self.move_whole(session, cluster, live, who, which),
                false => self.make_anew(session, cluster, live, who),
            };
            match moved {
                Some(Installed::Done(_)) | None => return true,
                Some(Installed::Changed) => {}
                Some(Installed::Full) if self.open_for(who, cluster.at.record_len()) => {}
                Some(Installed::Full) => return false,
            }
        }
    }

    /// Moves a cluster unchanged, all of whose owners are live. `None` if its leaf is gone, and
    /// with it all of its blocks.
    fn move_whole(
        &self,
        session: &Session,
        cluster: &Cluster<'_>,
        live: u8,
        who: Taker,
        which: Which,
    ) -> Option<Installed> {
        let Cluster { header, at, .. } = *cluster;
        let _pin = session.pin(self);
        let leaf = self.index.retain_present(header.block)?;
        let guard = self.stripe(header.block);
        let blocks =
            || (0..CLUSTER as u64).filter(|n| live & 1 << n != 0).map(|n| header.block + n);
        let here = |block| self.index.load(block).same_place(Entry::record(at));
        let room = match blocks().all(here) {
            true => self.log.reserve(at.record_len(), who == Taker::Cleaner).ok(),
            false => {
                drop(guard);
                self.index.release(&leaf, 0);
                return Some(Installed::Changed);
            }
        };
        let mut moved = Installed::Full;
        if let Some(room) = room {
            let to = header.moved(cluster.sequence, self.segments.sequence(room.segment));
            let Some(frame) = self.segments.frame(room.segment) else {
                unreachable!("an open segment has a frame")
            };
            let payload = &cluster.record()[HEADER..];
            self.frames.fill(frame, room.offset, &[&to.encode(), payload]);
            let to = Location { segment: room.segment, offset: room.offset, ..at };
            let to = Entry::record(to);
            for block in blocks() {
                let keeps = which == Which::All && self.index.load(block).is_hot();
                self.index.swap(&leaf, block, if keeps { to.hot() } else { to });
                self.segments.dead(at.segment, at.share());
            }
            self.segments.filled(room);
            count_moved(session, live, room.len);
            moved = Installed::Done(live.count_ones());
        }
        drop(guard);
        self.index.release(&leaf, 0);
        Some(moved)
    }

    /// Makes a new cluster of the `live` blocks of a cluster. `None` when the old one is damaged.
    fn make_anew(
        &self,
        session: &Session,
        cluster: &Cluster<'_>,
        live: u8,
        who: Taker,
    ) -> Option<Installed> {
        let Cluster { header, at, sequence, .. } = *cluster;
        let mut builder = self.clusters.get()?.builder();
        if !builder.take(cluster.record(), (header.block, sequence), live) {
            return None;
        }
        let packed = builder.pack(at.record_len());
        let packed = packed.unwrap_or_else(|| builder.keep(cluster.record(), live));
        let version = Version { home: Home::Record(at), sequence };
        let bit = |n: usize| live & 1 << n != 0;
        let expect = std::array::from_fn(|n| bit(n).then_some(version));
        let reserve = |len| self.log.reserve(len, who == Taker::Cleaner).ok();
        let builder = (&*builder, &packed);
        // A block that was replaced meanwhile must not get into the log behind its replacement.
        let all = live.count_ones() * at.share();
        let pays = |bytes| bytes == all;
        let installed = self.install(session, builder, header.block, &expect, pays, reserve);
        if let Installed::Done(_) = installed {
            count_moved(session, live, packed.record_len);
        }
        Some(installed)
    }
}

fn count_moved(session: &Session, blocks: u8, bytes: u32) {
    let blocks_moved = i64::from(blocks.count_ones());
    let bytes_moved = i64::from(bytes);
    session.count(&Counts { blocks_moved, bytes_moved, ..Counts::default() });
}
