//! Who reads one block after another, and how much to read ahead for him.
//!
//! Pure: told of every read, asked how many blocks more than those to fetch. Forward only, and only
//! for who has read on without a gap several times, so that no random read is ever made longer.

/// Streams that are known at the same time.
const STREAMS: usize = 8;
/// Reads in a row before anything is read ahead.
const READS: u32 = 4;
/// Blocks that are read ahead at first.
const FIRST: u64 = 16;
/// Blocks of which it must be known whether they were of use, before anything is made of that.
const WEIGHED: u64 = 128;
/// Blocks that are still read ahead where most of it is useless: too few to hurt, and enough to
/// find out when that changes.
const LEAST: u64 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where it began, as far as known, and where it is read on.
    start: u64,
    next: u64,
    reads: u32,
    window: u64,
    /// When it was last seen.
    seen: u64,
}

/// All that are known.
#[derive(Debug)]
pub struct Streams {
    known: [Stream; STREAMS],
    clock: u64,
    /// Blocks that were read in a row before anything is read ahead.
    least: u64,
    /// No window is larger, in blocks.
    most: u64,
    /// What it was of use so far: blocks used, blocks useless.
    weighed: (u64, u64),
}

impl Default for Streams {
    fn default() -> Self {
        let known = [Stream::default(); STREAMS];
        Self { known, clock: 0, least: 0, most: u64::MAX, weighed: (0, 0) }
    }
}

impl Streams {
    /// Nothing is read ahead before so many blocks were read in a row. For who cuts requests: the
    /// parts of one are no stream.
    pub fn expect_parts(&mut self, least: u64) {
        self.least = least;
    }

    /// `count` blocks are read from `first` on. If the last of them has to be fetched
    /// (`to_fetch`), says how many behind it should be, too: at most `most`.
    pub fn see(&mut self, (first, count): (u64, u64), to_fetch: bool, most: u64) -> u64 {
        self.clock += 1;
        let end = first + count;
        let at = self.known.iter().position(|stream| stream.reads > 0 && stream.next == first);
        let Some(at) = at else {
            self.begin(first, end);
            return 0;
        };
        // Requests of one stream that came in another order.
        let later = self.known.iter().position(|stream| stream.reads > 0 && stream.start == end);
        let later = later.filter(|later| *later != at);
        let next = later.map_or(end, |later| std::mem::take(&mut self.known[later]).next);
        let stream = &mut self.known[at];
        (stream.next, stream.seen) = (next, self.clock);
        stream.reads = stream.reads.saturating_add(1);
        let is_long = stream.reads >= READS && end - stream.start >= self.least;
        if !is_long || !to_fetch || next != end {
            return 0;
        }
        let window = stream.window.clamp(FIRST, most.max(FIRST)).min(self.most);
        stream.window = window * 2;
        if window > most { 0 } else { window }
    }

    fn begin(&mut self, start: u64, next: u64) {
        let oldest = self.known.iter_mut().min_by_key(|stream| stream.seen);
        if let Some(stream) = oldest {
            *stream = Stream { start, next, reads: 1, window: FIRST, seen: self.clock };
        }
    }

    /// Told how many blocks were of use so far, and how many were not: all windows get smaller
    /// while most are not, and larger again when most are.
    pub fn weigh(&mut self, used: u64, useless: u64) {
        let (more_used, more_useless) = (used - self.weighed.0, useless - self.weighed.1);
        if more_used + more_useless < WEIGHED {
            return;
        }
        self.weighed = (used, useless);
        if more_useless > more_used {
            let largest = self.known.iter().map(|stream| stream.window).max().unwrap_or(FIRST);
            self.most = (self.most.min(largest) / 2).max(LEAST);
        } else if more_useless * 4 < more_used {
            self.most = self.most.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 256;

    #[test]
    fn a_stream_gets_more_and_more_up_to_a_bound() {
        let mut streams = Streams::default();
        let mut at = 1000;
        let mut windows = Vec::new();
        for _ in 0..10 {
            let ahead = streams.see((at, 4), true, MOST);
            windows.push(ahead);
            at += 4;
            // What was read ahead is found.
            for _ in 0..ahead / 4 {
                assert_eq!(streams.see((at, 4), false, MOST), 0);
                at += 4;
            }
        }
        assert_eq!(windows, [0, 0, 0, 16, 32, 64, 128, 256, 256, 256]);
        assert_eq!(streams.see((at, 4), true, 8), 0, "no room for as much as makes sense");
    }

    #[test]
    fn the_parts_of_a_request_are_no_stream() {
        let mut streams = Streams::default();
        streams.expect_parts(512);
        let mut ahead = 0;
        for request in [0, 10_000, 30_000, 20_000] {
            for part in (0..256).step_by(16) {
                ahead += streams.see((request + part, 16), true, MOST);
            }
        }
        assert_eq!(ahead, 0);
        let all = (0..1024).step_by(16).map(|part| streams.see((50_000 + part, 16), true, MOST));
        assert!(all.sum::<u64>() > 0);
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_stream() {
        let mut streams = Streams::default();
        let ahead: Vec<u64> = [0, 64, 32, 96, 160, 128, 192]
            .into_iter()
            .map(|first| streams.see((first, 32), true, MOST))
            .collect();
        assert_eq!(ahead[..3], [0; 3]);
        assert!(ahead.iter().sum::<u64>() > 0, "{ahead:?}");
    }

    #[test]
    fn streams_stand_side_by_side_and_random_reads_are_none() {
        let mut streams = Streams::default();
        let mut fetched = [0; 4];
        for round in 0..20 {
            for (n, fetched) in fetched.iter_mut().enumerate() {
                *fetched += streams.see((n as u64 * 100_000 + round, 1), true, MOST);
            }
        }
        assert!(fetched.iter().all(|n| *n > 100), "{fetched:?}");

        let mut streams = Streams::default();
        let mut x = 9u64;
        for _ in 0..100_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert_eq!(streams.see(((x >> 33) % 100_000, 1), true, MOST), 0);
        }
    }

    #[test]
    fn who_reads_ahead_in_vain_reads_less() {
        let mut streams = Streams::default();
        let run = |streams: &mut Streams, from: u64| {
            (0..20).map(|i| streams.see((from + i, 1), true, MOST)).max()
        };
        assert_eq!(run(&mut streams, 0), Some(MOST));
        for n in 1..20 {
            streams.weigh(0, n * 200);
        }
        assert_eq!(run(&mut streams, 1 << 20), Some(LEAST));
        for n in 1..20 {
            streams.weigh(n * 200, 19 * 200);
        }
        assert_eq!(run(&mut streams, 2 << 20), Some(MOST));
    }
}
