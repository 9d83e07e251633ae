//! One file: a random step after the other, and which version of each sector it must have.
//!
//! Invariants: one thread uses a file, so that each read has one right answer; direct I/O is of
//! whole pages, which any device takes; what was never written is zeros.

use crate::content::{Found, SECTOR, fill};
use crate::mapping::Mapping;
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use ztier::error::{Context, Error, Result};

const PAGE: usize = 4096;
/// Sectors of a page.
const PER_PAGE: u64 = (PAGE / SECTOR) as u64;
/// Most pages of a step.
const PAGES: u64 = 32;
const MIB: u64 = 1 << 20;

/// A way into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By read and write.
    Buffered,
    /// Past the page cache.
    Direct,
    /// As memory.
    Mapped,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(Way),
    Read(Way),
    /// Another length.
    Cut,
    /// A hole.
    Punch,
    /// The page cache drops a part, as far as it is clean.
    Drop,
    Sync,
    /// The file is removed, and made again: its blocks get other content.
    Replace,
}

/// Steps, and how many of a hundred they are.
const STEPS: [(u32, Step); 11] = [
    (16, Step::Write(Way::Buffered)),
    (10, Step::Write(Way::Direct)),
    (8, Step::Write(Way::Mapped)),
    (26, Step::Read(Way::Buffered)),
    (10, Step::Read(Way::Direct)),
    (10, Step::Read(Way::Mapped)),
    (4, Step::Cut),
    (4, Step::Punch),
    (7, Step::Drop),
    (4, Step::Sync),
    (1, Step::Replace),
];

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    steps: u64,
    /// Sectors that were read and compared.
    compared: u64,
}

impl Counts {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { steps: self.steps + other.steps, compared: self.compared + other.compared }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.compared * SECTOR as u64 / MIB;
        write!(out, "{} steps, {mib} MiB compared", self.steps)
    }
}

/// See the module.
pub struct Exercise {
    path: PathBuf,
    number: u16,
    file: File,
    direct: File,
    /// The version of each sector of the file.
    versions: Vec<u32>,
    /// Most sectors.
    most: u64,
    /// The version that was written last.
    newest: u32,
    random: fastrand::Rng,
    buffer: Vec<u8>,
    counts: Counts,
}

