//! IOzone's nine tests on one file, record by record; every read checks its record.
//!
//! Access is as in IOzone: `mmap` with `msync(MS_SYNC)` of each written record (`-B -G`), `mmap`
//! without (`-B`), or plain `pwrite`/`pread` with an `fsync` inside the measured time (`-e`). The
//! differences: the data (see [`crate::data`]), and eight bytes a block that each read compares.
//! After the tests the whole file is compared, outside all measured times.

use super::{Figure, Outcome, Place};
use crate::data::{Kind, Pool, RECORD_MAX, Rng, check_stamps};
use crate::sys::cpu::Stopwatch;
use crate::sys::interrupt;
use crate::sys::map::{AlignedBuf, MappedFile};
use crate::sys::usage::{Cost, Moved};
use clap::ValueEnum;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;
use ztier::error::{Context, Error, Result};

/// Records that a strided read advances.
const STRIDE: u64 = 17;
/// Strided records for each random one of a sample. A random sample represents the whole file;
/// strides that end early represent only its beginning, of which the test before left more in the
/// cache.
pub const STRIDES: u64 = 4;
/// Generations of data, one for each writing test.
const WRITE: u32 = 1;
const REWRITE: u32 = 2;
const RANDOM_WRITE: u32 = 3;
const RECORD_REWRITE: u32 = 4;

/// How a file is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// `mmap`, and `msync(MS_SYNC)` after each record (IOzone's `-B -G`).
    Mmap,
    /// `pread` and `pwrite`, `fsync` at the end (IOzone's `-e`).
    Plain,
    /// `mmap`, and nothing else (IOzone's `-B`): what is written is left to the page cache, which
    /// keeps from test to test what it has.
    Kept,
}

impl Mode {
    fn is_mapped(self) -> bool {
        matches!(self, Self::Mmap | Self::Kept)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mmap => "mmap",
            Self::Plain => "plain",
            Self::Kept => "kept",
        })
    }
}

/// One file size, one record size.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// Size of the file, a multiple of `record_bytes`.
    pub file_bytes: u64,
    /// Size of a record, a multiple of 4096 up to [`crate::data::RECORD_MAX`].
    pub record_bytes: usize,
    /// How the file is accessed.
    pub mode: Mode,
    /// Its data.
    pub kind: Kind,
    /// Limit on the records that tests in random order touch; strides touch [`STRIDES`] times as
    /// many. Writes of such a part are synced within the measured time, because the page cache
    /// might hold all of them.
    pub sample: u64,
    /// Only the first four tests, with advice to the kernel that all of the file will be needed
    /// (IOzone's `-i 0 -i 1 -+A 4`).
    pub four: bool,
}

impl Series {
    /// Checks the sizes.
    ///
    /// # Errors
    /// The sizes do not fit together.
    pub fn new(file_bytes: u64, record_bytes: usize, mode: Mode, kind: Kind) -> Result<Self> {
        let whole = record_bytes > 0 && record_bytes.is_multiple_of(ztier::BLOCK_SIZE);
        if !whole || record_bytes > RECORD_MAX || !file_bytes.is_multiple_of(record_bytes as u64) {
            return Err(Error::usage(format!(
                "records of {record_bytes} bytes do not fit a file of {file_bytes}"
            ))
            .hint("give records of 4 KiB to 16 MiB that divide the file"));
        }
        Ok(Self { file_bytes, record_bytes, mode, kind, sample: u64::MAX, four: false })
    }

    /// Number of its records.
    pub fn records(&self) -> u64 {
        self.file_bytes / self.record_bytes as u64
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, record) = (self.file_bytes >> 20, self.record_bytes >> 10);
        write!(f, "{file} MiB, records of {record} KiB, {}, {}", self.mode, self.kind)
    }
}

