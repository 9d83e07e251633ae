//! Pieces of memory of one size, taken and given back one by one.
//!
//! The pieces lie in a memory file, because only such memory can be given back page by page while
//! it is locked.
//!
//! Invariants: a frame is the only access to its bytes, like a `Box`; a place without a frame has
//! no memory behind it.

use super::part::Part;
use super::{Arena, Memory, PAGE};
use crate::error::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// All frames of one size.
#[derive(Debug)]
pub struct Pool(Arc<Home>);

#[derive(Debug)]
struct Home {
    arena: Arena,
    frame: usize,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    places: Vec<u32>,
    /// Places from this number on were never used.
    fresh: u32,
    count: u32,
}

impl Pool {
    /// Room for `count` frames of `frame` bytes, whole pages: address space, no memory yet.
    ///
    /// # Errors
    /// See [`Memory::arena`].
    pub fn new(name: &str, count: u32, frame: usize) -> Result<Self> {
        let arena = Memory::default().arena(name, count.max(1) as usize * frame)?;
        // Frames may be shorter than their places, and not all are taken.
        arena.refuse_huge_pages();
        // Room for all places, so that the list never grows. The room costs no memory until it is
        // used.
        let places = Vec::with_capacity(count as usize);
        let free = Mutex::new(Free { places, fresh: 0, count });
        Ok(Self(Arc::new(Home { arena, frame, free })))
    }

    /// Bytes of the largest frame.
    pub fn frame(&self) -> usize {
        self.0.frame
    }

    /// Takes a frame of `len` bytes, at most [`Pool::frame`], that has memory behind it; `None`
    /// when all are taken, or the machine has none.
    pub fn take(&self, len: usize) -> Option<Frame> {
        assert!(len <= self.0.frame && len.is_multiple_of(PAGE), "no frame has {len} bytes");
        let place = {
            let mut free = self.0.free.lock();
            match free.places.pop() {
                Some(place) => place,
                None if free.fresh < free.count => {
                    free.fresh += 1;
                    free.fresh - 1
                }
                None => return None,
            }
        };
        let at = place as usize * self.0.frame;
        // SAFETY: the home keeps the arena, and gives the place to no other frame until this one is
        // dropped.
        let part = unsafe { Part::new(&self.0.arena, at, len, Arc::clone(&self.0)) };
        // From here on, dropping the frame gives its place back.
        let frame = Frame { part, place };
        self.0.arena.populate(at, len).is_ok().then_some(frame)
    }
}

/// A piece of memory; dropping it gives the memory back.
#[derive(Debug)]
pub struct Frame {
    part: Part<Arc<Home>>,
    place: u32,
}

impl Frame {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.part
    }

    /// Its bytes, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.part
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let home = self.part.keeper();
        home.arena.remove(self.place as usize * home.frame, self.part.len());
        home.free.lock().places.push(self.place);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_and_go() {
        let pool = Pool::new("test", 3, 8192).unwrap();
        let mut frames: Vec<Frame> = (0..3).map(|_| pool.take(4096).unwrap()).collect();
        assert!(pool.take(4096).is_none(), "three are all");
        for (i, frame) in frames.iter_mut().enumerate() {
            frame.bytes_mut().fill(i as u8 + 1);
        }
        let same = |frame: &Frame, byte: u8| frame.bytes().iter().all(|b| *b == byte);
        assert!((0..3).all(|i| same(&frames[i], i as u8 + 1)));
        frames.remove(1);
        let again = pool.take(8192).unwrap();
        assert_eq!(again.bytes().len(), 8192);
        assert!(same(&again, 0), "what was given back is gone");
        drop(pool);
        assert!(same(&frames[0], 1) && same(&frames[1], 3));
    }
}
