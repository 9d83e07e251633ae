//! Reads: no lock, one copy, every record checked.
//!
//! A record in a slot is decoded from a window, once the tier above has read that part of the slot
//! into it; until then the read stops there.

use super::format::{Entry, HEADER, Header, Home, Location};
use super::segment::Place;
use super::session::ReadAgain;
use super::version::Version;
use super::window::Below;
use super::{Session, Store};
use crate::BLOCK_SIZE;
use crate::codec::{Codec, doubled, fill};
use crate::media::prefetch;
use crate::stats::Counts;

/// A read that stopped before its last block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Blocks that were read before it stopped.
    pub done: usize,
    /// Why the next block could not be read.
    pub why: Why,
}

/// Why a read stopped at a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its record is not what was written. Such a record is never served, and never read as zeros.
    Damaged,
    /// Its record is in a slot; read it after [`Store::bring`](super::Store::bring).
    Below(Below),
}

impl Store {
    /// The version of `entry`; the caller has been pinned since before it loaded the entry.
    pub(super) fn version(&self, entry: Entry) -> Version {
        let home = entry.home();
        let sequence = match home {
            Home::Record(at) if self.segments.has(at.segment) => self.segments.sequence(at.segment),
            Home::Hole | Home::Same(_) | Home::Record(_) | Home::Damaged => 0,
        };
        Version { home, sequence }
    }

    /// Whether a record can be at `at`. An entry of a record has no check of its own, so damaged
    /// memory may name a place outside of all segments.
    pub(super) fn may_be(&self, at: Location) -> bool {
        self.segments.has(at.segment) && at.offset + at.record_len() <= self.shape.segment
    }

    /// Reads one block as of some moment during the call. Returns its version.
    ///
    /// # Errors
    /// [`Stopped`]; then the content of `out` is undefined.
    pub fn read(
        &self,
        session: &mut Session,
        block: u64,
        out: &mut [u8; BLOCK_SIZE],
    ) -> Result<Version, Stopped> {
        self.read_run(session, block, std::slice::from_mut(out))
    }

    /// Reads consecutive blocks, each as of some moment during the call. Returns the version of the
    /// first. One pin covers the run, so keep it short: the pin delays the reuse of memory.
    ///
    /// # Errors
    /// [`Stopped`] at the first block that cannot be read; later blocks are not read.
    pub fn read_run(
        &self,
        session: &mut Session,
        first: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<Version, Stopped> {
        let pin = session.pin(self);
        let mut result = Ok(self.version(Entry::HOLE));
        let count = out.len();
        for (done, out) in out.iter_mut().enumerate() {
            let block = first + done as u64;
            let entry = self.index.load(block);
            let read = match entry.home() {
                Home::Hole => {
                    out.fill(0);
                    Ok(())
                }
                Home::Same(word) => {
                    fill(out, doubled(word));
                    Ok(())
                }
                Home::Damaged => Err(Why::Damaged),
                Home::Record(at) => {
                    self.read_record(session, (block, count - done), (entry, at), out)
                }
            };
            if let Err(why) = read {
                result = Err(Stopped { done, why });
                break;
            }
            if done == 0 {
                result = Ok(self.version(entry));
            }
        }
        drop(pin);
        if matches!(result, Err(Stopped { why: Why::Damaged, .. })) {
            session.count(&Counts { corrupt_records: 1, ..Counts::default() });
        }
        result
    }

    /// The caller is pinned.
    fn read_record(
        &self,
        session: &mut Session,
        (block, count): (u64, usize),
        (entry, at): (Entry, Location),
        out: &mut [u8; BLOCK_SIZE],
    ) -> Result<(), Why> {
        if !self.may_be(at) {
            return Err(Why::Damaged);
        }
        let sequence = self.segments.sequence(at.segment);
        match self.segments.place(at.segment) {
            None => Err(Why::Damaged),
            Some(Place::Frame(frame)) => {
                if entry.is_hot() {
                    if at.parts > 0 {
                        let version = self.version(entry);
                        session.again.note(ReadAgain { block, version, below: false });
                    }
                } else if at.parts > 0 || self.watches_reads() {
                    self.index.warm(block, entry, entry.hot());
                }
                let record = self.frames.bytes(frame, at.offset, at.record_len());
                prefetch_all(record);
                match self.unpack(&mut session.codec, record, (block, sequence), at, out) {
                    true => Ok(()),
                    false => Err(Why::Damaged),
                }
            }
            Some(Place::Slot(slot)) => {
                self.read_spilled(session, (block, count), (entry, at), slot, out)
            }
        }
    }
}

impl Store {
    /// Checks the record of a block or of its cluster, in a segment of `sequence`, and decodes the
    /// block.
    pub(super) fn unpack(
        &self,
        codec: &mut Codec,
        record: &[u8],
        (block, sequence): (u64, u64),
        at: Location,
        out: &mut [u8; BLOCK_SIZE],
    ) -> bool {
        if at.parts == 0 {
            return decode(codec, record, (block, sequence), out);
        }
        self.clusters.get().is_some_and(|pool| pool.read(record, at, (block, sequence), out))
    }
}

/// Checks the record of a block in a segment of `sequence`, and decodes it.
fn decode(
    codec: &mut Codec,
    record: &[u8],
    (block, sequence): (u64, u64),
    out: &mut [u8; BLOCK_SIZE],
) -> bool {
    let Some((header, payload)) = record.split_first_chunk::<HEADER>() else { return false };
    let Some(header) = Header::decode(*header) else { return false };
    header.fits(payload, block, sequence) && codec.decode(header.coding, payload, out)
}

/// Prefetches all cache lines of a record, so that they arrive at the same time.
fn prefetch_all(record: &[u8]) {
    record.chunks(64).for_each(|line| prefetch(&line[0]));
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    use super::super::format::{SEGMENT_MIN, SEGMENTS_MAX};
    use super::super::{Shape, Store};
    use super::*;
    use crate::codec::Algorithm;
    use crate::media::Memory;

    #[test]
    fn an_entry_that_names_no_segment_is_damage() {
        let (blocks_max, segment, algorithm) = (512, SEGMENT_MIN, Algorithm::None);
        let shape = Shape { blocks_max, segment, frames: 4, slots: 0, algorithm };
        let store = Store::new(&Memory::default(), shape, 8 << 20).unwrap();
        let mut session = store.session().unwrap();
        // Just behind the table, and where nothing is mapped.
        for segment in [4, SEGMENTS_MAX - 1] {
            let damaged = Entry::record(Location { segment, offset: 0, len: 100, parts: 0 });
            let leaf = store.index.retain(7, &store.budget).unwrap();
            let old = store.index.swap(&leaf, 7, damaged);
            store.index.release(&leaf, i64::from(old.is_hole()));
            let read = store.read(&mut session, 7, &mut [0; BLOCK_SIZE]);
            assert_eq!(read, Err(Stopped { done: 0, why: Why::Damaged }));
            assert_eq!(store.version(damaged).sequence, 0);
            // As with any other damage, a write or a discard mends it.
            store.clear(&mut session, 7, 1, false);
            store.read(&mut session, 7, &mut [1; BLOCK_SIZE]).unwrap();
        }
        store.leave(&session);
    }
}
