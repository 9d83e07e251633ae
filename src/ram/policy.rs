//! What to clean, recompress and spill, and when: pure functions of their arguments.

use crate::ram::store::Survey;
use crate::ram::store::format::CLUSTER_MAX;
use crate::ram::store::segment::Sealed;
use std::cmp::Reverse;

/// Memory may be this much above the payload while writes go on, in thousandths: above it, the
/// thread that opens a segment cleans first.
pub const BUSY_PERMILLE: u64 = 1200;
/// Quiet volumes are cleaned down to this much above the payload, in thousandths.
pub const QUIET_PERMILLE: u64 = 1055;
/// Segments of slack that small volumes get on top: the open one and those in flight.
pub const SLACK_SEGMENTS: u64 = 2;
/// [`WORTH_PART`] for writers that are not short of memory. Data can be so compressible that
/// headers and index weigh more than the payload; then no amount of cleaning gets below
/// [`BUSY_PERMILLE`].
pub const BUSY_WORTH_PART: u32 = 8;
/// The most garbage that one opening of a segment cleans, in segments. One would do if new records
/// were as large as those that they replace; smaller ones leave more garbage than they fill.
pub const PAY_SEGMENTS: u32 = 4;
/// With fewer free segments than this, writers clean before they open one: enough for several
/// threads to clean at once without touching the reserve.
pub const TIGHT_SEGMENTS: u64 = 3;
/// A segment with less garbage than one part in this many is not worth copying.
pub const WORTH_PART: u32 = 32;

/// `(patience, retry)`: after `patience` groups of a segment in a row that did not pay, only one in
/// `retry` is tried.
pub const PATIENCE: (u32, u32) = (16, 4);
/// After this many segments in a row for which nothing paid, recompression rests until writers have
/// opened as many new ones.
pub const HOPELESS_SEGMENTS: u32 = 64;
/// A recompressed segment with less garbage than one part in this many is not cleaned. Copying is
/// cheap beside compressing.
pub const PRESSED_PART: u32 = 32;
/// Segments less than this much younger than the one that is spilled may have neighbours that are
/// spilled with it.
pub const GO_TOGETHER: u64 = 16;

/// [`WORTH_PART`] for volumes that can spill: spilling a segment writes it once, and costs no more
/// than copying most of it.
pub const SPILL_WORTH_PART: u32 = 4;
/// Segments that are spilled in one step when the limit is lowered.
pub const LOWER_SEGMENTS: u64 = 4;
/// When slots are few, those with at least one part in this many of garbage are emptied.
pub const SLOT_WORTH_PART: u32 = 4;
/// Segments that are surveyed before one is spilled.
pub const CHILL: usize = 16;

/// The free memory, in bytes, at which refilling the reserve begins and at which it ends, for a
/// `limit`: writers then seldom wait for a device, and little of the memory is idle.
pub fn reserve(limit: u64, segment: u32) -> (u64, u64) {
    let least = (TIGHT_SEGMENTS + 1) * u64::from(segment);
    let low = (limit / RESERVE_PART).max(least).min(limit / 4);
    (low, low + low / 2)
}

/// See [`reserve`].
const RESERVE_PART: u64 = 16;

/// Frames that a volume that carries swap keeps ready, for a `limit`: enough for what the machine
/// swaps out in one go, or, if it is to be `small`, for what is on its way while it is refilled.
pub fn mempool(limit: u64, segment: u32, small: bool) -> usize {
    let (part, most) =
        if small { (MEMPOOL_SMALL_PART, MEMPOOL_SMALL) } else { (MEMPOOL_PART, MEMPOOL_MOST) };
    let bytes = (limit / part).min(most);
    (bytes / u64::from(segment)).max(MEMPOOL_LEAST) as usize
}

/// See [`mempool`].
const MEMPOOL_PART: u64 = 16;
/// See [`mempool`]: bytes.
const MEMPOOL_MOST: u64 = 32 << 20;
/// See [`mempool`].
const MEMPOOL_SMALL_PART: u64 = 64;
/// See [`mempool`]: bytes; the requests that may be under way have 8 MiB, uncompressed.
const MEMPOOL_SMALL: u64 = 6 << 20;
/// See [`mempool`]: the frames of the cleaner, and as many for writers.
const MEMPOOL_LEAST: u64 = 4;

/// Whether slots are so few that those with garbage should be emptied.
pub fn few_slots(free: u32, count: u32) -> bool {
    u64::from(free) < (u64::from(count) / RESERVE_PART).clamp(1, 64)
}

/// A segment that may be spilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The segment.
    pub sealed: Sealed,
    /// What is in it.
    pub survey: Survey,
}

