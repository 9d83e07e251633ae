//! Finds where the kernel has the content of a page, and shows by a page of the device that what
//! comes from the ring is the content of a dropped page.
//!
//! A program knows a folio by the address of its descriptor. Descriptors lie side by side, and so
//! does all memory of the machine, at addresses that differ with each start of the kernel. The
//! daemon reads the last page of the device: a program notes its folio, the kernel says its number,
//! and both give the address of descriptor 0. Then a program looks for a page of this process whose
//! number and content are known, which gives the address of the memory. At the end the daemon has
//! the page dropped and compares what arrives: no address is believed otherwise.

use super::programs::{Layout, word};
use crate::error::{Context, Error, Result};
use crate::media::{MappedFor, Mapping, PAGE, Words};
use crate::system::above;
use crate::system::bpf::ring::Ring;
use crate::system::bpf::{Program, array};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// GiB that one attempt looks through, and the most attempts: 4 TiB.
const STEPS: i32 = 512;
const ATTEMPTS: u64 = 8;
const GIB: u64 = 1 << 30;
/// Most pages of a folio, and what the address of the first descriptor is a multiple of. A folio
/// that another process added meanwhile fits neither.
const FOLIO_MOST: u64 = 512;
const ALIGNED: u64 = 1 << 20;
/// How often the page is read to find its folio, or to have a program run, and the time between.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(2);
/// How long a dropped page may take to arrive.
const PATIENCE: Duration = Duration::from_secs(2);
/// Marks a number that is not watched.
const NONE: u64 = u64::MAX;

/// News of the pages that the page cache drops. Dropping this ends them.
pub struct News {
    words: Words,
    ring: Ring,
    _program: OwnedFd,
}

impl News {
    /// Begins the news of the pages of `device` and of what is above it, with a ring of `bytes`
    /// bytes. Reads nothing any more once `may_not` says so.
    ///
    /// # Errors
    /// The kernel lacks something, or refuses it; what arrives is not right; or it may not read.
    pub fn begin(device: &Path, bytes: u32, may_not: &dyn Fn() -> bool) -> Result<Self> {
        let layout = Layout::of_kernel()?;
        let map = array(PAGE as u32)?;
        let fd = map.as_raw_fd();
        let words = Words::over(map, "the words of a program", word::ALL)?;
        let probe = Probe::new(device, &words, may_not)?;
        probe.find_descriptors(&layout, fd)?;
        probe.find_memory(&layout, fd)?;
        let mut ring = Ring::new(bytes)?;
        let code = layout.copy(fd, ring.fd());
        let program = Program::load(layout.removed, &code, c"ztier_dropped")?.attach()?;
        probe.show(&mut ring)?;
        drop(probe);
        let news = Self { words, ring, _program: program };
        news.watch(&above::numbers(device));
        Ok(news)
    }

    /// Watches these devices and file systems, and no others; as many as there is room for.
    pub fn watch(&self, numbers: &[u64]) {
        watch(&self.words, numbers);
    }

    /// Waits for a page, at most for `time`.
    pub fn wait(&self, time: Duration) {
        self.ring.wait(time);
    }

    /// Pages that were dropped, and those of them that were not copied, so far.
    pub fn counts(&self) -> (u64, u64) {
        let get = |word: usize| self.words.get(word).load(Ordering::Relaxed);
        (get(word::DROPPED), get(word::LOST))
    }

    /// Has `take` all pages that are there; returns their number.
    pub fn take(&mut self, take: impl FnMut(&[u8; PAGE])) -> usize {
        self.ring.take(take)
    }
}

fn watch(words: &Words, numbers: &[u64]) {
    let numbers = numbers.iter().copied().chain(std::iter::repeat(NONE));
    for (n, number) in numbers.take(word::WATCHED_MOST).enumerate() {
        words.get(word::WATCHED + n).store(number, Ordering::Relaxed);
    }
}

/// The last page of the device, which alone is watched.
struct Probe<'a> {
    file: File,
    words: &'a Words,
    /// The page's number on the device.
    index: u64,
    /// Whether it may not be read any more. Asked before each read: after the last one that is
    /// served, a read of the device would wait for the next daemon.
    may_not: &'a dyn Fn() -> bool,
}

