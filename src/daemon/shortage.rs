//! Notices that memory and swap are nearly full, before the kernel has to end programs.
//!
//! What counts is the room for further pages: available memory, and what swap can really take, at
//! the present compression and without ballast. Little room is a shortage; somewhat more room is
//! one, too, while programs wait for memory much of the time.
//!
//! Invariant: a shortage that has begun ends only with clearly more room, so that a use that varies
//! a little is one shortage.

use crate::system::usage::SwapWith;
use std::time::{Duration, Instant};

/// A shortage is less room than this part of all memory and swap …
const PART: u64 = 8;
/// … or less than this part, while programs wait.
const WAITING_PART: u64 = 4;
/// The share of the time that some program waits for memory, from which it counts.
const WAITS: f64 = 0.2;
/// The interval over which waits are measured.
const MEASURE: Duration = Duration::from_secs(2);

/// Room for further pages of programs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Without ending or discarding anything.
    pub free: u64,
    /// If nothing were used.
    pub total: u64,
}

impl Room {
    /// Of a machine with `memory` bytes, of which `available` are, and the swap areas `swap`. The
    /// volume's own area has `ballast`, and no more than `takes` bytes fit in, if that is known.
    pub fn of(
        (memory, available): (u64, u64),
        swap: &SwapWith,
        (ballast, takes): (u64, Option<u64>),
    ) -> Self {
        let unused = swap.size.saturating_sub(swap.used.saturating_sub(ballast));
        // Of other areas nothing more is known than their size.
        let takes = takes.filter(|_| swap.alone).unwrap_or(u64::MAX);
        Self {
            free: available.saturating_add(unused.min(takes)),
            total: memory.saturating_add(swap.size),
        }
    }
}

/// The share of the time in which some program waits for memory.
#[derive(Debug, Default)]
struct Waits {
    last: Option<(u64, Instant)>,
    share: f64,
}

impl Waits {
    /// The share at `now`, if programs have waited for `stalled` microseconds since the start of
    /// the machine.
    fn share(&mut self, stalled: Option<u64>, now: Instant) -> f64 {
        let Some(stalled) = stalled else { return 0.0 };
        let (before, at) = *self.last.get_or_insert((stalled, now));
        let time = now.saturating_duration_since(at);
        if time >= MEASURE {
            self.share = stalled.saturating_sub(before) as f64 / time.as_micros() as f64;
            self.last = Some((stalled, now));
        }
        self.share
    }
}

/// Whether there is a shortage.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    is: bool,
    waits: Waits,
}

impl Shortage {
    /// Whether there is one at `now`, with this `room`, and the time that programs have waited.
    pub fn look(&mut self, room: Room, stalled: Option<u64>, now: Instant) -> bool {
        let share = self.waits.share(stalled, now);
        // What ends it is half as much again as what begins it.
        let (times, waits) = if self.is { (3, WAITS / 2.0) } else { (2, WAITS) };
        let less = |part| room.free < room.total / part / 2 * times;
        self.is = less(PART) || share >= waits && less(WAITING_PART);
        self.is
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn room_is_what_memory_has_and_swap_really_takes() {
        let swap = SwapWith { alone: true, size: 1000, used: 600 };
        let of = |swap, takes| Room::of((2000, 300), swap, (100, takes));
        assert_eq!(of(&swap, None), Room { free: 300 + 500, total: 3000 });
        assert_eq!(of(&swap, Some(50)).free, 350);
        assert_eq!(of(&SwapWith { alone: false, ..swap }, Some(50)).free, 800);
    }

    #[test]
    fn a_shortage_ends_with_clearly_more_room() {
        let (mut shortage, now) = (Shortage::default(), Instant::now());
        let mut at =
            |free: u64| shortage.look(Room { free: free * MIB, total: 800 * MIB }, None, now);
        assert_eq!(
            [101, 99, 101, 149, 151, 101].map(&mut at),
            [false, true, true, true, false, false]
        );
    }

    #[test]
    fn programs_that_wait_make_it_a_shortage_earlier() {
        let (mut shortage, begun) = (Shortage::default(), Instant::now());
        let mut at = |seconds: u64, waited_ms: u64, free: u64| {
            let now = begun + Duration::from_secs(seconds);
            shortage.look(Room { free, total: 800 }, Some(waited_ms * 1000), now)
        };
        assert!(!at(0, 5000, 190));
        assert!(!at(2, 5300, 190), "15 % of the time");
        assert!(!at(4, 5900, 210), "there is room");
        assert!(at(5, 5900, 190), "30 % of the time");
        assert!(at(6, 6300, 290), "20 % of the time");
        assert!(!at(8, 6301, 290), "nothing waits");
    }
}
