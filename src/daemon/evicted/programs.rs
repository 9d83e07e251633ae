//! The programs in the kernel that tell which pages the page cache drops.
//!
//! All of them are entered with a folio, and go on only if it is of a watched device or file
//! system. [`copy`] is entered when a folio leaves the page cache. If nothing refers to it, reclaim
//! has frozen it (`__remove_mapping` in the kernel's `mm/vmscan.c`): it is clean, and its content
//! goes into the ring. Pages of files that are truncated still have references. Folios have many
//! pages; no more than [`PAGES`] of them are copied, because interrupts are off meanwhile.
//!
//! [`find_folio`] and [`find_memory`] serve [`super::calibration`].

use crate::error::{Error, Result};
use crate::system::bpf::Entry;
use crate::system::bpf::btf::{Btf, Kind};
use crate::system::bpf::code::{
    Code, GET_CURRENT_TASK, PROBE_READ_KERNEL, RINGBUF_DISCARD, RINGBUF_RESERVE, RINGBUF_SUBMIT,
};
use crate::system::page_size;

/// Most pages of a folio that are copied, in about 70 µs; the page cache has few larger ones.
const PAGES: i32 = 256;
/// Bytes of a page.
const PAGE: i32 = 4096;

/// Words of the array that programs share with the daemon.
pub mod word {
    /// Address of the descriptor of page 0, and of the content of page 0.
    pub const DESCRIPTORS: usize = 0;
    /// See [`DESCRIPTORS`].
    pub const MEMORY: usize = 1;
    /// Pages that were not copied: the ring had no room, or the folio was too large.
    pub const LOST: usize = 2;
    /// Pages that were dropped.
    pub const DROPPED: usize = 3;
    /// The last folio that [`super::find_folio`] saw: its address and its first page's index; and
    /// the address of the thread that added it.
    pub const FOLIO: usize = 4;
    /// See [`FOLIO`].
    pub const INDEX: usize = 5;
    /// See [`FOLIO`].
    pub const TASK: usize = 6;
    /// Where the memory begins that has [`MAGIC`] at [`PROBE`], how many such places there are, and
    /// the last one to try.
    pub const FOUND: usize = 7;
    /// See [`FOUND`].
    pub const HITS: usize = 8;
    /// See [`FOUND`].
    pub const FROM: usize = 9;
    /// What a page of this process has, and where it is in the machine's memory.
    pub const MAGIC: usize = 10;
    /// See [`MAGIC`].
    pub const PROBE: usize = 11;
    /// How often the program that looks for it has run.
    pub const RUNS: usize = 12;
    /// The first of the watched numbers.
    pub const WATCHED: usize = 16;
    /// How many numbers can be watched.
    pub const WATCHED_MOST: usize = 16;
    /// All words.
    pub const ALL: usize = WATCHED + WATCHED_MOST;
}

/// The offset of a word.
fn at(word: usize) -> i16 {
    (word * 8) as i16
}

/// Where the programs find in the kernel what they need.
pub struct Layout {
    mapping: i16,
    index: i16,
    references: i16,
    flags: i16,
    more_flags: i16,
    host: i16,
    super_block: i16,
    device: i16,
    number: i16,
    is_large: i32,
    /// Bytes of the descriptor of a page.
    pub descriptor: u32,
    /// The tracepoint of a folio that is added.
    pub added: Entry,
    /// That of a folio that leaves.
    pub removed: Entry,
}

impl Layout {
    /// That of this kernel.
    ///
    /// # Errors
    /// It lacks something: it is too old, or made otherwise.
    pub fn of_kernel() -> Result<Self> {
        page_size::usual()?;
        let btf = Btf::of_kernel()?;
        let offset = |structure, member| btf.offset(structure, member).map(|at| at as i16);
        let tracepoint = |name| btf.number(Kind::Typedef, name).map(Entry::Tracepoint);
        let descriptor = btf.size("page")?;
        if !descriptor.is_power_of_two() {
            return Err(Error::failure("this kernel describes pages in another way"));
        }
        Ok(Self {
            mapping: offset("folio", "mapping")?,
            index: offset("folio", "index")?,
            references: offset("folio", "_refcount")?,
            flags: offset("folio", "flags")?,
            more_flags: offset("folio", "_flags_1")?,
            host: offset("address_space", "host")?,
            super_block: offset("inode", "i_sb")?,
            device: offset("inode", "i_rdev")?,
            number: offset("super_block", "s_dev")?,
            is_large: btf.value("pageflags", "PG_head")? as i32,
            descriptor,
            added: tracepoint("btf_trace_mm_filemap_add_to_page_cache")?,
            removed: tracepoint("btf_trace_mm_filemap_delete_from_page_cache")?,
        })
    }