/// Parses the displayed form; missing parts are as in [`Series::new`].
impl FromStr for Series {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = || {
            let mut parts = text.split(", ");
            let file: u64 = parts.next()?.strip_suffix(" MiB")?.parse().ok()?;
            let record = parts.next()?.strip_prefix("records of ")?.strip_suffix(" KiB")?;
            let record: usize = record.parse().ok()?;
            let mode = <Mode as ValueEnum>::from_str(parts.next()?, false).ok()?;
            let kind = parts.next()?.parse().ok()?;
            let (file, record) = (file.checked_mul(1 << 20)?, record.checked_mul(1 << 10)?);
            parts.next().is_none().then_some((file, record, mode, kind))
        };
        let (file, record, mode, kind) =
            parsed().ok_or_else(|| Error::failure(format!("{text:?} names no series")))?;
        Self::new(file, record, mode, kind)
    }
}

/// Runs the tests of a series on a new file, which is removed afterwards.
///
/// # Errors
/// An I/O error; a record that reads back differently.
pub fn run(place: &Place, series: Series, pool: &mut Pool) -> Result<Outcome> {
    let path = place.dir.join("iozone.tmp");
    let _removed = Removed(path.clone());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .context("cannot make the test file")?;
    file.set_len(series.file_bytes).context("cannot size the test file")?;
    let mut runner = Runner {
        held: vec![WRITE; usize::try_from(series.records()).context("too many records")?],
        buf: AlignedBuf::new(series.record_bytes)?,
        file,
        series,
        pool,
        disk: place.disk.as_deref(),
    };
    if series.four {
        runner.buf.lock()?;
    }
    let (before, begun) = (Cost::own()?, Instant::now());
    let figures = if series.four { runner.four_tests()? } else { runner.nine_tests()?.into() };
    let (elapsed_s, cost) = (begun.elapsed().as_secs_f64(), Cost::own()?.since(before));
    // Where a table compares times, the eight bytes a block suffice.
    if !series.four {
        runner.compare_all()?;
    }
    Ok(Outcome { figures, elapsed_s, cost })
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Runner<'a> {
    file: File,
    series: Series,
    /// The generation of each record.
    held: Vec<u32>,
    buf: AlignedBuf,
    pool: &'a mut Pool,
    /// The disk whose traffic is counted.
    disk: Option<&'a Path>,
}

/// An open file in one of the modes.
enum Access<'a> {
    Mmap(MappedFile),
    Plain(&'a File),
}

