//! The admission thread: it keeps copies of often-read blocks in the log.
//!
//! It appends copies of blocks that were read twice from below the log. Of the blocks that leave
//! the log next, it appends those again that were read since. Invariants: no thread waits for this
//! one, and it waits for no other: without room, or while others are at work, it keeps nothing.
//! [`WriteBudget`] bounds what it writes to the log's drive.

use super::logged::Logged;
use crate::BLOCK_SIZE;
use crate::codec::{Algorithm, Codec};
use crate::log::disk::format::Kind;
use crate::sync::{Instant, now, sleep};
use std::time::Duration;

/// How often the thread looks for blocks to keep.
const TICK: Duration = Duration::from_millis(100);
/// Most blocks that it reads and appends at once.
const BATCH: usize = 256;
/// Most bytes that it appends of wanted blocks in a tick: 16 MiB in a second.
const PER_TICK: u64 = (16 << 20) / 10;
/// What it writes in a day at most, in multiples of the share of the log that copies may take; at
/// first one share more.
const TIMES_A_DAY: u64 = 4;
const DAY_MS: u64 = 86_400_000;
/// Unless the volume is idle, how long the thread keeps no wanted blocks after it read the backing
/// store.
const PAUSE: Duration = Duration::from_secs(1);
/// A volume that gets no request for this long is idle.
const IDLE: Duration = Duration::from_millis(500);

/// Bytes that may be written: a token bucket.
struct WriteBudget {
    left: u64,
    seen_ms: u64,
}

impl WriteBudget {
    /// Refills the bucket up to `now_ms`. `share` is its capacity in bytes.
    fn fill(&mut self, now_ms: u64, share: u64) {
        let rate = u128::from(share) * u128::from(TIMES_A_DAY);
        let more = rate * u128::from(now_ms - self.seen_ms) / u128::from(DAY_MS);
        // Less than a byte waits for a later refill: else a small share would never fill the
        // bucket.
        if more > 0 {
            self.left = (self.left + more as u64).min(share);
            self.seen_ms = now_ms;
        }
    }

    fn pay(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}

/// The state of the thread.
pub(super) struct Admission<'a> {
    logged: &'a Logged,
    codec: Codec,
    payload: Vec<u8>,
    blocks: Vec<[u8; BLOCK_SIZE]>,
    budget: WriteBudget,
    /// Unless the volume is idle, no wanted blocks are kept before then.
    pauses_until: Instant,
    /// The thread lets nothing leave before the log's head reaches this segment: else blocks that
    /// it keeps again would push others out, which it would have to keep again.
    stays_until: u64,
}

impl<'a> Admission<'a> {
    pub(super) fn new(logged: &'a Logged, algorithm: Algorithm) -> Self {
        let budget = WriteBudget { left: u64::MAX, seen_ms: logged.now_ms() };
        Self {
            logged,
            codec: Codec::new(algorithm),
            payload: vec![0; BLOCK_SIZE],
            blocks: vec![[0; BLOCK_SIZE]; BATCH],
            budget,
            pauses_until: now(),
            stays_until: 0,
        }
    }

    /// Works until the volume stops.
    pub(super) fn run(mut self) {
        while !self.logged.is_stopping() {
            let share = self.logged.core().keep_bytes();
            self.budget.left = self.budget.left.min(share);
            self.budget.fill(self.logged.now_ms(), share);
            let mut left = self.budget.left.min(PER_TICK);
            self.keep_leaving(&mut left);
            self.keep_wanted(&mut left);
            sleep(TICK);
        }
    }

    /// Keeps blocks of the admission queue.
    fn keep_wanted(&mut self, left: &mut u64) {
        let idle = self.logged.idle() >= IDLE;
        while *left > 0 && self.logged.core().may_keep() && !self.logged.is_stopping() {
            if !idle && now() < self.pauses_until {
                return;
            }
            let mut wanted = self.logged.take_wanted(BATCH);
            if wanted.is_empty() {
                return;
            }
            wanted.sort_unstable();
            wanted.dedup();
            let core = self.logged.core();
            wanted.retain(|block| core.lacks_copy(*block));
            drop(core);
            let (asked, rest) = self.keep(&wanted, left);
            if asked {
                self.pauses_until = now() + PAUSE;
            }
            if !rest.is_empty() {
                return self.logged.want(rest);
            }
        }
    }