    /// The begin of each program: has the folio in r6 and the words in r7, and goes to `end` unless
    /// the folio is of a watched device or file system.
    fn watched(&self, words: i32) -> Code {
        let mut code = Code::default();
        code.add([(0x79, 6, 1, 0, 0), (0x79, 2, 6, self.mapping, 0)]); // r6 = folio, r2 = mapping
        code.jump((0x15, 2, 0, 0, 0), "end"); // if r2 == 0
        code.add([(0x79, 2, 2, self.host, 0)]); // r2 = inode
        code.jump((0x15, 2, 0, 0, 0), "end"); // if r2 == 0
        code.add([(0x79, 3, 2, self.super_block, 0), (0x61, 5, 2, self.device, 0)]);
        code.jump((0x15, 3, 0, 0, 0), "end"); // if there is no super block
        code.add([(0x61, 4, 3, self.number, 0)]);
        code.address(7, words);
        // r4 is the number of the file system; r5 that of the device whose own pages these are.
        for n in 0..word::WATCHED_MOST {
            code.add([(0x79, 8, 7, at(word::WATCHED + n), 0)]);
            code.jump((0x1d, 4, 8, 0, 0), "watched").jump((0x1d, 5, 8, 0, 0), "watched");
        }
        code.go("end").label("watched");
        code
    }

    /// Has the address of the folio in r0 as a number, with which the kernel lets one calculate.
    fn folio_as_number(code: &mut Code) {
        code.add([
            (0x7b, 10, 6, -16, 0), // *(r10 - 16) = r6
            (0xbf, 1, 10, 0, 0),
            (0x07, 1, 0, 0, -8), // r1 = r10 - 8
            (0xb7, 2, 0, 0, 8),  // r2 = 8
            (0xbf, 3, 10, 0, 0),
            (0x07, 3, 0, 0, -16), // r3 = r10 - 16
        ]);
        code.call(PROBE_READ_KERNEL).add([(0x79, 0, 10, -8, 0)]);
    }

    /// Adds one to a word.
    fn count(code: &mut Code, word: usize) {
        code.add([(0xb7, 1, 0, 0, 1)]); // r1 = 1
        Self::add(code, word, 1);
    }

    /// Adds a register to a word.
    fn add(code: &mut Code, word: usize, register: u8) {
        code.add([(0xdb, 7, register, at(word), 0)]); // atomically: word += register
    }

    /// Notes the folio that is added.
    pub fn find_folio(&self, words: i32) -> Code {
        let mut code = self.watched(words);
        code.add([(0x79, 8, 6, self.index, 0), (0x7b, 7, 8, at(word::INDEX), 0)]);
        Self::folio_as_number(&mut code);
        code.add([(0x7b, 7, 0, at(word::FOLIO), 0)]);
        code.call(GET_CURRENT_TASK).add([(0x7b, 7, 0, at(word::TASK), 0)]);
        code.label("end").end();
        code
    }

    /// Looks from the address [`word::FROM`] down, in `steps` steps of 1 GiB, where the memory of
    /// the machine begins: there a page of the daemon's is at its place.
    pub fn find_memory(&self, words: i32, steps: i32) -> Code {
        let mut code = self.watched(words);
        code.add([(0x79, 6, 7, at(word::FROM), 0), (0xb7, 8, 0, 0, 0)]);
        code.label("next").add([
            (0xb7, 1, 0, 0, 0),
            (0x7b, 10, 1, -8, 0), // *(r10 - 8) = 0
            (0xbf, 1, 10, 0, 0),
            (0x07, 1, 0, 0, -8), // r1 = r10 - 8
            (0xb7, 2, 0, 0, 8),  // r2 = 8
            (0x79, 3, 7, at(word::PROBE), 0),
            (0x0f, 3, 6, 0, 0), // r3 = PROBE + r6
        ]);
        code.call(PROBE_READ_KERNEL);
        code.jump((0x55, 0, 0, 0, 0), "other"); // if r0 != 0
        code.add([(0x79, 1, 10, -8, 0), (0x79, 2, 7, at(word::MAGIC), 0)]);
        code.jump((0x5d, 1, 2, 0, 0), "other"); // if r1 != r2
        code.add([(0x79, 1, 7, at(word::FOUND), 0)]);
        code.jump((0x1d, 1, 6, 0, 0), "other"); // if r1 == r6: found by a run before
        Self::count(&mut code, word::HITS);
        code.add([(0x7b, 7, 6, at(word::FOUND), 0)]);
        code.label("other").number(1, -(1 << 30));
        code.add([(0x0f, 6, 1, 0, 0), (0x07, 8, 0, 0, 1)]); // r6 -= 1 GiB, r8 += 1
        code.jump((0xa5, 8, 0, 0, steps), "next"); // if r8 < steps
        Self::count(&mut code, word::RUNS);
        code.label("end").end();
        code
    }

