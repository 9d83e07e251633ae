//! Estimates the remaining time of a run, without I/O.
//!
//! Invariant: finished parts yield the speed of this machine relative to the one whose times are
//! stated, weighted by their expected times.

/// Bounds of that relative speed: one short part says little.
const PROPORTION: (f64, f64) = (0.2, 10.0);
/// Least remainder of a part that takes longer than expected, as a share of its expected time.
const LEAST: f64 = 0.1;

/// The times of a part, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stretch {
    /// Finished: expected and actual time.
    Over(f64, f64),
    /// Running: expected time, and time so far.
    AtWork(f64, f64),
    /// Waiting: expected time.
    ToCome(f64),
}

/// Seconds until all parts are finished.
pub fn left(parts: &[Stretch]) -> f64 {
    let (should, took) = parts.iter().fold((0.0, 0.0), |sums, part| match part {
        Stretch::Over(should, took) => (sums.0 + should, sums.1 + took),
        _ => sums,
    });
    let scale = if should > 0.0 { (took / should).clamp(PROPORTION.0, PROPORTION.1) } else { 1.0 };
    let rest = |part: &Stretch| match *part {
        Stretch::Over(..) => 0.0,
        Stretch::AtWork(should, been) => (should * scale - been).max(should * scale * LEAST),
        Stretch::ToCome(should) => should * scale,
    };
    parts.iter().map(rest).sum()
}

/// A time as text: `40 s`, `3 min 20 s`, `2 h 5 min`.
pub fn words(seconds: f64) -> String {
    let all = seconds.max(0.0).round() as u64;
    match (all / 3600, all / 60 % 60, all % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, min, s) => format!("{min} min {s} s"),
        (h, min, _) => format!("{h} h {min} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Stretch::{AtWork, Over, ToCome};

    #[test]
    fn what_is_over_says_how_fast_this_machine_is() {
        let near = |parts: &[Stretch], expected: f64| {
            let found = left(parts);
            assert!((found - expected).abs() < 1e-9, "{parts:?}: {found}");
        };
        near(&[ToCome(10.0), ToCome(20.0)], 30.0);
        // Half the stated speed.
        near(&[Over(10.0, 20.0), AtWork(30.0, 10.0), ToCome(5.0)], 50.0 + 10.0);
        // Later than expected: a tenth remains until it is finished.
        near(&[AtWork(30.0, 100.0)], 3.0);
        near(&[Over(1.0, 100.0), ToCome(1.0)], 10.0);
        near(&[Over(1.0, 1.0)], 0.0);
    }

    #[test]
    fn times_are_said_in_two_units_at_most() {
        for (seconds, expected) in
            [(0.4, "0 s"), (59.6, "1 min 0 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min")]
        {
            assert_eq!(words(seconds), expected);
        }
    }
}
