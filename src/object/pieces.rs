//! A checkpoint as objects: pieces, which name each other like the parts of a window. Pure.
//!
//! Invariant: a checkpoint is believed only if its pieces are those that were made one after the
//! other, of which the root names the last one.

use super::checkpoint::{Unit, read};
use super::contents::Contents;
use super::format::{Damage, Identity, Part, Seed, Session, check_of, piece, read_piece};
use super::root::Checkpoint;

/// The key of a piece of the checkpoint of this generation.
pub fn key(generation: u64, number: u32) -> String {
    format!("index/{generation:016x}.{number:04x}")
}

/// Makes pieces.
#[derive(Clone, Debug)]
pub struct PieceWriter {
    seed: Seed,
    /// With the number of pieces, and the check word of the last, so far.
    checkpoint: Checkpoint,
}

impl PieceWriter {
    /// Of the checkpoint of `volume` that `session` begins with this generation of the root, for
    /// this slot.
    pub fn new(volume: Identity, session: Session, (generation, slot): (u64, u64)) -> Self {
        let seed = Seed { volume, session, slot };
        Self { seed, checkpoint: Checkpoint { generation, slot, session, pieces: 0, check: 0 } }
    }

    /// The next piece, with its key.
    pub fn add(&mut self, units: &[Unit], is_last: bool) -> (String, Vec<u8>) {
        let Checkpoint { generation: window, pieces: part, check: before, .. } = self.checkpoint;
        let content = piece(&self.seed, Part { window, part, commits: is_last, before }, units);
        self.checkpoint.pieces += 1;
        self.checkpoint.check = check_of(&content);
        (key(window, part), content)
    }

    /// What the root says of it, when the last piece was made.
    pub fn checkpoint(&self) -> Checkpoint {
        self.checkpoint
    }
}

/// Reads pieces, in their order.
#[derive(Clone, Debug)]
pub struct PieceReader {
    seed: Seed,
    checkpoint: Checkpoint,
    number: u32,
    before: u32,
    contents: Contents,
}

impl PieceReader {
    /// Of the checkpoint that a root of `volume` names.
    pub fn new(volume: Identity, checkpoint: Checkpoint) -> Self {
        let seed = Seed { volume, session: checkpoint.session, slot: checkpoint.slot };
        let contents = Contents { next: checkpoint.slot, ..Contents::default() };
        Self { seed, checkpoint, number: 0, before: 0, contents }
    }

    /// The number of the next piece; `None`: all were taken.
    pub fn next(&self) -> Option<u32> {
        (self.number < self.checkpoint.pieces).then_some(self.number)
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// It is not that piece.
    pub fn take(&mut self, content: &[u8]) -> Result<(), Damage> {
        let Checkpoint { generation: window, pieces, check, .. } = self.checkpoint;
        let commits = self.number + 1 == pieces;
        let of = Part { window, part: self.number, commits, before: self.before };
        let units = read_piece(content, &self.seed, of)?;
        (self.number, self.before) = (self.number + 1, check_of(content));
        if commits && self.before != check {
            return Err(Damage::Damaged);
        }
        read(units, &mut self.contents)
    }

    /// What the pieces say.
    pub fn contents(self) -> Contents {
        self.contents
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pieces_are_read_in_the_order_in_which_they_were_made() {
        let volume = [1; 16];
        let mut writer = PieceWriter::new(volume, [2; 16], (7, 33));
        // A unit says how many bytes there are in all windows.
        let units = [1_u8, 2, 3].map(|bytes| {
            let mut unit = [0; 16];
            (unit[7], unit[8]) = (5, bytes);
            [unit]
        });
        let made: Vec<_> = (0..3).map(|i| writer.add(&units[i], i == 2)).collect();
        assert_eq!(made[1].0, "index/0000000000000007.0001");
        let checkpoint = writer.checkpoint();
        assert_eq!((checkpoint.pieces, checkpoint.slot, checkpoint.generation), (3, 33, 7));
        let mut reader = PieceReader::new(volume, checkpoint);
        for (number, (_, content)) in (0..).zip(&made) {
            assert_eq!((reader.next(), reader.take(content)), (Some(number), Ok(())));
        }
        assert_eq!(reader.next(), None);
        let contents = reader.contents();
        assert_eq!((contents.next, contents.index.stored_bytes()), (33, 3));
        // Another last piece, or another order.
        let mut other = PieceWriter::new(volume, [2; 16], (7, 33));
        let others: Vec<_> = (0..3).map(|i| other.add(&units[2 - i], i == 2)).collect();
        let mut reader = PieceReader::new(volume, checkpoint);
        assert!(reader.take(&made[0].1).is_ok());
        assert!(reader.clone().take(&others[1].1).is_err());
        assert!(reader.take(&made[2].1).is_err());
        let mut reader = PieceReader::new(volume, Checkpoint { check: 0, ..checkpoint });
        assert!(reader.take(&made[0].1).is_ok() && reader.take(&made[1].1).is_ok());
        assert_eq!(reader.take(&made[2].1), Err(Damage::Damaged));
    }
}