impl<'a> Probe<'a> {
    fn new(device: &Path, words: &'a Words, may_not: &'a dyn Fn() -> bool) -> Result<Self> {
        let what = format!("cannot read {}", device.display());
        let what = what.as_str();
        let file = File::open(device).context(what)?;
        watch(words, &[above::kernel(file.metadata().context(what)?.rdev())]);
        let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).context(what)?;
        let pages = bytes / PAGE as u64;
        let index = pages.checked_sub(1).ok_or_else(|| Error::failure("the device is empty"))?;
        Ok(Self { file, words, index, may_not })
    }

    fn word(&self, word: usize) -> u64 {
        self.words.get(word).load(Ordering::Acquire)
    }

    fn set(&self, word: usize, value: u64) {
        self.words.get(word).store(value, Ordering::Release);
    }

    /// Has the page dropped.
    fn drop_page(&self) -> Result<()> {
        let len = std::num::NonZeroU64::new(PAGE as u64);
        let done = fadvise(&self.file, self.index * PAGE as u64, len, Advice::DontNeed);
        done.context("cannot drop a page of the device")
    }

    /// Has the page read, if it is not there.
    fn read_page(&self) -> Result<Box<[u8; PAGE]>> {
        if (self.may_not)() {
            return Err(Error::failure("the device is not read any more"));
        }
        let mut page = Box::new([0; PAGE]);
        let read = self.file.read_exact_at(&mut page[..], self.index * PAGE as u64);
        read.context("cannot read the device")?;
        Ok(page)
    }

    fn find_descriptors(&self, layout: &Layout, words: i32) -> Result<()> {
        let _ = fadvise(&self.file, 0, None, Advice::Random); // one page, not many
        let code = layout.find_folio(words);
        let _program = Program::load(layout.added, &code, c"ztier_folio")?.attach()?;
        let mut before = None;
        for _ in 0..TRIES {
            let found = self.descriptors(layout)?;
            if found.is_some() && found == before {
                self.set(word::DESCRIPTORS, found.unwrap_or_default());
                return Ok(());
            }
            before = found;
            std::thread::sleep(AGAIN);
        }
        Err(Error::failure("a page of the device was not seen"))
    }

    /// The address of the first descriptor, by the page's own; `None`: another folio was added.
    fn descriptors(&self, layout: &Layout) -> Result<Option<u64>> {
        self.drop_page()?;
        self.set(word::FOLIO, 0);
        self.read_page()?;
        let at = self.index * PAGE as u64;
        let mapped = Mapping::shared(&self.file, MappedFor::Reading, at, PAGE)
            .context("cannot map the device")?;
        let number = number_of(&mapped)?;
        let (folio, first) = (self.word(word::FOLIO), self.word(word::INDEX));
        let within = self.index.wrapping_sub(first);
        let before = number.wrapping_sub(within).wrapping_mul(u64::from(layout.descriptor));
        let found = folio.wrapping_sub(before);
        let fits = folio != 0 && within < FOLIO_MOST && found.is_multiple_of(ALIGNED);
        Ok(fits.then_some(found))
    }

    fn find_memory(&self, layout: &Layout, words: i32) -> Result<()> {
        let mut magic = [0; 8];
        rustix::rand::getrandom(&mut magic, rustix::rand::GetRandomFlags::empty())
            .context("no random number")?;
        let own = Mapping::anonymous(PAGE).context("no memory")?;
        own.lock().context("cannot lock a page")?;
        // SAFETY: the first bytes of a page that is this function's alone.
        unsafe { own.at(0).cast::<[u8; 8]>().write(magic) };
        self.set(word::MAGIC, u64::from_ne_bytes(magic));
        self.set(word::PROBE, number_of(&own)? * PAGE as u64);
        let code = layout.find_memory(words, STEPS);
        let program = Program::load(layout.added, &code, c"ztier_memory")?.attach()?;
        let top = self.word(word::TASK) / GIB * GIB;
        for attempt in 0..ATTEMPTS {
            self.set(word::FROM, top.wrapping_sub(attempt * STEPS as u64 * GIB));
            let runs = self.word(word::RUNS);
            // Another reader may have the page, which is not dropped then.
            for _ in 0..TRIES {
                self.drop_page()?;
                self.read_page()?;
                if self.word(word::RUNS) != runs {
                    break;
                }
                std::thread::sleep(AGAIN);
            }
            if self.word(word::HITS) > 0 {
                break;
            }
        }
        drop(program);
        if self.word(word::HITS) != 1 {
            return Err(Error::failure("the kernel's memory was not found"));
        }
        self.set(word::MEMORY, self.word(word::FOUND));
        Ok(())
    }

    /// Shows that the page arrives when it is dropped.
    fn show(&self, ring: &mut Ring) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let page = self.read_page()?;
            self.drop_page()?;
            let mut is_it = false;
            ring.wait(Duration::from_millis(50));
            ring.take(|found: &[u8; PAGE]| is_it |= *found == *page);
            if is_it {
                return Ok(());
            }
        }
        Err(Error::failure("a dropped page of the device did not arrive"))
    }
}

/// The number of the page of the machine's memory at the begin of a mapping.
fn number_of(mapping: &Mapping) -> Result<u64> {
    let what = "the kernel does not tell where a page is";
    let at = mapping.at(0);
    // SAFETY: inside the mapping. The page becomes present; others may write to the device, so it
    // is read as volatile, and what it has does not matter.
    let _ = unsafe { at.read_volatile() };
    let mut entry = [0; 8];
    let file = File::open("/proc/self/pagemap").context(what)?;
    file.read_exact_at(&mut entry, at.addr() as u64 / PAGE as u64 * 8).context(what)?;
    let number = u64::from_ne_bytes(entry) & ((1 << 55) - 1);
    (number != 0).then_some(number).ok_or_else(|| Error::failure(format!("{what} (no right)")))
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::cell::Cell;

    /// A file of two pages, whose bytes are all the same.
    fn file(byte: u8) -> File {
        let file = File::from(memfd_create("page", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(&[byte; 2 * PAGE], 0).unwrap();
        file
    }

    #[test]
    fn nothing_is_read_once_the_device_may_not_be() {
        let words = Words::over(file(0).into(), "words", word::ALL).unwrap();
        let left = Cell::new(3);
        let may_not = || left.replace(left.get().max(1) - 1) == 0;
        let probe = Probe { file: file(7), words: &words, index: 1, may_not: &may_not };
        for _ in 0..3 {
            assert_eq!(probe.read_page().unwrap()[..], [7; PAGE]);
            probe.drop_page().unwrap();
        }
        for _ in 0..3 {
            assert!(probe.read_page().unwrap_err().to_string().contains("not read any more"));
        }
    }
}
