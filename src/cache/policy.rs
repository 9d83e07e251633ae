//! Which copies stay: pure functions of what is known of one.
//!
//! Copies stand in two first-in-first-out queues, because a log is one: nothing moves when it is
//! asked for, only a few bits of it change, and what should stay when its turn comes is appended
//! again. The rules have CLOCK with several bits (Corbató 1968; the second chance of many kernels)
//! and S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction",
//! SOSP 2023) as special cases. [`Rules::default`] is S3-FIFO with changes that the comparison in
//! `docs/policy.md` shows to be worth it. Loops and scans are much of what a page cache lets
//! through, and on a loop that is larger than the cache S3-FIFO as published keeps nothing:
//!
//! - While there is room, what is read goes to the main queue. In a loop, whatever stays is worth
//!   as much as what comes, and a queue in which nothing was hit yet would give up all of it.
//! - One hit is enough to leave probation: what is read twice in a row was read once, by the page
//!   cache.
//! - More is remembered, so that loops larger than the cache are seen; and what comes back because
//!   it was remembered has two hits from the start.
//! - That it is remembered counts only while the main queue has something to give for it: copies
//!   there that were in use when their turn came speak against it ([`Gate`]), so that a loop
//!   does not push itself out.
//!
//! [`Rules`] are numbers; [`Gate`] is those and the little that has to be known of what happened.
//!
//! Invariants: hits never exceed [`Rules::hits_most`], and each time a copy is appended again
//! without moving on, it has one less, so that making room ends after so many rounds.

/// Segments that are gone over for a new copy before others are asked; see
/// [`Rules::gives_after`].
const PATIENCE: u32 = 8;

/// In which of two first-in-first-out queues a copy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// New ones, of which most are never asked for again.
    Probation,
    /// Those that were.
    Main,
}

/// How a copy came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// It was read, and the backing store had to be asked.
    Missed,
    /// It was written.
    Written,
    /// It was not asked for yet: readahead.
    Ahead,
}

/// What becomes of the oldest of a queue when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes to the end of a queue, with so many hits left.
    Again(Queue, u8),
    /// It goes, and is remembered (ghost).
    Remembered,
    /// It goes.
    Gone,
}

/// A policy: numbers, no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Share of the cache that copies on probation may keep; 0: there is no probation.
    pub probation_permille: u16,
    /// Hits that are counted, at most 3: two bits a copy.
    pub hits_most: u8,
    /// Hits with which a copy leaves probation for the main queue; with fewer it goes.
    pub hits_to_main: u8,
    /// Hits that a copy has from the start that goes to the main queue because its block was
    /// remembered.
    pub hits_of_remembered: u8,
    /// Blocks that are remembered after they had to go, in thousandths of those that are kept; 0:
    /// none.
    pub ghosts_permille: u16,
    /// Whether what is read goes to the main queue while there is room for all.
    pub fills_main: bool,
    /// What each copy in the main queue that was in use counts against remembered blocks, and what
    /// each that was not counts for them; see [`Gate`]. 0: nothing does.
    pub used_against: u16,
    /// See `used_against`.
    pub unused_for: u16,
}

impl Rules {
    /// One queue, and a second chance for what was hit, one a hit.
    pub const CLOCK: Self = Self {
        probation_permille: 0,
        hits_most: 3,
        hits_to_main: 0,
        hits_of_remembered: 0,
        ghosts_permille: 0,
        fills_main: false,
        used_against: 0,
        unused_for: 0,
    };

    /// As published: a tenth on probation, ghosts as many as there are copies in the main queue.
    pub const S3_FIFO: Self =
        Self { probation_permille: 100, hits_to_main: 2, ghosts_permille: 900, ..Self::CLOCK };

