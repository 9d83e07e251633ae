//! A drive with a volatile write cache that loses data at a power cut, and that can be pulled out.
//!
//! A killed machine loses nothing that it wrote to its disk's file: this system's page cache still
//! has it. So this module serves a disk whose cache is to be lost. It keeps writes in memory until
//! a flush, a FUA write, or until the cache is full. A cut keeps a random part of the cached
//! blocks: each block whole or not, or (seldom) only its first sectors.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{Channel, Device, Extent, ExtentKind, IoError, Request};
use ztier::error::{Context, Result};

const BLOCK: usize = 4096;
const BLOCK_U64: u64 = BLOCK as u64;
const SECTOR: usize = 512;
/// Blocks in the cache, at most; the oldest are evicted.
const CACHE: usize = 8192;

type Block = Box<[u8; BLOCK]>;

/// A drive with a cache.
#[derive(Debug)]
pub struct Drive {
    size: u64,
    state: Mutex<State>,
}

/// Effects of a power cut on a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Blocks that were not durable and survived.
    pub kept: u64,
    /// Blocks with their old content.
    pub lost: u64,
    /// Blocks of which only the first sectors survived.
    pub torn: u64,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Block number to time of caching and content.
    cached: BTreeMap<u64, (u64, Block)>,
    /// Time of caching to block number.
    ages: BTreeMap<u64, u64>,
    clock: u64,
    random: u64,
    /// Whether the drive is without power or pulled out.
    gone: bool,
    lies: bool,
    counts: Counts,
}

/// Counters of a drive's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written: u64,
    /// Flushes.
    pub flushes: u64,
    /// Requests that failed because the drive was gone.
    pub refused: u64,
}

impl Drive {
    /// An empty drive of `size` bytes, a multiple of 4096. Its file has no name, so nothing remains
    /// of it.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(size: u64, seed: u64) -> Result<Arc<Self>> {
        let file = tempfile::tempfile().context("cannot make a file for a drive")?;
        file.set_len(size).context("cannot size a file for a drive")?;
        Ok(Arc::new(Self::over(file, size, seed)))
    }

    fn over(file: File, size: u64, seed: u64) -> Self {
        let state = State {
            file,
            cached: BTreeMap::new(),
            ages: BTreeMap::new(),
            clock: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            gone: false,
            lies: false,
            counts: Counts::default(),
        };
        Self { size, state: Mutex::new(state) }
    }

    /// Cuts the power: the drive loses a part of what was not durable, and requests fail until
    /// [`Self::plug`].
    ///
    /// # Errors
    /// The file fails.
    pub fn cut(&self) -> Result<Cut> {
        let mut state = self.state.lock();
        state.gone = true;
        state.cut().context("cannot write to a drive's file")
    }

    /// Pulls the drive out: it loses all that was not durable, and every request fails.
    pub fn pull(&self) {
        let mut state = self.state.lock();
        state.gone = true;
        state.cached.clear();
        state.ages.clear();
    }

    /// Puts the drive back in, with power.
    pub fn plug(&self) {
        self.state.lock().gone = false;
    }

    /// With `lies`, the drive ignores flushes and FUA from now on; without, it honours them again.
    pub fn lie(&self, lies: bool) {
        self.state.lock().lies = lies;
    }

    /// The counters so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Makes the whole cache durable, as a drive that keeps its power does in time.
    ///
    /// # Errors
    /// The file fails.
    pub fn settle(&self) -> Result<()> {
        self.state.lock().flush().context("cannot write to a drive's file")
    }

    /// Copies the readable content, from byte `from` on, into a file that is sparse where the
    /// content is zero.
    ///
    /// # Errors
    /// One of the files fails.
    pub fn save(&self, path: &Path, from: u64) -> Result<()> {
        let copy = || -> io::Result<()> {
            let state = self.state.lock();
            let to = File::create(path)?;
            to.set_len(self.size - from)?;
            let mut piece = vec![0; 1 << 20];
            let mut at = from;
            while at < self.size {
                let len = piece.len().min(usize::try_from(self.size - at).unwrap_or(usize::MAX));
                state.read(at, &mut piece[..len])?;
                if piece[..len].iter().any(|byte| *byte != 0) {
                    to.write_all_at(&piece[..len], at - from)?;
                }
                at += len as u64;
            }
            Ok(())
        };
        copy().context(format_args!("cannot copy a drive to {}", path.display()))
    }
}