/// Chooses the next segments behind a clock's hand, in the order in which the hand comes to them:
/// by age, from the oldest on, and round again. Returns their number.
pub fn behind_hand(
    sealed: impl Iterator<Item = Sealed>,
    hand: u64,
    chosen: &mut [Sealed; CHILL],
) -> usize {
    least(sealed, |s| s.sequence.wrapping_sub(hand), chosen)
}

/// Chooses segments by chance, different ones for each `seed`, and keeps the younger half. Returns
/// their number.
pub fn by_chance(
    sealed: impl Iterator<Item = Sealed>,
    seed: u64,
    chosen: &mut [Sealed; CHILL],
) -> usize {
    // Fibonacci hashing, twice: the sequences are neighbours.
    let mix = |n: u64| {
        let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        n ^ n >> 32
    };
    let count = least(sealed, |s| mix(mix(s.sequence) ^ seed), chosen);
    chosen[..count].sort_unstable_by_key(|s| Reverse(s.sequence));
    count.div_ceil(2)
}

/// Chooses the segments with the least `key`, in order; returns their number.
fn least(
    sealed: impl Iterator<Item = Sealed>,
    key: impl Fn(&Sealed) -> u64,
    chosen: &mut [Sealed; CHILL],
) -> usize {
    let mut count = 0;
    for sealed in sealed {
        let at = chosen[..count].partition_point(|s| key(s) < key(&sealed));
        if at == CHILL {
            continue;
        }
        count = (count + 1).min(CHILL);
        chosen[at..count].rotate_right(1);
        chosen[at] = sealed;
    }
    count
}

/// Sorts the candidates of a clock's hand: the last is spilled first. Of those about equally cold,
/// the less compressible go first. Returns how many stay for this time because half of their bytes
/// were read: those come first. At least one is spilled.
pub fn chill(candidates: &mut [Candidate]) -> usize {
    // In sixteenths, so that small differences leave the choice to compression and age.
    let share = |part: u32, survey: &Survey| {
        (u64::from(part) * 16).checked_div(u64::from(survey.live)).unwrap_or(0)
    };
    candidates.sort_unstable_by_key(|Candidate { sealed, survey }| {
        let (hot, raw) = (share(survey.hot, survey), share(survey.raw, survey));
        Reverse((hot, 16 - raw.min(16), sealed.sequence))
    });
    let stay =
        candidates.iter().take_while(|c| c.survey.hot > 0 && c.survey.hot >= c.survey.live / 2);
    stay.count().min(candidates.len().saturating_sub(1))
}

/// The most victims that are chosen at a time.
pub const VICTIMS_MAX: usize = 64;

/// How many victims to choose in one scan of the whole table of `segments`. Few, because by the
/// time the later ones of a long list are cleaned, they are not the emptiest any more. More where a
/// scan costs more.
pub fn batch(segments: u32) -> usize {
    (segments as usize / 64).clamp(2, VICTIMS_MAX)
}

/// Whether `used` bytes are too many for `payload` bytes.
pub fn over(used: u64, payload: u64, permille: u64, segment: u32) -> bool {
    used > payload / 1000 * permille + SLACK_SEGMENTS * u64::from(segment)
}

/// Bytes that cleaning a segment of `size` bytes frees: its garbage, and the room at its end if it
/// was sealed before it was full. No other segment has room left for the longest record.
pub fn gain(sealed: &Sealed, size: u32) -> u32 {
    let room = size - sealed.end;
    sealed.dead + if room >= CLUSTER_MAX as u32 { room } else { 0 }
}