    /// Copies the pages of a folio that reclaim drops to a ring.
    pub fn copy(&self, words: i32, ring: i32) -> Code {
        let mut code = self.watched(words);
        code.add([(0x61, 2, 6, self.references, 0)]);
        code.jump((0x55, 2, 0, 0, 0), "end"); // if r2 != 0
        // r8 = the number of pages
        code.add([
            (0x79, 4, 6, self.flags, 0),
            (0x79, 5, 6, self.more_flags, 0),
            (0xb7, 8, 0, 0, 1),
            (0x77, 4, 0, 0, self.is_large), // r4 >>= is_large
            (0x57, 4, 0, 0, 1),             // r4 &= 1
        ]);
        code.jump((0x15, 4, 0, 0, 0), "known"); // if r4 == 0
        code.add([(0x57, 5, 0, 0, 15), (0x6f, 8, 5, 0, 0)]); // r8 <<= r5 & 15
        code.label("known");
        Self::add(&mut code, word::DROPPED, 8);
        code.jump((0xa5, 8, 0, 0, PAGES + 1), "copied"); // if r8 <= PAGES
        code.add([(0xbf, 1, 8, 0, 0), (0x17, 1, 0, 0, PAGES)]); // r1 = r8 - PAGES
        Self::add(&mut code, word::LOST, 1);
        code.add([(0xb7, 8, 0, 0, PAGES)]);
        code.label("copied");
        Self::folio_as_number(&mut code);
        let shift = self.descriptor.trailing_zeros() as i32;
        // r6 = the address of the content, r9 = the number of pages that are copied
        code.add([
            (0xbf, 6, 0, 0, 0),
            (0x79, 1, 7, at(word::DESCRIPTORS), 0),
            (0x1f, 6, 1, 0, 0),     // r6 -= DESCRIPTORS
            (0x77, 6, 0, 0, shift), // r6 >>= shift
            (0x67, 6, 0, 0, 12),    // r6 <<= 12
            (0x79, 1, 7, at(word::MEMORY), 0),
            (0x0f, 6, 1, 0, 0), // r6 += MEMORY
            (0xb7, 9, 0, 0, 0),
        ]);
        code.label("next").map(1, ring).add([(0xb7, 2, 0, 0, PAGE), (0xb7, 3, 0, 0, 0)]);
        code.call(RINGBUF_RESERVE);
        code.jump((0x15, 0, 0, 0, 0), "full"); // if r0 == 0
        code.add([
            (0x7b, 10, 0, -24, 0), // *(r10 - 24) = r0
            (0xbf, 1, 0, 0, 0),
            (0xb7, 2, 0, 0, PAGE),
            (0xbf, 3, 6, 0, 0),
        ]);
        code.call(PROBE_READ_KERNEL).add([(0x79, 1, 10, -24, 0), (0xb7, 2, 0, 0, 0)]);
        code.jump((0x55, 0, 0, 0, 0), "unread"); // if r0 != 0
        code.call(RINGBUF_SUBMIT);
        code.add([(0x07, 6, 0, 0, PAGE), (0x07, 9, 0, 0, 1)]); // r6 += PAGE, r9 += 1
        code.jump((0x3d, 9, 8, 0, 0), "end"); // if r9 >= r8
        code.jump((0xa5, 9, 0, 0, PAGES), "next").go("end"); // if r9 < PAGES
        code.label("unread").call(RINGBUF_DISCARD).go("end");
        code.label("full").add([(0x1f, 8, 9, 0, 0)]); // r8 -= r9
        Self::add(&mut code, word::LOST, 8);
        code.label("end").end();
        code
    }
}