impl State {
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    fn block(&self, number: u64) -> io::Result<Block> {
        if let Some((_, block)) = self.cached.get(&number) {
            return Ok(block.clone());
        }
        let mut block = Box::new([0; BLOCK]);
        self.file.read_exact_at(&mut block[..], number * BLOCK_U64)?;
        Ok(block)
    }

    /// Takes a block into the cache. An older version of it may have become durable before.
    fn store(&mut self, number: u64, block: Block) -> io::Result<()> {
        if let Some((age, old)) = self.cached.remove(&number) {
            self.ages.remove(&age);
            if self.next_random().is_multiple_of(2) {
                self.file.write_all_at(&old[..], number * BLOCK_U64)?;
            }
        }
        while self.cached.len() >= CACHE {
            let Some((_, oldest)) = self.ages.pop_first() else { break };
            self.destage(oldest)?;
        }
        self.clock += 1;
        self.ages.insert(self.clock, number);
        self.cached.insert(number, (self.clock, block));
        Ok(())
    }

    fn destage(&mut self, number: u64) -> io::Result<()> {
        if let Some((age, block)) = self.cached.remove(&number) {
            self.ages.remove(&age);
            self.file.write_all_at(&block[..], number * BLOCK_U64)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        for (number, (_, block)) in std::mem::take(&mut self.cached) {
            self.file.write_all_at(&block[..], number * BLOCK_U64)?;
        }
        self.ages.clear();
        Ok(())
    }

    fn cut(&mut self) -> io::Result<Cut> {
        let mut cut = Cut::default();
        for (number, (_, block)) in std::mem::take(&mut self.cached) {
            let at = number * BLOCK_U64;
            match self.next_random() % 16 {
                0 => {
                    let sectors = 1 + self.next_random() as usize % (BLOCK / SECTOR - 1);
                    self.file.write_all_at(&block[..sectors * SECTOR], at)?;
                    cut.torn += 1;
                }
                1..=7 => {
                    self.file.write_all_at(&block[..], at)?;
                    cut.kept += 1;
                }
                _ => cut.lost += 1,
            }
        }
        self.ages.clear();
        Ok(cut)
    }

    /// Puts bytes into the cache, block by block; `data` are the bytes, or `None` for zeros.
    fn write(&mut self, offset: u64, len: u64, data: Option<&[u8]>, fua: bool) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let (number, within) = (at / BLOCK_U64, (at % BLOCK_U64) as usize);
            let piece = (BLOCK - within).min(usize::try_from(len - done).unwrap_or(BLOCK));
            let mut block = if piece == BLOCK { Box::new([0; BLOCK]) } else { self.block(number)? };
            match data {
                Some(data) => {
                    let from = done as usize;
                    block[within..within + piece].copy_from_slice(&data[from..from + piece]);
                }
                None => block[within..within + piece].fill(0),
            }
            self.store(number, block)?;
            if fua && !self.lies {
                self.destage(number)?;
            }
            done += piece as u64;
        }
        self.counts.writes += 1;
        self.counts.written += len;
        Ok(())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)?;
        let end = offset + buf.len() as u64;
        for (number, (_, block)) in self.cached.range(offset / BLOCK_U64..end.div_ceil(BLOCK_U64)) {
            let at = number * BLOCK_U64;
            let (from, to) = (at.max(offset), (at + BLOCK_U64).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block[(from - at) as usize..(to - at) as usize]);
        }
        Ok(())
    }
}

impl Device for Drive {
    fn size(&self) -> u64 {
        self.size
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(Port(self))
    }

    fn extents(&self, offset: u64, len: u64, _most: usize) -> Result<Vec<Extent>, IoError> {
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(IoError::OutOfRange);
        }
        Ok(vec![Extent { len, kind: ExtentKind::Data }])
    }
}

struct Port(Arc<Drive>);

