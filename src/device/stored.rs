//! A volume in a store of objects, as the backing store of a log.
//!
//! The log's superblock names the volume, its newest window when the log was opened (the witness),
//! and the tail of the log's newest commit since then. The log's windows carry its UUID and tail.
//! So a store that is opened later tells how it relates to its log: whose its newest window is, and
//! whether that is before or behind what the log knows. The superblock's own tail does not tell: it
//! also passes segments of which there is nothing to commit. Nor does a volume that is larger than
//! its log: it grew, here or on another host, before the log could say so.
//!
//! Invariant: nothing here changes the store.

use super::backing::Backing;
use crate::BLOCK_SIZE;
use crate::error::Result;
use crate::log::disk::format::{IDENTITY, Superblock};
use crate::media::{Commit, Match};
use crate::object::{Identity, Newest, VolumeFound};

/// In the place of the version of a drive's identity: that of a volume in a store.
const VERSION: u8 = 0x81;
const VOLUME_AT: usize = 8;
const SLOT_AT: usize = 24;
const CHECK_AT: usize = 32;
const COMMITTED_AT: usize = 40;
const CRC_AT: usize = IDENTITY - 4;
/// The witness of a store that had no window, or of one that was not looked at.
const NO_SLOT: u64 = u64::MAX;
/// In the place of the segment of a commit: there was none.
const NONE: u64 = u64::MAX;

/// What a log's superblock says of a volume in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The volume.
    pub volume: Identity,
    /// Slot and check word of the last part of the newest window.
    witness: (u64, u32),
    /// The tail's segment of the newest commit by this log since then that it knows of.
    committed: Option<u64>,
}

