//! Sequential-stream detection and readahead sizing.
//!
//! Pure: it is told of every read, and says how many more blocks to fetch. Readahead goes forward
//! only, and only for a stream that has continued without a gap for several reads, so no random
//! read ever gets longer. A reader that requests the next blocks before it has got the last ones
//! does its own readahead, as the page cache does: more readahead would read those blocks twice,
//! and a disk arm would have to go back for them.

/// Streams that are tracked at the same time.
const STREAMS: usize = 8;
/// Reads in a row before anything is read ahead.
const READS: u32 = 4;
/// Blocks of the first readahead of a stream.
const FIRST: u64 = 16;
/// Fewest blocks, used or useless, after which the largest window is adjusted.
const WEIGHED: u64 = 128;
/// Blocks that are still read ahead where most of them are useless: too few to hurt, and enough to
/// notice when that changes.
const LEAST: u64 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Its first block, as far as known, and the block that it reads next.
    start: u64,
    next: u64,
    reads: u32,
    window: u64,
    /// When it was last seen, and when it began, by the clock of [`Streams`].
    seen: u64,
    born: u64,
    /// Reads that are being fetched.
    waiting: u32,
}

/// A read that is being fetched. [`Streams::done`] ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    at: usize,
    born: u64,
}

/// All tracked streams.
#[derive(Debug)]
pub struct Streams {
    known: [Stream; STREAMS],
    clock: u64,
    /// Fewest blocks that a stream has read before anything is read ahead.
    least: u64,
    /// The largest window, in blocks.
    most: u64,
    /// Blocks used and blocks useless, at the last adjustment.
    weighed: (u64, u64),
}

impl Default for Streams {
    fn default() -> Self {
        let known = [Stream::default(); STREAMS];
        Self { known, clock: 0, least: 0, most: u64::MAX, weighed: (0, 0) }
    }
}

impl Streams {
    /// Readahead starts only after `least` blocks were read in a row. For callers that split
    /// requests: the parts of one request are no stream.
    pub fn expect_parts(&mut self, least: u64) {
        self.least = least;
    }

    /// Notes a read of `count` blocks from `first` on. If the last of them has to be fetched
    /// (`to_fetch`), returns how many blocks behind it to fetch, too, at most `most`, and a ticket
    /// for [`Streams::done`].
    pub fn see(
        &mut self,
        (first, count): (u64, u64),
        to_fetch: bool,
        most: u64,
    ) -> (u64, Option<Ticket>) {
        self.clock += 1;
        let end = first + count;
        let known = self.known.iter().position(|stream| stream.reads > 0 && stream.next == first);
        let at = known.unwrap_or_else(|| self.begin(first));
        // Requests of one stream may come in another order.
        let later = self.known.iter().position(|stream| stream.reads > 0 && stream.start == end);
        let later = later.filter(|later| known.is_some() && *later != at);
        let next = later.map_or(end, |later| std::mem::take(&mut self.known[later]).next);
        let stream = &mut self.known[at];
        (stream.next, stream.seen) = (next, self.clock);
        stream.reads = if stream.waiting > 0 { 1 } else { stream.reads.saturating_add(1) };
        if !to_fetch {
            return (0, None);
        }
        stream.waiting += 1;
        let ticket = Ticket { at, born: stream.born };
        let is_long = stream.reads >= READS && end - stream.start >= self.least;
        if !is_long || next != end {
            return (0, Some(ticket));
        }
        let window = stream.window.clamp(FIRST, most.max(FIRST)).min(self.most);
        stream.window = window * 2;
        (if window > most { 0 } else { window }, Some(ticket))
    }

    /// A read has been fetched.
    pub fn done(&mut self, ticket: Ticket) {
        let stream = &mut self.known[ticket.at];
        // Another stream may have its place by now.
        if stream.born == ticket.born {
            stream.waiting = stream.waiting.saturating_sub(1);
        }
    }

    /// Begins a new stream in place of the one that was seen least recently.
    fn begin(&mut self, start: u64) -> usize {
        let oldest = (0..STREAMS).min_by_key(|at| self.known[*at].seen).unwrap_or(0);
        self.known[oldest] = Stream { start, window: FIRST, born: self.clock, ..Stream::default() };
        oldest
    }

