//! The spill device of a volume, and what choosing segments for it remembers.

use super::policy::{self, CHILL, Candidate};
use super::refaults::{Gone, RefaultTracker};
use super::spill::{Spill, SpillTo};
use crate::media::Buffer;
use crate::ram::store::segment::Sealed;
use crate::ram::store::{Session, Store, Survey};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The spill device, and the state of spilling.
pub(super) struct Lower {
    pub(super) spill: Spill,
    pub(super) clock: Mutex<Clock>,
    /// Holds the bytes of a slot that is being emptied; its lock also serializes that work.
    pub(super) slot: Mutex<Buffer>,
    /// Live bytes in slots, as of the last look.
    pub(super) live: AtomicU64,
    pub(super) promoted: AtomicU64,
}

/// The state of the clock's hand, and the candidates that it came to last.
pub(super) struct Clock {
    pub(super) hand: u64,
    pub(super) refaults: RefaultTracker,
    /// Changes with each choice by chance.
    pub(super) seed: u64,
    pub(super) candidates: [Candidate; CHILL],
    /// How many of the candidates may still be spilled; the last goes first.
    pub(super) left: usize,
}

impl Lower {
    pub(super) fn new(to: SpillTo, store: &Store) -> Self {
        let size = store.segment_size();
        store.budget().add(Self::memory(store));
        let none = Candidate {
            sealed: Sealed { segment: 0, end: 0, dead: 0, sequence: 0 },
            survey: Survey::default(),
        };
        Self {
            spill: Spill::new(to, size),
            clock: Mutex::new(Clock {
                hand: 0,
                refaults: RefaultTracker::default(),
                seed: 0,
                candidates: [none; CHILL],
                left: 0,
            }),
            slot: Mutex::new(Buffer::new(size as usize)),
            live: AtomicU64::new(store.segments().live_below().0),
            promoted: AtomicU64::new(0),
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(store: &Store) -> u64 {
        u64::from(store.segment_size()) + size_of::<Self>() as u64
    }

    /// Live bytes in slots, as of the last look.
    pub(super) fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub(super) fn look(&self, store: &Store) {
        self.live.store(store.segments().live_below().0, Ordering::Relaxed);
    }
}

impl Clock {
    /// Surveys the next segments, and chooses among them.
    pub(super) fn move_hand(&mut self, store: &Store, session: &Session) {
        let segments = store.segments();
        let mut next = [self.candidates[0].sealed; CHILL];
        let live = |gone: &Gone| match segments.spilled(gone.segment) {
            Some(now) if now.sequence == gone.sequence => now.end.saturating_sub(now.dead),
            _ => 0,
        };
        self.refaults.look(store.budget().limit(), live);
        let by_chance = self.refaults.is_in_vain();
        let count = if by_chance {
            self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            policy::by_chance(segments.all_sealed(), self.seed, &mut next)
        } else {
            policy::behind_hand(segments.all_sealed(), self.hand, &mut next)
        };
        let mut found = 0;
        for sealed in &next[..count] {
            if let Some(sealed) = segments.claim(sealed.segment, sealed.sequence) {
                let survey = store.survey(session, sealed, false);
                segments.unclaim(sealed.segment);
                self.candidates[found] = Candidate { sealed, survey };
                found += 1;
            }
        }
        if let Some(last) = next[..count].last().filter(|_| !by_chance) {
            self.hand = last.sequence + 1;
        }
        let stay = policy::chill(&mut self.candidates[..found]);
        for Candidate { sealed, .. } in &self.candidates[..stay] {
            if let Some(sealed) = segments.claim(sealed.segment, sealed.sequence) {
                store.survey(session, sealed, true);
                segments.unclaim(sealed.segment);
            }
        }
        self.candidates[..found].rotate_left(stay);
        self.left = found - stay;
    }
}
