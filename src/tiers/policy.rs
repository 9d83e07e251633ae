//! What to clean and when, and what to compress how: pure functions of what is known.

use crate::store::codec::Algorithm;
use crate::store::segment::Sealed;

/// Memory may be this much above the payload while writes go on, in thousandths: the thread that
/// opens a segment above it cleans first.
pub const BUSY_PERMILLE: u64 = 1200;
/// Where quiet volumes are cleaned down to.
pub const QUIET_PERMILLE: u64 = 1055;
/// Segments of slack that small volumes get on top: the open one and those in flight.
pub const SLACK_SEGMENTS: u64 = 2;
/// The same for writers that are not short of memory: with data so compressible that headers and
/// index weigh more than the payload, no amount of cleaning gets them below [`BUSY_PERMILLE`].
pub const BUSY_WORTH_PART: u32 = 8;
/// Garbage that one opening of a segment pays for at most, in segments. One would do if new records
/// were as large as those that they replace; smaller ones leave more garbage than they fill.
pub const PAY_SEGMENTS: u32 = 4;
/// With fewer free segments than this, writers clean before they open one: enough for several
/// threads to clean at once without touching the reserve.
pub const TIGHT_SEGMENTS: u64 = 3;
/// A segment with less garbage than this share (one part in so many) is not worth copying.
pub const WORTH_PART: u32 = 32;

/// Blocks are kept together if that saves at least one part in so many of what they take apart: a
/// read of one of them decodes all.
const TOGETHER_PART: usize = 8;

/// Whether it is worth trying to compress neighbouring blocks together: `backlog` bytes of a log
/// wait for its drive, and `most` may be in memory. Zstd takes longer than LZ4, so it pays while
/// the drive is what everybody waits for. Where the drive keeps up, hardly anything waits; where it
/// does not, memory is full, and at most half of it waits for a flush alone.
pub fn tries_together(algorithm: Algorithm, (backlog, most): (u64, u64)) -> bool {
    match algorithm {
        Algorithm::Zstd => true,
        Algorithm::Lz4 => backlog >= most / 8 * 3,
        Algorithm::None => false,
    }
}

/// Whether `together` bytes for some blocks are enough less than the `apart` that they take each
/// for itself.
pub fn pays_together(together: usize, apart: usize) -> bool {
    together <= apart - apart.div_ceil(TOGETHER_PART)
}

/// How many victims to choose at a look at the whole table of `segments`. Few, because the later
/// ones of a long list are not the emptiest any more when their turn comes; more where looking
/// costs more.
pub fn batch(segments: u32) -> usize {
    (segments as usize / 64).clamp(2, 64)
}

/// Whether `used` bytes are too many for `payload` bytes.
pub fn over(used: u64, payload: u64, permille: u64, segment: u32) -> bool {
    used > payload / 1000 * permille + SLACK_SEGMENTS * u64::from(segment)
}

/// The segments to clean next, the emptiest first, at most `most` of them: those with at least
/// `least_dead` bytes of garbage. Greedy choice is optimal for uniform overwriting and within a few
/// percent of it elsewhere while the share of garbage is small (Rosenblum & Ousterhout 1992,
/// §3.4–3.6 compare it with cost-benefit, which needs hot and cold data in separate streams to
/// pay).
pub fn victims(sealed: impl Iterator<Item = Sealed>, least_dead: u32, most: usize) -> Vec<Sealed> {
    let mut worth: Vec<Sealed> = sealed.filter(|s| s.dead >= least_dead.max(1)).collect();
    let by_dead = |s: &Sealed| std::cmp::Reverse((s.dead, std::cmp::Reverse(s.sequence)));
    if worth.len() > most {
        worth.select_nth_unstable_by_key(most, by_dead);
        worth.truncate(most);
    }
    worth.sort_unstable_by_key(by_dead);
    worth
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(segment: u32, dead: u32) -> Sealed {
        Sealed { segment, end: 1000, dead, sequence: u64::from(segment) }
    }

    #[test]
    fn the_emptiest_go_first_and_full_ones_stay() {
        let all = [sealed(1, 10), sealed(2, 900), sealed(3, 500), sealed(4, 900), sealed(5, 0)];
        let chosen: Vec<u32> =
            victims(all.into_iter(), 20, 3).into_iter().map(|s| s.segment).collect();
        assert_eq!(chosen, [2, 4, 3]);
        assert!(victims(all.into_iter(), 901, 3).is_empty());
        assert_eq!(victims(all.into_iter(), 0, 9).len(), 4);
    }

    #[test]
    fn blocks_are_compressed_together_where_the_drive_is_slow_or_zstd_was_asked_for() {
        for (backlog, slow) in [(0, false), (8 << 20, false), (24 << 20, true), (64 << 20, true)] {
            let backlog = (backlog, 64 << 20);
            assert_eq!(tries_together(Algorithm::Lz4, backlog), slow);
            assert!(tries_together(Algorithm::Zstd, backlog));
            assert!(!tries_together(Algorithm::None, backlog));
        }
    }

    #[test]
    fn blocks_stay_together_if_that_saves_an_eighth() {
        assert!(pays_together(7000, 8000) && !pays_together(7001, 8000));
        assert!(pays_together(0, 0) && !pays_together(1, 1));
    }

    #[test]
    fn slack_lets_small_volumes_be() {
        assert!(!over(2 << 20, 0, BUSY_PERMILLE, 1 << 20));
        assert!(over((2 << 20) + 1, 0, BUSY_PERMILLE, 1 << 20));
        assert!(over(1300 << 20, 1000 << 20, BUSY_PERMILLE, 1 << 20));
    }
}
