//! Refault tracking: detects premature spills. Data that is overwritten or discarded after its
//! spill, before memory was turned over once, was spilled in vain.
//!
//! A workload that repeatedly overwrites more data than memory holds changes the oldest data next:
//! spilling that is the worst of all choices, and younger data is better. Only hindsight tells this
//! from cold data, so some of the spilled segments are looked at later.
//!
//! Invariant: a segment is known by its sequence, which is never reused.

/// How many spilled segments are remembered.
const MOST: usize = 32;
/// One spilled segment is remembered in each of this many parts of a turnover of memory.
const PARTS: u64 = 16;
/// From this vain share of spilled bytes on, in thousandths, spilling by age counts as vain.
const IN_VAIN: u32 = 500;

/// A segment that was spilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Its number.
    pub segment: u32,
    /// Its sequence.
    pub sequence: u64,
    /// Bytes that were live in it when it was spilled.
    pub live: u32,
}

/// The tracker's samples and estimate.
#[derive(Debug, Default)]
pub struct RefaultTracker {
    /// Samples with the bytes spilled up to each; `None`: already looked at.
    gone: [Option<(Gone, u64)>; MOST],
    next: usize,
    /// Bytes spilled so far.
    down: u64,
    /// The value of `down` at the last sample.
    noted: u64,
    /// Share that was spilled in vain, in thousandths, averaged over recent samples.
    vain: u32,
}

impl RefaultTracker {
    /// Notes that a segment is spilled, from `memory` bytes of memory.
    pub fn note(&mut self, gone: Gone, memory: u64) {
        self.down += u64::from(gone.live);
        if gone.live > 0 && self.down - self.noted >= memory / PARTS {
            self.gone[self.next % MOST] = Some((gone, self.down));
            self.next += 1;
            self.noted = self.down;
        }
    }

    /// Looks at the samples that were spilled a whole turnover of memory ago; `live` returns the
    /// bytes that are still live.
    pub fn look(&mut self, memory: u64, live: impl Fn(&Gone) -> u32) {
        for place in &mut self.gone {
            let Some((gone, _)) = place.take_if(|(_, at)| self.down - *at >= memory) else {
                continue;
            };
            let left = u64::from(live(&gone).min(gone.live)) * 1000 / u64::from(gone.live);
            self.vain = (self.vain + 1000 - left as u32) / 2;
        }
    }

    /// Whether to choose victims by chance instead of by age.
    pub fn is_in_vain(&self) -> bool {
        self.vain >= IN_VAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spills `count` segments of 10 bytes from 160 bytes of memory; `live(n, now)` returns the
    /// bytes left in segment `n` when `now` segments have been spilled.
    fn after(count: u32, live: impl Fn(u32, u32) -> u32) -> RefaultTracker {
        let mut refaults = RefaultTracker::default();
        for n in 1..=count {
            refaults.note(Gone { segment: n, sequence: u64::from(n), live: 10 }, 160);
            refaults.look(160, |gone| live(gone.segment, n));
        }
        refaults
    }

    #[test]
    fn what_is_cold_is_no_mistake() {
        assert!(!after(1000, |_, _| 10).is_in_vain());
        assert!(!after(1000, |_, _| 6).is_in_vain());
        assert!(
            !after(1000, |n, now| if now - n > 20 { 0 } else { 10 }).is_in_vain(),
            "much later"
        );
    }

    #[test]
    fn what_is_overwritten_at_once_is() {
        let soon = |n, now| if now - n > 12 { 0 } else { 10 };
        assert!(!after(10, soon).is_in_vain(), "nothing is known yet");
        assert!(after(40, soon).is_in_vain());
        // The estimate recovers when that ends.
        assert!(!after(80, |n, now| if n < 40 { soon(n, now) } else { 10 }).is_in_vain());
    }

    #[test]
    fn few_are_remembered_of_much_memory() {
        let mut refaults = RefaultTracker::default();
        for n in 0..10_000 {
            refaults.note(Gone { segment: n, sequence: 1, live: 10 }, 50_000);
        }
        let looked = std::cell::Cell::new(0);
        refaults.look(50_000, |_| {
            looked.set(looked.get() + 1);
            0
        });
        assert_eq!(looked.get(), 15, "those of the turn before the last");
        assert!(refaults.is_in_vain());
    }
}
