//! The mempool: an emergency reserve of frames, for a volume that carries swap.
//!
//! A process that swaps out is short of memory, and waits for this volume to take the page. If that
//! write in turn needs memory from the machine, each waits for the other. So the write path uses
//! only memory that the volume already has, and only one thread of the volume ([`Ram::refill`])
//! asks the machine for frames. Unlike the threads that serve requests, that thread may cause pages
//! to be swapped out to this same volume, because the others go on meanwhile.
//!
//! When the mempool is used up all the same, a write waits a moment and is then refused. The
//! machine keeps that page where it was, as with a full device. A longer wait would also hold up
//! threads that could free memory.
//!
//! Its size follows need: it is small, and doubles each time a write finds it empty although it had
//! been full since it last grew. It halves after [`CALM`] without such a write.

use super::engine::Ram;
use super::policy;
use crate::error::Result;
use crate::ram::store::{RESERVE_SEGMENTS, Session};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a write waits for a frame when there is none.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long it waits after another write waited in vain.
const LAST_PATIENCE: Duration = Duration::from_millis(2);
/// How often a waiting write looks for a frame.
const NAP: Duration = Duration::from_micros(100);
/// Time without a waiting write after which the mempool halves.
pub const CALM: Duration = Duration::from_secs(60);

/// State of the mempool besides its frames.
#[derive(Debug, Default)]
pub(super) struct Mempool {
    /// The thread that refills it, and whether no other thread is served before it.
    refiller: OnceLock<(Thread, bool)>,
    /// How often its least size is doubled.
    doublings: AtomicU32,
    /// It has been full since it last grew.
    was_full: AtomicBool,
    /// Writes that found it empty.
    waits: AtomicU64,
    /// A write waited in vain since a frame was last added: other writes need not find that out
    /// again.
    dry: AtomicBool,
}

impl Ram {
    /// From now on no change of the first `blocks` blocks asks the machine for memory.
    ///
    /// # Errors
    /// See [`crate::ram::store::Store::keep_tables`]; then nothing has changed.
    pub fn begin_mempool(&self, blocks: u64) -> Result<()> {
        self.store().keep_tables(blocks)?;
        self.size_mempool();
        while self.refill() {}
        Ok(())
    }

    /// Resizes the mempool, if there is one, to what the limit asks for.
    pub(super) fn fit_mempool(&self) {
        if self.has_mempool() {
            self.size_mempool();
        }
    }

    fn size_mempool(&self) {
        let (store, segment) = (self.store(), self.store().segment_size());
        // A refill thread that has to wait for a processor needs the most from the beginning.
        let is_first = self.mempool.refiller.get().is_some_and(|(_, is_first)| *is_first);
        let doublings = match is_first {
            true => self.mempool.doublings.load(Ordering::Acquire),
            false => policy::MEMPOOL_DOUBLINGS,
        };
        store.frames().keep(policy::mempool(store.budget().limit(), segment, doublings));
    }

    /// Doubles the mempool, if a larger one would have helped the calling writer.
    fn grow_mempool(&self) {
        self.mempool.waits.fetch_add(1, Ordering::Relaxed);
        if self.mempool.was_full.swap(false, Ordering::AcqRel) {
            let more = |n| (n < policy::MEMPOOL_DOUBLINGS).then_some(n + 1);
            let set =
                self.mempool.doublings.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
            if set.is_ok() {
                self.size_mempool();
            }
        }
    }

    /// Writes that have found the mempool empty so far.
    pub fn mempool_waits(&self) -> u64 {
        self.mempool.waits.load(Ordering::Relaxed)
    }

    /// Halves the mempool, down to its least size, and gives the frames back.
    pub fn shrink_mempool(&self) {
        let less = |n: u32| n.checked_sub(1);
        let set = self.mempool.doublings.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        if set.is_ok() && self.has_mempool() {
            self.size_mempool();
            self.trim_surplus();
        }
    }

    /// Ends the mempool: every write asks the machine for memory again.
    pub fn end_mempool(&self) {
        self.store().frames().keep(0);
        self.store().let_go();
    }

    /// Whether there is a mempool.
    pub fn has_mempool(&self) -> bool {
        self.store().frames().mempool() > 0
    }

