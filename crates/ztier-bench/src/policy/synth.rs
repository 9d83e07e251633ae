//! Generated traces: the same in every run.

use super::trace::{Kind, Trace};
use crate::data::Rng;

/// Blocks in a record of the file tests: 64 KiB.
const RECORD: u64 = 16;
/// Records that a stride read goes forward.
const STRIDE: u64 = 17;

/// Size of the generated traces.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Blocks in a trace.
    pub blocks: u64,
    /// Mean reads of each block, in random traces.
    pub times: u64,
}

impl Scale {
    /// Enough to show which policy is better.
    pub const QUICK: Self = Self { blocks: 1 << 14, times: 12 };
    /// Four times the blocks, for longer.
    pub const FULL: Self = Self { blocks: 1 << 16, times: 24 };
}

/// All generated traces.
pub fn all(scale: Scale) -> Vec<Trace> {
    let mut traces: Vec<Trace> = [80, 100, 120].map(|exponent| zipf(scale, exponent)).into();
    traces.extend([zipf_written(scale), one_loop(scale), loops(scale)]);
    traces.extend([scan_and_hot(scale), shifting(scale)]);
    traces.extend(Pattern::ALL.map(|pattern| iozone(scale, pattern)));
    traces.push(nine(scale));
    traces
}

/// Zipf-distributed ranks, mapped to blocks in a random order.
pub(super) struct Zipf {
    sums: Vec<f64>,
    blocks: Vec<u64>,
}

impl Zipf {
    pub(super) fn new(blocks: u64, exponent: f64, rng: &mut Rng) -> Self {
        let mut sum = 0.0;
        let weigh = |rank: u64| {
            sum += (rank as f64).powf(-exponent);
            sum
        };
        let sums = (1..=blocks).map(weigh).collect();
        let mut blocks: Vec<u64> = (0..blocks).collect();
        rng.shuffle(&mut blocks);
        Self { sums, blocks }
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        let most = self.sums.last().copied().unwrap_or(0.0);
        // 53 bits, as in the fraction of an `f64`.
        let point = (rng.next() >> 11) as f64 / (1u64 << 53) as f64 * most;
        let rank = self.sums.partition_point(|&sum| sum <= point);
        self.blocks[rank.min(self.blocks.len() - 1)]
    }
}

fn zipf(scale: Scale, percent: u32) -> Trace {
    let exponent = f64::from(percent) / 100.0;
    let name = format!("zipf-{exponent:.1}");
    let mut trace =
        Trace::new(&name, format!("single blocks by Zipf's law, exponent {exponent:.1}"));
    let mut rng = Rng::new(percent.into());
    let zipf = Zipf::new(scale.blocks, exponent, &mut rng);
    trace.reads((0..scale.blocks * scale.times).map(|_| zipf.draw(&mut rng)));
    trace
}

fn zipf_written(scale: Scale) -> Trace {
    let about = "as zipf-1.0, and as many writes by a Zipf's law of their own: most of what is \
                 written is never read";
    let mut trace = Trace::new("zipf-written", about);
    let mut rng = Rng::new(2);
    let read = Zipf::new(scale.blocks, 1.0, &mut rng);
    let written = Zipf::new(scale.blocks, 1.0, &mut rng);
    for _ in 0..scale.blocks * scale.times / 2 {
        trace.push(Kind::Read, read.draw(&mut rng), 1);
        trace.push(Kind::Write, written.draw(&mut rng), 1);
    }
    trace
}

fn sweep(trace: &mut Trace, blocks: std::ops::Range<u64>) {
    for first in blocks.step_by(RECORD as usize) {
        trace.push(Kind::Read, first, RECORD as u32);
    }
}

/// A part of `permille` thousandths of the blocks, in whole records.
fn part(scale: Scale, permille: u64) -> u64 {
    (scale.blocks * permille / 1000).next_multiple_of(RECORD)
}

fn one_loop(scale: Scale) -> Trace {
    let about = "44 % of the blocks from first to last, ten times: 1.1 times the largest cache; \
                 then the others, once";
    let mut trace = Trace::new("loop", about);
    let end = part(scale, 440);
    for _ in 0..10 {
        sweep(&mut trace, 0..end);
    }
    sweep(&mut trace, end..scale.blocks);
    trace
}

fn loops(scale: Scale) -> Trace {
    let about = "a loop of 1.1 times each cache size, one after the other, ten rounds each";
    let mut trace = Trace::new("loops", about);
    let mut first = 0;
    for permille in [11, 55, 110, 220, 440] {
        let end = first + part(scale, permille);
        for _ in 0..10 {
            sweep(&mut trace, first..end);
        }
        first = end;
    }
    sweep(&mut trace, first..scale.blocks);
    trace
}

