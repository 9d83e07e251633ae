//! The content of a drive: pages that images share until one of them changes.
//!
//! Copying an image costs one reference count a page, so a run can keep a copy for every cut. A
//! page that was never written, or was zeroed, takes no memory.

use std::sync::Arc;

/// Bytes in a page; writes of the product are aligned to it.
pub const PAGE: usize = ztier::media::ALIGN;
/// Bytes in a sector, the smallest piece that a power cut leaves whole.
pub const SECTOR: usize = 512;

/// The bytes of a page.
pub type Page = [u8; PAGE];

/// A page's contents; `None` reads as zeros.
pub type Slot = Option<Arc<Page>>;

static ZEROS: Page = [0; PAGE];

/// The bytes of a drive.
#[derive(Clone, Debug)]
pub struct Image {
    pages: Vec<Slot>,
}

/// The bytes of a slot.
pub fn bytes(slot: &Slot) -> &Page {
    slot.as_deref().unwrap_or(&ZEROS)
}

/// The slots that hold `data`, a multiple of [`PAGE`] long.
pub fn slots(data: &[u8]) -> impl Iterator<Item = Slot> {
    data.as_chunks::<PAGE>().0.iter().map(|page| Some(Arc::new(*page)))
}

impl Image {
    /// An image of `size` zero bytes, a multiple of [`PAGE`].
    pub fn new(size: u64) -> Self {
        Self { pages: vec![None; (size / PAGE as u64) as usize] }
    }

    /// Pages in the image.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Page `index`.
    pub fn page(&self, index: usize) -> &Page {
        bytes(&self.pages[index])
    }

    /// Page `index`, shared.
    pub fn slot(&self, index: usize) -> Slot {
        self.pages[index].clone()
    }

    /// Replaces page `index`.
    pub fn set(&mut self, index: usize, slot: Slot) {
        self.pages[index] = slot;
    }

    /// Page `index`, mutable; copied first if it is shared.
    pub fn page_mut(&mut self, index: usize) -> &mut Page {
        Arc::make_mut(self.pages[index].get_or_insert_with(|| Arc::new(ZEROS)))
    }

    /// Copies the bytes from offset `at` into `buf`; both `at` and the length are multiples of
    /// [`PAGE`].
    pub fn read(&self, at: u64, buf: &mut [u8]) {
        let first = (at / PAGE as u64) as usize;
        for (page, out) in self.pages[first..].iter().zip(buf.chunks_mut(PAGE)) {
            out.copy_from_slice(bytes(page));
        }
    }

    /// The first page in which two images differ.
    pub fn difference(&self, other: &Self) -> Option<usize> {
        assert_eq!(self.len(), other.len());
        (0..self.len()).find(|i| match (&self.pages[*i], &other.pages[*i]) {
            (Some(a), Some(b)) if Arc::ptr_eq(a, b) => false,
            (a, b) => bytes(a) != bytes(b),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_does_not_see_what_happens_to_the_original() {
        let mut image = Image::new(4 * PAGE as u64);
        image.page_mut(1)[7] = 1;
        let copy = image.clone();
        assert_eq!(image.difference(&copy), None);
        image.page_mut(1)[7] = 2;
        image.set(2, slots(&[9; PAGE]).next().flatten());
        assert_eq!((copy.page(1)[7], copy.page(2)[0]), (1, 0));
        assert_eq!(image.difference(&copy), Some(1));
        let mut buf = vec![0xff; 2 * PAGE];
        image.read(PAGE as u64, &mut buf);
        assert_eq!((buf[7], buf[PAGE], buf[2 * PAGE - 1]), (2, 9, 9));
        image.set(2, None);
        assert_eq!(image.page(2), &ZEROS);
        // A page of zeros and a missing page are the same bytes.
        assert_eq!(
            Image::new(PAGE as u64).difference(&{
                let mut zeroed = Image::new(PAGE as u64);
                zeroed.page_mut(0)[0] = 0;
                zeroed
            }),
            None
        );
    }
}
