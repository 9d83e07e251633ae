//! The contents of a chain at a slot, as units of 16 bytes. `docs/object-format.md` draws them.
//! Pure.
//!
//! Invariant: a unit says what was so at the slot, or, of blocks, later: windows from the slot on
//! are applied again, and their last one that has a block counts.

use super::contents::Contents;
use super::format::{Damage, ENTRY, code, coding, get4, get8};
use super::index::{Index, LEAF, Place};
use super::window_end::WindowEnd;

/// See the module.
pub type Unit = [u8; ENTRY];

/// The kind of a unit, in the last of its first eight bytes.
const LEAF_OF: u64 = 1;
const LOST: u64 = 2;
const SESSION: u64 = 3;
const END: u64 = 4;
const STORED: u64 = 5;
const KIND_BITS: u32 = 56;

fn unit(kind: u64, number: u64, word: u64) -> Unit {
    pair(kind << KIND_BITS | number, word)
}

fn pair(one: u64, two: u64) -> Unit {
    (u128::from(two) << 64 | u128::from(one)).to_le_bytes()
}

fn place_unit(place: &Place) -> Unit {
    let Place { at, check, len, coding } = *place;
    pair(at, u64::from(check) | u64::from(len) << 32 | u64::from(code(coding)) << 48)
}

fn place_of(unit: &Unit) -> Option<Place> {
    let (at, check, coding) = (get8(unit, 0), get4(unit, 8), coding(unit[14])?);
    Some(Place { at, check, len: u16::from_le_bytes([unit[12], unit[13]]), coding })
}

/// All but the blocks.
pub fn write_rest(contents: &Contents, units: &mut Vec<Unit>) {
    units.push(unit(STORED, 0, contents.index.stored_bytes()));
    for (slot, session) in contents.sessions.iter() {
        units.extend([unit(SESSION, slot, 0), session]);
    }
    if let Some(WindowEnd { slot, check, session, mark }) = &contents.end {
        let (range, word) = mark.clone().unwrap_or_default();
        units.push(unit(END, *slot, u64::from(*check) | u64::from(word) << 32));
        units.extend([*session, pair(range.start.into(), range.end.into())]);
    }
    for lost in contents.index.lost() {
        units.push(unit(LOST, lost.start, lost.end - lost.start));
    }
}

/// Blocks from the leaf `from` on, until there are `most` units. Returns the next leaf; `None`:
/// that was the last.
pub fn write_blocks(
    index: &Index,
    mut from: u64,
    most: usize,
    units: &mut Vec<Unit>,
) -> Option<u64> {
    while units.len() < most {
        let (number, leaf) = index.leaf(from)?;
        let there = (0..LEAF).filter(|i| leaf[*i as usize].is_some());
        units.push(unit(LEAF_OF, number, there.map(|i| 1 << i).sum()));
        units.extend(leaf.iter().flatten().map(place_unit));
        from = number + 1;
    }
    Some(from)
}

/// Adds what units say to `contents`.
///
/// # Errors
/// They are no units of a checkpoint.
pub fn read(units: &[Unit], contents: &mut Contents) -> Result<(), Damage> {
    let mut rest = units.iter();
    while let Some(unit) = rest.next() {
        let (kind, number) = (get8(unit, 0) >> KIND_BITS, get8(unit, 0) & ((1 << KIND_BITS) - 1));
        let word = get8(unit, 8);
        let mut next = || rest.next().ok_or(Damage::Damaged);
        match kind {
            STORED => contents.index.restore_stored(word),
            SESSION => contents.sessions.begin(number, *next()?),
            END => {
                let (session, range) = (*next()?, *next()?);
                let range = get8(&range, 0) as u32..get8(&range, 8) as u32;
                let mark = (!range.is_empty()).then_some((range, (word >> 32) as u32));
                contents.end = Some(WindowEnd { slot: number, check: word as u32, session, mark });
            }
            LOST => {
                let end = number.checked_add(word).ok_or(Damage::Damaged)?;
                contents.index.restore_lost(number..end);
            }
            LEAF_OF => {
                let mut places = [None; LEAF as usize];
                for i in (0..LEAF).filter(|i| word >> i & 1 == 1) {
                    places[i as usize] = Some(place_of(next()?).ok_or(Damage::Damaged)?);
                }
                if !contents.index.restore(number, places) {
                    return Err(Damage::Damaged);
                }
            }
            _ => return Err(Damage::Damaged),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::format::Entry;
    use super::*;
    use crate::codec::Coding;

    fn contents() -> Contents {
        let mut contents = Contents::default();
        let block =
            |block, coding, len| Entry::Block { block, coding, len, check: !(block as u32) };
        let entries = vec![
            block(5, Coding::Lz4, 100),
            block(63, Coding::Raw, 4096),
            block(64, Coding::Fill, 8),
            block(1 << 33, Coding::Zstd, 50),
            Entry::Lost { first: 70, count: 5 },
            Entry::Mark { len: 56, check: 77 },
        ];
        contents.sessions.begin(0, [1; 16]);
        contents.sessions.begin(16, [2; 16]);
        let end = WindowEnd::new((17, 99), [2; 16], &entries);
        contents.apply(&[(17, entries)], end);
        contents
    }

    fn units(contents: &Contents) -> Vec<Unit> {
        let mut units = Vec::new();
        write_rest(contents, &mut units);
        assert_eq!(write_blocks(&contents.index, 0, usize::MAX, &mut units), None);
        units
    }

    fn read_back(units: &[Unit]) -> Result<Contents, Damage> {
        let mut contents = Contents::default();
        read(units, &mut contents).map(|()| contents)
    }

    #[test]
    fn contents_are_read_as_they_were_written() {
        let before = contents();
        let units = units(&before);
        let after = read_back(&units).unwrap();
        assert_eq!((&after.end, after.since), (&before.end, Default::default()));
        assert!(after.sessions.iter().eq(before.sessions.iter()));
        let (a, b) = (&before.index, &after.index);
        for block in [0, 5, 63, 64, 65, 70, 74, 75, 1 << 33] {
            assert_eq!((a.get(block), a.is_lost(block)), (b.get(block), b.is_lost(block)));
        }
        let counts = |index: &Index| {
            let counts = [index.blocks(), index.live_bytes(), index.stored_bytes()];
            (counts, index.lost_blocks(), index.memory_bytes())
        };
        assert_eq!(counts(a), counts(b));
        // Piece by piece, the same.
        let (mut pieces, mut next) = (Vec::new(), Some(0));
        write_rest(&before, &mut pieces);
        while let Some(from) = next {
            let most = pieces.len() + 1;
            next = write_blocks(&before.index, from, most, &mut pieces);
        }
        assert_eq!(pieces, units);
    }

    #[test]
    fn units_that_are_cut_or_of_another_kind_are_damage() {
        let units = units(&contents());
        let with = |at: usize, unit: Unit| [&units[..at], &[unit], &units[at..]].concat();
        assert!(read_back(&with(0, [9; ENTRY])).is_err());
        let leaf = units.iter().position(|unit| unit[7] == 1).unwrap();
        assert!(read_back(&with(leaf, unit(LEAF_OF, 0, 0))).is_err(), "a leaf comes twice");
        assert!(read_back(&with(leaf + 1, pair(0, 9 << 48))).is_err(), "there is no coding 9");
        assert!(read_back(&units[..units.len() - 1]).is_err(), "a leaf ends early");
    }
}
