//! Decides whether a volume may hold what it holds after a power cut.
//!
//! Two contracts. With a log, the whole volume is the state after some prefix of the block writes
//! that covers the last acknowledged flush. Without, each block holds its flushed value or one
//! submitted later. A block reported as lost satisfies both: it was not served. A block that was
//! torn without a log may stay so until a write of it lasts.

use crate::content::Value;
use crate::history::History;
use std::fmt::Write;

/// What a read of a block found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A value that the run uses.
    Value(Value),
    /// An error that reports the block as lost.
    Lost,
    /// Bytes that no write has written.
    Foreign,
}

/// Limit on the blocks that a message names.
const NAMED_MAX: usize = 4;

/// The last position of a prefix that explains all of `seen`.
///
/// # Errors
/// If there is none: which blocks contradict the prefix that explains most.
pub fn prefix(history: &History, seen: &[Seen]) -> Result<u64, String> {
    prefixes(history, seen).map(|(_, last)| last)
}

/// The first and the last such position.
///
/// # Errors
/// As [`prefix`].
pub fn prefixes(history: &History, seen: &[Seen]) -> Result<(u64, u64), String> {
    assert_eq!(seen.len(), history.blocks() as usize);
    let length = (history.submitted() - history.floor()) as usize;
    // `value` is of the prefix after `since` writes.
    let matches = |block: usize, value: Value, since: usize| match seen[block] {
        Seen::Lost => true,
        Seen::Foreign => since == 0 && history.is_torn(block as u32, history.floor()),
        found => found == Seen::Value(value),
    };
    // For each prefix the number of blocks that it explains, as differences to the prefix before.
    let mut explains = vec![0i64; length + 2];
    let mut value = history.base().to_vec();
    let mut since = vec![0; seen.len()];
    for (i, (block, next)) in history.recent().enumerate() {
        let block = block as usize;
        if matches(block, value[block], since[block]) {
            explains[since[block]] += 1;
            explains[i + 1] -= 1;
        }
        (value[block], since[block]) = (next, i + 1);
    }
    for block in 0..seen.len() {
        if matches(block, value[block], since[block]) {
            explains[since[block]] += 1;
            explains[length + 1] -= 1;
        }
    }
    let (mut first, mut best, mut most, mut count) = (0, 0, -1, 0);
    for (k, change) in explains[..=length].iter().enumerate() {
        count += change;
        if count > most {
            first = k as u64;
        }
        if count >= most {
            (best, most) = (k as u64, count);
        }
    }
    if most == seen.len() as i64 {
        return Ok((history.floor() + first, history.floor() + best));
    }
    Err(contradictions(history, seen, history.floor() + best))
}

/// The blocks of `seen` that contradict the state at `position`.
fn contradictions(history: &History, seen: &[Seen], position: u64) -> String {
    let mut text = format!(
        "no prefix of writes {}..={} explains the volume; the nearest is {position}",
        history.floor(),
        history.submitted()
    );
    let state = history.state_at(position);
    let wrong = state.iter().zip(seen).enumerate();
    let is_wrong = |block: usize, value: Value, seen: Seen| match seen {
        Seen::Lost => false,
        Seen::Foreign => !history.is_torn(block as u32, position),
        found => found != Seen::Value(value),
    };
    let wrong: Vec<_> =
        wrong.filter(|(block, (value, seen))| is_wrong(*block, **value, **seen)).collect();
    for (block, (value, seen)) in wrong.iter().take(NAMED_MAX) {
        // Writing to a string cannot fail.
        let _ = write!(text, "; block {block}: expected {value:?}, found {}", say(**seen));
    }
    if wrong.len() > NAMED_MAX {
        let _ = write!(text, "; and {} blocks more", wrong.len() - NAMED_MAX);
    }
    text
}

