//! The cache policy: which copies stay. Pure functions of what is known of a copy.
//!
//! Copies stand in two first-in-first-out queues, because a log is one: a hit moves nothing and
//! changes only a few bits; a copy that should stay when its segment is evicted is appended again.
//! The rules have CLOCK with several bits (Corbató 1968; the second chance of many kernels) and
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction", SOSP
//! 2023) as special cases. [`Rules::default`] is S3-FIFO with changes that the comparison in
//! `docs/policy.md` shows to be worth it. Loops and scans are much of what a page cache lets
//! through, and on a loop that is larger than the cache S3-FIFO as published keeps nothing:
//!
//! - While there is room, read blocks go to the main queue. In a loop, a copy that stays is worth
//!   as much as a new one, and a queue in which nothing was hit yet would give up all copies.
//! - One hit is enough to leave probation: the page cache turns two reads in a row into one.
//! - There are more ghosts, so that loops larger than the cache are seen; and a block that comes
//!   back to a ghost has two hits from the start.
//! - A ghost counts only while the main queue has unused copies to give up: copies there that were
//!   in use when they could have been evicted count against it ([`Gate`]), so that a loop does not
//!   push itself out.
//!
//! [`Rules`] are numbers; [`Gate`] is the rules and the little state that they need.
//!
//! Invariants: hits never exceed [`Rules::hits_most`], and each time that a copy is appended again
//! to the same queue, it has one hit less, so that making room ends after a bounded number of
//! rounds.

/// Segments that are evicted for a new copy before another queue is tried; see
/// [`Rules::gives_after`].
const PATIENCE: u32 = 8;

/// The first-in-first-out queue in which a copy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// New copies, of which most are never requested again.
    Probation,
    /// Copies that were requested again, or came while there was room.
    Main,
}

/// How a copy came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// It was read by a request, from the backing store.
    Missed,
    /// It was written.
    Written,
    /// It was read ahead, and not requested yet.
    Ahead,
    /// The page cache has dropped it.
    Dropped,
}

impl Came {
    /// Whether the block was read by a request, now or before the page cache dropped it.
    fn is_read(self) -> bool {
        matches!(self, Self::Missed | Self::Dropped)
    }
}

/// What becomes of a copy when its segment is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is appended again to this queue, with this many hits left.
    Again(Queue, u8),
    /// It is dropped, and leaves a ghost.
    Remembered,
    /// It is dropped.
    Gone,
}

/// A policy: numbers, no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Share of the cache that copies on probation may keep, in thousandths; 0: there is no
    /// probation.
    pub probation_permille: u16,
    /// Hits that are counted, at most 3: two bits a copy.
    pub hits_most: u8,
    /// Hits with which a copy leaves probation for the main queue; with fewer it is dropped.
    pub hits_to_main: u8,
    /// Initial hits of a copy that goes to the main queue because its block has a ghost.
    pub hits_of_remembered: u8,
    /// Ghosts, in thousandths of the blocks that are kept; 0: none.
    pub ghosts_permille: u16,
    /// Whether read blocks go to the main queue while there is room.
    pub fills_main: bool,
    /// What each copy in the main queue that was in use counts against ghosts, and what each that
    /// was not (`unused_for`) counts for them; see [`Gate`]. 0: nothing does.
    pub used_against: u16,
    /// See `used_against`.
    pub unused_for: u16,
}

impl Rules {
    /// One queue; each hit gives a copy one more chance.
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

    /// The same below a page cache whose drops are followed. A copy there is asked for at most
    /// once, and comes back with its hits: half of the probation suffices.
    #[must_use]
    pub const fn exclusive(self) -> Self {
        Self { probation_permille: self.probation_permille / 2, ..self }
    }

    /// The queue of a new copy for which others must be evicted. The block may be `remembered` by a
    /// ghost, as far as that is heeded ([`Self::heeds`]); a ghost counts if the block is read.
    /// `None`: the block is not kept.
    pub fn place(&self, came: Came, remembered: bool) -> Option<Queue> {
        let known = remembered && came.is_read();
        // A block that comes back soon after its eviction would have been hit if it had stayed
        // longer.
        let main = known || self.probation_permille == 0;
        Some(if main { Queue::Main } else { Queue::Probation })
    }

