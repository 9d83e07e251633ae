//! The only object of a volume that changes. `docs/object-format.md` draws it. Pure.
//!
//! Invariant: it changes by compare-and-swap only, so of each generation there is one.

use super::format::{
    Damage, HEAD, Identity, KIND_ROOT, MAGIC, Session, VERSION, WIDTH, array, get4, get8, known,
};

/// Bytes of a root.
const ROOT: usize = 512;
/// Most bytes of an owner's name in a root.
pub const OWNER_MAX: usize = 256;
const OWNER_AT: usize = 112;
const CHECKPOINT_AT: usize = 384;
const BEGUN_AT: usize = 424;
const ROOT_CRC_AT: usize = ROOT - 4;

/// The index at a slot, as pieces of their own: the chain before it need not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The root's generation with which it was begun; its pieces are named by it.
    pub generation: u64,
    /// It has the windows that end before this slot, whole; of later ones it may have blocks.
    pub slot: u64,
    /// The session that made it: the owner of the chain at that slot.
    pub session: Session,
    /// Number of its pieces.
    pub pieces: u32,
    /// [`check_of`] the last one.
    pub check: u32,
}

/// The only object that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The volume.
    pub volume: Identity,
    /// Bytes of the volume.
    pub size: u64,
    /// Rises with each change.
    pub generation: u64,
    /// The session that owns the volume, or owned it last.
    pub session: Session,
    /// The slot of its fence; with no owner yet, the first slot.
    pub fence: u64,
    /// Whether it ended in order.
    pub ended: bool,
    /// The owner, in words.
    pub owner: String,
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The generation of a checkpoint that was begun, and did not end; 0: none.
    pub begun: u64,
    /// The generation of the checkpoint before, whose pieces are to be removed; 0: none.
    pub stale: u64,
}

impl Root {
    /// That of a new volume of `size` bytes.
    pub fn new(volume: Identity, size: u64) -> Self {
        Self {
            volume,
            size,
            generation: 0,
            session: [0; 16],
            fence: 0,
            ended: true,
            owner: String::new(),
            checkpoint: None,
            begun: 0,
            stale: 0,
        }
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ROOT);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[KIND_ROOT, u8::from(self.ended)]);
        out.extend_from_slice(&(WIDTH as u32).to_le_bytes());
        out.extend_from_slice(&self.volume);
        out.extend_from_slice(&self.session);
        for number in [self.size, self.generation, self.fence] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.resize(OWNER_AT - 2, 0);
        let owner = self.owner.floor_char_boundary(OWNER_MAX);
        out.extend_from_slice(&(owner as u16).to_le_bytes());
        out.extend_from_slice(&self.owner.as_bytes()[..owner]);
        out.resize(CHECKPOINT_AT, 0);
        if let Some(Checkpoint { generation, slot, session, pieces, check }) = self.checkpoint {
            out.extend_from_slice(&generation.to_le_bytes());
            out.extend_from_slice(&slot.to_le_bytes());
            out.extend_from_slice(&session);
            out.extend_from_slice(&pieces.to_le_bytes());
            out.extend_from_slice(&check.to_le_bytes());
        }
        out.resize(BEGUN_AT, 0);
        out.extend_from_slice(&self.begun.to_le_bytes());
        out.extend_from_slice(&self.stale.to_le_bytes());
        out.resize(ROOT_CRC_AT, 0);
        out.extend_from_slice(&crc_fast::crc32_iscsi(&out).to_le_bytes());
        out
    }

    /// Of bytes.
    ///
    /// # Errors
    /// It is no root, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let volume = if bytes.len() < HEAD { [0; 16] } else { array(bytes, 16) };
        let kind = known(bytes, &volume)?;
        let whole = bytes.len() == ROOT
            && get4(bytes, ROOT_CRC_AT) == crc_fast::crc32_iscsi(&bytes[..ROOT_CRC_AT]);
        if !whole || kind != KIND_ROOT || u64::from(get4(bytes, 12)) != WIDTH {
            return Err(Damage::Damaged);
        }
        let len = usize::from(u16::from_le_bytes([bytes[OWNER_AT - 2], bytes[OWNER_AT - 1]]));
        let owner = bytes.get(OWNER_AT..OWNER_AT + len.min(OWNER_MAX)).unwrap_or_default();
        let number = |at: usize| get8(bytes, CHECKPOINT_AT + at);
        let checkpoint = Checkpoint {
            generation: number(0),
            slot: number(8),
            session: array(bytes, CHECKPOINT_AT + 16),
            pieces: get4(bytes, CHECKPOINT_AT + 32),
            check: get4(bytes, CHECKPOINT_AT + 36),
        };
        Ok(Self {
            volume,
            size: get8(bytes, 48),
            generation: get8(bytes, 56),
            session: array(bytes, 32),
            fence: get8(bytes, 64),
            ended: bytes[11] == 1,
            owner: String::from_utf8_lossy(owner).into_owned(),
            checkpoint: (checkpoint.pieces > 0).then_some(checkpoint),
            begun: get8(bytes, BEGUN_AT),
            stale: get8(bytes, BEGUN_AT + 8),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_root_is_read_as_it_was_made() {
        let root = Root {
            generation: 3,
            session: [2; 16],
            fence: 77,
            owner: "v on host".into(),
            begun: 4,
            stale: 5,
            ..Root::new([1; 16], 1 << 40)
        };
        assert_eq!(root.encode().len(), ROOT);
        assert_eq!(Root::decode(&root.encode()), Ok(root.clone()));
        let (generation, slot, session, check) = (2, 1 << 33, [7; 16], 0xfeed_beef);
        let checkpoint = Some(Checkpoint { generation, slot, session, pieces: 3, check });
        let long = Root { owner: "ä".repeat(300), checkpoint, ..root };
        let found = Root::decode(&long.encode()).unwrap();
        assert_eq!((found.owner, found.checkpoint), ("ä".repeat(128), checkpoint));
    }

    #[test]
    fn a_root_that_was_changed_anywhere_is_not_believed() {
        let good = Root::new([1; 16], 4096).encode();
        for at in 0..ROOT {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(Root::decode(&bad).is_err(), "byte {at}");
        }
        let mut newer = good;
        newer[8] = VERSION as u8 + 1;
        assert_eq!(Root::decode(&newer), Err(Damage::Newer(VERSION + 1)));
    }
}
