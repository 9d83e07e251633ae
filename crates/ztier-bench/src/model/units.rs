//! The allocation units of flash that maps no single pages: what a write moves besides itself.
//!
//! A unit is what the drive maps and erases as a whole. A write goes into an empty block that is
//! open for its unit, behind what was written there before. Only a few units are open. When another
//! one needs a block, or a block is full, a unit is closed: its pages that are in use and that the
//! block lacks follow from the old block, if they fit behind the others; otherwise all its pages in
//! use are moved to one more block. So a unit that is written in order moves nothing, random writes
//! within the open units about as much as they write, and random writes elsewhere a unit each.
//!
//! Invariants: no unit is open twice; an open block is never full.

use super::used::{PAGE, Used};
use std::collections::VecDeque;

/// The open units of a drive.
#[derive(Debug)]
pub struct Units {
    /// Bytes in a unit.
    bytes: u64,
    /// Limit on the open units.
    limit: usize,
    /// In order of their last write.
    open: VecDeque<Open>,
}

/// A unit with a block for new writes.
#[derive(Debug)]
struct Open {
    unit: u64,
    /// Pages of the unit, from its beginning, that the block holds.
    fresh: Used,
    /// Pages of the block that are written, repeated ones and padding included.
    written: u64,
}

impl Units {
    /// Units of `bytes` bytes, of which `limit` are open at a time; at first none.
    pub fn new(bytes: u64, limit: usize) -> Self {
        Self { bytes, limit, open: VecDeque::new() }
    }

    /// Writes a range; `used` has the pages in use, the range included. Returns the pages that are
    /// moved because of it.
    pub fn write(&mut self, at: u64, len: u64, used: &Used) -> u64 {
        let (mut at, end, mut moved) = (at, at + len, 0);
        while at < end {
            let (unit, from) = (at / self.bytes, at % self.bytes);
            let mut open = self.take(unit);
            let room = self.bytes - open.written * PAGE;
            let piece = (end - at).min(self.bytes - from).min(room);
            open.fresh.set(from, piece, true);
            self.open.push_back(open);
            if self.open.len() > self.limit {
                moved += self.open.pop_front().map_or(0, |oldest| self.close(&oldest, used));
            }
            moved += self.fill(piece / PAGE, used);
            at += piece;
        }
        moved
    }

    /// Counts `pages` more of the block of the last write as written: its data, or padding that was
    /// programmed with it. Returns the pages that are moved if the block is full.
    pub fn fill(&mut self, pages: u64, used: &Used) -> u64 {
        let Some(open) = self.open.back_mut() else { return 0 };
        open.written += pages;
        if open.written < self.bytes / PAGE {
            return 0;
        }
        self.open.pop_back().map_or(0, |full| self.close(&full, used))
    }

    /// Takes a unit out of the open ones, or opens it.
    fn take(&mut self, unit: u64) -> Open {
        let place = self.open.iter().position(|open| open.unit == unit);
        let new = || Open { unit, fresh: Used::none(self.bytes), written: 0 };
        place.and_then(|place| self.open.remove(place)).unwrap_or_else(new)
    }

    /// Pages that closing a unit moves.
    fn close(&self, open: &Open, used: &Used) -> u64 {
        let valid = used.count(open.unit * self.bytes, self.bytes);
        let rest = valid.saturating_sub(open.fresh.pages());
        if open.written + rest <= self.bytes / PAGE { rest } else { valid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Rng;

    const MIB: u64 = 1 << 20;
    const UNIT: u64 = 4 * MIB;
    const PAGES: u64 = UNIT / PAGE;

    /// Pages moved for each page written, on a drive of 64 units, all in use.
    fn amplification(count: u64, len: u64, mut at: impl FnMut(u64) -> u64) -> f64 {
        let (mut units, used) = (Units::new(UNIT, 4), Used::all(64 * UNIT));
        let moved: u64 = (0..count).map(|n| units.write(at(n), len, &used)).sum();
        moved as f64 / (count * len / PAGE) as f64
    }

    #[test]
    fn units_written_in_order_move_nothing() {
        assert_eq!(amplification(64, UNIT, |n| n * UNIT), 0.0);
        assert_eq!(amplification(64 * PAGES, PAGE, |n| n * PAGE), 0.0);
        // Four at once, by turns; a write across a border.
        assert_eq!(amplification(4 * PAGES, PAGE, |n| n % 4 * UNIT + n / 4 * PAGE), 0.0);
        assert_eq!(amplification(1, 2 * UNIT, |_| UNIT), 0.0);
    }

    #[test]
    fn more_streams_than_open_units_move_a_unit_a_write() {
        let five = amplification(5 * 100, PAGE, |n| n % 5 * UNIT + n / 5 * PAGE);
        assert!((1000.0..PAGES as f64).contains(&five), "{five}");
    }

    #[test]
    fn random_writes_cost_little_in_open_units_and_much_elsewhere() {
        let random = |span: u64| {
            let mut rng = Rng::new(7);
            amplification(100_000, PAGE, move |_| rng.below(span / PAGE) * PAGE)
        };
        let near = random(4 * UNIT);
        assert!((0.9..1.1).contains(&near), "{near}");
        let far = random(64 * UNIT);
        assert!((900.0..1024.0).contains(&far), "{far}");
    }

    #[test]
    fn what_is_not_in_use_is_not_moved() {
        let (mut units, mut used) = (Units::new(UNIT, 1), Used::none(64 * UNIT));
        used.set(0, PAGE, true);
        assert_eq!(units.write(0, PAGE, &used), 0);
        used.set(UNIT, 10 * PAGE, true);
        assert_eq!(units.write(UNIT, PAGE, &used), 0, "the first unit has no other page");
        used.set(2 * UNIT, PAGE, true);
        assert_eq!(units.write(2 * UNIT, PAGE, &used), 9);
    }

    #[test]
    fn padding_fills_a_block_and_leaves_no_room_for_the_rest() {
        let (mut units, used) = (Units::new(UNIT, 1), Used::all(UNIT));
        let mut moved = 0;
        for page in 0..PAGES / 2 {
            moved += units.write(page * PAGE, PAGE, &used) + units.fill(1, &used);
        }
        assert_eq!(moved, PAGES);
        // A block that is not full takes the rest.
        assert_eq!(units.write(0, PAGE, &used), 0);
        assert_eq!(units.write(UNIT, PAGE, &used), PAGES - 1);
    }
}
