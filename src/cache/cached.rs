//! A drive with compressed copies of blocks that were read from it or written to it.
//!
//! Invariants: a read returns only what the drive itself could have returned; a copy is never all
//! that there is of a block; a write keeps copies after the drive has taken it, and drops the old
//! ones before it begins. No thread holds a shard's lock while the drive works, or two of them.

use super::above::Above;
use super::ahead::Ahead;
use super::flights::GROUP;
use super::found::{Found, Hits};
use super::io_context::{IoContext, IoContexts};
use super::limit::{check_limit, share};
use super::planted::{self, Bug};
use super::policy::{Came, Rules};
use super::seal::Seal;
use super::seals::{Known, Seals};
use super::shard::{self, Shard};
use super::shard_map::{Piece, ShardMap};
use super::streams::{Streams, Ticket};
use super::table::SEGMENT_MAX;
use super::window_set::{Set, WINDOW};
use crate::BLOCK_SIZE;
use crate::error::Result as Checked;
use crate::media::{ALIGN, Blocks, Commit, Drive, DriveError, Failures, Given, Pool};
use crate::stats::{CacheCounts, CacheStats};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Most blocks with a copy that are read along between two without: a disk moves these in less time
/// than another request takes, and a head that has passed the next block waits for a turn of the
/// disk.
const HOLE: usize = 32;
/// Least bytes of a shard, and most shards.
const SHARD_MIN: u64 = 4 << 20;
const SHARDS_MAX: u64 = 16;
/// If less than one in this many bytes of the limit is free, nearly all of it is in use.
const SPARE_PART: u64 = 8;
/// From this many blocks on, zeroing a range scans the index instead of looking up each block.
const WIDE: u64 = 1024;

/// The drive with its copies.
pub struct Cached {
    drive: Arc<dyn Drive>,
    shard_map: ShardMap,
    shards: Vec<Mutex<Shard>>,
    contexts: IoContexts,
    /// Bytes of an I/O context.
    context_bytes: u64,
    /// Processors that this process may use.
    processors: u64,
    keeps_writes: bool,
    limit: AtomicU64,
    /// Copies that were evicted up to the last change of the limit.
    evicted_before: AtomicU64,
    /// Serialises changes of the limit, and of whether the page cache is followed.
    limiting: Mutex<()>,
    streams: Mutex<Streams>,
    /// What is known of the page cache above, while that is followed.
    above: Mutex<Option<Arc<Above>>>,
    follows: AtomicBool,
    /// Why it is not followed although it was to be.
    unfollowed: Mutex<Option<String>>,
    ahead: Arc<Ahead>,
    ids: AtomicU64,
    mixed: AtomicU64,
    /// Nanoseconds that the drive took to read missed blocks.
    missed_ns: AtomicU64,
    /// Pages that the page cache has dropped, and those of them that were not copied.
    pages: [AtomicU64; 2],
    bypassed: AtomicU64,
    errors: AtomicU64,
}

/// Bytes that do not depend on the limit.
fn fixed_bytes(shards: u64) -> u64 {
    shards * size_of::<Mutex<Shard>>() as u64 + size_of::<Cached>() as u64
}

impl Cached {
    /// A read cache of `drive` with at most `limit` bytes of memory: 0, or at least
    /// [`super::RAM_LIMIT_MIN`]. The limit can later be raised up to `most` bytes.
    ///
    /// # Errors
    /// There is no address space for `most` bytes.
    pub fn over(drive: Arc<dyn Drive>, limit: u64, most: u64) -> Checked<Arc<Self>> {
        Self::with(drive, Rules::default(), limit, most)
    }