    /// Keeps those blocks again that leave the log next and were read since they were kept; then
    /// lets the old segments leave.
    fn keep_leaving(&mut self, left: &mut u64) {
        if self.logged.core().head() < self.stays_until {
            return;
        }
        let (mut from, mut leaving, mut some) = (0, Vec::new(), false);
        while let Some(next) = self.logged.core().leaving(from, &mut leaving) {
            (from, some) = (next, true);
            if self.logged.is_stopping() {
                return;
            }
        }
        if !some && leaving.is_empty() {
            return self.logged.core().let_leave();
        }
        leaving.retain(|block| self.logged.frequency().cool(*block));
        // A block that leaves is kept now or not at all.
        let mut all = self.budget.left.min(self.logged.core().leaving_bytes());
        for batch in leaving.chunks(BATCH) {
            if all == 0 {
                break;
            }
            self.keep(batch, &mut all);
        }
        *left = (*left).min(self.budget.left);
        let mut core = self.logged.core();
        core.let_leave();
        let more = core.leaving_bytes() / u64::from(core.superblock().segment);
        self.stays_until = core.head() + more.div_ceil(2);
    }

    /// Reads `wanted` blocks, which ascend, and appends copies of them, up to `left` bytes. Returns
    /// whether it read the backing store, and the blocks that the log has not taken.
    fn keep(&mut self, wanted: &[u64], left: &mut u64) -> (bool, Vec<u64>) {
        let (mut i, mut asked, mut rest) = (0, false, Vec::new());
        while i < wanted.len() {
            if *left == 0 || self.logged.is_stopping() {
                rest.extend(&wanted[i..]);
                break;
            }
            let follows = |(n, block): &(usize, &u64)| **block == wanted[i] + *n as u64;
            let count = wanted[i..].iter().take(BATCH).enumerate().take_while(follows).count();
            let token = self.logged.core().token();
            let at = wanted[i] * BLOCK_SIZE as u64;
            let out = self.blocks[..count].as_flattened_mut();
            match self.logged.backing().read_noting(at, out) {
                Ok(more) => asked |= more,
                // A request that reads these blocks gets the error.
                Err(_) => return (asked, rest),
            }
            for (n, block) in self.blocks[..count].iter().enumerate() {
                let (len, kind) = encode(&mut self.codec, block, &mut self.payload);
                let payload = &self.payload[..len];
                if self.logged.core().keep(wanted[i] + n as u64, token, kind, payload) {
                    *left = left.saturating_sub(len as u64);
                    self.budget.pay(len as u64);
                } else {
                    rest.push(wanted[i] + n as u64);
                }
            }
            self.logged.wake();
            i += count;
        }
        (asked, rest)
    }
}

/// Encodes a block into `out`; returns the length of the payload, and its kind.
fn encode(codec: &mut Codec, block: &[u8; BLOCK_SIZE], out: &mut Vec<u8>) -> (usize, Kind) {
    out.resize(BLOCK_SIZE, 0);
    // Zeros, too, have a payload: a copy without one would be no place to read from.
    let (len, coding) = codec.encode(block, out).spelled(out);
    (len, Kind::of(coding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_written_than_four_shares_a_day_and_one() {
        let mut budget = WriteBudget { left: 1000, seen_ms: 0 };
        let mut written = 0;
        for now_ms in (0..=DAY_MS).step_by(100) {
            budget.fill(now_ms, 1000);
            let some = budget.left.min(7);
            budget.pay(some);
            written += some;
        }
        assert!((4900..=5000).contains(&written), "{written}");
    }
}