fn scan_and_hot(scale: Scale) -> Trace {
    let about = "a hot twentieth, single blocks by Zipf's law (0.8), while the rest is read from \
                 first to last, twice, a record after each eight of those";
    let mut trace = Trace::new("scan+hot", about);
    let mut rng = Rng::new(3);
    let hot = part(scale, 50);
    let zipf = Zipf::new(hot, 0.8, &mut rng);
    for _ in 0..2 {
        for first in (hot..scale.blocks).step_by(RECORD as usize) {
            trace.reads((0..8).map(|_| zipf.draw(&mut rng)));
            trace.push(Kind::Read, first, RECORD as u32);
        }
    }
    trace
}

fn shifting(scale: Scale) -> Trace {
    let about = "a tenth of the blocks by Zipf's law (0.8), another tenth after a while, eighteen \
                 of them; each shares half with the one before";
    let mut trace = Trace::new("shifting", about);
    let mut rng = Rng::new(4);
    let set = part(scale, 100);
    for n in 0..18 {
        let zipf = Zipf::new(set, 0.8, &mut rng);
        let first = n * set / 2;
        let count = scale.blocks * scale.times / 18;
        trace.reads((0..count).map(|_| first + zipf.draw(&mut rng)));
    }
    trace
}

/// IOzone's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Write,
    Rewrite,
    Read,
    Reread,
    RandomRead,
    RandomWrite,
    Backward,
    RecordRewrite,
    Stride,
}

impl Pattern {
    const ALL: [Self; 9] = [
        Self::Write,
        Self::Rewrite,
        Self::Read,
        Self::Reread,
        Self::RandomRead,
        Self::RandomWrite,
        Self::Backward,
        Self::RecordRewrite,
        Self::Stride,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Read => "read",
            Self::Reread => "reread",
            Self::RandomRead => "random-read",
            Self::RandomWrite => "random-write",
            Self::Backward => "backward",
            Self::RecordRewrite => "record-rewrite",
            Self::Stride => "stride",
        }
    }

    fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Rewrite | Self::RandomWrite | Self::RecordRewrite)
    }

    /// The records of one pass.
    fn order(self, records: u64, rng: &mut Rng) -> Vec<u64> {
        let mut order: Vec<u64> = (0..records).collect();
        match self {
            Self::Backward => order.reverse(),
            Self::RandomRead | Self::RandomWrite => rng.shuffle(&mut order),
            Self::RecordRewrite => order.fill(0),
            Self::Stride => {
                order = (0..STRIDE)
                    .flat_map(|first| (first..records).step_by(STRIDE as usize))
                    .collect();
            }
            Self::Write | Self::Rewrite | Self::Read | Self::Reread => {}
        }
        order
    }

    fn pass(self, trace: &mut Trace, records: u64, rng: &mut Rng) {
        let kind = if self.writes() { Kind::Write } else { Kind::Read };
        for record in self.order(records, rng) {
            trace.push(kind, record * RECORD, RECORD as u32);
        }
    }
}

/// Repeats one test.
fn iozone(scale: Scale, pattern: Pattern) -> Trace {
    let (name, records) = (pattern.name(), scale.blocks / RECORD);
    let about = match pattern.writes() {
        true => format!("a file written, then three times: IOzone's {name}, and the file read"),
        false => format!("a file written, then three times IOzone's {name}"),
    };
    let mut trace = Trace::new(&format!("iozone-{name}"), about + ", records of 64 KiB");
    let mut rng = Rng::new(5);
    Pattern::Write.pass(&mut trace, records, &mut rng);
    for _ in 0..3 {
        pattern.pass(&mut trace, records, &mut rng);
        if pattern.writes() {
            Pattern::Read.pass(&mut trace, records, &mut rng);
        }
    }
    trace
}

fn nine(scale: Scale) -> Trace {
    let about = "IOzone's nine tests on one file, in its order, records of 64 KiB";
    let mut trace = Trace::new("iozone-nine", about);
    let mut rng = Rng::new(6);
    for pattern in Pattern::ALL {
        pattern.pass(&mut trace, scale.blocks / RECORD, &mut rng);
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn traces_are_the_same_each_time_and_about_as_many_blocks_as_they_say() {
        let scale = Scale { blocks: 4096, times: 12 };
        let traces = all(scale);
        assert_eq!(traces, all(scale));
        let names: HashSet<&str> = traces.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names.len(), traces.len());
        for trace in &traces {
            let replay = trace.replay();
            let share = f64::from(replay.blocks) / scale.blocks as f64;
            assert!((0.5..=1.0).contains(&share), "{}: {share}", trace.name);
            assert!(replay.reads() >= u64::from(replay.blocks), "{}", trace.name);
        }
    }

    #[test]
    fn ranks_come_up_by_their_law() {
        let mut rng = Rng::new(1);
        let zipf = Zipf::new(1000, 1.0, &mut rng);
        let mut counts = vec![0u32; 1000];
        for _ in 0..100_000 {
            counts[zipf.draw(&mut rng) as usize] += 1;
        }
        let count = |rank: usize| f64::from(counts[zipf.blocks[rank] as usize]);
        assert!((count(0) / count(1) - 2.0).abs() < 0.2);
        assert!((count(0) / count(9) - 10.0).abs() < 1.5);
    }
}