    /// Makes the calling thread the one that is woken when a frame is missing; `is_first`: it is a
    /// real-time thread.
    pub fn serve_mempool(&self, is_first: bool) {
        self.mempool.refiller.get_or_init(|| (std::thread::current(), is_first));
    }

    /// Puts a frame into the mempool if one is missing; waits for the machine to give the memory.
    /// `false` when none is missing, or there is no memory under the limit.
    pub fn refill(&self) -> bool {
        let frames = self.store().frames();
        let added = frames.refill(self.store().budget());
        if added {
            self.mempool.dry.store(false, Ordering::Release);
        } else if frames.ready() >= frames.mempool() {
            self.mempool.was_full.store(true, Ordering::Release);
        }
        added
    }

    /// Wakes the refill thread if a frame is missing.
    pub(super) fn look_at_mempool(&self) {
        let frames = self.store().frames();
        if frames.ready() < frames.mempool()
            && let Some((refiller, _)) = self.mempool.refiller.get()
        {
            refiller.unpark();
        }
    }

    /// Makes the writer of `session` wait a moment for a frame, if the limit allows one more and
    /// the mempool has none. Returns whether there is a frame now.
    pub(super) fn await_mempool(&self, session: &mut Session) -> bool {
        let (frames, segment) = (self.store().frames(), u64::from(self.store().segment_size()));
        if !self.has_mempool() || self.free() < segment {
            return false;
        }
        self.count_stall();
        self.grow_mempool();
        let start = Instant::now();
        let mut found = true;
        while found && frames.ready() as u64 <= RESERVE_SEGMENTS {
            self.look_at_mempool();
            std::thread::sleep(NAP);
            let is_dry = self.mempool.dry.load(Ordering::Acquire);
            found = start.elapsed() < if is_dry { LAST_PATIENCE } else { PATIENCE };
            if !found {
                self.mempool.dry.store(true, Ordering::Release);
            }
        }
        session.stalled += start.elapsed();
        found
    }
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    use super::*;
    use crate::BLOCK_SIZE;
    use crate::codec::Algorithm;
    use crate::media::Memory;
    use crate::ram::store::Shape;

    const SEGMENT: u32 = 1 << 20;
    const LIMIT: u64 = 1 << 30;

    /// Writes blocks from `from` on until one finds the mempool empty.
    fn write_until_empty(ram: &Ram, session: &mut Session, from: u64) {
        let before = ram.mempool_waits();
        for block in from.. {
            let data = [block as u8 | 1; BLOCK_SIZE];
            let data: [u8; BLOCK_SIZE] = std::array::from_fn(|i| data[i].wrapping_mul(i as u8));
            if ram.write(session, block, &[data]).is_err() {
                break;
            }
        }
        assert_eq!(ram.mempool_waits(), before + 1);
    }

    #[test]
    fn it_grows_when_a_write_finds_it_empty_and_shrinks_later() {
        let (segment, algorithm) = (SEGMENT, Algorithm::None);
        let shape = Shape { blocks_max: 1 << 20, segment, frames: 900, slots: 0, algorithm };
        let ram = Ram::new(&Memory::default(), shape, LIMIT).unwrap();
        let mut session = ram.store().session().unwrap();
        ram.serve_mempool(true);
        ram.begin_mempool(1 << 20).unwrap();
        let frames = ram.store().frames();
        assert_eq!((frames.mempool(), frames.ready()), (6, 6));
        write_until_empty(&ram, &mut session, 0);
        assert_eq!(frames.mempool(), 12);
        // What finds it empty before it has been full says nothing of its size.
        write_until_empty(&ram, &mut session, 1 << 16);
        assert_eq!(frames.mempool(), 12);
        for most in [24, 24] {
            while ram.refill() {}
            write_until_empty(&ram, &mut session, 1 << 17);
            assert_eq!(frames.mempool(), most);
        }
        while ram.refill() {}
        for least in [12, 6, 6] {
            ram.shrink_mempool();
            assert_eq!((frames.mempool(), frames.ready()), (least, least));
        }
        ram.store().leave(&session);
    }
}
