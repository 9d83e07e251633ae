//! Refault tracking: whether what goes down would better have stayed. What was overwritten or given
//! up there, before memory was turned over once, was written for nothing.
//!
//! A workload that goes over more data than memory holds, again and again, changes the oldest data
//! next: taking that down is the worst of all choices, and younger data is better. Only looking
//! back tells this from cold data, so some of what went down is looked at later.
//!
//! Invariant: a segment is known by its sequence, which never comes back.

/// So many that went down are remembered.
const MOST: usize = 32;
/// In so many parts memory is turned over; one that went down is remembered of each.
const PARTS: u64 = 16;
/// From this share of what went down on, in thousandths, it was in vain.
const IN_VAIN: u32 = 500;

/// A segment that went down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Its number.
    pub segment: u32,
    /// Its sequence.
    pub sequence: u64,
    /// Bytes that were live in it.
    pub live: u32,
}

/// What was learnt so far.
#[derive(Debug, Default)]
pub struct RefaultTracker {
    /// With how much had gone down before each; `None`: was looked at.
    gone: [Option<(Gone, u64)>; MOST],
    next: usize,
    /// Bytes that went down.
    down: u64,
    /// How much had gone down when one was remembered last.
    noted: u64,
    /// Share that was in vain, in thousandths, of the last few.
    vain: u32,
}

impl RefaultTracker {
    /// A segment goes down, from `memory` bytes of it.
    pub fn note(&mut self, gone: Gone, memory: u64) {
        self.down += u64::from(gone.live);
        if gone.live > 0 && self.down - self.noted >= memory / PARTS {
            self.gone[self.next % MOST] = Some((gone, self.down));
            self.next += 1;
            self.noted = self.down;
        }
    }

    /// Looks at those that went down when memory was turned over last; `live` says how many bytes
    /// are still live.
    pub fn look(&mut self, memory: u64, live: impl Fn(&Gone) -> u32) {
        for place in &mut self.gone {
            let Some((gone, _)) = place.take_if(|(_, at)| self.down - *at >= memory) else {
                continue;
            };
            let left = u64::from(live(&gone).min(gone.live)) * 1000 / u64::from(gone.live);
            self.vain = (self.vain + 1000 - left as u32) / 2;
        }
    }

    /// Whether to choose by chance instead of by age.
    pub fn is_in_vain(&self) -> bool {
        self.vain >= IN_VAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has segments of 10 bytes go down from 160 bytes of memory; `live` says how much is left of
    /// each, by its number, when so many have gone down.
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
        // It is forgotten when that ends.
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