    /// The queue of a new copy for which nothing must be evicted: there is room, up to
    /// `limit_bytes`, of which the main queue has `main_bytes`.
    fn place_with_room(
        &self,
        came: Came,
        remembered: bool,
        (main_bytes, limit_bytes): (u64, u64),
    ) -> Option<Queue> {
        let share = u128::from(limit_bytes) * u128::from(1000 - self.probation_permille.min(1000));
        let reads = self.fills_main && came.is_read();
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

    /// The queue that gives up its oldest segment: probation once it has its share, or if the main
    /// queue is empty.
    pub fn gives(&self, probation_bytes: u64, main_bytes: u64) -> Queue {
        let all = u128::from(probation_bytes) + u128::from(main_bytes);
        let over = u128::from(probation_bytes) * 1000 >= all * u128::from(self.probation_permille);
        if probation_bytes > 0 && (over || main_bytes == 0) {
            Queue::Probation
        } else {
            Queue::Main
        }
    }

    /// The queue that gives up its oldest segment after `gone_over` segments were evicted for one
    /// new copy, and whether copies may survive that. No request waits for a walk over a main queue
    /// in which everything is in use: after some segments probation is evicted, which is hardly
    /// worse, and at last the oldest segment goes with all of its copies.
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

    /// What becomes of a copy with `hits` when its segment in `queue` is evicted.
    fn leave(&self, queue: Queue, hits: u8) -> Fate {
        match queue {
            Queue::Probation if hits >= self.hits_to_main => Fate::Again(Queue::Main, 0),
            Queue::Probation if self.ghosts_permille > 0 => Fate::Remembered,
            Queue::Main if hits > 0 => Fate::Again(Queue::Main, hits - 1),
            Queue::Probation | Queue::Main => Fate::Gone,
        }
    }

    /// What is `owed` to a main queue after a copy met its fate: this many ghosts are ignored. It
    /// grows while nearly all copies there are in use when their segments are evicted, shrinks when
    /// a copy is not, and is at most twice the `blocks` that are kept, so that a queue that falls
    /// out of use gives way.
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

    /// Whether the ghost of a block that was read counts, and what is owed afterwards.
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

/// Decides which blocks are kept and which copies stay: the rules, and their state.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    rules: Rules,
    /// The rules that it was made with.
    own: Rules,
    /// Nothing was evicted for a new copy yet, or since [`Gate::widen`].
    filling: bool,
    /// See [`Rules::owed`].
    owed: u32,
}

impl Gate {
    /// The gate of an empty cache.
    pub fn new(rules: Rules) -> Self {
        Self { rules, own: rules, filling: true, owed: 0 }
    }

    /// The gate of an empty cache, by the same rules.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self { filling: true, owed: 0, ..*self }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// From now on the drops of the page cache above are followed, or not.
    pub fn follow(&mut self, follows: bool) {
        self.rules = if follows { self.own.exclusive() } else { self.own };
    }

    /// Whether nothing was evicted yet for what would go to probation otherwise.
    pub fn is_filling(&self) -> bool {
        self.filling
    }

    /// The limit was raised: there is more room than before.
    pub fn widen(&mut self) {
        self.filling = true;
    }

    /// The queue and the initial hits of a new copy; `None`: the block is not kept. `bytes` are
    /// those of the main queue and the most that there may be; `has_room` says whether nothing must
    /// be evicted.
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
            if remembered && came.is_read() {
                (remembered, self.owed) = self.rules.heeds(self.owed);
            }
            self.rules.place(came, remembered)
        };
        queue.map(|queue| (queue, self.rules.first_hits(queue, remembered)))
    }

    /// What becomes of a copy with `hits` when its segment in `queue` is evicted, in a cache of
    /// `blocks` copies.
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
        // The block was not requested again.
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
    fn a_gate_keeps_its_own_rules() {
        for own in [Rules::CLOCK, Rules::S3_FIFO, Rules::default()] {
            let mut gate = Gate::new(own);
            gate.follow(false);
            assert_eq!(*gate.rules(), own);
            gate.follow(true);
            assert_eq!(gate.rules().probation_permille, own.probation_permille / 2);
            gate = gate.anew();
            assert_eq!(*gate.rules(), own.exclusive());
            gate.follow(false);
            assert_eq!(*gate.rules(), own);
        }
    }

    #[test]
    fn making_room_ends() {
        for rules in [Rules::CLOCK, Rules::S3_FIFO, Rules::default(), Rules::default().exclusive()]
        {
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
