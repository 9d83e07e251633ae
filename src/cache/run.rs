//! Neighbouring segments of a queue, whose live records are put together in one fewer.
//!
//! Invariants: records keep their order, so none is written over one that was not read yet; the
//! last segment ends empty; what finds no room, and what damage hides, is not in the index any more
//! when the caller has swept.

use super::record::Header;
use super::segment::Segment;
use super::table::{Place, Table};

/// Most segments of a run. Each byte that is won costs seven to be moved, at most.
pub const MOST: usize = 8;

/// Segments that were taken out, oldest first.
#[derive(Debug, Default)]
pub struct Run {
    parts: [Option<(u32, Segment)>; MOST],
    len: usize,
}

impl Run {
    /// Adds a segment, for which there is room.
    pub fn push(&mut self, part: (u32, Segment)) {
        self.parts[self.len] = Some(part);
        self.len += 1;
    }

    /// Puts the live records of all parts together in all but the last; `gone` is called with each
    /// that finds no room. Whether damage hid any.
    pub fn compact(&mut self, table: &mut Table, mut gone: impl FnMut(&Header)) -> bool {
        let (mut to, mut hidden) = (0, false);
        for from in 0..self.len {
            let Some((id, part)) = &mut self.parts[from] else { continue };
            let (id, end, mut left, mut at) = (*id, part.used(), part.live(), 0);
            part.begin_again();
            while left > 0 {
                let Some(header) = self.header(from, at, end) else { break };
                let named = table.get(header.key).filter(|p| (p.segment(), p.at()) == (id, at));
                if let Some(place) = named {
                    left -= 1;
                    match self.place(&mut to, from, at, &header) {
                        Some((segment, at)) => {
                            table.set(header.key, Place::new(segment, at, place.hits()));
                        }
                        None => {
                            table.remove(header.key);
                            gone(&header);
                        }
                    }
                }
                at += header.space();
            }
            hidden |= left > 0;
        }
        hidden
    }

    fn header(&self, part: usize, at: usize, end: usize) -> Option<Header> {
        self.parts[part].as_ref().and_then(|(_, part)| part.header_in(at, end))
    }

    /// Moves a record to the end of part `to`, or of the next one that it fits into.
    fn place(
        &mut self,
        to: &mut usize,
        from: usize,
        at: usize,
        header: &Header,
    ) -> Option<(u32, usize)> {
        while *to + 1 < self.len && *to < from {
            let (before, rest) = self.parts.split_at_mut(from);
            let (Some((id, part)), Some((_, source))) = (&mut before[*to], &rest[0]) else { break };
            // A damaged length may exceed the room.
            if part.used() + header.space() <= part.len() {
                return Some((*id, part.append(source.bytes(at, header), header)));
            }
            *to += 1;
        }
        // Within a part, records move down, and those of the last have nowhere to go.
        let (id, part) = self.parts[*to].as_mut().filter(|_| *to + 1 < self.len)?;
        Some((*id, part.move_down(at, header)))
    }

    /// The parts, oldest first.
    pub fn into_parts(self) -> impl Iterator<Item = (u32, Segment)> {
        self.parts.into_iter().flatten()
    }
}