impl Channel for Port {
    fn submit(&mut self, request: Request<'_>, _arrived: Instant) -> Result<(), IoError> {
        let (offset, len) = match &request {
            Request::Read { offset, buf } => (*offset, buf.len() as u64),
            Request::Write { offset, data, .. } => (*offset, data.len() as u64),
            Request::Flush => (0, 0),
            Request::Discard { offset, len } | Request::WriteZeroes { offset, len, .. } => {
                (*offset, *len)
            }
        };
        if offset.checked_add(len).is_none_or(|end| end > self.0.size) {
            return Err(IoError::OutOfRange);
        }
        let mut state = self.0.state.lock();
        if state.gone {
            state.counts.refused += 1;
            return Err(IoError::Drive(rustix::io::Errno::IO.raw_os_error()));
        }
        let done = match request {
            Request::Read { buf, .. } => state.read(offset, buf),
            Request::Write { data, fua, .. } => state.write(offset, len, Some(data), fua),
            Request::Flush => {
                state.counts.flushes += 1;
                if state.lies { Ok(()) } else { state.flush() }
            }
            // A drive may keep discarded data; this one does.
            Request::Discard { .. } => Ok(()),
            Request::WriteZeroes { fua, .. } => state.write(offset, len, None, fua),
        };
        done.map_err(|e| IoError::Drive(e.raw_os_error().unwrap_or(5)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ask(drive: &Arc<Drive>, request: Request<'_>) -> Result<(), IoError> {
        Arc::clone(drive).channel().submit(request, Instant::now())
    }

    fn write(drive: &Arc<Drive>, block: u64, byte: u8, fua: bool) {
        let data = [byte; BLOCK];
        ask(drive, Request::Write { offset: block * BLOCK_U64, data: &data, fua }).unwrap();
    }

    fn read(drive: &Arc<Drive>, block: u64) -> Vec<u8> {
        let mut buf = vec![0; BLOCK];
        ask(drive, Request::Read { offset: block * BLOCK_U64, buf: &mut buf }).unwrap();
        buf
    }

    #[test]
    fn a_cut_loses_what_was_not_flushed() {
        let drive = Drive::new(4 << 20, 1).unwrap();
        (0..500).for_each(|block| write(&drive, block, 1, false));
        ask(&drive, Request::Flush).unwrap();
        (0..400).for_each(|block| write(&drive, block, 2, false));
        (400..500).for_each(|block| write(&drive, block, 3, true));
        assert!((0..400).all(|block| read(&drive, block) == [2; BLOCK]), "as long as it is on");
        let cut = drive.cut().unwrap();
        assert_eq!(ask(&drive, Request::Flush), Err(IoError::Drive(5)));
        drive.plug();
        assert_eq!(cut.kept + cut.lost + cut.torn, 400);
        assert!(cut.kept > 100 && cut.lost > 100 && cut.torn > 5, "{cut:?}");
        let now: Vec<_> = (0..400).map(|block| read(&drive, block)).collect();
        let whole = |byte| now.iter().filter(|block| **block == [byte; BLOCK]).count() as u64;
        assert_eq!((whole(2), whole(1)), (cut.kept, cut.lost));
        assert!((400..500).all(|block| read(&drive, block) == [3; BLOCK]), "FUA is durable");
    }

    #[test]
    fn small_writes_and_reads_meet_in_blocks() {
        let drive = Drive::new(1 << 20, 1).unwrap();
        write(&drive, 0, 1, true);
        ask(&drive, Request::Write { offset: 4000, data: &[9; 200], fua: false }).unwrap();
        let mut buf = [0; 4];
        ask(&drive, Request::Read { offset: 3998, buf: &mut buf }).unwrap();
        assert_eq!(buf, [1, 1, 9, 9]);
        ask(&drive, Request::Read { offset: 4198, buf: &mut buf }).unwrap();
        assert_eq!(buf, [9, 9, 0, 0]);
        assert!(ask(&drive, Request::Discard { offset: 1 << 20, len: 1 }).is_err());
    }

    #[test]
    fn a_drive_that_is_pulled_fails_until_it_is_back() {
        let drive = Drive::new(1 << 20, 1).unwrap();
        write(&drive, 0, 1, true);
        write(&drive, 1, 1, false);
        drive.pull();
        assert_eq!(ask(&drive, Request::Flush), Err(IoError::Drive(5)));
        drive.plug();
        assert_eq!((read(&drive, 0)[0], read(&drive, 1)[0]), (1, 0));
        assert_eq!(drive.counts().refused, 1);
    }
}