    /// As [`Self::over`], by other rules.
    ///
    /// # Errors
    /// As [`Self::over`].
    pub fn with(drive: Arc<dyn Drive>, rules: Rules, limit: u64, most: u64) -> Checked<Arc<Self>> {
        let most = most.max(limit);
        let wanted = if limit == 0 { most } else { limit };
        let shards = 1 << (wanted / SHARD_MIN).clamp(1, SHARDS_MAX).ilog2();
        let frames = u32::try_from(most / SEGMENT_MAX as u64 + 1).unwrap_or(u32::MAX);
        // Limits that are too low for segments of full size need more frames, each of which is used
        // in part.
        let frames = frames.saturating_add(shards as u32 * 32);
        let pool = Arc::new(Pool::new("cache", frames, SEGMENT_MAX)?);
        let (ahead, context_bytes) = (Arc::<Ahead>::default(), IoContext::memory());
        let shard = |_| Mutex::new(Shard::new(rules, Arc::clone(&pool), Arc::clone(&ahead), 0));
        let places = |remembered| rules.place(Came::Written, remembered).is_some();
        let cached = Self {
            drive,
            shard_map: ShardMap::new(shards),
            shards: (0..shards).map(shard).collect(),
            contexts: IoContexts::default(),
            context_bytes,
            processors: std::thread::available_parallelism().map_or(1, usize::from) as u64,
            keeps_writes: places(false) || places(true),
            limit: AtomicU64::new(0),
            evicted_before: AtomicU64::new(0),
            limiting: Mutex::new(()),
            streams: Mutex::new(Streams::default()),
            above: Mutex::new(None),
            follows: AtomicBool::new(false),
            unfollowed: Mutex::new(None),
            ahead,
            ids: AtomicU64::new(1),
            mixed: AtomicU64::new(0),
            missed_ns: AtomicU64::new(0),
            pages: Default::default(),
            bypassed: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        };
        cached.share_out(limit, true);
        Ok(Arc::new(cached))
    }

    /// Says that requests of less than `blocks` blocks come in parts, which are not to be taken for
    /// a stream.
    #[must_use]
    pub fn in_parts_of(self: Arc<Self>, blocks: u64) -> Arc<Self> {
        self.streams.lock().expect_parts(blocks);
        self
    }

    /// Changes the limit. What exceeds it is freed when this returns.
    ///
    /// # Errors
    /// A limit that is neither 0 nor at least [`super::RAM_LIMIT_MIN`]; then nothing changes.
    pub fn set_limit(&self, bytes: u64) -> Checked<()> {
        check_limit(bytes)?;
        let _limiting = self.limiting.lock();
        self.share_out(bytes, false);
        Ok(())
    }