/// Chooses the segments of `size` bytes to clean next, the emptiest last: at most `most`, which
/// `chosen` has room for, so that nothing is allocated. Each gives back at least `least` bytes, see
/// [`gain`]. Greedy choice is optimal for uniform overwriting and within a few percent of it
/// elsewhere while the share of garbage is small (Rosenblum & Ousterhout 1992, §3.4–3.6 compare it
/// with cost-benefit, which needs hot and cold data in separate streams to pay).
pub fn victims(
    sealed: impl Iterator<Item = Sealed>,
    (size, least): (u32, u32),
    most: usize,
    chosen: &mut Vec<Sealed>,
) {
    chosen.clear();
    let emptier = |s: &Sealed| (gain(s, size), Reverse(s.sequence));
    for sealed in sealed.filter(|s| gain(s, size) >= least.max(1)) {
        let at = chosen.partition_point(|s| emptier(s) < emptier(&sealed));
        if chosen.len() < most {
            chosen.insert(at, sealed);
        } else if at > 0 {
            chosen[..at].rotate_left(1);
            chosen[at - 1] = sealed;
        }
    }
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
        let choose = |least, most| {
            let mut chosen = Vec::with_capacity(most);
            victims(all.into_iter(), (1000, least), most, &mut chosen);
            chosen.into_iter().map(|s| s.segment).collect::<Vec<u32>>()
        };
        assert_eq!(choose(20, 3), [3, 4, 2]);
        assert_eq!(choose(20, 2), [4, 2]);
        assert!(choose(901, 3).is_empty());
        assert_eq!(choose(0, 9), [1, 3, 4, 2]);
    }

    #[test]
    fn room_behind_what_was_sealed_early_is_gained_too() {
        let room = CLUSTER_MAX as u32;
        assert_eq!(gain(&sealed(1, 10), 1000 + room - 1), 10);
        assert_eq!(gain(&sealed(1, 10), 1000 + room), 10 + room);
        let mut chosen = Vec::with_capacity(2);
        let all = [Sealed { end: 70_000, ..sealed(1, 50_000) }, sealed(2, 1000)];
        victims(all.into_iter(), (70_000, 2000), 2, &mut chosen);
        assert_eq!(chosen.iter().map(|s| s.segment).collect::<Vec<u32>>(), [1, 2]);
    }

    #[test]
    fn the_hand_goes_by_age_and_round_again() {
        let all = (0..40).map(|n| sealed(n * 7 % 40, 0));
        let mut chosen = [sealed(0, 0); CHILL];
        assert_eq!(behind_hand(all.clone(), 30, &mut chosen), CHILL);
        let expected: Vec<u32> = (30..40).chain(0..6).collect();
        assert_eq!(chosen.map(|s| s.segment).to_vec(), expected);
        assert_eq!(behind_hand(all.take(3), 0, &mut chosen), 3);
        assert_eq!(chosen[..3].iter().map(|s| s.segment).collect::<Vec<_>>(), [0, 7, 14]);
        assert_eq!(behind_hand(std::iter::empty(), 0, &mut chosen), 0);
    }

    #[test]
    fn chance_prefers_the_young_and_is_another_one_each_time() {
        let mut times = [0; 64];
        for seed in 0..1000_u64 {
            let mut chosen = [sealed(0, 0); CHILL];
            let seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d);
            assert_eq!(by_chance((0..64).map(|n| sealed(n, 0)), seed, &mut chosen), CHILL / 2);
            chosen[..CHILL / 2].iter().for_each(|s| times[s.segment as usize] += 1);
        }
        let quarter = |from: usize| times[from..from + 16].iter().sum::<u32>();
        assert!(times[16..].iter().all(|n| *n > 0), "{times:?}");
        assert!(quarter(48) > quarter(32) && quarter(32) > quarter(16), "{times:?}");
        assert_eq!(by_chance([sealed(7, 0)].into_iter(), 1, &mut [sealed(0, 0); CHILL]), 1);
    }

    #[test]
    fn the_coldest_goes_first_and_of_those_what_does_not_compress() {
        let candidate = |segment, hot, raw| Candidate {
            sealed: sealed(segment, 0),
            survey: Survey { live: 1600, hot, raw },
        };
        let mut all = [
            candidate(1, 0, 0),
            candidate(2, 50, 1600),
            candidate(3, 800, 0),
            candidate(4, 400, 1600),
            candidate(5, 1600, 0),
        ];
        assert_eq!(chill(&mut all), 2);
        assert_eq!(all.map(|c| c.sealed.segment), [5, 3, 4, 1, 2]);
        let mut hot = [candidate(1, 1600, 0), candidate(2, 1600, 0)];
        assert_eq!(chill(&mut hot), 1, "one has to go");
        assert_eq!(hot[1].sealed.segment, 1, "the older");
        assert_eq!(chill(&mut []), 0);
    }

    #[test]
    fn the_reserve_is_a_little_of_the_limit_and_enough_for_writers() {
        assert_eq!(reserve(512 << 20, 1 << 20), (32 << 20, 48 << 20));
        assert_eq!(reserve(32 << 20, 1 << 20), (4 << 20, 6 << 20));
        assert_eq!(reserve(8 << 20, 1 << 20), (2 << 20, 3 << 20));
        assert!(few_slots(0, 1) && !few_slots(1, 1));
        assert!(few_slots(63, 1 << 20) && !few_slots(64, 1 << 20));
    }

    #[test]
    fn slack_lets_small_volumes_be() {
        assert!(!over(2 << 20, 0, BUSY_PERMILLE, 1 << 20));
        assert!(over((2 << 20) + 1, 0, BUSY_PERMILLE, 1 << 20));
        assert!(over(1300 << 20, 1000 << 20, BUSY_PERMILLE, 1 << 20));
    }
}
