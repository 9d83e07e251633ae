//! What a seek costs on the spill device, learned from its reads: a line through their times over
//! their lengths, of which older reads count less and less.

/// How much a read counts beside the next one.
const FADE: f64 = 1.0 - 1.0 / 64.0;
/// Reads of at least so different lengths tell: their standard deviation, in bytes.
const APART: f64 = (16 << 10) as f64;
/// The most that is believed, in bytes.
const MOST: f64 = (4 << 20) as f64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SeekCost {
    /// Weight of all reads, then sums of their lengths, times, and products.
    n: f64,
    len: f64,
    time: f64,
    len_len: f64,
    len_time: f64,
}

impl SeekCost {
    /// Notes a read of `len` bytes that took `nanoseconds`.
    pub(super) fn note(&mut self, len: u64, nanoseconds: u64) {
        let (len, time) = (len as f64, nanoseconds as f64);
        let fade = |sum: &mut f64, new: f64| *sum = *sum * FADE + new;
        fade(&mut self.n, 1.0);
        fade(&mut self.len, len);
        fade(&mut self.time, time);
        fade(&mut self.len_len, len * len);
        fade(&mut self.len_time, len * time);
    }

    /// Bytes that are read in the time of a seek; 0 while that is unknown.
    pub(super) fn bytes(&self) -> u32 {
        let n = self.n.max(1.0);
        let (len, time) = (self.len / n, self.time / n);
        let variance = self.len_len / n - len * len;
        if variance < APART * APART {
            return 0;
        }
        let each = (self.len_time / n - len * time) / variance;
        let seek = time - each * len;
        match seek > 0.0 {
            // Without a cost of a byte that can be told, a seek is all that counts.
            true => (seek / each.max(seek / MOST)) as u32,
            false => 0,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// A device with a seek of `seek` ns and `each` ns a byte, and a time that varies.
    fn learn(cost: &mut SeekCost, seek: u64, each: u64, lengths: &[u64]) {
        for n in 0..400 {
            let len = lengths[n % lengths.len()];
            let vary = 90 + n as u64 * 7 % 21;
            cost.note(len, (seek + len * each) * vary / 100);
        }
    }

    #[test]
    fn a_seek_is_told_from_bytes() {
        let mut cost = SeekCost::default();
        assert_eq!(cost.bytes(), 0);
        // A disk: 7 ms and 100 MB/s.
        let lengths = [16 << 10, 64 << 10, 512 << 10, 1 << 20];
        learn(&mut cost, 7_000_000, 10, &lengths);
        assert!((500_000..900_000).contains(&cost.bytes()), "{}", cost.bytes());
        // Another device, as a log moves from the cache of a drive to its medium.
        learn(&mut cost, 200_000, 4, &lengths);
        assert!((20_000..100_000).contains(&cost.bytes()), "{}", cost.bytes());
        // All of one length tell nothing.
        let mut cost = SeekCost::default();
        learn(&mut cost, 7_000_000, 10, &[64 << 10]);
        assert_eq!(cost.bytes(), 0);
        // Bytes that cost nothing.
        let mut cost = SeekCost::default();
        (0..100).for_each(|n| cost.note(4096 << (n % 6), 1_000_000));
        assert_eq!(cost.bytes(), 4 << 20);
    }
}
