//! The flights of a shard: fills, writes and zeroes of the backing store that are in flight.
//!
//! Invariant: a block of a fill or a write is alive as long as no operation that would make a copy
//! of it wrong was in flight when the flight began, or has begun since. Only blocks that are alive
//! are kept. So
//!
//! - a block of a fill dies when a write or zero of it begins, and is dead from the start while one
//!   is in flight;
//! - writes that overlap in time leave no copy of the blocks that they share: the order in which
//!   the drive has taken them is unknown.

use super::numbers::Numbers;
use super::planted::{self, Bug};
use super::policy::Queue;

/// Blocks of a group: a shard has them in a row, and a fill or a write covers at most one group.
pub const GROUP: u64 = 64;

/// The operation of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Blocks are read from the backing store.
    Fill,
    /// Blocks are written to it.
    Write,
    /// Blocks are zeroed on it, often many more than a group has. No copy is left.
    Zero,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    id: u64,
    role: Role,
    first: u64,
    count: u64,
    /// A bit for each of the first 64 blocks.
    alive: u64,
    before: Before,
}

/// Queues and hits of the copies that a write dropped, a bit a block: the new copies take their
/// places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// There was a copy.
    there: u64,
    /// It was in the main queue.
    main: u64,
    /// Its hits.
    hits: Numbers,
}

impl Before {
    /// Notes queue and hits of the copy of the `at`-th block.
    pub fn note(&mut self, at: u64, queue: Queue, hits: u8) {
        self.there |= 1 << at;
        self.main |= u64::from(queue == Queue::Main) << at;
        self.hits.set(at, hits);
    }

    /// Queue and hits of the copy of the `at`-th block, if there was one.
    pub fn of(&self, at: u64) -> Option<(Queue, u8)> {
        let bit = |all: u64| (all >> at & 1) as u8;
        let queue = if bit(self.main) == 1 { Queue::Main } else { Queue::Probation };
        (bit(self.there) == 1).then(|| (queue, self.hits.of(at)))
    }
}

/// A mask of `count` bits from bit `from` on.
pub fn bits(from: u64, count: u64) -> u64 {
    match count {
        0 => 0,
        count => u64::MAX >> (64 - count.min(64)) << from,
    }
}

impl Flight {
    /// Which blocks of `self` are among the `count` blocks from `first` on, as bits.
    fn shared(&self, first: u64, count: u64) -> u64 {
        let from = first.max(self.first);
        let to = (first + count).min(self.first + self.count.min(64));
        if from < to { bits(from - self.first, to - from) } else { 0 }
    }
}

/// All flights of a shard.
#[derive(Debug, Default)]
pub struct Flights {
    all: Vec<Flight>,
    /// Blocks that were read or written and not kept, because of writes or zeroes at the same time.
    pub lost: u64,
}