impl Stored {
    fn encode(&self) -> [u8; IDENTITY] {
        let mut out = [0; IDENTITY];
        out[0] = VERSION;
        out[VOLUME_AT..SLOT_AT].copy_from_slice(&self.volume);
        out[SLOT_AT..CHECK_AT].copy_from_slice(&self.witness.0.to_le_bytes());
        out[CHECK_AT..CHECK_AT + 4].copy_from_slice(&self.witness.1.to_le_bytes());
        let committed = self.committed.unwrap_or(NONE);
        out[COMMITTED_AT..COMMITTED_AT + 8].copy_from_slice(&committed.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Whether `window` was the newest one when the log was opened.
    pub fn saw(&self, window: &Newest) -> bool {
        (window.slot, window.check) == self.witness
    }

    /// Of a superblock; `None`: it is damaged, or the identity of a drive.
    pub fn decode(stored: &[u8; IDENTITY]) -> Option<Self> {
        let u32_at = |at: usize| stored[at..at + 4].try_into().ok().map(u32::from_le_bytes);
        let u64_at = |at: usize| stored[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let whole = u32_at(CRC_AT)? == crc_fast::crc32_iscsi(&stored[..CRC_AT]);
        let volume = stored[VOLUME_AT..SLOT_AT].try_into().ok()?;
        let witness = (u64_at(SLOT_AT)?, u32_at(CHECK_AT)?);
        let committed = u64_at(COMMITTED_AT).filter(|segment| *segment != NONE);
        (whole && stored[0] == VERSION).then_some(Self { volume, witness, committed })
    }
}

/// A log's note of a store, with one more commit; `None` if the note is of something else.
pub(super) fn noting(note: &[u8; IDENTITY], commit: &Commit) -> Option<[u8; IDENTITY]> {
    let stored = Stored::decode(note)?;
    Some(Stored { committed: Some(commit.tail.segment), ..stored }.encode())
}

impl VolumeFound {
    fn witness(&self) -> (u64, u32) {
        self.newest.map_or((NO_SLOT, 0), |newest| (newest.slot, newest.check))
    }

    /// The newest commit, if that is of this log.
    fn committed_by(&self, log: [u8; 16]) -> Option<Commit> {
        let mark = self.newest?.mark.filter(|mark| mark.log == log)?;
        Some(mark.commit())
    }

    /// How the newest window compares with what this log knows of the store.
    fn compare_newest(&self, log: [u8; 16], stored: &Stored) -> Match {
        let slot = |slot: u64| if slot == NO_SLOT { "none".into() } else { slot.to_string() };
        let (there, known) = (self.witness(), stored.witness);
        let is_later = there.0 != NO_SLOT && (known.0 == NO_SLOT || there.0 > known.0);
        let (is, was) = (slot(there.0), slot(known.0));
        let own = self.committed_by(log).map(|commit| commit.tail.segment);
        match (own, stored.committed) {
            (Some(own), Some(known)) if own >= known => Match::Same,
            (Some(own), Some(known)) => Match::Behind {
                what: format!("it has segments before {own} of the log, and had those to {known}"),
            },
            (_, None) if there == known => Match::Same,
            // A commit of which the log's superblock does not know yet.
            (Some(_), None) if is_later => Match::Same,
            (None, _) if is_later => Match::Changed {
                what: format!("its newest window, {is}, which is not of that log"),
            },
            _ => {
                Match::Behind { what: format!("its newest window is {is}, and was {was} or later") }
            }
        }
    }
}

impl Backing for VolumeFound {
    fn bytes(&self) -> u64 {
        self.size
    }

    fn require_whole(&self) -> Result<()> {
        Ok(())
    }

    fn grows(&self) -> bool {
        true
    }

    fn identity(&self) -> Result<[u8; IDENTITY]> {
        Ok(Stored { volume: self.volume, witness: self.witness(), committed: None }.encode())
    }

    fn compare(&self, sb: &Superblock, stored: &[u8; IDENTITY]) -> Result<Option<Match>> {
        let Some(stored) = Stored::decode(stored) else { return Ok(None) };
        if stored.volume != self.volume {
            return Ok(Some(Match::Other { what: "the volume's id".into() }));
        }
        let had = sb.blocks * BLOCK_SIZE as u64;
        Ok(Some(match self.compare_newest(sb.uuid, &stored) {
            // The store grows before its log.
            Match::Same if had > self.size => {
                Match::Behind { what: format!("it has {} bytes, and had {had}", self.size) }
            }
            compared => compared,
        }))
    }

    /// Each change of a store is a window, so nothing is hidden from [`Self::compare`].
    fn is_untouched(&self, sb: &Superblock) -> bool {
        let own = self.committed(sb);
        !sb.open && own.is_none_or(|commit| commit.tail.segment <= sb.written.segment)
    }

    fn is_written_to(&self, _: &Superblock) -> bool {
        false
    }

    fn committed(&self, sb: &Superblock) -> Option<Commit> {
        self.committed_by(sb.uuid)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::media::Tail;
    use crate::object::{Mark, Newest};

    const LOG: [u8; 16] = [3; 16];

    /// A volume whose newest window is in `slot`, by the log `by` with this tail's segment.
    fn found(slot: u64, by: Option<([u8; 16], u64)>) -> VolumeFound {
        let mark = by.map(|(log, segment)| {
            Mark::of(&Commit {
                log,
                tail: Tail { segment, ..Tail::default() },
                ..Commit::default()
            })
        });
        let newest = Some(Newest { slot, check: slot as u32, mark });
        VolumeFound { volume: [1; 16], size: 1 << 30, newest }
    }

    /// What a log says of it that was opened with its newest window in `slot`, and has committed.
    fn stored(slot: u64, committed: Option<u64>) -> Stored {
        Stored { volume: [1; 16], witness: (slot, slot as u32), committed }
    }

    #[test]
    fn what_a_log_says_is_read_as_it_was_written() {
        for committed in [None, Some(0), Some(77)] {
            let stored = stored(5, committed);
            let mut bytes = stored.encode();
            assert_eq!(Stored::decode(&bytes), Some(stored));
            let commit =
                Commit { tail: Tail { segment: 9, ..Tail::default() }, ..Commit::default() };
            let noted = noting(&bytes, &commit).unwrap();
            assert_eq!(Stored::decode(&noted), Some(Stored { committed: Some(9), ..stored }));
            bytes[30] ^= 1;
            assert_eq!((Stored::decode(&bytes), noting(&bytes, &commit)), (None, None));
        }
    }

    #[test]
    fn a_log_fits_a_store_that_neither_went_on_nor_back() {
        let (own, other) = (|segment| Some((LOG, segment)), Some(([4; 16], 100)));
        let none = VolumeFound { newest: None, ..found(0, None) };
        let fits = |found: &VolumeFound, stored| match found.compare_newest(LOG, &stored) {
            Match::Same => "fits",
            Match::Changed { .. } => "on",
            Match::Behind { .. } => "back",
            other => panic!("{other:?}"),
        };
        for (found, stored, expected) in [
            // It has committed nothing.
            (found(20, None), stored(20, None), "fits"),
            (found(20, own(4)), stored(20, None), "fits"),
            (found(21, None), stored(20, None), "on"),
            (found(21, other), stored(20, None), "on"),
            (found(19, None), stored(20, None), "back"),
            (none, stored(20, None), "back"),
            (found(16, other), stored(NO_SLOT, None), "on"),
            // A commit that its superblock does not know of.
            (found(21, own(1)), stored(20, None), "fits"),
            (found(21, own(6)), stored(20, Some(5)), "fits"),
            // It has committed.
            (found(30, own(5)), stored(20, Some(5)), "fits"),
            (found(29, own(4)), stored(20, Some(5)), "back"),
            (found(20, None), stored(20, Some(5)), "back"),
            (found(19, other), stored(20, Some(5)), "back"),
            (none, stored(20, Some(5)), "back"),
            (found(40, None), stored(20, Some(5)), "on"),
            (found(40, other), stored(20, Some(5)), "on"),
        ] {
            assert_eq!(fits(&found, stored), expected, "{found:?} {stored:?}");
        }
        let empty = Stored { witness: none.witness(), ..stored(0, None) };
        assert_eq!(fits(&none, empty), "fits");
    }
    #[test]
    fn a_volume_that_grew_fits_its_log_and_one_that_shrank_went_back() {
        let stored = stored(20, Some(5)).encode();
        let sb = |blocks| Superblock {
            uuid: LOG,
            generation: 1,
            segment: 1 << 20,
            segments: 64,
            data_at: 1 << 20,
            blocks,
            open: true,
            tail: Tail::default(),
            written: Tail::default(),
            void: 0,
            at_s: 0,
            change_counter: crate::media::ChangeCounter::default(),
            copies: false,
            durable: 0,
            identity: stored,
            checkpoint: None,
            past_s: 0,
            mixture_s: 0,
            spent: false,
            epochs: Vec::new(),
            lost: Vec::new(),
        };
        let compare =
            |slot, by, blocks| found(slot, by).compare(&sb(blocks), &stored).unwrap().unwrap();
        let (blocks, own) = ((1 << 30) / BLOCK_SIZE as u64, Some((LOG, 6)));
        for fits in [1, blocks - 1, blocks] {
            assert_eq!(compare(30, own, fits), Match::Same);
        }
        assert!(matches!(compare(30, own, blocks + 1), Match::Behind { .. }));
        // Another owner's window says more than the size.
        assert!(matches!(compare(30, None, blocks + 1), Match::Changed { .. }));
    }
}
