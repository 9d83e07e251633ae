//! The text format: families, samples, escapes (Prometheus' exposition format 0.0.4).
//!
//! Invariants: all samples of a metric stand together below its `HELP` and `TYPE`; a metric without
//! samples does not appear; nothing that comes from outside gets into the text unescaped.

use super::BUCKETS;
use crate::escape::steers;
use crate::stats::Distribution;
use crate::stats::declare::Number;
use std::fmt::Write;
use std::sync::LazyLock;

/// The largest values of buckets, in nanoseconds, and their labels, in seconds.
static BOUNDS: LazyLock<Vec<(u64, String)>> = LazyLock::new(|| {
    let bounds = BUCKETS.map(|power| (1 << power) - 1);
    bounds.map(|bound| (bound, below_or_at(&seconds(bound).to_string()))).collect()
});

/// The label of a bucket, the last of a sample.
fn below_or_at(bound: &str) -> String {
    format!("le=\"{bound}\"}} ")
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The text so far.
#[derive(Debug, Default)]
pub struct Writer {
    text: String,
}

/// The samples of one metric.
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Writer {
    /// A text that is expected to have `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes) }
    }

    /// Adds a metric and the samples that `write` writes; nothing if it writes none.
    pub fn family(
        &mut self,
        (name, kind, help): (&'static str, &str, &str),
        write: impl FnOnce(&mut Family<'_>),
    ) {
        let start = self.text.len();
        // Writing to a string can't fail, here and below.
        let _ = write!(self.text, "# HELP {name} ");
        escape(&mut self.text, help, false);
        let _ = write!(self.text, "\n# TYPE {name} {kind}\n");
        let head = self.text.len();
        write(&mut Family { text: &mut self.text, name });
        if self.text.len() == head {
            self.text.truncate(start);
        }
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// One sample. Labels without a value are left out.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) {
        self.part("", labels, value);
    }

    fn part(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Into<Number>) {
        let value = value.into();
        if value == Number::Absent {
            return;
        }
        if self.head(suffix, labels) == ',' {
            self.text.push('}');
        }
        self.text.push(' ');
        let _ = match value {
            Number::Whole(n) => writeln!(self.text, "{n}"),
            Number::Real(n) => writeln!(self.text, "{n}"),
            Number::Absent => Ok(()),
        };
    }

    /// Writes a name and its labels. Returns the character before one more label.
    fn head(&mut self, suffix: &str, labels: &[(&str, &str)]) -> char {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let mut open = '{';
        for (label, value) in labels.iter().filter(|(_, value)| !value.is_empty()) {
            self.text.push(open);
            open = ',';
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(self.text, value, true);
            self.text.push('"');
        }
        open
    }

    /// A histogram: cumulative buckets, sum and count. It uses every `step`-th bound.
    pub fn histogram(&mut self, labels: &[(&str, &str)], of: &Distribution, step: usize) {
        // Most lines are buckets, which differ in the last label alone.
        let begin = self.text.len();
        let open = self.head("_bucket", labels);
        let head = self.text.split_off(begin);
        let mut bucket = |le: &str, count: u64| {
            self.text.push_str(&head);
            self.text.push(open);
            self.text.push_str(le);
            let _ = writeln!(self.text, "{count}");
        };
        let mut finer = of.buckets.iter().peekable();
        let mut below = 0;
        for (bound, le) in BOUNDS.iter().step_by(step) {
            while let Some((_, count)) = finer.next_if(|(upper, _)| upper <= bound) {
                below += count;
            }
            bucket(le, below);
        }
        let count = below + finer.map(|(_, count)| count).sum::<u64>();
        bucket(&below_or_at("+Inf"), count);
        self.part("_sum", labels, seconds(of.sum_ns));
        self.part("_count", labels, count);
    }

    /// A summary: quantiles, sum and count.
    pub fn summary(
        &mut self,
        labels: &[(&str, &str)],
        quantiles: &[(&str, f64)],
        (sum, count): (f64, u64),
    ) {
        let mut all: Vec<(&str, &str)> = labels.to_vec();
        for (quantile, value) in quantiles {
            all.push(("quantile", quantile));
            self.part("", &all, *value);
            all.pop();
        }
        self.part("_sum", labels, sum);
        self.part("_count", labels, count);
    }
}

/// Appends `text` with the escapes of the format, in the value of a label also of `quotes`. The
/// format has an escape for a line break; other characters that steer a terminal are written out,
/// like `\u{1b}`.
fn escape(to: &mut String, text: &str, quotes: bool) {
    let mut rest = text;
    while let Some((at, c)) =
        rest.char_indices().find(|(_, c)| steers(*c) || *c == '\\' || (quotes && *c == '"'))
    {
        to.push_str(&rest[..at]);
        to.push('\\');
        match c {
            '\n' => to.push('n'),
            '\\' | '"' => to.push(c),
            _ => to.extend(['\\'].into_iter().chain(c.escape_default().skip(1))),
        }
        rest = &rest[at + c.len_utf8()..];
    }
    to.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(write: impl FnOnce(&mut Family<'_>)) -> String {
        let mut text = String::new();
        write(&mut Family { text: &mut text, name: "x" });
        text
    }

    #[test]
    fn samples_and_escapes() {
        let text = family(|f| {
            f.sample(&[], 3u64);
            f.sample(&[("a", "q\"\\\n"), ("empty", ""), ("b", "é")], 0.25);
            f.sample(&[], None::<u64>);
            f.sample(&[("a", "")], true);
        });
        let steers = family(|f| f.sample(&[("a", "\u{1b}[m\u{9b}\r")], 1u64));
        assert_eq!(steers, "x{a=\"\\\\u{1b}[m\\\\u{9b}\\\\r\"} 1\n");
        assert_eq!(text, "x 3\nx{a=\"q\\\"\\\\\\n\",b=\"é\"} 0.25\nx 1\n");
    }

    #[test]
    fn buckets_are_cumulative() {
        let of = Distribution {
            sum_ns: 1_500_000_000,
            buckets: vec![(7, 2), (1023, 1), (1151, 4), ((1 << 34) - 1, 1), ((1 << 37) - 1, 2)],
        };
        let text = family(|f| f.histogram(&[("a", "b")], &of, 1));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "x_bucket{a=\"b\",le=\"0.000001023\"} 3");
        assert_eq!(lines[1], "x_bucket{a=\"b\",le=\"0.000002047\"} 7");
        assert_eq!(lines[23], "x_bucket{a=\"b\",le=\"8.589934591\"} 7");
        assert_eq!(lines[24], "x_bucket{a=\"b\",le=\"17.179869183\"} 8");
        assert_eq!(
            lines[25..],
            ["x_bucket{a=\"b\",le=\"+Inf\"} 10", "x_sum{a=\"b\"} 1.5", "x_count{a=\"b\"} 10"]
        );
        // Wider buckets are a part of the finer ones, from the first to the last.
        let text = family(|f| f.histogram(&[("a", "b")], &of, 2));
        let wide: Vec<&str> = text.lines().collect();
        assert_eq!(wide[..13], lines[..25].iter().step_by(2).copied().collect::<Vec<_>>());
        assert_eq!(wide[13..], lines[25..]);
    }
}