impl Flights {
    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        (self.all.capacity() * size_of::<Flight>()) as u64
    }

    /// Begins a fill: a read of the blocks whose bits are set in `wanted`, counted from `first` on.
    /// Blocks that are still alive at its end may be kept. `false`: none can be, and no flight
    /// began.
    pub fn fill(&mut self, id: u64, first: u64, wanted: u64) -> bool {
        let before = Before::default();
        let mut fill = Flight { id, role: Role::Fill, first, count: GROUP, alive: wanted, before };
        if !planted::on(Bug::FillBesideWriter) {
            for writer in self.all.iter().filter(|other| other.role != Role::Fill) {
                fill.alive &= !fill.shared(writer.first, writer.count);
            }
        }
        self.lost += u64::from((wanted & !fill.alive).count_ones());
        if fill.alive == 0 || self.all.try_reserve(1).is_err() {
            return false;
        }
        self.all.push(fill);
        true
    }

    /// Begins a write of up to [`GROUP`] blocks. `before` describes the copies that it dropped.
    pub fn write(&mut self, id: u64, first: u64, count: u64, before: Before) {
        let all = bits(0, count);
        let mut write = Flight { id, role: Role::Write, first, count, alive: all, before };
        if !planted::on(Bug::KeepOverlappingWrites) {
            for writer in self.all.iter().filter(|other| other.role != Role::Fill) {
                write.alive &= !write.shared(writer.first, writer.count);
            }
        }
        self.lost += u64::from((all & !write.alive).count_ones());
        self.end_those_of(first, count);
        self.all.push(write);
    }

    /// Begins to zero any number of blocks.
    pub fn zero(&mut self, id: u64, first: u64, count: u64) {
        self.end_those_of(first, count);
        let before = Before::default();
        self.all.push(Flight { id, role: Role::Zero, first, count, alive: 0, before });
    }

    /// No flight keeps these blocks.
    fn end_those_of(&mut self, first: u64, count: u64) {
        for other in &mut self.all {
            let bug = match other.role {
                Role::Fill => Bug::FillOverWrite,
                Role::Write | Role::Zero => Bug::KeepOverlappingWrites,
            };
            if !planted::on(bug) {
                let dead = other.alive & other.shared(first, count);
                other.alive &= !dead;
                self.lost += u64::from(dead.count_ones());
            }
        }
    }

    /// No flight keeps anything.
    pub fn end_all(&mut self) {
        self.all.iter_mut().for_each(|flight| flight.alive = 0);
    }

    /// Which blocks of a fill or write may be kept, as bits from its first block on, and the copies
    /// that it dropped.
    pub fn alive(&self, id: u64, first: u64) -> (u64, Before) {
        let mine = self.all.iter().find(|flight| flight.id == id && flight.first == first);
        mine.map_or((0, Before::default()), |flight| (flight.alive, flight.before))
    }

    /// Ends the flight with this number and first block.
    pub fn end(&mut self, id: u64, first: u64) {
        let mine = self.all.iter().position(|flight| flight.id == id && flight.first == first);
        if let Some(at) = mine {
            self.all.swap_remove(at);
        }
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(flights: &mut Flights, id: u64, first: u64, count: u64) {
        flights.write(id, first, count, Before::default());
    }

    fn alive(flights: &Flights, id: u64, first: u64) -> u64 {
        flights.alive(id, first).0
    }

    #[test]
    fn bits_are_those_of_a_range() {
        assert_eq!((bits(0, 0), bits(0, 64), bits(1, 2)), (0, u64::MAX, 6));
        assert_eq!((bits(63, 1), bits(0, 1000)), (1 << 63, u64::MAX));
    }

    #[test]
    fn what_was_there_before_is_known_bit_by_bit() {
        let mut before = Before::default();
        before.note(0, Queue::Main, 3);
        before.note(63, Queue::Probation, 2);
        before.note(5, Queue::Main, 0);
        assert_eq!(before.of(0), Some((Queue::Main, 3)));
        assert_eq!(before.of(63), Some((Queue::Probation, 2)));
        assert_eq!((before.of(5), before.of(6)), (Some((Queue::Main, 0)), None));
    }

    #[test]
    fn a_fill_lives_until_a_write_begins() {
        let mut flights = Flights::default();
        assert!(flights.fill(1, 128, 0b1111));
        write(&mut flights, 2, 130, 1);
        assert_eq!(alive(&flights, 1, 128), 0b1011);
        flights.end(2, 130);
        assert_eq!(alive(&flights, 1, 128), 0b1011, "dead is dead");
        flights.zero(3, 0, 1 << 40);
        assert_eq!(alive(&flights, 1, 128), 0);
        flights.end(1, 128);
        flights.end(3, 0);
        assert!(flights.is_empty());
        assert_eq!(flights.lost, 4);
    }

    #[test]
    fn a_fill_beside_a_writer_is_born_dead() {
        let mut flights = Flights::default();
        write(&mut flights, 1, 64, 64);
        assert!(!flights.fill(2, 64, 1));
        write(&mut flights, 3, 0, 2);
        assert!(flights.fill(4, 0, 0b110));
        assert_eq!(alive(&flights, 4, 0), 0b100);
        flights.end(1, 64);
        assert!(flights.fill(5, 64, 1), "the writer has gone");
    }

    #[test]
    fn of_writes_that_overlap_none_keeps_what_they_share() {
        let mut flights = Flights::default();
        write(&mut flights, 1, 0, 10);
        write(&mut flights, 2, 8, 10);
        assert_eq!(alive(&flights, 1, 0), bits(0, 8));
        assert_eq!(alive(&flights, 2, 8), bits(2, 8));
        flights.end(1, 0);
        write(&mut flights, 3, 0, 8);
        assert_eq!((alive(&flights, 3, 0), alive(&flights, 2, 8)), (bits(0, 8), bits(2, 8)));
        flights.zero(4, 4, 1);
        write(&mut flights, 5, 0, 8);
        assert_eq!(alive(&flights, 5, 0), bits(0, 8) & !bits(4, 1) & !bits(0, 8), "3 is under way");
    }
}