    /// Where a new copy of a block goes when others have to go for it. The last one of the block
    /// may be `remembered`, as far as that is heeded ([`Self::heeds`]); it counts if the block is
    /// read. `None`: it is not kept.
    pub fn place(&self, came: Came, remembered: bool) -> Option<Queue> {
        let known = remembered && came == Came::Missed;
        // What comes back soon after it had to go would have been hit with more patience.
        let main = known || self.probation_permille == 0;
        Some(if main { Queue::Main } else { Queue::Probation })
    }

    /// The same while nothing has to go for it: there is room, up to `limit_bytes`, of which the
    /// main queue has `main_bytes`.
    fn place_with_room(
        &self,
        came: Came,
        remembered: bool,
        (main_bytes, limit_bytes): (u64, u64),
    ) -> Option<Queue> {
        let share = u128::from(limit_bytes) * u128::from(1000 - self.probation_permille.min(1000));
        let reads = self.fills_main && came == Came::Missed;
        match self.place(came, remembered) {
            Some(_) if reads && u128::from(main_bytes) * 1000 < share => Some(Queue::Main),
            place => place,
        }
    }

    /// The hits that a new copy begins with.
    fn first_hits(&self, queue: Queue, remembered: bool) -> u8 {
        if queue == Queue::Main && remembered { self.hits_of_remembered } else { 0 }
    }

    /// The hits of a copy after one more.
    pub fn hit(&self, hits: u8) -> u8 {
        hits.saturating_add(1).min(self.hits_most)
    }

    /// Which queue gives up its oldest: probation once it has its share, or if nothing else is
    /// there.
    pub fn gives(&self, probation_bytes: u64, main_bytes: u64) -> Queue {
        let all = u128::from(probation_bytes) + u128::from(main_bytes);
        let over = u128::from(probation_bytes) * 1000 >= all * u128::from(self.probation_permille);
        if probation_bytes > 0 && (over || main_bytes == 0) {
            Queue::Probation
        } else {
            Queue::Main
        }
    }

    /// The same where memory is freed by segments, after so many were `gone_over` for one new copy,
    /// and whether what should stay may. No request waits for a walk over a main queue in which
    /// everything is in use: then those on probation are asked, which is hardly worse, and at last
    /// whatever is at the front goes.
    pub fn gives_after(
        &self,
        gone_over: u32,
        (probation_bytes, main_bytes): (u64, u64),
    ) -> (Queue, bool) {
        match gone_over / PATIENCE {
            0 => (self.gives(probation_bytes, main_bytes), true),
            1 => (Queue::Probation, true),
            _ => (self.gives(probation_bytes, main_bytes), false),
        }
    }

    /// What becomes of the oldest of a queue when room is needed.
    fn leave(&self, queue: Queue, hits: u8) -> Fate {
        match queue {
            Queue::Probation if hits >= self.hits_to_main => Fate::Again(Queue::Main, 0),
            Queue::Probation if self.ghosts_permille > 0 => Fate::Remembered,
            Queue::Main if hits > 0 => Fate::Again(Queue::Main, hits - 1),
            Queue::Probation | Queue::Main => Fate::Gone,
        }
    }

    /// What is `owed` to a main queue after its oldest met a fate: so many remembered blocks are
    /// taken for new ones. It grows while nearly everything there is in use when its turn comes,
    /// shrinks when something is not, and is at most twice the `blocks` that are kept, so that a
    /// queue that gets out of use gives way.
    fn owed(&self, owed: u32, queue: Queue, fate: Fate, blocks: u64) -> u32 {
        let most = u32::try_from(blocks.saturating_mul(2)).unwrap_or(u32::MAX);
        match (queue, fate) {
            (Queue::Main, Fate::Again(..)) => {
                owed.saturating_add(self.used_against.into()).min(most)
            }
            (Queue::Main, _) => owed.saturating_sub(self.unused_for.into()),
            (Queue::Probation, _) => owed,
        }
    }

