//! All requests to a volume: its block writes in log order, and which of them must last.
//!
//! Positions count block writes from the beginning of the run; a discard counts as one write of
//! zeros for each of its blocks, in ascending order. `base` is the state at position `floor`, which
//! every later state includes.

use crate::content::{Flavour, Value};
use std::collections::{BTreeSet, VecDeque};

/// The volume's past.
#[derive(Clone, Debug)]
pub struct History {
    /// Position of the last flush that was acknowledged, or of the last recovery.
    floor: u64,
    base: Vec<Value>,
    /// Blocks that a cut has torn while no log protected them, and that hold no value at `floor`.
    torn: BTreeSet<u32>,
    /// Block writes after `floor`.
    recent: VecDeque<(u32, Value)>,
    now: Vec<Value>,
    /// Position of the last write to each block.
    written: Vec<u64>,
    /// Position of the last write to each block up to `floor`.
    based: Vec<u64>,
    /// The last version drawn. No version is drawn twice, not even after a cut undid its write.
    version: u32,
}

impl History {
    /// The history of a volume that holds `base`, durably; `base` uses versions up to `version`.
    pub fn new(base: Vec<Value>, version: u32) -> Self {
        let (now, written) = (base.clone(), vec![0; base.len()]);
        let (based, recent, torn) = (written.clone(), VecDeque::new(), BTreeSet::new());
        Self { floor: 0, now, written, based, base, torn, recent, version }
    }

    /// The value of the next write of that flavour to `block`. The caller submits it or drops it.
    pub fn draw(&mut self, block: u32, flavour: Flavour) -> Value {
        self.version += 1;
        flavour.value(block, self.version)
    }

    /// Adds a write of `value` to `block`.
    pub fn write(&mut self, block: u32, value: Value) {
        self.recent.push_back((block, value));
        self.now[block as usize] = value;
        self.written[block as usize] = self.submitted();
    }

    /// The position of the last write to a block, also of one that a cut has undone.
    pub fn written_at(&self, block: u32) -> u64 {
        self.written[block as usize]
    }

    /// The position of the last write to a block up to `position`, which is not below `floor`.
    pub fn written_by(&self, block: u32, position: u64) -> u64 {
        let mut there = self.recent.iter().take((position - self.floor) as usize);
        let last = there.rposition(|(other, _)| *other == block);
        last.map_or(self.based[block as usize], |at| self.floor + 1 + at as u64)
    }

    /// The position of the last block write.
    pub fn submitted(&self) -> u64 {
        self.floor + self.recent.len() as u64
    }

    /// The position that every later state includes.
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    /// The content of a block before its last write, if that write is not acknowledged yet.
    pub fn before(&self, block: u32) -> Option<Value> {
        let last = self.written_at(block).checked_sub(self.floor + 1)? as usize;
        let earlier = self.recent.iter().take(last).rev().find(|(other, _)| *other == block);
        Some(earlier.map_or(self.base[block as usize], |(_, value)| *value))
    }

    /// Undoes the last write to a block: its writer got no answer.
    pub fn undo(&mut self, block: u32) {
        if let Some(before) = self.before(block) {
            let last = (self.written_at(block) - self.floor - 1) as usize;
            self.recent[last].1 = before;
            self.now[block as usize] = before;
        }
    }

    /// Everything up to `position` is durable. Acknowledgements may come in any order.
    pub fn acknowledge(&mut self, position: u64) {
        assert!(position <= self.submitted(), "only what was submitted can be acknowledged");
        while self.floor < position {
            if let Some((block, value)) = self.recent.pop_front() {
                self.base[block as usize] = value;
                self.torn.remove(&block);
                self.based[block as usize] = self.floor + 1;
            }
            self.floor += 1;
        }
    }

    /// The volume went back to `position`, durably: later writes are undone.
    pub fn restart(&mut self, position: u64) {
        assert!(position >= self.floor, "what was acknowledged cannot be taken back");
        self.recent.truncate((position - self.floor) as usize);
        self.acknowledge(position);
        self.now.clone_from(&self.base);
    }

