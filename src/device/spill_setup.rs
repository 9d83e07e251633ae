//! The spill device of a volume: which volume owns it, and what is refused before a byte of it is
//! written.
//!
//! Invariants: nothing is written before every check has passed; the slots have a meaning only
//! together with the memory that the label was made with, which has a copy of the label.

use super::drives::{failed, random};
use crate::error::{Context, Error, Result};
use crate::log::{self, OpenError};
use crate::media::{ALIGN, Buffer, Drive, FileDrive, Memory, Signature, Words};
use crate::ram::SpillTo;
use crate::ram::store::format::SEGMENTS_MAX;
use crate::remedy;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The memory file with the copy of the label.
const FILE: &str = "spill";
const MAGIC: [u8; 8] = *b"ztierspl";
const VERSION: u32 = 1;
/// The longest name of a volume, in bytes.
const NAME_MAX: usize = 255;
/// Bytes of the label that the CRC covers; the CRC follows them.
const CRC_AT: usize = 48 + NAME_MAX + 1;
/// The fewest slots that a spill device must have.
const SLOTS_MIN: u64 = 4;

/// Settings of a spill device.
#[derive(Clone, Debug)]
pub struct SpillDevice {
    /// Path of the device, or of a file.
    pub path: PathBuf,
    /// Name of the volume.
    pub volume: String,
    /// Bytes in a segment.
    pub segment: u32,
    /// Bytes that may be written in a day; 0: no limit.
    pub daily: u64,
    /// Overwrite any content of the device, except a log with data.
    pub wipe: bool,
}

/// The copy of the label in a volume's memory, word by word.
pub struct LabelCopy(Option<Words>);

impl LabelCopy {
    /// The copy in `memory`; memory that is taken over may have no place for one.
    ///
    /// # Errors
    /// See [`Words::new`].
    pub fn of(memory: &Memory) -> Result<Self> {
        if memory.is_inherited() && memory.len_of(FILE)?.is_none() {
            return Ok(Self(None));
        }
        Words::new(memory, FILE, ALIGN / 8).map(|words| Self(Some(words)))
    }

    /// Whether there is a place for one.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    fn label(&self) -> Option<Label> {
        let copy = self.0.as_ref()?;
        let words = (0..ALIGN / 8).map(|at| copy.get(at).load(Ordering::Relaxed).to_le_bytes());
        Label::decode(words.collect::<Vec<_>>().as_flattened())
    }

    fn set(&self, label: &Label) {
        let Some(copy) = &self.0 else { return };
        for (at, word) in label.encode().as_chunks::<8>().0.iter().enumerate() {
            copy.get(at).store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
    }
}

/// The first 4096 bytes of a spill device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    id: [u8; 16],
    segment: u32,
    slots: u32,
    volume: String,
}

impl Label {
    fn encode(&self) -> [u8; ALIGN] {
        let mut bytes = [0; ALIGN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.slots.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.id);
        let name = self.volume.as_bytes();
        let name = &name[..name.len().min(NAME_MAX)];
        bytes[48] = name.len() as u8;
        bytes[49..49 + name.len()].copy_from_slice(name);
        let crc = crc_fast::crc32_iscsi(&bytes[..CRC_AT]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a label; `None` if `bytes` is no label, or a damaged one.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let is_whole = crc_fast::crc32_iscsi(bytes.get(..CRC_AT)?) == u32_at(CRC_AT)?;
        if bytes.get(..8)? != MAGIC || u32_at(8)? != VERSION || !is_whole {
            return None;
        }
        let name = bytes.get(49..49 + usize::from(*bytes.get(48)?))?;
        Some(Self {
            id: *bytes.get(32..)?.first_chunk()?,
            segment: u32_at(12)?,
            slots: u32_at(16)?,
            volume: String::from_utf8(name.to_vec()).ok()?,
        })
    }
}

impl SpillDevice {
    /// Checks whether the device could be used, without changing anything. Returns what would be
    /// overwritten, if that is known content.
    ///
    /// # Errors
    /// As [`SpillDevice::open`] of a volume that comes up empty.
    pub fn check(&self) -> Result<Option<String>> {
        let drive = FileDrive::take(&self.path, false)?;
        self.slots_on(&drive, SEGMENTS_MAX / 2)?;
        self.may_overwrite(&drive)
    }

    /// Makes the device that of a volume at work that has none, with `most` slots at most.
    ///
    /// # Errors
    /// As [`SpillDevice::open`] of a volume that comes up empty.
    pub fn begin(&self, copy: &LabelCopy, most: u32) -> Result<SpillTo> {
        let drive = FileDrive::take(&self.path, false)?;
        let slots = self.slots_on(&drive, most)?;
        self.may_overwrite(&drive)?;
        let (segment, volume) = (self.segment, self.volume.clone());
        let label = Label { id: random()?, segment, slots, volume };
        self.label(&drive, &label)?;
        copy.set(&label);
        Ok(SpillTo { drive: Arc::new(drive), slots, daily: self.daily })
    }

    /// Makes the device the next one of a volume at work: it gets the label that the memory has a
    /// copy of, so whichever of the two the volume has when the process dies is the right one.
    ///
    /// # Errors
    /// As [`SpillDevice::begin`], or it has fewer slots than the present device.
    pub fn succeed(&self, copy: &LabelCopy) -> Result<SpillTo> {
        let Some(label) = copy.label() else {
            return Err(Error::failure("the memory has no label of the present spill device")
                .hint("take that off first (`spill=none`)"));
        };
        let drive = FileDrive::take(&self.path, false)?;
        let needs = (u64::from(label.slots) + 1) * u64::from(label.segment);
        if drive.size() < needs {
            let (path, has) = (self.path.display(), drive.size());
            return Err(Error::failure(format!(
                "{path} is too small to take what is spilled: it has {has} bytes, and needs {needs}"
            ))
            .hint("give a larger one, or take the present one off first (`spill=none`)"));
        }
        self.may_overwrite(&drive)?;
        self.label(&drive, &label)?;
        Ok(SpillTo { drive: Arc::new(drive), slots: label.slots, daily: self.daily })
    }