    /// Divides a limit. What is known of the page cache is forgotten if the limit has changed much,
    /// or has to begin `anew`. The caller has locked `limiting`.
    fn share_out(&self, bytes: u64, anew: bool) {
        let mut above = self.above();
        let stays = !anew && above.as_ref().is_some_and(|above| above.fits(bytes));
        if !stays {
            above = above.map(|above| Arc::new(above.resized(bytes)));
            self.above.lock().clone_from(&above);
        }
        let shards = self.shards.len() as u64;
        let beside = fixed_bytes(shards) + above.as_ref().map_or(0, |above| above.bytes());
        let processors = above.as_ref().map(|_| self.processors);
        let share = share(bytes, (shards, beside), self.context_bytes, processors);
        self.limit.store(bytes, Ordering::Relaxed);
        self.contexts.limit(share.most);
        let mut evicted = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            if !stays {
                let room = |above: &Arc<Above>| above.seals() / shards;
                let seals = above.as_ref().map(|it| Seals::with_room(room(it), it.hints()));
                shard.follow(seals);
            }
            shard.set_limit(share.shard);
            evicted += shard.counts().evicted_blocks;
        }
        self.evicted_before.store(evicted, Ordering::Relaxed);
    }

    /// All memory in bytes, now.
    pub fn used(&self) -> u64 {
        let shards: u64 = self.shards.iter().map(|shard| shard.lock().used()).sum();
        shards + self.beside_shards()
    }

    /// Memory that no shard counts, in bytes.
    fn beside_shards(&self) -> u64 {
        let above = self.above().map_or(0, |above| above.bytes());
        let fixed = fixed_bytes(self.shards.len() as u64);
        self.contexts.bytes(self.context_bytes) + fixed + above
    }

    /// Begins to follow the page cache above: from now on blocks that it is to have get no copy,
    /// and [`Self::dropped`] is called for each of its pages that it drops. The memory that this
    /// takes counts in the limit, and `beside` bytes of what brings the pages.
    ///
    /// # Errors
    /// There is no random number.
    pub fn follow(&self, beside: u64) -> Checked<()> {
        let _limiting = self.limiting.lock();
        let limit = self.limit();
        *self.above.lock() = Some(Arc::new(Above::new(limit, beside)?));
        *self.unfollowed.lock() = None;
        self.follows.store(true, Ordering::Release);
        self.share_out(limit, true);
        Ok(())
    }

    /// Ends what [`Self::follow`] began; `why` it could not be, or not go on.
    pub fn unfollow(&self, why: Option<String>) {
        let _limiting = self.limiting.lock();
        self.follows.store(false, Ordering::Release);
        *self.above.lock() = None;
        *self.unfollowed.lock() = why;
        self.share_out(self.limit(), true);
    }

    /// Counts all pages that the page cache has dropped so far, and those that were not copied.
    pub fn saw_pages(&self, dropped: u64, lost: u64) {
        self.pages[0].store(dropped, Ordering::Relaxed);
        let before = self.pages[1].swap(lost, Ordering::Relaxed);
        if let Some(above) = self.above().filter(|_| lost > before) {
            above.lost(lost - before);
        }
    }

    /// Why the page cache is not followed, if it was to be.
    pub fn unfollowed(&self) -> Option<String> {
        self.unfollowed.lock().clone()
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    fn above(&self) -> Option<Arc<Above>> {
        if !self.follows.load(Ordering::Acquire) {
            return None;
        }
        self.above.lock().clone()
    }

    /// The page cache above has dropped a page. Keeps a copy of the block that has this content;
    /// `false`: none is known to have it.
    pub fn dropped(&self, page: &[u8; BLOCK_SIZE]) -> bool {
        let Some(above) = self.above() else { return false };
        let seal = above.seal(page);
        let is_it = |block: &u64| {
            let mut pieces = self.shard_map.pieces(*block..*block + 1);
            pieces.next().is_some_and(|piece| self.keep_dropped(&above, &piece, (seal, page)))
        };
        above.hints().blocks(seal).any(|block| is_it(&block))
    }

    /// Keeps a copy of the block of `piece`, if its content is that of a page; whether it is.
    fn keep_dropped(
        &self,
        above: &Above,
        piece: &Piece,
        (seal, page): (Seal, &[u8; BLOCK_SIZE]),
    ) -> bool {
        let id = self.id();
        {
            let mut shard = self.shard(piece).lock();
            if !shard.page_dropped(piece.key, seal) {
                return false;
            }
            above.dropped(piece.first);
            if planted::on(Bug::KeepDroppedOverWrite) {
                drop(shard);
                shard = self.shard(piece).lock();
            }
            // Its content is known now: from here on, the copy is one of a fill.
            if shard.has(piece.key) || !shard.begin_fill(id, piece.first, 1) {
                return true;
            }
        }
        let mut io = self.contexts.take();
        self.keep(io.as_mut(), id, (piece, 1), (Came::Dropped, Hits::default()), |_| {
            Given::Plain(page)
        });
        io.into_iter().for_each(|io| self.contexts.give(io));
        true
    }

    /// All counters, now.
    pub fn stats(&self) -> CacheStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = CacheStats {
            limit_bytes: load(&self.limit),
            used_bytes: self.beside_shards(),
            exclusive: self.follows.load(Ordering::Relaxed),
            requests_mixed: load(&self.mixed),
            missed_ns: load(&self.missed_ns),
            seen_pages: load(&self.pages[0]),
            lost_pages: load(&self.pages[1]),
            requests_bypassed: load(&self.bypassed),
            ahead_blocks: load(&self.ahead.kept),
            ahead_used_blocks: load(&self.ahead.used),
            ahead_useless_blocks: load(&self.ahead.useless),
            backing_errors: load(&self.errors),
            ..CacheStats::default()
        };
        let mut sums = CacheCounts::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sums += &shard.counts();
            stats.used_bytes += shard.used();
            stats.index_bytes += shard.index_bytes();
            stats.stored_bytes += shard.stored();
            stats.blocks += shard.blocks();
            stats.lost_blocks += shard.lost();
        }
        let mut stats = stats.with_sums(&sums);
        stats.original_bytes = stats.blocks * BLOCK;
        // The memory set aside for unused contexts and windows is a larger part of a low limit:
        // then evictions show that it is full.
        let nearly = stats.used_bytes + stats.limit_bytes / SPARE_PART >= stats.limit_bytes;
        stats.full = nearly || stats.evicted_blocks > load(&self.evicted_before);
        stats
    }

    /// Whether a block has a copy, for tests.
    #[doc(hidden)]
    pub fn has(&self, block: u64) -> bool {
        let mut pieces = self.shard_map.pieces(block..block + 1);
        pieces.next().is_some_and(|piece| self.shard(&piece).lock().has(piece.key))
    }

    /// Flips a bit in the copy of a block, for tests of detection; `false` when there is none.
    #[doc(hidden)]
    pub fn damage(&self, block: u64, bit: u32) -> bool {
        let mut pieces = self.shard_map.pieces(block..block + 1);
        pieces.next().is_some_and(|piece| self.shard(&piece).lock().flip(piece.key, bit))
    }

    /// Checks all counters and structures against each other, while there are no requests.
    ///
    /// # Errors
    /// What does not agree.
    pub fn audit(&self) -> Result<(), String> {
        self.shards.iter().try_for_each(|shard| shard.lock().audit())?;
        let (used, limit) = (self.used(), self.limit.load(Ordering::Relaxed));
        // With a limit of 0, writes in flight still take memory.
        let index: u64 = self.shards.iter().map(|shard| shard.lock().index_bytes()).sum();
        let beside = self.above().map_or(0, |above| above.bytes());
        let fits = used <= limit.max(index + beside + fixed_bytes(self.shards.len() as u64));
        fits.then_some(()).ok_or_else(|| format!("{used} bytes of {limit} are used"))
    }

    fn shard(&self, piece: &Piece) -> &Mutex<Shard> {
        &self.shards[piece.shard]
    }

    fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn is_on(&self) -> bool {
        self.limit.load(Ordering::Relaxed) > 0
    }

    /// The blocks of a byte range, if it is on the drive and consists of whole blocks.
    fn blocks(&self, at: u64, len: u64) -> Option<Range<u64>> {
        let whole = at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) && len > 0;
        let inside = at.checked_add(len).is_some_and(|end| end <= self.drive.size());
        (whole && inside).then(|| at / BLOCK..(at + len) / BLOCK)
    }

    fn noted<T>(&self, result: Result<T, DriveError>) -> Result<T, DriveError> {
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Looks up a piece: decodes blocks that have a copy into `out`. If it `gives`, the page cache
    /// is to get these copies, where it gets any; the caller has [`Self::keep`] do that.
    fn look(
        &self,
        io: &mut IoContext,
        id: u64,
        (piece, gives): (&Piece, bool),
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Found {
        let (mut next, mut missed, mut bad, mut hits) = (0, 0, 0, Hits::default());
        let above = self.above();
        let gives = gives && above.as_ref().is_some_and(|above| above.has(piece.first));
        while next < piece.count {
            io.clear();
            let planted = planted::on(Bug::ServeWhateverIsThere);
            let before = |key| planted.then(|| self.shard(piece).lock().place(key)).flatten();
            let mut before = before(piece.key + next as u32);
            {
                let mut shard = self.shard(piece).lock();
                if gives && next == 0 && !planted::on(Bug::SealGivenOverWrite) {
                    // Before a copy is read: a write that begins after that must be seen.
                    shard.begin_fill(id, piece.first, shard::all(piece.count));
                }
                while next < piece.count && !io.is_full() {
                    let key = piece.key + next as u32;
                    let found = match before.take() {
                        Some(place) => shard.hit_at(key, place, io.room()),
                        None => shard.hit(key, io.room()),
                    };
                    match found {
                        Some(header) => {
                            io.hold(next, header);
                            if gives {
                                hits.add(next, &header);
                            }
                        }
                        None => {
                            missed |= 1 << next;
                            let above = above.as_ref().filter(|_| shard.is_above(key));
                            above.into_iter().for_each(|above| above.asked_again(piece.first));
                        }
                    }
                    next += 1;
                }
                if next == piece.count && missed != 0 {
                    shard.missed(piece.key, missed, gives);
                    if !gives {
                        shard.begin_fill(id, piece.first, missed);
                    }
                }
            }
            for n in 0..io.len() {
                let at = io.get(n).0.index;
                if !io.decode(n, piece.first + at, &mut out[at as usize]) {
                    bad |= 1 << at;
                }
            }
        }
        if gives && planted::on(Bug::SealGivenOverWrite) {
            self.shard(piece).lock().begin_fill(id, piece.first, shard::all(piece.count));
        }
        if bad != 0 {
            let mut shard = self.shard(piece).lock();
            let is_bad = |at: &u64| bad >> at & 1 == 1;
            (0..piece.count).filter(is_bad).for_each(|at| shard.damaged(piece.key + at as u32));
        }
        let begun = if gives { shard::all(piece.count) } else { missed };
        Found { missed: missed | bad, begun, hits: hits.without(bad) }
    }

    /// Ends the flight of a piece, and keeps those of its blocks whose bits are set in `wanted`, as
    /// far as they are still alive. Without an I/O context, none is kept. The page cache gets the
    /// copies of `hits`, which go.
    fn keep<'a>(
        &self,
        io: Option<&mut IoContext>,
        id: u64,
        (piece, wanted): (&Piece, u64),
        (came, hits): (Came, Hits),
        given: impl Fn(usize) -> Given<'a>,
    ) {
        let Some(io) = io.filter(|_| wanted != 0) else { return self.end(id, piece) };
        let above = self.above();
        let is_above = !matches!(came, Came::Ahead | Came::Dropped);
        // What the page cache has needs no copy here.
        let skips = is_above && above.as_ref().is_some_and(|above| above.has(piece.first));
        let above = above.filter(|_| came != Came::Dropped);
        let mut left = wanted;
        while left != 0 {
            io.clear();
            while left != 0 && !io.is_full() {
                let at = u64::from(left.trailing_zeros());
                left &= left - 1;
                let name = (piece.first + at, piece.key + at as u32);
                let given = given(at as usize);
                if let (Some(above), Given::Plain(content)) = (&above, given) {
                    io.seal(at, above.seal(content));
                }
                if !skips {
                    io.encode(at, name, given, came == Came::Ahead);
                }
            }
            let mut shard = self.shard(piece).lock();
            let (alive, before) = shard.alive(id, piece.first);
            for n in 0..io.len() {
                let (held, record) = io.get(n);
                if alive >> held.index & 1 == 1 {
                    shard.keep(&held.header, record, came, before.of(held.index));
                }
            }
            for (at, seal) in io.seals().iter().filter(|(at, _)| alive >> at & 1 == 1) {
                let key = piece.key + *at as u32;
                if skips && hits.has(*at) {
                    shard.give(key);
                }
                shard.seal(key, *seal, Known { above: is_above, given: hits.times(*at) });
            }
            if left == 0 {
                shard.end(id, piece.first);
            }
            drop(shard);
            let noted =
                above.iter().flat_map(|above| io.seals().iter().map(move |one| (above, one)));
            noted.for_each(|(above, (at, seal))| above.hints().note(*seal, piece.first + at));
        }
    }

    fn end(&self, id: u64, piece: &Piece) {
        self.shard(piece).lock().end(id, piece.first);
    }

    /// Reads up to [`WINDOW`] blocks; whether it read the drive. If it `gives`, copies go to the
    /// page cache once all blocks are there. While the drive works, the I/O context is free for
    /// other requests.
    fn read_window(
        &self,
        first: u64,
        blocks: &mut [[u8; BLOCK_SIZE]],
        gives: bool,
    ) -> Result<bool, DriveError> {
        let Some(mut io) = self.contexts.take() else {
            self.bypassed.fetch_add(1, Ordering::Relaxed);
            return self.noted(self.drive.read_noting(first * BLOCK, blocks.as_flattened_mut()));
        };
        let (id, count) = (self.id(), blocks.len() as u64);
        let range = first..first + count;
        let [mut missed, mut begun] = [(); 2].map(|()| Set::default());
        let mut hits: [Set; 3] = Default::default();
        for piece in self.shard_map.pieces(range.clone()) {
            let at = (piece.first - first) as usize;
            let out = &mut blocks[at..at + piece.count as usize];
            let found = self.look(&mut io, id, (&piece, gives), out);
            missed.add(at, found.missed);
            begun.add(at, found.begun);
            hits.iter_mut().zip(found.hits.bits()).for_each(|(set, bits)| set.add(at, bits));
        }
        let (ahead, ticket) = self.see(first, count, missed.has(blocks.len() - 1));
        let misses = missed.len();
        let mut io = Some(io);
        if misses > 0 || begun.len() == 0 {
            io.take().into_iter().for_each(|io| self.contexts.give(io));
        }
        if begun.len() + misses == 0 {
            return Ok(false);
        }
        if (1..count).contains(&misses) {
            self.mixed.fetch_add(1, Ordering::Relaxed);
        }
        let start = Instant::now();
        let fetched = self.fetch((first, &missed), ahead, blocks);
        ticket.into_iter().for_each(|ticket| self.streams.lock().done(ticket));
        if misses > 0 {
            self.missed_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        // A request without a miss still has its own.
        let mut io = io.or_else(|| fetched.ok().and_then(|()| self.contexts.take()));
        for piece in self.shard_map.pieces(range) {
            let at = (piece.first - first) as usize;
            let wanted = begun.bits(at, piece.count);
            if wanted != 0 {
                let hits = Hits::of(hits.each_ref().map(|set| set.bits(at, piece.count)));
                let data = |n: usize| Given::Plain(&blocks[at + n]);
                self.keep(io.as_mut(), id, (&piece, wanted), (Came::Missed, hits), data);
            }
        }
        io.into_iter().for_each(|io| self.contexts.give(io));
        self.noted(fetched.map(|()| misses > 0))
    }

    /// How many blocks to read ahead behind a read of `count` blocks from `first` on.
    fn see(&self, first: u64, count: u64, to_fetch: bool) -> (u64, Option<Ticket>) {
        let room = (self.contexts.window_bytes() / BLOCK).saturating_sub(count);
        let mut streams = self.streams.lock();
        if to_fetch {
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            streams.weigh(load(&self.ahead.used), load(&self.ahead.useless));
        }
        let (wanted, ticket) = streams.see((first, count), to_fetch, room);
        let end = (self.drive.size() / BLOCK).min(self.shard_map.end());
        (wanted.min(end.saturating_sub(first + count)), ticket)
    }

    /// Reads missed blocks from the drive: neighbours with one read, and with the last of them the
    /// blocks that are read ahead.
    fn fetch(
        &self,
        (first, missed): (u64, &Set),
        ahead: u64,
        blocks: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), DriveError> {
        let (mut from, end) = (0, blocks.len());
        while let Some(run) = missed.run(from, end, HOLE) {
            from = run.end;
            let at = (first + run.start as u64) * BLOCK;
            let out = blocks[run.clone()].as_flattened_mut();
            if run.end == end && ahead > 0 && self.read_ahead(at, out, ahead) {
                break;
            }
            if self.drive.read(at, out).is_ok() {
                continue;
            }
            // Perhaps a block failed that was only read along, because it has a copy. Such blocks
            // are looked up again: the read may have left anything in their places in the buffer.
            // Their copies stay until all of the request is there.
            let mut within = run.start;
            while let Some(part) = missed.run(within, run.end, 0) {
                if within < part.start {
                    let again = &mut blocks[within..part.start];
                    self.read_window(first + within as u64, again, false)?;
                }
                within = part.end;
                let at = (first + part.start as u64) * BLOCK;
                self.drive.read(at, blocks[part].as_flattened_mut())?;
            }
        }
        Ok(())
    }

    /// Reads blocks into `out` and up to `ahead` more behind them, which are kept; `false` if it
    /// read nothing.
    fn read_ahead(&self, at: u64, out: &mut [u8], ahead: u64) -> bool {
        let Some(mut window) = self.contexts.window() else { return false };
        let (id, first) = (self.id(), (at + out.len() as u64) / BLOCK);
        // Blocks at the end that have a copy are not read; those in between are read along.
        let (mut absent, mut end) = (Set::default(), first);
        for piece in self.shard_map.pieces(first..first + ahead) {
            let mut shard = self.shard(&piece).lock();
            let lacks = |at: &u64| !shard.has(piece.key + *at as u32);
            let bits = (0..piece.count).filter(lacks).fold(0, |bits, at| bits | 1 << at);
            if bits != 0 && shard.begin_fill(id, piece.first, bits) {
                absent.add((piece.first - first) as usize, bits);
                end = piece.first + 64 - u64::from(bits.leading_zeros());
            }
        }
        let more = ((end - first) * BLOCK) as usize;
        let fits = more > 0 && out.len() + more <= window.len();
        let read = fits && self.drive.read(at, &mut window[..out.len() + more]).is_ok();
        if read {
            out.copy_from_slice(&window[..out.len()]);
        }
        let mut io = if read { self.contexts.take() } else { None };
        for piece in self.shard_map.pieces(first..end) {
            let bits = absent.bits((piece.first - first) as usize, piece.count);
            let from = out.len() + ((piece.first - first) * BLOCK) as usize;
            let data = window[from.min(window.len())..].as_chunks().0;
            if bits != 0 {
                let given = |n: usize| Given::Plain(&data[n]);
                let came = (Came::Ahead, Hits::default());
                self.keep(io.as_mut(), id, (&piece, bits), came, given);
            }
        }
        io.into_iter().for_each(|io| self.contexts.give(io));
        self.contexts.give_window(window);
        read
    }

    /// Begins a write of any content: drops all copies of these blocks.
    fn begin_write(&self, id: u64, blocks: Range<u64>) {
        for piece in self.shard_map.pieces(blocks) {
            let mut shard = self.shard(&piece).lock();
            shard.begin_write(id, (piece.first, piece.key), piece.count);
        }
    }

    fn end_write(&self, id: u64, blocks: Range<u64>) {
        self.shard_map.pieces(blocks).for_each(|piece| self.end(id, &piece));
    }

    /// Zeroes a large range: drops its copies with a scan of the index.
    fn zero_wide(&self, at: u64, len: u64, blocks: &Range<u64>) -> Result<(), DriveError> {
        let (id, first, count) = (self.id(), blocks.start, blocks.end - blocks.start);
        for (number, shard) in self.shards.iter().enumerate() {
            let inside = |key| blocks.contains(&self.shard_map.block(number, key));
            shard.lock().begin_zero(id, first, count, inside);
        }
        let result = self.drive.zero(at, len);
        self.shards.iter().for_each(|shard| shard.lock().end(id, first));
        result
    }
}

impl Drive for Cached {
    fn failures(&self) -> Option<&Failures> {
        self.drive.failures()
    }

    fn size(&self) -> u64 {
        self.drive.size()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.read_noting(at, buf).map(|_| ())
    }

    fn read_noting(&self, at: u64, buf: &mut [u8]) -> Result<bool, DriveError> {
        debug_assert!(BLOCK_SIZE == ALIGN && WINDOW as u64 > GROUP);
        let ours = self
            .blocks(at, buf.len() as u64)
            .filter(|blocks| self.is_on() && blocks.end <= self.shard_map.end());
        let Some(blocks) = ours else { return self.noted(self.drive.read_noting(at, buf)) };
        let parts = buf.as_chunks_mut::<BLOCK_SIZE>().0.chunks_mut(WINDOW);
        (blocks.start..).step_by(WINDOW).zip(parts).try_fold(false, |asked, (first, part)| {
            self.read_window(first, part, true).map(|more| asked | more)
        })
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.write_packed(at, Blocks::plain(data.as_chunks().0))
    }

    fn write_packed(&self, at: u64, given: Blocks<'_>) -> Result<(), DriveError> {
        let Some(blocks) = self.blocks(at, given.count() as u64 * BLOCK) else {
            return self.noted(self.drive.write_packed(at, given));
        };
        let id = self.id();
        self.begin_write(id, blocks.clone());
        let result = self.drive.write_packed(at, given);
        let good = result.is_ok() || planted::on(Bug::KeepFailedWrite);
        let keeps = good && self.keeps_writes && self.is_on();
        let mut io = if keeps { self.contexts.take() } else { None };
        for piece in self.shard_map.pieces(blocks.clone()) {
            let from = (piece.first - blocks.start) as usize;
            let all = (&piece, shard::all(piece.count));
            let (_, given) = given.split_at(from);
            self.keep(io.as_mut(), id, all, (Came::Written, Hits::default()), |at| given.at(at));
        }
        io.into_iter().for_each(|io| self.contexts.give(io));
        self.noted(result)
    }

    /// Leaves no copy of the block: only the drive knows what the rest of it holds.
    fn write_part(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        let Some(blocks) = self.blocks(at / BLOCK * BLOCK, BLOCK) else {
            return self.noted(self.drive.write_part(at, data));
        };
        let id = self.id();
        self.begin_write(id, blocks.clone());
        let result = self.drive.write_part(at, data);
        self.end_write(id, blocks);
        self.noted(result)
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        let Some(blocks) = self.blocks(at, len) else {
            return self.noted(self.drive.zero(at, len));
        };
        if blocks.end - blocks.start >= WIDE || planted::on(Bug::KeepZeroed) {
            return self.noted(self.zero_wide(at, len, &blocks));
        }
        let id = self.id();
        self.begin_write(id, blocks.clone());
        let result = self.drive.zero(at, len);
        self.end_write(id, blocks);
        self.noted(result)
    }

    fn zeroes_quickly(&self) -> bool {
        self.drive.zeroes_quickly()
    }

    fn is_atomic(&self) -> bool {
        self.drive.is_atomic()
    }

    fn begin(&self) {
        self.drive.begin();
    }

    fn settle(&self, most: Duration) -> Result<bool, DriveError> {
        self.drive.settle(most)
    }

    fn commit(&self, commit: &Commit, most: Duration) -> Result<bool, DriveError> {
        self.drive.commit(commit, most)
    }

    fn close(&self) -> Result<(), DriveError> {
        self.drive.close()
    }

    /// After a failed flush the drive may hold something else than what was written: all copies are
    /// dropped.
    fn flush(&self) -> Result<(), DriveError> {
        let result = self.drive.flush();
        if result.is_err() {
            self.shards.iter().for_each(|shard| shard.lock().forget_all());
        }
        self.noted(result)
    }
}