    /// Later writes than the one at `position` are undone.
    pub fn forget_after(&mut self, position: u64) {
        self.recent.truncate(position.saturating_sub(self.floor) as usize);
        self.now = self.state_at(self.submitted());
    }

    /// The volume holds `state`, durably, whatever was submitted, but for the blocks that are
    /// `torn`.
    pub fn adopt(&mut self, state: Vec<Value>, torn: &[u32]) {
        self.acknowledge(self.submitted());
        self.base.clone_from(&state);
        self.now = state;
        self.torn = torn.iter().copied().collect();
    }

    /// Whether a block is torn at `position`, which is not below `floor`: no write up to there has
    /// mended it.
    pub fn is_torn(&self, block: u32, position: u64) -> bool {
        let mut there = self.recent.iter().take((position - self.floor) as usize);
        self.torn.contains(&block) && !there.any(|(other, _)| *other == block)
    }

    /// The content of each block at position `floor`.
    pub fn base(&self) -> &[Value] {
        &self.base
    }

    /// Block writes after `floor`, in order.
    pub fn recent(&self) -> impl Iterator<Item = (u32, Value)> {
        self.recent.iter().copied()
    }

    /// The content of each block after all submitted writes.
    pub fn now(&self) -> &[Value] {
        &self.now
    }

    /// Number of blocks in the volume.
    pub fn blocks(&self) -> u32 {
        self.base.len() as u32
    }

    /// The content of each block at `position`, which is not below `floor`.
    pub fn state_at(&self, position: u64) -> Vec<Value> {
        let mut state = self.base.clone();
        for (block, value) in self.recent.iter().take((position - self.floor) as usize) {
            state[*block as usize] = *value;
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_floors_and_restarts() {
        let mut history = History::new(vec![Value::Zero; 3], 0);
        let write = |history: &mut History, block| {
            let value = history.draw(block, Flavour::Stamp(9));
            history.write(block, value);
            value
        };
        let first = write(&mut history, 0);
        let second = write(&mut history, 1);
        let third = write(&mut history, 0);
        assert_eq!((history.floor(), history.submitted()), (0, 3));
        assert_eq!(history.now(), [third, second, Value::Zero]);
        assert_eq!(history.state_at(1), [first, Value::Zero, Value::Zero]);
        let by = |history: &History, position| [0, 1, 2].map(|b| history.written_by(b, position));
        assert_eq!(
            [0, 1, 2, 3].map(|k| by(&history, k)),
            [[0; 3], [1, 0, 0], [1, 2, 0], [3, 2, 0]]
        );
        history.acknowledge(2);
        history.acknowledge(1);
        assert_eq!(history.base(), [first, second, Value::Zero]);
        assert_eq!([2, 3].map(|k| by(&history, k)), [[1, 2, 0], [3, 2, 0]]);
        assert_eq!(history.recent().collect::<Vec<_>>(), [(0, third)]);
        history.restart(2);
        assert_eq!(history.now(), [first, second, Value::Zero]);
        assert_eq!(history.submitted(), 2);
        assert_ne!(write(&mut history, 0), third, "versions are not given out again");
    }

    #[test]
    fn a_torn_block_is_mended_by_a_write_that_lasts() {
        let mut history = History::new(vec![Value::Zero; 2], 0);
        history.adopt(vec![Value::Zero; 2], &[1]);
        let value = history.draw(1, Flavour::Word);
        history.write(1, value);
        let floor = history.floor();
        assert_eq!([0, 1].map(|n| history.is_torn(1, floor + n)), [true, false]);
        assert!(!history.is_torn(0, floor));
        // A cut undoes the write.
        history.restart(floor);
        assert!(history.is_torn(1, floor));
        history.write(1, value);
        history.acknowledge(floor + 1);
        assert!(!history.is_torn(1, floor + 1));
    }
}
