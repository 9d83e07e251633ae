//! A file in memory.
//!
//! Invariant: memory is touched only between `new` and `drop` of its mapping, and inside it.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr;

/// The first bytes of a file. The thread that has it must not make the file shorter meanwhile: a
/// touch of what is gone ends the process.
pub struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes, which are not 0.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where, so no other memory is replaced.
        let at = unsafe { mmap(ptr::null_mut(), len, both, MapFlags::SHARED, file, 0)? };
        Ok(Self { at: at.cast(), len })
    }

    /// Copies `data` to byte `at` on.
    ///
    /// # Panics
    /// That is not inside.
    pub fn write(&mut self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.len, "beyond the mapping");
        // SAFETY: inside the mapping, as asserted; `data` is other memory, as no slice of the
        // mapping is ever made.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.at.add(at), data.len()) }
    }

    /// Fills `out` from byte `at` on.
    ///
    /// # Panics
    /// That is not inside.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.len, "beyond the mapping");
        // SAFETY: as for `write`.
        unsafe { ptr::copy_nonoverlapping(self.at.add(at), out.as_mut_ptr(), out.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and nothing else refers to it.
        let _ = unsafe { munmap(self.at.cast::<c_void>(), self.len) };
    }
}
