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
//! threads that could free memory. While the machine does not swap to the volume, as after a
//! `swapoff` by hand, the writer is a file system, which loses what is refused: then a write waits
//! longer.

use super::engine::Ram;
use super::mempool::Mempool;
use super::policy;
use crate::error::Result;
use crate::ram::store::{RESERVE_SEGMENTS, Session};
use crate::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a write waits for a frame when there is none.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long it waits after another write waited in vain.
const LAST_PATIENCE: Duration = Duration::from_millis(2);
/// How long a write waits while the machine does not swap to the volume.
const LONG_PATIENCE: Duration = Duration::from_secs(10);
/// How often a waiting write looks for a frame.
const NAP: Duration = Duration::from_micros(100);

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
        // Where memory is plenty, the refill thread has it at once, if it gets a processor.
        let is_first = self.mempool.refiller.get().is_some_and(|(_, is_first)| *is_first);
        let small = is_first && self.mempool.plenty.load(Ordering::Acquire);
        store.frames().keep(policy::mempool(store.budget().limit(), segment, small));
    }

    /// Resizes the mempool, if there is one, to a machine that has plenty of memory, or does not.
    pub fn memory_is_plenty(&self, plenty: bool) {
        if self.mempool.plenty.swap(plenty, Ordering::AcqRel) != plenty {
            self.fit_mempool();
            self.look_at_mempool();
        }
    }

    /// Notes whether the machine swaps to the volume now.
    pub fn swap_rests(&self, rests: bool) {
        self.mempool.rests.store(rests, Ordering::Release);
    }

    /// How long a write waits for a frame.
    fn patience(&self) -> Duration {
        let Mempool { rests, dry, .. } = &self.mempool;
        match (rests.load(Ordering::Acquire), dry.load(Ordering::Acquire)) {
            (true, _) => LONG_PATIENCE,
            (false, true) => LAST_PATIENCE,
            (false, false) => PATIENCE,
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
        let added = self.store().frames().refill(self.store().budget());
        if added {
            self.mempool.dry.store(false, Ordering::Release);
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
        let start = Instant::now();
        let mut found = true;
        while found && frames.ready() as u64 <= RESERVE_SEGMENTS {
            self.look_at_mempool();
            std::thread::sleep(NAP);
            found = start.elapsed() < self.patience();
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
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::BLOCK_SIZE;
    use crate::codec::Algorithm;
    use crate::media::Memory;
    use crate::ram::store::Shape;

    /// Writes blocks from `first` on until one is refused, but at most `most`.
    fn write(ram: &Ram, first: u64, most: u64) -> u64 {
        let mut session = ram.store().session().unwrap();
        let block: [u8; BLOCK_SIZE] = std::array::from_fn(|n| n as u8);
        let written =
            (0..most).take_while(|n| ram.write(&mut session, first + n, &[block]).is_ok());
        let written = written.count() as u64;
        ram.store().leave(&session);
        written
    }

    #[test]
    fn a_write_waits_for_a_frame_while_the_machine_does_not_swap() {
        let (segment, algorithm) = (1 << 20, Algorithm::None);
        let shape = Shape { blocks_max: 1 << 16, segment, frames: 64, slots: 0, algorithm };
        let ram = Ram::new(&Memory::default(), shape, 64 << 20).unwrap();
        ram.begin_mempool(1 << 16).unwrap();
        // Nothing refills the mempool.
        let most =
            2 * u64::from(segment) / BLOCK_SIZE as u64 * ram.store().frames().mempool() as u64;
        let written = write(&ram, 0, most);
        assert!(written < most, "{written}");
        ram.swap_rests(true);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&ram, most, 1000));
            std::thread::sleep(Duration::from_millis(300));
            while !writer.is_finished() {
                ram.refill();
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(writer.join().unwrap(), 1000);
        });
    }
}
