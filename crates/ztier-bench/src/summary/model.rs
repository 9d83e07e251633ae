//! The content of a report, independent of its format.
//!
//! Invariant: HTML, Markdown and CSV are made only of this, so that their content is the same.

use crate::report::{Line, Lines};

/// A whole report.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// Its title.
    pub title: String,
    /// Where ztier is ahead, level, behind: what a reader sees first.
    pub glance: Vec<Item>,
    /// Introduction of a sentence or two.
    pub lead: Vec<String>,
    /// Its sections, in order.
    pub sections: Vec<Section>,
    /// Every figure of ztier, rivals and sources.
    pub figures: Vec<Figure>,
}

/// A part with a heading.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Anchor for links.
    pub id: String,
    /// The heading.
    pub title: String,
    /// The content below the heading.
    pub items: Vec<Item>,
}

/// An element of a section.
#[derive(Clone, Debug)]
pub enum Item {
    /// A paragraph.
    Text(String),
    /// A smaller heading.
    Heading(String),
    /// Columns and rows.
    Grid(Grid),
    /// Charts with a common legend.
    Charts(Charts),
    /// How many times as good as others, of several jobs.
    Factors(Factors),
    /// Text as a program prints it, with a title.
    Verbatim(String, String),
    /// Names with a note on each.
    Notes(Vec<(String, String)>),
    /// Collapsed content.
    More(String, Vec<Item>),
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Grid {
    /// Its caption.
    pub caption: String,
    /// Headings of the columns.
    pub head: Vec<String>,
    /// Rows, each with a cell a column.
    pub rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// An empty table.
    pub fn new(caption: impl Into<String>, head: &[&str]) -> Self {
        let head = head.iter().map(|&name| name.to_owned()).collect();
        Self { caption: caption.into(), head, rows: Vec::new() }
    }
}

/// A field of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// The common property of the rows below.
    Title(String),
    /// A number, printed with its significant digits.
    Number(f64),
    /// Whether a target was met.
    Verdict(bool),
    /// Nothing was measured, or nothing applies.
    None,
}

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A number, or none.
    pub fn maybe(value: Option<f64>) -> Self {
        value.filter(|value| value.is_finite()).map_or(Self::None, Self::Number)
    }

    /// The text of the cell.
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) | Self::Title(text) => text.clone(),
            Self::Number(value) => number(*value),
            Self::Verdict(true) => "met".into(),
            Self::Verdict(false) => "short".into(),
            Self::None => "–".into(),
        }
    }
}

/// A row that names the common property of the rows below, in a table of `columns` columns.
pub fn title(text: &str, columns: usize) -> Vec<Cell> {
    let rest = std::iter::repeat_n(Cell::text(""), columns.saturating_sub(1));
    std::iter::once(Cell::Title(text.to_owned())).chain(rest).collect()
}

/// At least three significant digits, and all digits before the point.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 || v == 0.0 => 2,
        v if v >= 0.01 => 3,
        _ => 5,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) && whole.len() > 4 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

/// Charts next to each other.
#[derive(Clone, Debug, Default)]
pub struct Charts {
    /// Common caption; empty if a heading replaces it.
    pub caption: String,
    /// Legend of the lines; empty for bars, which have their own labels.
    pub legend: Vec<Line>,
    /// The charts.
    pub charts: Vec<Chart>,
}

/// A measured quantity.
#[derive(Clone, Debug)]
pub enum Chart {
    /// Over a growing quantity.
    Lines(Lines),
    /// By system.
    Bars(Bars),
}

/// How many times as good as others ztier is, on a logarithmic scale around 1.
#[derive(Clone, Debug, Default)]
pub struct Factors {
    /// The title.
    pub caption: String,
    /// The best first.
    pub factors: Vec<Factor>,
}

/// A job, and how ztier does it beside another way.
#[derive(Clone, Debug, Default)]
pub struct Factor {
    /// The job.
    pub what: String,
    /// The other way.
    pub beside: String,
    /// Above 1: ztier is better.
    pub factor: f64,
}

/// Bars, one a system.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// The measured quantity.
    pub title: String,
    /// Its unit.
    pub unit: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// A bar of a chart.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Name of the system.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// Further information: spread, CPU use.
    pub note: String,
    /// Whether it is a figure of the source.
    pub source: bool,
}

/// A line of the CSV.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// `source` or `here`.
    pub origin: &'static str,
    /// The source document or the part of the run.
    pub part: String,
    /// A section of it; `ratios` for ratios.
    pub section: String,
    /// Name of the system.
    pub system: String,
    /// The measured case.
    pub case: String,
    /// The value.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// As in a cell: `≥ 2`.
    pub target: String,
    /// `met`, `short` or nothing.
    pub verdict: String,
    /// User and system time of the measuring threads, in percent of one CPU.
    pub cpu_own_percent: Option<f64>,
    /// Busy time of the machine, percent of one CPU.
    pub cpu_machine_percent: Option<f64>,
    /// The part of that in the kernel.
    pub cpu_kernel_percent: Option<f64>,
    /// Each run.
    pub runs: Vec<f64>,
    /// Reason for the absence of a figure.
    pub missing: String,
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        for (value, expected) in [
            (0.0, "0.00"),
            (0.00123, "0.00123"),
            (0.0456, "0.046"),
            (1.0, "1.00"),
            (12.34, "12.3"),
            (999.6, "1000"),
            (-1234.5, "-1234"),
            (74_315.2, "74,315"),
            (2_304_147.0, "2,304,147"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
