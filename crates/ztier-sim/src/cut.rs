//! What a power cut leaves of writes that no flush has covered.
//!
//! Each such write is kept, dropped or torn, in any combination: a later write may survive where an
//! earlier one does not. A torn write has some of its sectors (of 512 B or 4 KiB) new and the
//! others old, and the sector in flight may hold neither. Nothing outside of these writes changes:
//! durable data stays.

use crate::image::{Image, PAGE, Page, SECTOR, Slot, bytes};
use crate::rng::Rng;

/// The pages of one write: page number and content.
pub type Pages = Vec<(u32, Slot)>;

/// Which writes a cut leaves, overall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Each write has its own fate.
    Each,
    /// All are kept.
    All,
    /// None is kept.
    None,
    /// All but one are kept.
    AllButOne,
    /// One is kept.
    One,
    /// All writes before a random one are kept, that one is torn, later ones are dropped: a drive
    /// without reordering.
    Prefix,
}

/// How a drive behaves when the power goes; chosen once a seed.
#[derive(Clone, Copy, Debug)]
pub struct Tearing {
    /// Writes kept whole, of a thousand with their own fate.
    pub keep: u32,
    /// Writes torn, of a thousand others; the rest is dropped.
    pub tear: u32,
    /// Bytes that are never torn: [`SECTOR`] or [`PAGE`].
    pub unit: usize,
    /// Torn writes with a sector of garbage, of a thousand.
    pub garbage: u32,
    /// Weights of the shapes.
    shapes: [u32; 6],
}

const SHAPES: [Shape; 6] =
    [Shape::Each, Shape::All, Shape::None, Shape::AllButOne, Shape::One, Shape::Prefix];

impl Tearing {
    /// A drive of a kind that exists, chosen by the seed.
    pub fn choose(rng: &mut Rng) -> Self {
        let mut shapes = [0; 6];
        for weight in &mut shapes {
            *weight = rng.pick(&[0, 1, 2, 4]);
        }
        shapes[0] += 1;
        Self {
            keep: rng.pick(&[100, 300, 500, 700, 900]),
            tear: rng.pick(&[0, 300, 700, 1000]),
            unit: rng.pick(&[SECTOR, SECTOR, PAGE]),
            garbage: rng.pick(&[0, 0, 200, 1000]),
            shapes,
        }
    }
}

/// The fate of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Dropped,
    Torn,
}

/// Applies to `image` what a cut leaves of `writes`, which are in order of completion.
pub fn strike(image: &mut Image, writes: &[Pages], rng: &mut Rng, tearing: &Tearing) {
    if writes.is_empty() {
        return;
    }
    let shape = SHAPES[rng.weighted(&tearing.shapes)];
    let chosen = rng.index(writes.len());
    for (i, write) in writes.iter().enumerate().filter(|(_, write)| !write.is_empty()) {
        let fate = match shape {
            Shape::All => Fate::Kept,
            Shape::None => Fate::Dropped,
            Shape::AllButOne if i == chosen => own_fate(rng, 0, tearing),
            Shape::AllButOne => Fate::Kept,
            Shape::One if i == chosen => Fate::Kept,
            Shape::One => Fate::Dropped,
            Shape::Prefix if i < chosen => Fate::Kept,
            Shape::Prefix if i == chosen => Fate::Torn,
            Shape::Prefix => Fate::Dropped,
            Shape::Each => own_fate(rng, tearing.keep, tearing),
        };
        match fate {
            Fate::Kept => keep(image, write),
            Fate::Dropped => {}
            Fate::Torn => tear(image, write, rng, tearing),
        }
    }
}

fn own_fate(rng: &mut Rng, keep: u32, tearing: &Tearing) -> Fate {
    if rng.chance(keep) {
        Fate::Kept
    } else if rng.chance(tearing.tear) {
        Fate::Torn
    } else {
        Fate::Dropped
    }
}

/// Applies all of a write.
pub fn keep(image: &mut Image, write: &Pages) {
    for (page, slot) in write {
        image.set(*page as usize, slot.clone());
    }
}

/// Applies some units of a write: those up to a point, or a random set of them.
fn tear(image: &mut Image, write: &Pages, rng: &mut Rng, tearing: &Tearing) {
    let units_per_page = PAGE / tearing.unit;
    let units = write.len() * units_per_page;
    let in_order = rng.chance(400);
    let point = rng.index(units + 1);
    let new = rng.pick(&[100, 500, 900]);
    let garbage = rng.chance(tearing.garbage).then(|| {
        let at = if in_order { point.min(units - 1) } else { rng.index(units) };
        at * tearing.unit / SECTOR + rng.index(tearing.unit / SECTOR)
    });
    for (i, (page, slot)) in write.iter().enumerate() {
        let first = i * units_per_page;
        let mut mask = [false; PAGE / SECTOR];
        for (u, unit) in mask.chunks_mut(tearing.unit / SECTOR).enumerate() {
            unit.fill(if in_order { first + u < point } else { rng.chance(new) });
        }
        let spoilt = garbage.and_then(|at| at.checked_sub(i * (PAGE / SECTOR)));
        let spoilt = spoilt.filter(|at| *at < PAGE / SECTOR);
        if spoilt.is_none() && mask.iter().all(|new| *new) {
            image.set(*page as usize, slot.clone());
        } else if spoilt.is_some() || mask.iter().any(|new| *new) {
            let mut mixed = *image.page(*page as usize);
            mix_sectors(&mut mixed, bytes(slot), &mask);
            if let Some(at) = spoilt {
                spoil(&mut mixed[at * SECTOR..][..SECTOR], bytes(slot), at, rng);
            }
            image.set(*page as usize, crate::image::slot(mixed));
        }
    }
}

