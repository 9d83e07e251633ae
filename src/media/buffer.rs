//! Memory that a drive can read and write without copying: page-aligned, of a fixed length.

use super::drive::ALIGN;
use std::ops::{Deref, DerefMut};

/// One aligned page; exists so that a `Vec` of it is aligned.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; ALIGN]);

/// Page-aligned bytes, zeroed when made.
pub struct Buffer {
    pages: Vec<Page>,
}

impl Buffer {
    /// A buffer of `len` zero bytes; `len` is rounded up to a multiple of [`ALIGN`].
    pub fn new(len: usize) -> Self {
        Self { pages: vec![Page([0; ALIGN]); len.div_ceil(ALIGN)] }
    }

    /// Keeps the first `len` bytes (rounded up), and gives the rest of the memory back.
    pub fn truncate(&mut self, len: usize) {
        self.pages.truncate(len.div_ceil(ALIGN));
        self.pages.shrink_to_fit();
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Page` is nothing but bytes, without padding, and the pages of a `Vec` lie side
        // by side, so `pages.len() * ALIGN` initialised bytes begin at its pointer.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.pages.len() * ALIGN) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.pages.len() * ALIGN;
        // SAFETY: as above; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), len) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