    /// Adjusts the largest window by how many blocks were `used` so far, and how many were
    /// `useless`: windows get smaller while most are useless, and larger again when most are used.
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

    /// A read whose blocks are fetched before the next one begins.
    fn see(streams: &mut Streams, blocks: (u64, u64), to_fetch: bool, most: u64) -> u64 {
        let (ahead, ticket) = streams.see(blocks, to_fetch, most);
        ticket.into_iter().for_each(|ticket| streams.done(ticket));
        ahead
    }

    #[test]
    fn a_stream_gets_more_and_more_up_to_a_bound() {
        let mut streams = Streams::default();
        let mut at = 1000;
        let mut windows = Vec::new();
        for _ in 0..10 {
            let ahead = see(&mut streams, (at, 4), true, MOST);
            windows.push(ahead);
            at += 4;
            // What was read ahead is found.
            for _ in 0..ahead / 4 {
                assert_eq!(see(&mut streams, (at, 4), false, MOST), 0);
                at += 4;
            }
        }
        assert_eq!(windows, [0, 0, 0, 16, 32, 64, 128, 256, 256, 256]);
        assert_eq!(see(&mut streams, (at, 4), true, 8), 0, "no room for as much as makes sense");
    }

    #[test]
    fn the_parts_of_a_request_are_no_stream() {
        let mut streams = Streams::default();
        streams.expect_parts(512);
        let mut ahead = 0;
        for request in [0, 10_000, 30_000, 20_000] {
            for part in (0..256).step_by(16) {
                ahead += see(&mut streams, (request + part, 16), true, MOST);
            }
        }
        assert_eq!(ahead, 0);
        let all =
            (0..1024).step_by(16).map(|part| see(&mut streams, (50_000 + part, 16), true, MOST));
        assert!(all.sum::<u64>() > 0);
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_stream() {
        let mut streams = Streams::default();
        let ahead: Vec<u64> = [0, 64, 32, 96, 160, 128, 192]
            .into_iter()
            .map(|first| see(&mut streams, (first, 32), true, MOST))
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
                *fetched += see(&mut streams, (n as u64 * 100_000 + round, 1), true, MOST);
            }
        }
        assert!(fetched.iter().all(|n| *n > 100), "{fetched:?}");

        let mut streams = Streams::default();
        let mut x = 9u64;
        for _ in 0..100_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert_eq!(see(&mut streams, ((x >> 33) % 100_000, 1), true, MOST), 0);
        }
    }

    #[test]
    fn a_reader_that_asks_early_does_its_own_readahead() {
        let mut streams = Streams::default();
        let (_, mut last) = streams.see((0, 32), true, MOST);
        for n in 1..20 {
            let (ahead, ticket) = streams.see((n * 32, 32), true, MOST);
            assert_eq!(ahead, 0);
            last.into_iter().for_each(|ticket| streams.done(ticket));
            last = ticket;
        }
        last.into_iter().for_each(|ticket| streams.done(ticket));
        let more: u64 = (20..30).map(|n| see(&mut streams, (n * 32, 32), true, MOST)).sum();
        assert!(more > 0, "a reader that waits gets readahead");
        // A late ticket of a stream that is no longer tracked changes no other stream.
        let (_, ticket) = streams.see((1 << 30, 1), true, MOST);
        for n in 0..STREAMS as u64 {
            see(&mut streams, (n << 20, 1), true, MOST);
        }
        let (_, own) = streams.see((5 << 20, 1), true, MOST);
        ticket.into_iter().for_each(|ticket| streams.done(ticket));
        let at = own.map_or(0, |own| own.at);
        assert_eq!(streams.known[at].waiting, 1);
    }

    #[test]
    fn who_reads_ahead_in_vain_reads_less() {
        let mut streams = Streams::default();
        let run = |streams: &mut Streams, from: u64| {
            (0..20).map(|i| see(streams, (from + i, 1), true, MOST)).max()
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