    /// Whether it counts that a block which was read is remembered, and what is owed afterwards.
    fn heeds(&self, owed: u32) -> (bool, u32) {
        (owed == 0, owed.saturating_sub(1))
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            hits_to_main: 1,
            hits_of_remembered: 2,
            ghosts_permille: 2500,
            fills_main: true,
            used_against: 2,
            unused_for: 10,
            ..Self::S3_FIFO
        }
    }
}

/// The way into a cache and out of it.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    rules: Rules,
    /// Nothing had to go yet.
    filling: bool,
    /// See [`Rules::owed`].
    owed: u32,
}

impl Gate {
    /// That of an empty cache.
    pub fn new(rules: Rules) -> Self {
        Self { rules, filling: true, owed: 0 }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// There is more room than before.
    pub fn widen(&mut self) {
        self.filling = true;
    }

    /// Where the first copy of a block goes, and the hits that it begins with; `None`: it is not
    /// kept. `bytes` are those of the main queue and the most that there may be; `has_room` says
    /// whether nothing has to go for it.
    pub fn enter(
        &mut self,
        came: Came,
        mut remembered: bool,
        bytes: (u64, u64),
        has_room: impl FnOnce(Queue) -> bool,
    ) -> Option<(Queue, u8)> {
        let with_room = self.rules.place_with_room(came, remembered, bytes);
        let queue = if self.filling && with_room.is_some_and(has_room) {
            with_room
        } else {
            self.filling = false;
            if remembered && came == Came::Missed {
                (remembered, self.owed) = self.rules.heeds(self.owed);
            }
            self.rules.place(came, remembered)
        };
        queue.map(|queue| (queue, self.rules.first_hits(queue, remembered)))
    }

    /// What becomes of the oldest of a queue, with so many hits, of a cache of so many `blocks`.
    pub fn leave(&mut self, queue: Queue, hits: u8, blocks: u64) -> Fate {
        let fate = self.rules.leave(queue, hits);
        self.owed = self.rules.owed(self.owed, queue, fate, blocks);
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_probation_there_is_one_queue_and_nothing_is_remembered() {
        let clock = Rules::CLOCK;
        for came in [Came::Missed, Came::Written, Came::Ahead] {
            assert_eq!(clock.place(came, false), Some(Queue::Main));
        }
        assert_eq!(clock.gives(0, 1 << 40), Queue::Main);
        assert_eq!(clock.leave(Queue::Main, 0), Fate::Gone);
        assert_eq!(clock.leave(Queue::Main, 3), Fate::Again(Queue::Main, 2));
    }

    #[test]
    fn what_is_new_is_on_probation_and_what_was_remembered_is_not() {
        let rules = Rules::S3_FIFO;
        assert_eq!(rules.place(Came::Missed, false), Some(Queue::Probation));
        assert_eq!(rules.place(Came::Missed, true), Some(Queue::Main));
        // It was not asked for again.
        assert_eq!(rules.place(Came::Ahead, true), Some(Queue::Probation));
        assert_eq!(rules.place(Came::Written, true), Some(Queue::Probation));
    }

    #[test]
    fn while_there_is_room_what_is_read_fills_the_main_queue_first() {
        let rules = Rules::default();
        let place = |came, main| rules.place_with_room(came, false, (main, 1000));
        assert_eq!(place(Came::Missed, 0), Some(Queue::Main));
        assert_eq!(place(Came::Missed, 899), Some(Queue::Main));
        assert_eq!(place(Came::Missed, 900), Some(Queue::Probation));
        for came in [Came::Written, Came::Ahead] {
            assert_eq!(place(came, 0), Some(Queue::Probation));
        }
        let published = Rules::S3_FIFO.place_with_room(Came::Missed, false, (0, 1000));
        assert_eq!(published, Some(Queue::Probation));
        let full = rules.place_with_room(Came::Missed, true, (u64::MAX, u64::MAX));
        assert_eq!(full, Some(Queue::Main));
    }

    #[test]
    fn what_was_remembered_has_hits_from_the_start() {
        let rules = Rules::default();
        assert_eq!(rules.first_hits(Queue::Main, true), 2);
        assert_eq!(rules.first_hits(Queue::Main, false), 0);
        assert_eq!(rules.first_hits(Queue::Probation, true), 0);
        assert_eq!(Rules::S3_FIFO.first_hits(Queue::Main, true), 0);
    }

    #[test]
    fn a_main_queue_in_use_keeps_remembered_blocks_out_for_a_while() {
        let rules = Rules::default();
        let (used, unused) = (Fate::Again(Queue::Main, 0), Fate::Gone);
        let mut owed = 0;
        assert_eq!(rules.heeds(owed), (true, 0));
        for _ in 0..1000 {
            owed = rules.owed(owed, Queue::Main, used, 100);
        }
        assert_eq!(owed, 200, "no more than twice the blocks");
        assert_eq!(rules.owed(owed, Queue::Probation, used, 100), 200);
        assert_eq!(rules.heeds(owed), (false, 199));
        assert_eq!(rules.owed(owed, Queue::Main, unused, 100), 190);
        // Five in use to one that is not: nothing adds up.
        let mut owed = 0;
        for _ in 0..100 {
            for _ in 0..5 {
                owed = rules.owed(owed, Queue::Main, used, 100);
            }
            owed = rules.owed(owed, Queue::Main, unused, 100);
        }
        assert_eq!(owed, 0);
        let all = Rules::S3_FIFO.owed(0, Queue::Main, used, 100);
        assert_eq!(all, 0, "as published, everything remembered counts");
    }

    #[test]
    fn probation_ends_with_a_fate() {
        let rules = Rules::S3_FIFO;
        assert_eq!(rules.leave(Queue::Probation, 1), Fate::Remembered);
        assert_eq!(rules.leave(Queue::Probation, 2), Fate::Again(Queue::Main, 0));
        let forgetful = Rules { ghosts_permille: 0, ..rules };
        assert_eq!(forgetful.leave(Queue::Probation, 1), Fate::Gone);
    }

    #[test]
    fn probation_gives_from_its_share_on_and_if_it_is_all_there_is() {
        let rules = Rules::S3_FIFO;
        assert_eq!(rules.gives(99, 901), Queue::Main);
        assert_eq!(rules.gives(100, 900), Queue::Probation);
        assert_eq!(rules.gives(1, 0), Queue::Probation);
        assert_eq!(rules.gives(0, 1), Queue::Main);
        assert_eq!(rules.gives(0, 0), Queue::Main);
        assert_eq!(rules.gives(u64::MAX, u64::MAX), Queue::Probation);
        // Left over from other rules.
        assert_eq!(Rules::CLOCK.gives(1, 1 << 40), Queue::Probation);
    }

    #[test]
    fn no_request_waits_for_a_walk_over_everything() {
        let rules = Rules::default();
        let after = |gone_over| rules.gives_after(gone_over, (1, 99));
        assert_eq!((after(0), after(PATIENCE - 1)), ((Queue::Main, true), (Queue::Main, true)));
        assert_eq!(after(PATIENCE), (Queue::Probation, true));
        assert_eq!(after(2 * PATIENCE), (Queue::Main, false));
        assert_eq!(after(u32::MAX), (Queue::Main, false));
    }

    #[test]
    fn making_room_ends() {
        for rules in [Rules::CLOCK, Rules::S3_FIFO, Rules::default()] {
            assert!(rules.hits_most <= 3, "two bits");
            let mut hits = 0;
            for _ in 0..10 {
                hits = rules.hit(hits);
            }
            assert_eq!(hits, rules.hits_most);
            let (mut queue, mut rounds) = (Queue::Probation, 0);
            while let Fate::Again(next, left) = rules.leave(queue, hits) {
                assert!(next != queue || left < hits, "{rules:?}");
                (queue, hits, rounds) = (next, left, rounds + 1);
            }
            assert!(rounds <= 5, "{rules:?}");
        }
    }
}
