//! The content of a drive: pages that images share until one of them changes.
//!
//! Copying an image costs one reference count, so a run can keep a copy for every cut; the first
//! change after that copies the list of pages. A page that was never written, or was zeroed, takes
//! no memory.
//!
//! A page remembers which block's value it was found to be: the oracle looks at all blocks after
//! every cut, and most pages are as they were. Only [`Image::page_mut`] changes the bytes of a
//! page, and makes it forget.

use crate::content::Value;
use std::sync::{Arc, OnceLock};

/// Bytes in a page; writes of the product are aligned to it.
pub const PAGE: usize = ztier::media::ALIGN;
/// Bytes in a sector, the smallest piece that a power cut leaves whole.
pub const SECTOR: usize = 512;

/// The bytes of a page.
pub type Page = [u8; PAGE];

/// A page that images share.
#[derive(Debug)]
pub struct Sheet {
    bytes: Page,
    /// A block, and which value of it the bytes are, if they are one.
    known: OnceLock<(u32, Option<Value>)>,
}

impl Clone for Sheet {
    /// A copy is made to be changed.
    fn clone(&self) -> Self {
        Self { bytes: self.bytes, known: OnceLock::new() }
    }
}

/// A page's contents; `None` reads as zeros.
pub type Slot = Option<Arc<Sheet>>;

static ZEROS: Page = [0; PAGE];

/// The bytes of a drive.
#[derive(Clone, Debug)]
pub struct Image {
    pages: Arc<Vec<Slot>>,
}

/// The bytes of a slot.
pub fn bytes(slot: &Slot) -> &Page {
    slot.as_ref().map_or(&ZEROS, |sheet| &sheet.bytes)
}

/// The slot of a page.
pub fn slot(bytes: Page) -> Slot {
    Some(Arc::new(Sheet { bytes, known: OnceLock::new() }))
}

/// The slots that hold `data`, a multiple of [`PAGE`] long.
pub fn slots(data: &[u8]) -> impl Iterator<Item = Slot> {
    data.as_chunks::<PAGE>().0.iter().map(|page| slot(*page))
}

impl Image {
    /// An image of `size` zero bytes, a multiple of [`PAGE`].
    pub fn new(size: u64) -> Self {
        Self { pages: Arc::new(vec![None; (size / PAGE as u64) as usize]) }
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
        Arc::make_mut(&mut self.pages)[index] = slot;
    }

    /// Page `index`, mutable; copied first if it is shared.
    pub fn page_mut(&mut self, index: usize) -> &mut Page {
        let page = &mut Arc::make_mut(&mut self.pages)[index];
        if page.is_none() {
            *page = slot(ZEROS);
        }
        let sheet = Arc::make_mut(page.as_mut().expect("a slot was just filled"));
        sheet.known.take();
        &mut sheet.bytes
    }

    /// The value of `block`, if the page of that number holds one, as [`Value::recognise`] says.
    pub fn value(&self, block: u32) -> Option<Value> {
        let Some(sheet) = &self.pages[block as usize] else { return Some(Value::Zero) };
        let recognise = || Value::recognise(block, &sheet.bytes);
        match sheet.known.get_or_init(|| (block, recognise())) {
            (known, value) if *known == block => *value,
            // A write went to another page than it should have.
            _ => recognise(),
        }
    }

    /// Copies the bytes from offset `at` into `buf`; both `at` and the length are multiples of
    /// [`PAGE`].
    pub fn read(&self, at: u64, buf: &mut [u8]) {
        let first = (at / PAGE as u64) as usize;
        for (page, out) in self.pages[first..].iter().zip(buf.chunks_mut(PAGE)) {
            out.copy_from_slice(bytes(page));
        }
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
        assert_eq!(copy.page(1)[7], 1);
        image.page_mut(1)[7] = 2;
        image.set(2, slots(&[9; PAGE]).next().flatten());
        assert_eq!((copy.page(1)[7], copy.page(2)[0]), (1, 0));
        let mut buf = vec![0xff; 2 * PAGE];
        image.read(PAGE as u64, &mut buf);
        assert_eq!((buf[7], buf[PAGE], buf[2 * PAGE - 1]), (2, 9, 9));
        image.set(2, None);
        assert_eq!(image.page(2), &ZEROS);
        assert_eq!(copy.page(2), &ZEROS);
    }

    #[test]
    fn a_page_forgets_its_value_when_it_changes() {
        let mut image = Image::new(2 * PAGE as u64);
        let value = Value::Stamp { version: 3, noise: 40 };
        assert_eq!(image.value(1), Some(Value::Zero));
        value.fill(1, image.page_mut(1));
        let copy = image.clone();
        assert_eq!((image.value(1), copy.value(1)), (Some(value), Some(value)));
        image.page_mut(1)[PAGE - 1] ^= 1;
        assert_eq!((image.value(1), copy.value(1)), (None, Some(value)));
        // Also where no other image has the page.
        image.page_mut(1)[PAGE - 1] ^= 1;
        assert_eq!(image.value(1), Some(value));
        image.set(0, copy.slot(1));
        assert_eq!((image.value(0), copy.value(1)), (None, Some(value)), "misdirected");
        image.set(1, None);
        assert_eq!(image.value(1), Some(Value::Zero));
    }
}
