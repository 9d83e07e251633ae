//! How the screen may look, and how numbers look on it.

use super::paint::{Line, Style};
use crate::cli::output;
use crate::config::size::scaled;

/// How a screen may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether it has colours.
    pub colours: bool,
    /// Whether it has more than ASCII.
    pub unicode: bool,
}

impl Look {
    /// Finds out from the locale whether more than ASCII can be shown.
    pub fn of_environment(colours: bool) -> Self {
        Self { colours, unicode: output::has_unicode() }
    }

    /// The character that fills a part of a bar.
    pub fn fill(&self, style: Style) -> char {
        match (style, self.unicode) {
            (Style::Ram, true) => '█',
            (Style::Log, true) => '▓',
            (Style::Spill, true) => '▒',
            (Style::Backing, true) => '░',
            (Style::Ram, false) => '#',
            (Style::Log, false) => '=',
            (Style::Spill, false) => '+',
            (Style::Backing, false) => '-',
            (_, true) => '·',
            (_, false) => '.',
        }
    }

    /// A bar of `columns` with parts of `whole`, the rest left empty. Each part above 0 gets at
    /// least one column, while columns are left.
    pub fn bar(&self, columns: usize, whole: u64, parts: &[(Style, u64)]) -> Line {
        let mut line = Line::new();
        let all = parts.iter().fold(0u64, |sum, (_, part)| sum.saturating_add(*part));
        let (mut used, mut sum) = (0, 0u64);
        for (style, part) in parts.iter().filter(|(_, part)| *part > 0) {
            sum = sum.saturating_add(*part);
            let share = sum as f64 / whole.max(all) as f64;
            let until = (share * columns as f64).round() as usize;
            let count = until.saturating_sub(used).max(1).min(columns - used);
            used += count;
            line.push((*style, self.fill(*style).to_string().repeat(count)));
        }
        let rest = self.fill(Style::Plain).to_string().repeat(columns - used);
        if !rest.is_empty() {
            line.push((Style::Label, rest));
        }
        line
    }

    /// The last `columns` of `values` as a sparkline, the newest at the right, the largest as high
    /// as a line is. What is above 0 is seen.
    pub fn sparkline(
        &self,
        columns: usize,
        values: impl DoubleEndedIterator<Item = f64>,
    ) -> String {
        let levels = if self.unicode { " ▁▂▃▄▅▆▇█" } else { " ..:-=+*#" };
        let levels: Vec<char> = levels.chars().collect();
        let mut shown: Vec<f64> = values.rev().take(columns).collect();
        shown.resize(columns, 0.0);
        let most = shown.iter().copied().fold(0.0, f64::max);
        let level = |value: f64| match value > 0.0 {
            true => (value / most * 8.0).ceil().clamp(1.0, 8.0) as usize,
            false => 0,
        };
        shown.iter().rev().map(|value| levels[level(*value)]).collect()
    }

    /// A latency: three digits and a unit.
    pub fn latency(&self, ns: Option<u64>) -> String {
        let Some(ns) = ns else { return "-".into() };
        let micro = if self.unicode { "µs" } else { "us" };
        let (value, unit) = scaled(ns as f64, 1000.0, &["ns", micro, "ms", "s"]);
        let digits = usize::from(unit != "ns" && value < 9.95);
        format!("{value:.digits$}{unit}")
    }
}

/// A number in at most five columns: `0`, `7.3`, `512`, `12.3k`.
pub fn short(value: f64) -> String {
    let (value, unit) = scaled(value, 1000.0, &["", "k", "M", "G", "T"]);
    let whole = unit.is_empty() && (value >= 9.95 || value.fract() == 0.0);
    let digits = usize::from(!whole && value < 99.95);
    format!("{value:.digits$}{unit}")
}

/// Bytes in at most five columns: `0`, `4.0K`, `512M`, by powers of 1024.
pub fn bytes(bytes: f64) -> String {
    let (value, unit) = scaled(bytes, 1024.0, &["", "K", "M", "G", "T"]);
    let digits = usize::from(!unit.is_empty() && value < 9.95);
    format!("{value:.digits$}{unit}")
}
