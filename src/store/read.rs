//! Reads: no lock, one copy, every record checked.

use super::codec::fill;
use super::format::{Entry, HEADER, Header, Home, Location};
use super::tally::Counts;
use super::{Session, Store};
use crate::BLOCK_SIZE;

/// The record of a block is not what was written. Never served, never zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub u64);

/// What a block was when it was read. Two that are equal have equal content: an entry alone does
/// not tell, as a segment's number comes back, with other records at the same places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    home: Home,
    /// Of the segment, 0 for what is in none.
    sequence: u64,
}

impl Store {
    /// The version that `entry` stands for; the caller is pinned since before it was loaded.
    pub(super) fn version(&self, entry: Entry) -> Version {
        let home = entry.home();
        let sequence = match home {
            Home::Record(at) => self.segments.sequence(at.segment),
            Home::Hole | Home::Same(_) => 0,
        };
        Version { home, sequence }
    }

    /// Reads one block as of some moment during the call. Returns which version that was.
    ///
    /// # Errors
    /// [`Damaged`]; then `out` holds nothing of use.
    pub fn read(
        &self,
        session: &mut Session,
        block: u64,
        out: &mut [u8; BLOCK_SIZE],
    ) -> Result<Version, Damaged> {
        self.read_run(session, block, std::slice::from_mut(out))
    }

    /// Reads consecutive blocks, each as of some moment during the call. Returns the version of the
    /// first. One pin covers the run, so keep it short: it holds back the reuse of memory.
    ///
    /// # Errors
    /// [`Damaged`] at the first one that is; the rest is not read.
    pub fn read_run(
        &self,
        session: &mut Session,
        first: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<Version, Damaged> {
        let pin = session.pin(self);
        let mut result = Ok(self.version(Entry::HOLE));
        for (i, out) in out.iter_mut().enumerate() {
            let block = first + i as u64;
            let entry = self.index.load(block);
            let whole = match entry.home() {
                Home::Hole => {
                    out.fill(0);
                    true
                }
                Home::Same(word) => {
                    fill(out, u64::from(word) << 32 | u64::from(word));
                    true
                }
                Home::Record(at) => self.read_record(session, block, at, out),
            };
            if !whole {
                result = Err(Damaged(block));
                break;
            }
            if i == 0 {
                result = Ok(self.version(entry));
            }
        }
        drop(pin);
        if result.is_err() {
            session.count(&Counts { corrupt: 1, ..Counts::default() });
        }
        result
    }

    fn read_record(
        &self,
        session: &mut Session,
        block: u64,
        at: Location,
        out: &mut [u8; BLOCK_SIZE],
    ) -> bool {
        let Some(frame) = self.segments.frame(at.segment) else { return false };
        if at.offset + at.record_len() > self.shape.segment {
            return false;
        }
        let record = self.frames.bytes(frame, at.offset, at.record_len());
        prefetch(record);
        let Some((header, payload)) = record.split_first_chunk::<HEADER>() else { return false };
        let Some(header) = Header::decode(*header) else { return false };
        header.fits(payload, block, self.segments.sequence(at.segment))
            && session.codec.decode(header.coding, payload, out)
    }
}

/// Has the processor fetch all of a record, so that its cache lines come at the same time.
#[cfg(all(target_arch = "x86_64", not(any(miri, shuttle))))]
fn prefetch(record: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in record.chunks(64) {
        // SAFETY: a prefetch reads nothing; the address is inside the slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, shuttle)))))]
fn prefetch(_record: &[u8]) {}