impl Runner<'_> {
    fn four_tests(&mut self) -> Result<Vec<Figure>> {
        let forward: Vec<u64> = (0..self.series.records()).collect();
        Ok(vec![
            self.write(&forward, WRITE)?,
            self.write(&forward, REWRITE)?,
            self.read(&forward)?,
            self.read(&forward)?,
        ])
    }

    fn nine_tests(&mut self) -> Result<[Figure; 9]> {
        let records = self.series.records();
        let most = |sample: u64| usize::try_from(sample.min(records)).unwrap_or(usize::MAX);
        let few = most(self.series.sample);
        let forward: Vec<u64> = (0..records).collect();
        let backward: Vec<u64> = (0..records).rev().collect();
        let (mut to_read, mut to_write) = (forward.clone(), forward.clone());
        Rng::new(1).shuffle(&mut to_read);
        Rng::new(2).shuffle(&mut to_write);
        let first_again = vec![0; forward.len()];
        let mut strides = strided(records);
        strides.truncate(most(self.series.sample.saturating_mul(STRIDES)));
        Ok([
            self.write(&forward, WRITE)?,
            self.write(&forward, REWRITE)?,
            self.read(&forward)?,
            self.read(&forward)?,
            self.read(&to_read[..few])?,
            self.write(&to_write[..few], RANDOM_WRITE)?,
            self.read(&backward)?,
            self.write(&first_again, RECORD_REWRITE)?,
            self.read(&strides)?,
        ])
    }

    fn write(&mut self, order: &[u64], generation: u32) -> Result<Figure> {
        let len = self.series.record_bytes;
        let mut access = open(&self.file, self.series)?;
        let begun = self.begin()?;
        for &record in order {
            interrupt::check()?;
            let offset = record * len as u64;
            self.held[record as usize] = generation;
            let data = self.pool.record(offset, generation, len);
            match &mut access {
                Access::Mmap(map) => {
                    map.write(offset as usize, data);
                    if self.series.mode == Mode::Mmap {
                        map.sync(offset as usize, len)?;
                    }
                }
                Access::Plain(file) => {
                    file.write_all_at(data, offset).context("write to the test file")?;
                }
            }
        }
        let part = order.len() < self.held.len();
        if self.series.mode == Mode::Plain || (self.series.mode == Mode::Kept && part) {
            self.file.sync_all().context("fsync of the test file")?;
        }
        self.figure(&begun, order.len())
    }

    fn read(&mut self, order: &[u64]) -> Result<Figure> {
        let len = self.series.record_bytes;
        if self.series.mode != Mode::Kept {
            self.forget_cached()?;
        }
        let access = open(&self.file, self.series)?;
        let begun = self.begin()?;
        for &record in order {
            interrupt::check()?;
            let offset = record * len as u64;
            read_record(&access, offset, &mut self.buf)?;
            check_stamps(offset, self.held[record as usize], &self.buf)?;
        }
        self.figure(&begun, order.len())
    }

    /// Drops the file's pages from the page cache. The machine of 2010 took seconds for a test, so
    /// that dropping the cache once a second sent its reads to the device; today a test may end
    /// sooner. Therefore each reading test starts without cached pages; the drops continue beside
    /// it.
    fn forget_cached(&self) -> Result<()> {
        self.file.sync_all().context("fsync of the test file")?;
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)
            .context("cannot drop the test file from the page cache")
    }

    fn begin(&self) -> Result<(Stopwatch, Option<Moved>)> {
        let moved = self.disk.map(Moved::of).transpose()?;
        Ok((Stopwatch::start(), moved))
    }

    fn figure(&self, begun: &(Stopwatch, Option<Moved>), records: usize) -> Result<Figure> {
        let spent = begun.0.stop();
        let bytes = records as f64 * self.series.record_bytes as f64;
        let now = self.disk.map(Moved::of).transpose()?;
        Ok(Figure {
            kib_per_second: bytes / 1024.0 / spent.wall.as_secs_f64(),
            cpu_own_percent: spent.own_percent,
            cpu_machine_percent: spent.machine_percent,
            cpu_kernel_percent: spent.kernel_percent,
            disk: now.zip(begun.1).map(|(now, before)| now.since(before)),
        })
    }

    /// Compares every byte of the file with what was last written.
    fn compare_all(&mut self) -> Result<()> {
        let len = self.series.record_bytes;
        // From the device, not from the page cache.
        self.forget_cached()?;
        let access = open(&self.file, self.series)?;
        for (record, &generation) in self.held.iter().enumerate() {
            interrupt::check()?;
            let offset = record as u64 * len as u64;
            read_record(&access, offset, &mut self.buf)?;
            if !self.pool.matches(offset, generation, &self.buf) {
                return Err(Error::failure(format!(
                    "record {record} ({len} bytes at {offset}) differs from what was written"
                )));
            }
        }
        Ok(())
    }
}

fn open(file: &File, series: Series) -> Result<Access<'_>> {
    if !series.mode.is_mapped() {
        return Ok(Access::Plain(file));
    }
    let len = usize::try_from(series.file_bytes).context("the file is too large to map")?;
    let map = MappedFile::new(file, len)?;
    if series.four {
        map.will_need()?;
    }
    Ok(Access::Mmap(map))
}

fn read_record(access: &Access<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
    match access {
        Access::Mmap(map) => map.read(offset as usize, buf),
        Access::Plain(file) => {
            file.read_exact_at(buf, offset).context("read of the test file")?;
        }
    }
    Ok(())
}