/// Copies the sectors of `new` that the mask names.
fn mix_sectors(old: &mut Page, new: &Page, mask: &[bool; PAGE / SECTOR]) {
    let sectors = old.chunks_exact_mut(SECTOR).zip(new.chunks_exact(SECTOR));
    for ((old, new), _) in sectors.zip(mask).filter(|(_, taken)| **taken) {
        old.copy_from_slice(new);
    }
}

/// Leaves a sector neither old nor new: noise, or one content spliced to the other.
fn spoil(sector: &mut [u8], new: &Page, at: usize, rng: &mut Rng) {
    if rng.chance(500) {
        for word in sector.as_chunks_mut::<8>().0 {
            *word = rng.bits().to_le_bytes();
        }
    } else {
        let point = rng.index(SECTOR);
        sector[..point].copy_from_slice(&new[at * SECTOR..][..point]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::slots;

    const PAGES: usize = 4;

    fn image() -> Image {
        Image::new((PAGES * PAGE) as u64)
    }

    fn write(at: u32, byte: u8, pages: usize) -> Pages {
        (at..).zip(slots(&vec![byte; pages * PAGE])).collect()
    }

    fn drive(keep: u32, tear: u32, unit: usize, garbage: u32, shape: usize) -> Tearing {
        let mut shapes = [0; 6];
        shapes[shape] = 1;
        Tearing { keep, tear, unit, garbage, shapes }
    }

    /// The distinct first bytes of each unit of the image after many cuts.
    fn outcomes(writes: &[Pages], tearing: &Tearing) -> Vec<Vec<Vec<u8>>> {
        (0..200)
            .map(|seed| {
                let mut left = image();
                strike(&mut left, writes, &mut Rng::new(seed), tearing);
                (0..PAGES)
                    .map(|page| left.page(page).chunks(SECTOR).map(|s| s[SECTOR - 1]).collect())
                    .collect()
            })
            .collect()
    }

    #[test]
    fn any_subset_survives() {
        let writes = [write(0, 1, 1), write(1, 2, 1), write(0, 3, 1)];
        let found = outcomes(&writes, &drive(500, 0, SECTOR, 0, 0));
        for (first, second) in [(0, 0), (1, 0), (3, 0), (0, 2), (1, 2), (3, 2)] {
            let hit = |pages: &Vec<Vec<u8>>| pages[0][0] == first && pages[1][0] == second;
            assert!(found.iter().any(hit), "{first} {second} never happened");
        }
        assert!(found.iter().flatten().flatten().all(|byte| *byte <= 3), "nothing is torn");
        assert!(found.iter().all(|pages| pages[2] == [0; 8] && pages[3] == [0; 8]));
    }

    #[test]
    fn all_and_nothing() {
        let writes = [write(0, 1, 2), write(1, 2, 2)];
        let kept = outcomes(&writes, &drive(500, 500, SECTOR, 1000, 1));
        assert!(kept.iter().all(|p| p[0][0] == 1 && p[1][0] == 2 && p[2][7] == 2 && p[3][0] == 0));
        let dropped = outcomes(&writes, &drive(500, 500, SECTOR, 1000, 2));
        assert!(dropped.iter().flatten().flatten().all(|byte| *byte == 0));
    }

    #[test]
    fn a_torn_write_has_old_and_new_units() {
        let torn = |unit| outcomes(&[write(1, 5, 2)], &drive(0, 1000, unit, 0, 0));
        let mixed = |pages: &Vec<Vec<u8>>| pages[1].contains(&0) && pages[1].contains(&5);
        assert!(torn(SECTOR).iter().any(mixed));
        assert!(!torn(PAGE).iter().any(mixed), "4 KiB stay whole");
        assert!(torn(PAGE).iter().any(|pages| pages[1][0] == 5 && pages[2][0] == 0));
        assert!(torn(PAGE).iter().any(|pages| pages[1][0] == 0 && pages[2][0] == 5));
        for pages in torn(SECTOR) {
            assert!(pages[0] == [0; 8] && pages[3] == [0; 8], "only what was written changes");
        }
    }

    #[test]
    fn garbage_stays_inside_the_write() {
        let found = outcomes(&[write(1, 5, 2)], &drive(0, 1000, SECTOR, 1000, 0));
        let strange = |byte: &u8| *byte != 0 && *byte != 5;
        assert!(found.iter().any(|pages| pages[1].iter().chain(&pages[2]).any(strange)));
        assert!(found.iter().all(|pages| pages[0] == [0; 8] && pages[3] == [0; 8]));
    }
}
