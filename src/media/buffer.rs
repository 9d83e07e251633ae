//! Memory that a drive can read and write without copying: page-aligned, of a fixed length.

use super::drive::ALIGN;
use super::ring_buffers::Lent;
use std::ops::{Deref, DerefMut};

/// One aligned page; exists so that a `Vec` of it is aligned.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; ALIGN]);

/// Page-aligned bytes, zeroed when made.
pub struct Buffer(Home);

/// Where the bytes are.
enum Home {
    /// In memory of its own.
    Own(Vec<Page>),
    /// In a memory file, with the content that was there.
    Lent(Lent),
}

impl Buffer {
    /// A buffer of `len` zero bytes; `len` is rounded up to a multiple of [`ALIGN`].
    pub fn new(len: usize) -> Self {
        // A vector made from a page of zeros would copy that page for each of its own.
        let pages = Box::new_zeroed_slice(len.div_ceil(ALIGN));
        // SAFETY: `Page` is nothing but bytes, for which zero is a value.
        Self(Home::Own(unsafe { pages.assume_init() }.into_vec()))
    }

    /// A buffer of lent memory of a memory file.
    pub(super) fn lent(lent: Lent) -> Self {
        Self(Home::Lent(lent))
    }

    /// The memory that was lent, if it was.
    pub(super) fn as_lent(&mut self) -> Option<&mut Lent> {
        match &mut self.0 {
            Home::Own(_) => None,
            Home::Lent(lent) => Some(lent),
        }
    }

    /// Keeps the first `len` bytes (rounded up), and gives the rest of the memory back.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            Home::Own(pages) => {
                pages.truncate(len.div_ceil(ALIGN));
                pages.shrink_to_fit();
            }
            Home::Lent(lent) => lent.truncate(len.next_multiple_of(ALIGN)),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: `Page` is nothing but bytes, without padding, and the pages of a `Vec` lie
            // side by side, so `pages.len() * ALIGN` initialised bytes begin at its pointer.
            Home::Own(pages) => unsafe {
                std::slice::from_raw_parts(pages.as_ptr().cast(), pages.len() * ALIGN)
            },
            Home::Lent(lent) => lent,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Home::Own(pages) => {
                let len = pages.len() * ALIGN;
                // SAFETY: as above; the borrow of `self` is exclusive.
                unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), len) }
            }
            Home::Lent(lent) => lent,
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