    fn label(&self, drive: &FileDrive, label: &Label) -> Result<()> {
        let mut first = Buffer::new(ALIGN);
        first.copy_from_slice(&label.encode());
        drive.write(0, &first).map_err(|e| failed(&self.path, &e))
    }

    /// Opens the device. If another process left `memory`, with this `copy` of the label, the slots
    /// keep their content; otherwise the device gets a new label.
    ///
    /// # Errors
    /// One line: the device is missing, held, too small, holds something that may not be
    /// overwritten, or is not the one that belongs to the memory. Then the device is unchanged.
    pub fn open(&self, memory: &Memory, copy: &LabelCopy) -> Result<SpillTo> {
        if !memory.is_inherited() {
            return self.begin(copy, SEGMENTS_MAX / 2);
        }
        if let Err(rustix::io::Errno::NOENT) = rustix::fs::stat(&self.path) {
            return Err(self.missed("is gone".into()));
        }
        let drive = FileDrive::take(&self.path, true)?;
        let slots = self.find(&drive, copy)?.slots;
        Ok(SpillTo { drive: Arc::new(drive), slots, daily: self.daily })
    }

    /// The error of a device that is not the one that belongs to the memory.
    fn missed(&self, why: String) -> Error {
        Error::would_lose(format!("{} {why}", self.path.display()))
            .hint(remedy::SPILL_MISSED.of(&self.volume))
    }

    /// The label of the device, if the memory has a copy of it.
    fn find(&self, drive: &FileDrive, copy: &LabelCopy) -> Result<Label> {
        let kept = copy.label();
        let found = read_label(drive).map_err(|e| self.missed(format!("does not answer: {e}")))?;
        let refuse = |why: String| Err(self.missed(why));
        match (kept, found) {
            (Some(kept), Some(found)) if kept == found => {
                let needs = (u64::from(kept.slots) + 1) * u64::from(kept.segment);
                if drive.size() < needs {
                    return refuse(format!("has {} bytes, and had {needs}", drive.size()));
                }
                Ok(kept)
            }
            (_, Some(_)) => refuse("is the spill device of another volume or time".into()),
            (_, None) => refuse("does not hold what was spilled any more".into()),
        }
    }

    /// The number of slots that fit, `most` at most.
    fn slots_on(&self, drive: &FileDrive, most: u32) -> Result<u32> {
        // The label takes the place of the first slot.
        let slots = (drive.size() / u64::from(self.segment)).saturating_sub(1);
        if slots < SLOTS_MIN {
            let least = (SLOTS_MIN + 1) * u64::from(self.segment);
            let (path, has) = (self.path.display(), drive.size());
            return Err(Error::failure(format!(
                "{path} is too small to spill to: it has {has} bytes, and the least is {least}"
            ))
            .hint("give a larger one, or a smaller --segment"));
        }
        Ok(slots.min(u64::from(most)) as u32)
    }

    /// Whether the content of the device may be overwritten. Returns what it is, if known.
    fn may_overwrite(&self, drive: &FileDrive) -> Result<Option<String>> {
        let path = self.path.display();
        if read_label(drive)?.is_some_and(|label| label.volume == self.volume) {
            return Ok(None);
        }
        let found = match log::read_superblock(drive) {
            Err(OpenError::NoLog) => found_on(drive)?,
            // A damaged log no longer tells which volume it belongs to.
            Err(OpenError::Damaged) => Some("a damaged log of ztier".into()),
            Err(OpenError::Drive(e)) => return Err(failed(&self.path, &e)),
            // Also a log that this program cannot use.
            Ok(_) | Err(_) => {
                let text = format!("{path} is a log of ztier");
                return Err(Error::would_lose(text).hint("give another device"));
            }
        };
        match found {
            Some(found) if !self.wipe => {
                Err(Error::would_lose(format!("{path} holds {found}")).hint(remedy::DRIVE_HOLDS))
            }
            found => Ok(found),
        }
    }
}

/// The content of a drive without a log, in words: spilled data, or what other programs' signatures
/// tell.
pub(super) fn found_on(drive: &FileDrive) -> Result<Option<String>> {
    match read_label(drive)? {
        Some(label) => Ok(Some(format!("what volume `{}` spilled", label.volume))),
        None => Ok(Signature::of(drive)?.map(|found| found.to_string())),
    }
}

fn read_label(drive: &FileDrive) -> Result<Option<Label>> {
    let mut first = Buffer::new(ALIGN);
    let what = || format!("cannot read {}", drive.path().display());
    drive.read(0, &mut first).context(what())?;
    Ok(Label::decode(&first))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label { id: [7; 16], segment: 1 << 20, slots: 99, volume: "swap".into() }
    }

    #[test]
    fn labels_round_trip_and_any_damage_shows() {
        let bytes = label().encode();
        assert_eq!(Label::decode(&bytes), Some(label()));
        for at in 0..CRC_AT + 4 {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert_eq!(Label::decode(&bad), None, "byte {at}");
        }
        assert_eq!(Label::decode(&[0; ALIGN]), None);
        assert_eq!(Label::decode(&bytes[..100]), None);
        let long = Label { volume: "x".repeat(255), ..label() };
        assert_eq!(Label::decode(&long.encode()), Some(long));
    }
}
