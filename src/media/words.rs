//! A sparse array of atomic 64-bit words in a memory file; zero until written.

use super::Memory;
#[cfg(not(shuttle))]
use super::PAGE;
use crate::error::Result;
use crate::sync::atomic::AtomicU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
#[cfg(not(shuttle))]
use std::sync::Arc;

/// Words in a page.
#[cfg(not(shuttle))]
const WORDS_PER_PAGE: usize = PAGE / 8;

/// The array. Under a schedule explorer, whose atomics cannot live in foreign memory, it is a plain
/// vector, to be kept small.
#[derive(Debug)]
pub struct Words {
    #[cfg(not(shuttle))]
    arena: super::Arena,
    #[cfg(shuttle)]
    words: Vec<AtomicU64>,
}

#[cfg(not(shuttle))]
impl Words {
    /// The array `name` of `len` words: zeros that take no memory yet, or the content that another
    /// process left.
    ///
    /// # Errors
    /// See [`Memory::arena`].
    pub fn new(memory: &Memory, name: &str, len: usize) -> Result<Self> {
        let arena = memory.arena(name, len * 8)?;
        arena.refuse_huge_pages();
        Ok(Self { arena })
    }

    /// The array of `len` words in a file of another kind that can be mapped shared, such as a map
    /// of the kernel's. It has whole pages, and none of them can be removed.
    ///
    /// # Errors
    /// The file can't be mapped.
    pub fn over(file: OwnedFd, name: &str, len: usize) -> Result<Self> {
        let bytes = (len * 8).next_multiple_of(PAGE);
        Ok(Self { arena: super::Arena::over(Arc::new(file), name, bytes)? })
    }

    /// Words that may be other than zero: whole pages of them, ascending. See
    /// [`super::Arena::present`].
    pub fn present(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.arena.present().map(|bytes| bytes.start / 8..bytes.end / 8)
    }

    /// The number of words.
    pub fn len(&self) -> usize {
        self.arena.len() / 8
    }

    /// Never: it has at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Word `index`. Reading a word makes its page present.
    pub fn get(&self, index: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping (`at` checks), aligned to 8 because the mapping is to 4096,
        // valid as long as `self`; all access to this memory is atomic, and any bit pattern
        // is a valid u64.
        unsafe { AtomicU64::from_ptr(self.arena.at(index * 8).cast()) }
    }

    /// Makes the page of `index` present.
    ///
    /// # Errors
    /// See [`super::Arena::populate`].
    pub fn populate_page(&self, index: usize) -> rustix::io::Result<()> {
        self.populate(index..index + 1)
    }

    /// Makes the pages of a range present.
    ///
    /// # Errors
    /// See [`super::Arena::populate`].
    pub fn populate(&self, range: Range<usize>) -> rustix::io::Result<()> {
        let pages = range.start * 8 / PAGE * PAGE..(range.end * 8).next_multiple_of(PAGE);
        self.arena.populate(pages.start, pages.len())
    }

    /// Zeroes the words of whole pages and gives their memory back.
    pub fn remove_pages(&self, range: Range<usize>) {
        debug_assert!(range.start.is_multiple_of(WORDS_PER_PAGE));
        debug_assert!(range.len().is_multiple_of(WORDS_PER_PAGE));
        self.arena.remove(range.start * 8, range.len() * 8);
    }

    /// See [`super::Arena::lock`].
    ///
    /// # Errors
    /// See [`super::Arena::lock`].
    pub fn lock(&self) -> Result<()> {
        self.arena.lock()
    }
}

#[cfg(shuttle)]
#[allow(missing_docs)]
impl Words {
    pub fn new(_memory: &Memory, _name: &str, len: usize) -> Result<Self> {
        Ok(Self { words: (0..len).map(|_| AtomicU64::new(0)).collect() })
    }

    pub fn over(_file: OwnedFd, _name: &str, len: usize) -> Result<Self> {
        Ok(Self { words: (0..len).map(|_| AtomicU64::new(0)).collect() })
    }

    pub fn get(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }

    pub fn len(&self) -> usize {
        self.words.len()
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub fn present(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        std::iter::once(0..self.words.len())
    }

    pub fn populate_page(&self, _index: usize) -> rustix::io::Result<()> {
        Ok(())
    }

    pub fn populate(&self, _range: Range<usize>) -> rustix::io::Result<()> {
        Ok(())
    }

    pub fn remove_pages(&self, range: Range<usize>) {
        for word in &self.words[range] {
            word.store(0, crate::sync::atomic::Ordering::Relaxed);
        }
    }

    pub fn lock(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn a_page_is_a_page() {
        if fs::metadata("/sys/kernel/mm/transparent_hugepage").is_err() {
            eprintln!("skipped: no huge pages here");
            return;
        }
        let words = Words::new(&Memory::default(), "test", 1 << 20).unwrap();
        let begin = format!("{:x}-", words.arena.at(0) as usize);
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let (_, own) = maps.split_once(&begin).unwrap();
        let flags = own.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
    }
}
