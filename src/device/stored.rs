//! A volume in a store of objects, as the backing store of a log.
//!
//! The log's superblock names the volume and its newest window when the log was opened, the
//! witness. From then on the log's own windows carry its UUID and tail. So three facts tell how a
//! store that is opened later relates to its log: whose its newest window is, and whether that is
//! before or behind what the log knows.
//!
//! Invariant: nothing here changes the store.

use super::backing::Backing;
use crate::error::Result;
use crate::log::disk::format::{IDENTITY, Superblock};
use crate::media::{Commit, Match};
use crate::object::{Identity, Newest, VolumeFound};

/// In the place of the version of a drive's identity: that of a volume in a store.
const VERSION: u8 = 0x81;
const VOLUME_AT: usize = 8;
const SLOT_AT: usize = 24;
const CHECK_AT: usize = 32;
const WRITTEN_AT: usize = 40;
const CRC_AT: usize = IDENTITY - 4;
/// The witness of a store that had no window, or of one that was not looked at.
const NO_SLOT: u64 = u64::MAX;

/// What a log's superblock says of a volume in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The volume.
    pub volume: Identity,
    /// Slot and check word of the last part of the newest window.
    witness: (u64, u32),
    /// The segment before which the log had brought everything to the store then.
    written: u64,
}

impl Stored {
    fn encode(&self) -> [u8; IDENTITY] {
        let mut out = [0; IDENTITY];
        out[0] = VERSION;
        out[VOLUME_AT..SLOT_AT].copy_from_slice(&self.volume);
        out[SLOT_AT..CHECK_AT].copy_from_slice(&self.witness.0.to_le_bytes());
        out[CHECK_AT..CHECK_AT + 4].copy_from_slice(&self.witness.1.to_le_bytes());
        out[WRITTEN_AT..WRITTEN_AT + 8].copy_from_slice(&self.written.to_le_bytes());
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
        let written = u64_at(WRITTEN_AT)?;
        (whole && stored[0] == VERSION).then_some(Self { volume, witness, written })
    }
}

impl VolumeFound {
    fn witness(&self) -> (u64, u32) {
        self.newest.map_or((NO_SLOT, 0), |newest| (newest.slot, newest.check))
    }

    /// How the newest window compares with what the log of `sb` knows of the store.
    fn compare_newest(&self, sb: &Superblock, stored: &Stored) -> Match {
        let slot = |slot: u64| if slot == NO_SLOT { "none".into() } else { slot.to_string() };
        let (there, known) = (self.witness(), stored.witness);
        // The log has committed windows since it was opened: the newest must be one of those.
        let advanced = sb.written.segment > stored.written;
        match self.committed(sb).map(|commit| commit.tail.segment) {
            Some(segment) if segment >= sb.written.segment => Match::Same,
            _ if there == known && !advanced => Match::Same,
            Some(segment) => {
                let had = sb.written.segment;
                let what =
                    format!("it has segments before {segment} of the log, and had those to {had}");
                Match::Behind { what }
            }
            None if known.0 != NO_SLOT && (there.0 == NO_SLOT || there.0 <= known.0) => {
                let (is, was) = (slot(there.0), slot(known.0));
                Match::Behind { what: format!("its newest window is {is}, and was {was} or later") }
            }
            None => {
                let what = format!("its newest window, {}, is not of that log", slot(there.0));
                Match::Changed { what }
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

    fn identity(&self, written: u64) -> Result<[u8; IDENTITY]> {
        Ok(Stored { volume: self.volume, witness: self.witness(), written }.encode())
    }

    fn compare(&self, sb: &Superblock, stored: &[u8; IDENTITY]) -> Result<Option<Match>> {
        let Some(stored) = Stored::decode(stored) else { return Ok(None) };
        if stored.volume != self.volume {
            return Ok(Some(Match::Other { what: "the volume's id".into() }));
        }
        Ok(Some(self.compare_newest(sb, &stored)))
    }

    /// Each change of a store is a window, so nothing is hidden from [`Self::compare`].
    fn is_untouched(&self, sb: &Superblock) -> bool {
        let same =
            self.committed(sb).is_none_or(|commit| commit.tail.segment == sb.written.segment);
        !sb.open && same
    }

    fn is_written_to(&self, _: &Superblock) -> bool {
        false
    }

    fn committed(&self, sb: &Superblock) -> Option<Commit> {
        let mark = self.newest?.mark.filter(|mark| mark.log == sb.uuid)?;
        Some(mark.commit())
    }
}