/// IOzone's order: every 17th record to the end, then from the second record on, and so on, as many
/// records as the file has. (IOzone turns back one record before the end, so the last record may be
/// left out.)
fn strided(records: u64) -> Vec<u64> {
    let mut order = Vec::new();
    let (mut at, mut pass) = (0, 0);
    for _ in 0..records {
        order.push(at);
        if at + STRIDE >= records.saturating_sub(1) {
            pass = if records <= STRIDE { (pass + 1) % records } else { (pass + 1) % STRIDE };
            at = pass;
        } else {
            at += STRIDE;
        }
    }
    order
}

#[cfg(test)]
mod unit {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn strides_stay_in_the_file_and_reach_nearly_all_of_it() {
        assert_eq!(strided(40)[..4], [0, 17, 34, 1]);
        for records in [1, 2, 17, 18, 64, 128, 1000] {
            let order = strided(records);
            assert_eq!(order.len() as u64, records);
            assert!(order.iter().all(|&r| r < records), "{records}");
            let mut distinct = order.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() as u64 * 10 >= records * 8, "{records}: {}", distinct.len());
        }
    }

    #[test]
    fn nine_tests_run_in_all_modes_and_leave_nothing() {
        let dir = crate::sys::workdir::WorkDir::new("nine").unwrap();
        let place = Place { dir: dir.path().into(), ..Place::default() };
        for (mode, sample) in
            [(Mode::Mmap, 64), (Mode::Plain, 64), (Mode::Kept, 64), (Mode::Kept, 5)]
        {
            let kind = Kind::Ratio(2.0);
            let series = Series { sample, ..Series::new(4 << 20, 64 << 10, mode, kind).unwrap() };
            let mut pool = Pool::build(kind, crate::data::RECORD_MAX, 1).unwrap();
            let figures = run(&place, series, &mut pool).unwrap().figures;
            assert_eq!(figures.len(), 9);
            assert!(figures.iter().all(|f| f.kib_per_second > 0.0 && f.disk.is_none()));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn four_tests_say_what_they_cost() {
        let dir = crate::sys::workdir::WorkDir::new("four").unwrap();
        let place = Place { dir: dir.path().into(), ..Place::default() };
        let series = Series::new(8 << 20, 64 << 10, Mode::Kept, Kind::Iozone).unwrap();
        let mut pool = Pool::build(Kind::Iozone, crate::data::RECORD_MAX, 1).unwrap();
        let outcome = run(&place, Series { four: true, ..series }, &mut pool).unwrap();
        assert_eq!(outcome.figures.len(), 4);
        assert!(outcome.elapsed_s > 0.0 && outcome.cost.minor_faults > 0);
    }

    #[test]
    fn damage_is_found_by_the_reading_tests_and_by_the_comparison() {
        let dir = crate::sys::workdir::WorkDir::new("damage").unwrap();
        let path = dir.path().join("file");
        let _removed = Removed(path.clone());
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let kind = Kind::Ratio(2.0);
        let series = Series::new(1 << 20, 1 << 16, Mode::Plain, kind).unwrap();
        file.set_len(series.file_bytes).unwrap();
        let mut pool = Pool::build(kind, crate::data::RECORD_MAX, 1).unwrap();
        let other = file.try_clone().unwrap();
        let buf = AlignedBuf::new(series.record_bytes).unwrap();
        let held = vec![0; 16];
        let mut runner = Runner { file, series, held, buf, pool: &mut pool, disk: None };
        runner.nine_tests().unwrap();
        runner.compare_all().unwrap();
        // A byte in the middle of a block: only the full comparison can detect it.
        let mut byte = [0];
        other.read_exact_at(&mut byte, 70_000).unwrap();
        other.write_all_at(&[byte[0] ^ 1], 70_000).unwrap();
        let error = runner.compare_all().unwrap_err();
        assert!(error.to_string().contains("record 1 "), "{error}");
        // A block of an older generation: a reading test detects it.
        let old = runner.pool.record(8192, REWRITE, 4096).to_vec();
        other.write_all_at(&old, 8192).unwrap();
        let error = runner.read(&[0]).unwrap_err();
        assert!(error.to_string().contains("block 2 "), "{error}");
    }
}
