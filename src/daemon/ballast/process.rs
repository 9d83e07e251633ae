//! The process that has the ballast: `ztier ballast NAME`, started by the daemon of a volume.
//!
//! Each message on its standard input is a number of bytes, as eight bytes in native order: first
//! the most that will ever be asked for, then how much to have. The answer on the standard output,
//! of the same form, is how much is swapped out now. The process ends with its input, and the
//! kernel then frees the slots without reading them.
//!
//! Invariants: its own code and stack are locked in memory; no page of ballast stays in memory; it
//! comes before other processes to give way, and not to grow.

use super::CHUNK;
use crate::daemon::itself;
use crate::error::{Context, Error, Result};
use rustix::mm::{Advice, MapFlags, MlockAllFlags, ProtFlags, madvise, mlockall, mmap_anonymous};
use std::ffi::c_void;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

/// Bytes of a page.
const PAGE: usize = 4096;
/// How often a chunk is tried.
const TRIES: usize = 4;
/// In an entry of `/proc/self/pagemap`: the page is swapped out.
const SWAPPED: u64 = 1 << 62;

/// Runs the process.
///
/// # Errors
/// There is no address space, or the input is not a daemon's.
pub fn main(volume: &str) -> Result<()> {
    // A terminal's signals are for the daemon. Fails only for a process that leads its group.
    let _ = rustix::process::setsid();
    itself::call("zballast", volume);
    itself::keep_out_of_dumps();
    // Its size is not the reason why memory is short. Without the right to say so, the kernel may
    // end it, which costs memory but no data.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    itself::come_first(true);
    // Without the right to lock memory, it answers more slowly.
    let _ = mlockall(MlockAllFlags::CURRENT);
    let (mut orders, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    let Some(most) = receive(&mut orders)? else {
        return Err(Error::failure("no ballast asked for").hint("`ztier swapon` starts this"));
    };
    let mut pages = Pages::new(most)?;
    while let Some(bytes) = receive(&mut orders)? {
        let held = pages.resize(bytes)?;
        answers.write_all(&held.to_ne_bytes()).context("cannot answer")?;
        answers.flush().context("cannot answer")?;
    }
    Ok(())
}

/// The next message; `None` at the end of the input.
fn receive(from: &mut impl Read) -> Result<Option<u64>> {
    let mut message = [0; 8];
    match from.read_exact(&mut message) {
        Ok(()) => Ok(Some(u64::from_ne_bytes(message))),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e).context("cannot read the daemon's message"),
    }
}

/// A range of address space whose first `held` bytes are swapped out.
struct Pages {
    start: *mut c_void,
    /// A multiple of [`CHUNK`], like `held`.
    len: u64,
    held: u64,
    map: File,
}

impl Pages {
    fn new(most: u64) -> Result<Self> {
        let len = most / CHUNK * CHUNK;
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len.max(CHUNK) as usize, access, flags) }
                .context("no address space for ballast")?;
        let map = File::open("/proc/self/pagemap").context("cannot open /proc/self/pagemap")?;
        let pages = Self { start, len, held: 0, map };
        // A huge page would take one slot where the kernel swaps it out whole. Without huge pages
        // the call fails.
        let _ = pages.advise(0, len, Advice::LinuxNoHugepage);
        Ok(pages)
    }

    /// Has `bytes` of ballast, or as many as the kernel swaps out. Returns their number.
    fn resize(&mut self, bytes: u64) -> Result<u64> {
        let bytes = bytes.min(self.len) / CHUNK * CHUNK;
        if bytes < self.held {
            self.drop_from(bytes)?;
        }
        itself::come_first(bytes <= self.held);
        while self.held < bytes {
            if !self.page_out(self.held)? {
                // What stays in memory is worse than none.
                self.drop_from(self.held)?;
                break;
            }
            self.held += CHUNK;
        }
        itself::come_first(true);
        Ok(self.held)
    }

    fn drop_from(&mut self, at: u64) -> Result<()> {
        let len = (self.held + CHUNK).min(self.len) - at;
        self.advise(at, len, Advice::LinuxDontNeed).context("cannot free ballast")?;
        self.held = at;
        Ok(())
    }

    /// Makes a chunk of zeros, and has it swapped out. Returns whether all of it is.
    fn page_out(&self, at: u64) -> Result<bool> {
        let mut missing: Vec<u64> = (0..CHUNK).step_by(PAGE).collect();
        for _ in 0..TRIES {
            for offset in &missing {
                let byte = self.start.cast::<u8>().wrapping_add((at + offset) as usize);
                // SAFETY: within the mapping, which only this thread accesses. Volatile: the
                // compiler must not leave out writes whose values no code reads.
                unsafe { byte.write_volatile(0) };
            }
            self.advise(at, CHUNK, Advice::LinuxPageOut).context("cannot swap ballast out")?;
            missing = self.in_memory(at)?;
            if missing.is_empty() {
                return Ok(true);
            }
            // The kernel passes over new pages that a processor has not put on its lists yet, and
            // looks at those of this processor alone: pages that were made before the thread moved
            // here are made anew.
            for offset in &missing {
                let page = self.advise(at + offset, PAGE as u64, Advice::LinuxDontNeed);
                page.context("cannot free ballast")?;
            }
        }
        Ok(false)
    }

    /// The pages of a chunk that are not swapped out, as offsets in it.
    fn in_memory(&self, at: u64) -> Result<Vec<u64>> {
        let mut entries = [0; CHUNK as usize / PAGE * 8];
        let first = (self.start.addr() + at as usize) / PAGE;
        self.map
            .read_exact_at(&mut entries, first as u64 * 8)
            .context("cannot read /proc/self/pagemap")?;
        let offsets = (0..CHUNK).step_by(PAGE);
        let stays = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & SWAPPED == 0;
        let pages = entries.as_chunks::<8>().0.iter().zip(offsets);
        Ok(pages.filter(|(entry, _)| stays(entry)).map(|(_, offset)| offset).collect())
    }

    fn advise(&self, at: u64, len: u64, how: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is within the mapping, whose content is all zeros before and after.
        unsafe { madvise(self.start.byte_add(at as usize), len as usize, how) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Without swap the kernel swaps nothing out; with some, it may.
    #[test]
    fn no_ballast_stays_in_memory() {
        let mut pages = Pages::new(3 * CHUNK + 5).unwrap();
        assert_eq!(pages.len, 3 * CHUNK);
        for bytes in [u64::MAX, CHUNK, 0] {
            let held = pages.resize(bytes).unwrap();
            assert!(held <= bytes.min(3 * CHUNK), "{held}");
            assert_eq!(pages.present(), 0);
        }
    }

    impl Pages {
        /// The number of pages that are in memory.
        fn present(&self) -> usize {
            let mut entries = vec![0; self.len as usize / PAGE * 8];
            self.map.read_exact_at(&mut entries, (self.start.addr() / PAGE) as u64 * 8).unwrap();
            let entries = entries.as_chunks::<8>().0;
            entries.iter().filter(|entry| u64::from_ne_bytes(**entry) >> 63 == 1).count()
        }
    }

    #[test]
    fn messages_are_numbers_until_the_end() {
        let mut input = &7_u64.to_ne_bytes()[..];
        assert_eq!(receive(&mut input).unwrap(), Some(7));
        assert_eq!(receive(&mut input).unwrap(), None);
    }
}