impl Exercise {
    /// Makes a file of at most `mib` MiB.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn begin(path: &Path, number: u16, mib: u32, seed: u64) -> Result<Self> {
        let (file, direct) = open(path, true).context(at(path, "make"))?;
        Ok(Self {
            path: path.to_owned(),
            number,
            file,
            direct,
            versions: Vec::new(),
            most: u64::from(mib) * MIB / SECTOR as u64,
            newest: 0,
            random: fastrand::Rng::with_seed(seed ^ u64::from(number) << 48),
            buffer: vec![0; (PAGES as usize + 1) * PAGE],
            counts: Counts::default(),
        })
    }

    /// Takes one step.
    ///
    /// # Errors
    /// It fails, or something that was read is wrong.
    pub fn step(&mut self) -> Result<()> {
        let all: u32 = STEPS.iter().map(|(share, _)| share).sum();
        let mut left = self.random.u32(..all);
        let step = STEPS.iter().find(|(share, _)| {
            let is_it = left < *share;
            left = left.saturating_sub(*share);
            is_it
        });
        let step = step.map_or(Step::Sync, |(_, step)| *step);
        self.counts.steps += 1;
        self.take(step).context(format_args!("{}: {step:?}", self.path.display()))
    }

    /// Compares all of the file as the drive has it.
    ///
    /// # Errors
    /// It cannot be read, or something is wrong.
    pub fn finish(mut self) -> Result<Counts> {
        self.file.sync_all().context(at(&self.path, "sync"))?;
        (self.file, self.direct) = open(&self.path, false).context(at(&self.path, "open"))?;
        for way in [Way::Buffered, Way::Direct] {
            let what = at(&self.path, "read");
            fadvise(&self.file, 0, None, Advice::DontNeed)
                .map_err(io::Error::from)
                .context(what)?;
            for from in (0..self.len()).step_by((PAGES * PER_PAGE) as usize) {
                let end = self.len().min(from + PAGES * PER_PAGE);
                self.read(way, from..end).context(at(&self.path, "read"))??;
            }
        }
        Ok(self.counts)
    }

    /// Sectors of the file.
    fn len(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Some sectors; whole pages for direct I/O.
    fn range(&mut self, way: Way) -> Range<u64> {
        let unit = if way == Way::Direct { PER_PAGE } else { 1 };
        let count = self.random.u64(1..=PAGES * PER_PAGE / unit) * unit;
        let from = self.random.u64(..self.most / unit) * unit;
        from..(from + count).min(self.most)
    }

    /// Those of `range` that the file has.
    fn inside(&self, range: Range<u64>) -> Range<u64> {
        range.start.min(self.len())..range.end.min(self.len())
    }

    fn take(&mut self, step: Step) -> Result<()> {
        let what = "cannot do that";
        match step {
            Step::Write(way) => {
                let range = self.range(way);
                self.write(way, range).context(what)
            }
            Step::Read(way) => {
                let range = self.range(way);
                let range = self.inside(range);
                self.read(way, range).context(what)?
            }
            Step::Cut => {
                let len = self.random.u64(..=self.most);
                self.file.set_len(len * SECTOR as u64).context(what)?;
                self.versions.resize(len as usize, 0);
                Ok(())
            }
            Step::Punch => {
                let range = self.range(Way::Buffered);
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let (from, len) = bytes(&range);
                fallocate(&self.file, hole, from, len).map_err(io::Error::from).context(what)?;
                let range = self.inside(range);
                self.versions[range.start as usize..range.end as usize].fill(0);
                Ok(())
            }
            Step::Drop => {
                let range = self.range(Way::Direct);
                let (from, len) = bytes(&range);
                let len = NonZeroU64::new(len);
                fadvise(&self.file, from, len, Advice::DontNeed)
                    .map_err(io::Error::from)
                    .context(what)
            }
            Step::Sync => self.file.sync_data().context(what),
            Step::Replace => {
                fs::remove_file(&self.path).context(what)?;
                (self.file, self.direct) = open(&self.path, true).context(what)?;
                self.versions.clear();
                Ok(())
            }
        }
    }

    /// Room in the buffer for `sectors`, aligned for direct I/O.
    fn room(buffer: &mut [u8], sectors: u64) -> &mut [[u8; SECTOR]] {
        let from = buffer.as_ptr().align_offset(PAGE);
        &mut buffer[from..].as_chunks_mut().0[..sectors as usize]
    }

    fn write(&mut self, way: Way, range: Range<u64>) -> io::Result<()> {
        // A mapping ends where the file does.
        let range = if way == Way::Mapped { self.inside(range) } else { range };
        if range.is_empty() {
            return Ok(());
        }
        self.newest += 1;
        let data = Self::room(&mut self.buffer, range.end - range.start);
        for (sector, out) in range.clone().zip(data.iter_mut()) {
            fill(out, self.number, sector, self.newest);
        }
        let data = data.as_flattened();
        let (from, _) = bytes(&range);
        match way {
            Way::Buffered => self.file.write_all_at(data, from)?,
            Way::Direct => self.direct.write_all_at(data, from)?,
            Way::Mapped => {
                let mut mapping = Mapping::new(&self.file, self.versions.len() * SECTOR)?;
                mapping.write(from as usize, data);
            }
        }
        let end = self.versions.len().max(range.end as usize);
        self.versions.resize(end, 0);
        self.versions[range.start as usize..range.end as usize].fill(self.newest);
        Ok(())
    }

    /// Reads and compares what the file has of `range`. The inner error is about wrong data.
    fn read(&mut self, way: Way, range: Range<u64>) -> io::Result<Result<()>> {
        if range.is_empty() {
            return Ok(Ok(()));
        }
        let (from, len) = bytes(&range);
        let count = range.end - range.start;
        match way {
            Way::Buffered => {
                let room = Self::room(&mut self.buffer, count).as_flattened_mut();
                self.file.read_exact_at(room, from)?;
            }
            Way::Direct => {
                // The last page may end behind the file.
                let whole = count.next_multiple_of(PER_PAGE);
                let room = Self::room(&mut self.buffer, whole).as_flattened_mut();
                if (self.direct.read_at(room, from)? as u64) < len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Way::Mapped => {
                let mapping = Mapping::new(&self.file, self.versions.len() * SECTOR)?;
                mapping.read(from as usize, Self::room(&mut self.buffer, count).as_flattened_mut());
            }
        }
        self.counts.compared += count;
        Ok(self.compare(way, range))
    }

    fn compare(&mut self, way: Way, range: Range<u64>) -> Result<()> {
        let found = Self::room(&mut self.buffer, range.end - range.start);
        let mut wanted = [0; SECTOR];
        for (sector, found) in range.zip(found) {
            let version = self.versions[sector as usize];
            fill(&mut wanted, self.number, sector, version);
            if *found != wanted {
                let found = Found::in_bytes(found);
                return Err(Error::failure(format!(
                    "wrong data after {} steps: sector {sector} of file {} is to have version \
                     {version}, and a read ({way:?}) found {found}",
                    self.counts.steps, self.number
                )));
            }
        }
        Ok(())
    }
}

/// First byte and length.
fn bytes(sectors: &Range<u64>) -> (u64, u64) {
    (sectors.start * SECTOR as u64, (sectors.end - sectors.start) * SECTOR as u64)
}

fn at(path: &Path, what: &str) -> String {
    format!("cannot {what} {}", path.display())
}

/// The file by the page cache, and past it.
fn open(path: &Path, new: bool) -> io::Result<(File, File)> {
    let file = File::options().read(true).write(true).create(new).truncate(new).open(path)?;
    let flags = OFlags::DIRECT.bits() as i32;
    Ok((file, File::options().read(true).write(true).custom_flags(flags).open(path)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stdout)]
    use super::*;

    /// A file, or nothing where there is no direct I/O.
    fn begin(dir: &tempfile::TempDir) -> Option<Exercise> {
        let begun = Exercise::begin(&dir.path().join("f"), 1, 1, 7);
        begun.inspect_err(|e| println!("skipped: no direct I/O: {e}")).ok()
    }

    #[test]
    fn a_right_file_passes() {
        let dir = tempfile::tempdir().unwrap();
        let Some(mut exercise) = begin(&dir) else { return };
        (0..2000).for_each(|_| exercise.step().unwrap());
        let counts = exercise.finish().unwrap();
        assert!(counts.steps == 2000 && counts.compared > 10_000, "{counts}");
    }

    #[test]
    fn a_wrong_sector_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let Some(mut exercise) = begin(&dir) else { return };
        for _ in 0..2 {
            exercise.write(Way::Buffered, 8..24).unwrap();
        }
        let mut old = [0; SECTOR];
        fill(&mut old, 1, 10, 1);
        exercise.file.write_all_at(&old, 10 * SECTOR as u64).unwrap();
        let text = exercise.finish().unwrap_err().to_string();
        for part in ["sector 10", "to have version 2", "found version 1 of sector 10 of file 1"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