fn say(seen: Seen) -> String {
    match seen {
        Seen::Value(value) => format!("{value:?}"),
        Seen::Lost => "an error".into(),
        Seen::Foreign => "bytes that were never written".into(),
    }
}

/// Whether each block holds its flushed value, or one submitted later.
///
/// # Errors
/// The first block that does not.
pub fn blocks(history: &History, seen: &[Seen]) -> Result<(), String> {
    assert_eq!(seen.len(), history.blocks() as usize);
    let base = history.base().iter().zip(seen).enumerate();
    let mut fine: Vec<bool> = base
        .map(|(block, (value, seen))| match *seen {
            Seen::Lost => true,
            Seen::Foreign => history.is_torn(block as u32, history.floor()),
            found => found == Seen::Value(*value),
        })
        .collect();
    for (block, value) in history.recent() {
        fine[block as usize] |= seen[block as usize] == Seen::Value(value);
    }
    match fine.iter().position(|fine| !fine) {
        None => Ok(()),
        Some(block) => Err(format!(
            "block {block} holds neither what was flushed, {:?}, nor anything later, but {}",
            history.base()[block],
            say(seen[block])
        )),
    }
}

/// Whether two recoveries of the same drives found the same content.
///
/// # Errors
/// The first block in which they differ.
pub fn same(first: &[Seen], second: &[Seen]) -> Result<(), String> {
    match first.iter().zip(second).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(block) => Err(format!(
            "recovering twice: block {block} was {} and is {}",
            say(first[block]),
            say(second[block])
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Flavour;
    use crate::rng::Rng;

    const BLOCKS: u32 = 6;

    /// A history of some writes, a third of them acknowledged.
    fn some_history(rng: &mut Rng, writes: u64) -> History {
        let mut history = History::new(vec![Value::Zero; BLOCKS as usize], 0);
        for _ in 0..writes {
            let block = rng.below(u64::from(BLOCKS)) as u32;
            let flavour = rng.pick(&[Flavour::Zero, Flavour::Stamp(3), Flavour::Word]);
            let value = history.draw(block, flavour);
            history.write(block, value);
        }
        history.acknowledge(rng.below(writes / 3 + 1));
        history
    }

    fn seen(state: &[Value]) -> Vec<Seen> {
        state.iter().map(|value| Seen::Value(*value)).collect()
    }

    #[test]
    fn every_prefix_from_the_floor_on_is_accepted() {
        for seed in 0..50 {
            let history = some_history(&mut Rng::new(seed), 40);
            for k in history.floor()..=history.submitted() {
                let state = history.state_at(k);
                let found = prefix(&history, &seen(&state)).unwrap();
                assert_eq!(history.state_at(found), state);
                assert!(found >= k, "the last that explains it");
                let (first, last) = prefixes(&history, &seen(&state)).unwrap();
                assert!(last == found && first <= k, "the first that explains it");
                assert_eq!(history.state_at(first), state);
                blocks(&history, &seen(&state)).unwrap();
            }
        }
    }

    /// Checks the oracle against the definition, on states that are mostly wrong.
    #[test]
    fn exactly_the_prefixes_are_accepted() {
        let mut rng = Rng::new(8);
        let (mut accepted, mut refused) = (0, 0);
        for seed in 0..400 {
            let history = some_history(&mut Rng::new(seed), 12);
            let mut state = history.state_at(history.submitted());
            for (block, value) in state.iter_mut().enumerate() {
                let k = rng.between(history.floor(), history.submitted());
                if rng.chance(300) {
                    *value = history.state_at(k)[block];
                }
            }
            let any = (history.floor()..=history.submitted()).any(|k| history.state_at(k) == state);
            assert_eq!(prefix(&history, &seen(&state)).is_ok(), any);
            blocks(&history, &seen(&state)).unwrap();
            if any { accepted += 1 } else { refused += 1 }
        }
        assert!(accepted > 50 && refused > 50, "{accepted} {refused}");
    }

    #[test]
    fn acknowledged_writes_may_not_go() {
        let mut history = History::new(vec![Value::Zero; 2], 0);
        let value = history.draw(1, Flavour::Stamp(0));
        history.write(1, value);
        let before = seen(&[Value::Zero, Value::Zero]);
        assert_eq!(prefix(&history, &before), Ok(0));
        history.acknowledge(1);
        let complaint = prefix(&history, &before).unwrap_err();
        assert!(complaint.contains("block 1: expected Stamp"), "{complaint}");
        blocks(&history, &before).unwrap_err();
    }

    #[test]
    fn a_later_write_without_an_earlier_one_is_refused() {
        let mut history = History::new(vec![Value::Zero; 2], 0);
        let (a, b) = (history.draw(0, Flavour::Word), history.draw(1, Flavour::Word));
        history.write(0, a);
        history.write(1, b);
        prefix(&history, &seen(&[a, Value::Zero])).unwrap();
        prefix(&history, &seen(&[Value::Zero, b])).unwrap_err();
        // Allowed without a log.
        blocks(&history, &seen(&[Value::Zero, b])).unwrap();
    }

    #[test]
    fn stale_foreign_and_lost_blocks() {
        let mut history = History::new(vec![Value::Zero; 2], 0);
        let (old, new) = (history.draw(0, Flavour::Stamp(1)), history.draw(0, Flavour::Stamp(1)));
        history.write(0, old);
        history.write(0, new);
        history.acknowledge(2);
        prefix(&history, &seen(&[old, Value::Zero])).unwrap_err();
        prefix(&history, &[Seen::Foreign, Seen::Value(Value::Zero)]).unwrap_err();
        blocks(&history, &[Seen::Foreign, Seen::Value(Value::Zero)]).unwrap_err();
        assert_eq!(prefix(&history, &[Seen::Lost, Seen::Value(Value::Zero)]), Ok(2));
        same(&seen(&[old]), &seen(&[old])).unwrap();
        same(&seen(&[old]), &seen(&[new])).unwrap_err();
    }

    #[test]
    fn a_torn_block_may_stay_so_until_a_write_lasts() {
        let mut history = History::new(vec![Value::Zero; 2], 0);
        history.adopt(vec![Value::Zero; 2], &[1]);
        let torn = [Seen::Value(Value::Zero), Seen::Foreign];
        assert_eq!(prefix(&history, &torn), Ok(0));
        let (a, b) = (history.draw(0, Flavour::Word), history.draw(1, Flavour::Word));
        history.write(1, b);
        history.write(0, a);
        assert_eq!(prefix(&history, &torn), Ok(0));
        blocks(&history, &torn).unwrap();
        let complaint = prefix(&history, &[Seen::Value(a), Seen::Foreign]).unwrap_err();
        assert!(complaint.contains("block 1: expected Word"), "{complaint}");
        prefix(&history, &[Seen::Foreign, Seen::Foreign]).unwrap_err();
        history.acknowledge(1);
        prefix(&history, &torn).unwrap_err();
        blocks(&history, &torn).unwrap_err();
    }

    /// Zeros are written again and again, so several ranges of positions explain them.
    #[test]
    fn a_value_that_comes_back_counts_each_time() {
        let mut history = History::new(vec![Value::Zero; 2], 0);
        let (a, b) = (history.draw(0, Flavour::Word), history.draw(1, Flavour::Word));
        for (block, value) in [(0, a), (0, Value::Zero), (1, b)] {
            history.write(block, value);
        }
        assert_eq!(prefix(&history, &seen(&[Value::Zero, Value::Zero])), Ok(2));
        assert_eq!(prefix(&history, &seen(&[a, Value::Zero])), Ok(1));
        assert_eq!(prefix(&history, &seen(&[Value::Zero, b])), Ok(3));
        prefix(&history, &seen(&[a, b])).unwrap_err();
    }
}
