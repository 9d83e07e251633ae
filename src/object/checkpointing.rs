//! The thread of an object drive that makes checkpoints, so that the next owner reads a part of the
//! chain only.
//!
//! Invariants: a checkpoint is of windows that are in the store; its pieces are there before the
//! root names it; pieces are removed only after a change of the root that is confirmed, and that
//! does not name them.

use super::change::What;
use super::checkpoint::write_blocks;
use super::contents::Since;
use super::pieces::{PieceWriter, key};
use super::store::{Failure, Store};
use super::uploads::Shared;
use bytes::Bytes;
use std::time::Duration;

/// Objects behind the newest checkpoint from which on another is made if it is cheap.
const OBJECTS: u64 = 64;
/// It is cheap if the payloads of these objects have this many times its bytes.
const CHEAP: u64 = 8;
/// Objects from which on it is made anyway: a takeover would take seconds longer.
const OBJECTS_MAX: u64 = 4096;
/// Bytes that a block takes in a checkpoint, and less in leaves that are full.
const BLOCK_BYTES: u64 = 20;
/// Units of a piece.
const PIECE: usize = (4 << 20) / 16;
/// Units that are collected while requests wait.
const COLLECTED: usize = 4096;
/// Interval between looks whether a checkpoint is due.
const LOOK: Duration = Duration::from_millis(500);
/// Pause before a store that fails is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether a checkpoint of `blocks` blocks is due.
fn is_due(since: Since, blocks: u64) -> bool {
    let cheap = since.bytes / CHEAP >= blocks * BLOCK_BYTES;
    since.objects >= OBJECTS_MAX || since.objects >= OBJECTS && cheap
}

/// Why a checkpoint was not made.
enum Undone {
    /// The drive stops, or has another owner.
    Stops,
    /// The store fails, or has something in the place of a piece.
    Failed(Failure),
}

impl From<Failure> for Undone {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The work of the thread, until the drive stops.
pub fn keep_checkpoints(shared: &Shared) {
    while !shared.ends() {
        let due = {
            let state = shared.state.lock();
            is_due(state.contents.since, state.contents.index.blocks())
        };
        let done = if due { make(shared) } else { Ok(()) };
        if let Err(Undone::Failed(failure)) = &done
            && !shared.ends()
        {
            shared.note_failure(failure);
        }
        shared.pause(if done.is_err() { PAUSE } else { LOOK });
    }
}

fn make(shared: &Shared) -> Result<(), Undone> {
    let left = shared.root().begun;
    let begun = shared.change(What::Begin)?;
    let newest = begun.checkpoint.map_or(0, |newest| newest.generation);
    for generation in [left, begun.stale].into_iter().filter(|left| *left != newest) {
        remove(shared, generation)?;
    }
    let (slot, since, mut units) = {
        let state = shared.state.lock();
        let (slot, units) = state.checkpoint();
        (slot, state.contents.since, units)
    };
    let mut writer = PieceWriter::new(shared.volume, begun.session, (begun.generation, slot));
    let mut leaf = Some(0);
    while let Some(mut from) = leaf {
        while units.len() < PIECE {
            let most = units.len() + COLLECTED;
            let state = shared.state.lock();
            leaf = write_blocks(&state.contents.index, from, most, &mut units);
            let Some(next) = leaf else { break };
            from = next;
        }
        put(shared, writer.add(&units, leaf.is_none()))?;
        units.clear();
    }
    let named = shared.change(What::Checkpoint(writer.checkpoint()))?;
    shared.state.lock().contents.since.subtract(since);
    remove(shared, named.stale)
}

/// Puts a piece, until it is there.
fn put(shared: &Shared, (key, content): (String, Vec<u8>)) -> Result<(), Undone> {
    let content = [Bytes::from(content)];
    while !shared.ends() {
        match shared.store.create_large(&key, &content) {
            Ok(()) => return Ok(()),
            // By a request whose answer was lost.
            Err(Failure::Exists) => match shared.store.get(&key) {
                Ok((found, _)) if found == content[0] => return Ok(()),
                Ok(_) => return Err(Failure::Exists.into()),
                Err(failure) => shared.note_failure(&failure),
            },
            Err(failure) => shared.note_failure(&failure),
        }
        shared.pause(PAUSE);
    }
    Err(Undone::Stops)
}

/// Removes the pieces of the checkpoint of a generation; 0 is none. The first goes last, so that
/// those that stay are found again.
fn remove(shared: &Shared, generation: u64) -> Result<(), Undone> {
    let is_there = |number: &u32| shared.store.get_range(&key(generation, *number), 0..1).is_ok();
    let count = if generation == 0 { 0 } else { (0..).take_while(is_there).count() as u32 };
    for number in (0..count).rev() {
        if shared.ends() {
            return Err(Undone::Stops);
        }
        match shared.store.remove(&key(generation, number)) {
            Ok(()) | Err(Failure::Missing) => {}
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_due_when_it_is_cheap_and_of_a_long_chain_always() {
        let due = |objects, bytes, blocks| is_due(Since { objects, bytes }, blocks);
        assert!(!due(OBJECTS - 1, u64::MAX, 1));
        assert!(due(OBJECTS, 160_000, 1000) && !due(OBJECTS, 150_000, 1000));
        assert!(due(OBJECTS_MAX, 0, 1 << 24) && !due(OBJECTS_MAX - 1, 0, 1));
    }
}
