//! What a log says in the last part of each of its windows. `docs/object-format.md` draws it. Pure.

use super::format::{Damage, Seed, get4, get8};
use crate::media::{Commit, Tail};

/// Bytes of a mark.
pub const MARK: usize = 56;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The log's UUID.
    pub log: [u8; 16],
    /// The window has everything before this tail of the log.
    pub tail: Tail,
    /// The time of the state, in seconds since 1970; 0: unknown.
    pub at_s: u64,
    /// Since when the store holds a mixture of states, in seconds since 1970; 0: a past state.
    pub mixture_s: u64,
}

impl Mark {
    /// That of a commit.
    pub fn of(commit: &Commit) -> Self {
        let Commit { log, tail, at_s, mixture_s, .. } = *commit;
        Self { log, tail, at_s, mixture_s }
    }

    /// The commit, without what is lost.
    pub fn commit(&self) -> Commit {
        let Self { log, tail, at_s, mixture_s } = *self;
        Commit { log, tail, at_s, mixture_s, lost: Vec::new() }
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MARK);
        out.extend_from_slice(&self.log);
        out.extend_from_slice(&self.tail.segment.to_le_bytes());
        out.extend_from_slice(&self.tail.chunk.to_le_bytes());
        out.extend_from_slice(&u64::from(self.tail.prev).to_le_bytes());
        out.extend_from_slice(&self.at_s.to_le_bytes());
        out.extend_from_slice(&self.mixture_s.to_le_bytes());
        out
    }

    /// Of bytes, whose entry has this check word.
    ///
    /// # Errors
    /// They are damaged.
    pub fn decode(bytes: &[u8], seed: &Seed, check: u32) -> Result<Self, Damage> {
        if bytes.len() != MARK || seed.mark(bytes) != check {
            return Err(Damage::Damaged);
        }
        let mut log = [0; 16];
        log.copy_from_slice(&bytes[..16]);
        let tail = Tail { segment: get8(bytes, 16), chunk: get8(bytes, 24), prev: get4(bytes, 32) };
        Ok(Self { log, tail, at_s: get8(bytes, 40), mixture_s: get8(bytes, 48) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_made_and_damage_is_seen() {
        let tail = Tail { segment: 1 << 40, chunk: 77, prev: 0xdead_beef };
        let mark = Mark { log: [9; 16], tail, at_s: 1_700_000_000, mixture_s: 5 };
        let seed = Seed { volume: [1; 16], session: [2; 16], slot: 3 };
        let (bytes, check) = (mark.encode(), seed.mark(&mark.encode()));
        assert_eq!(bytes.len(), MARK);
        assert_eq!(Mark::decode(&bytes, &seed, check), Ok(mark));
        assert_eq!(Mark::of(&mark.commit()), mark);
        for at in 0..MARK {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(Mark::decode(&bad, &seed, check), Err(Damage::Damaged));
        }
        let other = Seed { slot: 4, ..seed };
        assert_eq!(Mark::decode(&bytes, &other, check), Err(Damage::Damaged));
        assert_eq!(Mark::decode(&bytes[1..], &seed, check), Err(Damage::Damaged));
    }
}
