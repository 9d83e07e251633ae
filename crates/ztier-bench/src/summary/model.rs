//! What a report says, before it is written in one way or another.
//!
//! Invariant: HTML, Markdown and CSV are made of this alone, so that they say the same.

use crate::report::{Line, Lines};

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// What it is about.
    pub title: String,
    /// How it came about, in a sentence or two.
    pub lead: Vec<String>,
    /// Its sections, in order.
    pub sections: Vec<Section>,
    /// Every figure, ours, rivals' and the sources'.
    pub figures: Vec<Figure>,
}

/// A part with a heading.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// A word for links.
    pub id: String,
    /// The heading.
    pub title: String,
    /// What stands below.
    pub items: Vec<Item>,
}

/// Something in a section.
#[derive(Clone, Debug)]
pub enum Item {
    /// A paragraph.
    Text(String),
    /// A smaller heading.
    Heading(String),
    /// Columns and rows.
    Grid(Grid),
    /// Charts that share what their lines mean.
    Charts(Charts),
    /// Text as a program prints it, with a title.
    Verbatim(String, String),
    /// Names, and what is said of each.
    Notes(Vec<(String, String)>),
    /// What only some want to see.
    More(String, Vec<Item>),
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Grid {
    /// What it shows.
    pub caption: String,
    /// Headings of the columns.
    pub head: Vec<String>,
    /// Rows, each with a cell a column.
    pub rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// An empty one.
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
    /// What the rows below have in common.
    Title(String),
    /// A number, with as many digits as mean something.
    Number(f64),
    /// Whether a target was met.
    Verdict(bool),
    /// Nothing was measured, or there is nothing to be.
    None,
}

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A number, or nothing.
    pub fn maybe(value: Option<f64>) -> Self {
        value.filter(|value| value.is_finite()).map_or(Self::None, Self::Number)
    }

    /// What stands there.
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

/// A row that names what the rows below have in common, in a table of so many columns.
pub fn title(text: &str, columns: usize) -> Vec<Cell> {
    let rest = std::iter::repeat_n(Cell::text(""), columns.saturating_sub(1));
    std::iter::once(Cell::Title(text.to_owned())).chain(rest).collect()
}

/// Three digits that mean something, and all of those before the point.
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

/// Charts beside each other.
#[derive(Clone, Debug, Default)]
pub struct Charts {
    /// What they show together; empty where a heading says it.
    pub caption: String,
    /// What lines mean; empty for bars, which say it themselves.
    pub legend: Vec<Line>,
    /// The charts.
    pub charts: Vec<Chart>,
}

/// A measured quantity.
#[derive(Clone, Debug)]
pub enum Chart {
    /// By something that grows.
    Lines(Lines),
    /// By system.
    Bars(Bars),
}

/// Bars, one a system.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// What is measured.
    pub title: String,
    /// Its unit.
    pub unit: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// One of them.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Which system.
    pub name: String,
    /// How much.
    pub value: f64,
    /// What else is to be said: spread, CPU use.
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
    /// Which system.
    pub system: String,
    /// What was measured.
    pub case: String,
    /// How much.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// As it stands in a cell: `≥ 2`.
    pub target: String,
    /// `met`, `short` or nothing.
    pub verdict: String,
    /// User and system time of what measures, percent of one CPU.
    pub cpu_own_percent: Option<f64>,
    /// Busy time of the machine, percent of one CPU.
    pub cpu_machine_percent: Option<f64>,
    /// Each run.
    pub runs: Vec<f64>,
    /// Why there is no figure.
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
