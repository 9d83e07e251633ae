//! Line charts with scales, as SVG without colours: a page or picture defines the style of the
//! classes.
//!
//! Invariants: text is only at the scales, each label clear of the next; only measured values are
//! points, and a line joins the points of one system; a scale begins at 0, or is logarithmic and
//! labelled so; sources have colours of their own, and ztier the same colour everywhere.

use std::fmt::Write as _;

/// A line, common to all charts of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Name of the system.
    pub name: String,
    /// Whether it is a figure of the source.
    pub source: bool,
}

impl Line {
    /// The line of a system measured here.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), source: false }
    }
}

/// Lines, one a system.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// The measured quantity.
    pub title: String,
    /// Its unit.
    pub unit: String,
    /// The quantity on the horizontal axis.
    pub across: String,
    /// Labels of the horizontal axis, from left to right.
    pub places: Vec<String>,
    /// For each line of the legend its points, one for each place.
    pub lines: Vec<Vec<Option<f64>>>,
}

impl Lines {
    /// Whether the chart has no points.
    pub fn is_empty(&self) -> bool {
        !self.lines.iter().flatten().flatten().any(|value| value.is_finite())
    }

    /// Whether the values are so far apart that the scale is logarithmic.
    pub fn is_logarithmic(&self) -> bool {
        Scale::of(&self.values()).logarithmic
    }

    /// Quantity and unit, as its scale shows it.
    pub fn heading(&self) -> String {
        match &self.scaled().1[..] {
            "" => self.title.clone(),
            unit => format!("{}, {unit}", self.title),
        }
    }

    fn scaled(&self) -> (f64, String) {
        scaled(&self.unit, self.values().into_iter().fold(0.0, f64::max))
    }

    fn values(&self) -> Vec<f64> {
        self.lines.iter().flatten().flatten().copied().filter(|value| value.is_finite()).collect()
    }
}

/// Width of the drawing, in its own units; a page scales it.
pub const WIDE: f64 = 360.0;
pub const HIGH: f64 = 204.0;
const LEFT: f64 = 48.0;
const TOP: f64 = 10.0;
const PLOT: (f64, f64) = (300.0, 156.0);
/// Upper bound on the units that a letter of a label takes, and gap between two labels.
const LETTER: f64 = 7.0;
const APART: f64 = 8.0;
/// Ratio of values from which on a scale is logarithmic.
const FAR: f64 = 30.0;
/// Number of points from which on only the line is drawn.
const POINTS: usize = 40;
/// Grid lines of a scale that begins at 0.
const TICKS: u32 = 4;
/// Colours on white: of systems, then of sources. They have similar lightness, and most users with
/// colour vision deficiency can tell them apart (after Okabe and Ito); pages have others for the
/// dark.
pub const PALETTE: [&str; 8] =
    ["#0072b2", "#c04f00", "#007f5c", "#a8477e", "#8a6a00", "#2b83ba", "#5b6770", "#7b3fa0"];
const SOURCES: usize = 6;
/// Number of point shapes, so that not only colour distinguishes lines.
const SHAPES: usize = 4;

/// The vertical scale, from bottom to top.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<f64>,
}

impl Scale {
    fn of(values: &[f64]) -> Self {
        let most = values.iter().copied().fold(0.0, f64::max);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        if least > 0.0 && most / least > FAR {
            let (low, high) = (least.log10().floor(), most.log10().ceil());
            let steps: &[f64] = if high - low > 2.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let (low, high) = (10f64.powf(low), 10f64.powf(high));
            let mut ticks = Vec::new();
            let mut power = low;
            while power <= high * 1.001 {
                let within = steps.iter().map(|step| step * power).filter(|t| *t <= high * 1.001);
                ticks.extend(within);
                power *= 10.0;
            }
            return Self { low, high, logarithmic: true, ticks };
        }
        let step = round_up(most / f64::from(TICKS));
        let ticks = (0..=TICKS).map(|tick| step * f64::from(tick)).collect();
        Self { low: 0.0, high: step * f64::from(TICKS), logarithmic: false, ticks }
    }

    /// The label of a tick. All of a scale that begins at 0 have the same prefix.
    fn label(&self, tick: f64) -> String {
        if self.logarithmic { short(tick) } else { shortened(tick, prefix(self.high)) }
    }

    /// Position of a value, from 0 at the bottom to 1.
    fn part(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

/// Units of amounts of data, each 1024 of the one before.
const PREFIXES: [&str; 4] = ["B", "KiB", "MiB", "GiB"];

/// The unit for values up to `most`, and what they are divided by: no axis has five digits of KiB.
pub fn scaled(unit: &str, most: f64) -> (f64, String) {
    let (amount, rest) = unit.split_at(unit.find('/').unwrap_or(unit.len()));
    let Some(from) = PREFIXES.iter().position(|prefix| *prefix == amount) else {
        return (1.0, unit.to_owned());
    };
    let (mut at, mut by) = (from, 1.0);
    while at + 1 < PREFIXES.len() && most / by >= 1024.0 {
        (at, by) = (at + 1, by * 1024.0);
    }
    (by, format!("{}{rest}", PREFIXES[at]))
}

/// Which values of this unit are good, where that goes without saying.
pub fn direction(unit: &str) -> Option<&'static str> {
    let is_rate = unit.contains('/') || ["IOPS", "times as fast", "hits in %"].contains(&unit);
    let is_cost = ["s", "ms", "µs", "us", "ns", "B", "KiB", "MiB", "GiB"].contains(&unit);
    match (is_rate, is_cost) {
        (true, _) => Some("higher is better"),
        (_, true) => Some("lower is better"),
        _ => None,
    }
}

/// A chart for a page.
pub fn svg(lines: &Lines, legend: &[Line]) -> String {
    let name = quoted(&lines.heading());
    let head = format!("<svg viewBox=\"0 0 {WIDE} {HIGH}\" role=\"img\" aria-label=\"{name}\">\n");
    head + &drawing(lines, legend) + "</svg>"
}

/// The elements of a chart, from 0, 0 to [`WIDE`], [`HIGH`].
pub fn drawing(lines: &Lines, legend: &[Line]) -> String {
    let by = lines.scaled().0;
    let scale = Scale::of(&lines.values().iter().map(|value| value / by).collect::<Vec<_>>());
    let x = |n: usize| LEFT + PLOT.0 * (n as f64 + 0.5) / lines.places.len().max(1) as f64;
    let y = |value: f64| TOP + PLOT.1 * (1.0 - scale.part(value));
    let mut text = String::new();
    for &tick in &scale.ticks {
        let at = y(tick);
        let _ = writeln!(
            text,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}h{}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            PLOT.0,
            LEFT - 6.0,
            at + 4.0,
            scale.label(tick)
        );
    }
    for (n, place) in lines.places.iter().enumerate().step_by(step(&lines.places)) {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(n),
            TOP + PLOT.1 + 15.0,
            escaped(place)
        );
    }
    let _ = writeln!(
        text,
        "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        LEFT + PLOT.0 / 2.0,
        TOP + PLOT.1 + 32.0,
        escaped(&lines.across)
    );
    let styles = styles(legend);
    for (line, style) in lines.lines.iter().zip(&styles) {
        let points =
            line.iter().enumerate().filter_map(|(n, value)| Some((x(n), y((*value)? / by))));
        let points: Vec<(f64, f64)> = points.collect();
        let _ = writeln!(text, "<g class=\"{}\">{}</g>", style.class, drawn(style.mark, &points));
    }
    text
}

/// Number of places from one label to the next, so that labels do not touch.
fn step(places: &[String]) -> usize {
    let letters = places.iter().map(|place| place.chars().count()).max().unwrap_or(1);
    let needed = letters as f64 * LETTER + APART;
    let each = PLOT.0 / places.len().max(1) as f64;
    (needed / each).ceil().max(1.0) as usize
}

/// The style of a line.
pub struct Style {
    /// Its class in the page's style sheet.
    pub class: String,
    /// The shape of its points.
    pub mark: usize,
}

/// The styles of a legend's lines.
pub fn styles(legend: &[Line]) -> Vec<Style> {
    let mut counts = [0, 0];
    let style = |line: &Line| {
        let count = &mut counts[usize::from(line.source)];
        let mark = *count;
        *count += 1;
        Style { class: class(mark, line.source), mark }
    };
    legend.iter().map(style).collect()
}

/// Style sheet class of the `n`th line or bar, of sources or of other systems.
pub fn class(n: usize, source: bool) -> String {
    if source { format!("s{} source", SOURCES + n % 2) } else { format!("s{}", n % SOURCES) }
}

/// A line with its points.
fn drawn(kind: usize, points: &[(f64, f64)]) -> String {
    let (mut path, mut marks) = (String::new(), String::new());
    for (n, &(x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if n == 0 { 'M' } else { 'L' });
        if points.len() <= POINTS {
            marks += &mark(kind, x, y);
        }
    }
    let line = format!("<path class=\"line\" d=\"{path}\"/>{marks}");
    if path.is_empty() { path } else { line }
}

/// A point of a line, in one of several shapes.
pub fn mark(kind: usize, x: f64, y: f64) -> String {
    let path = match kind % SHAPES {
        0 => return format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"),
        1 => format!("M{:.1} {:.1}h5.4v5.4h-5.4z", x - 2.7, y - 2.7),
        2 => format!("M{x:.1} {:.1}l3.4 6h-6.8z", y - 3.7),
        _ => format!("M{x:.1} {:.1}l3.7 3.7l-3.7 3.7l-3.7-3.7z", y - 3.7),
    };
    format!("<path class=\"mark\" d=\"{path}\"/>")
}

/// The next larger of 1, 2, 2.5, 5 and their tens and tenths.
pub fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0];
    let fits = factors.iter().map(|factor| factor * power).find(|step| *step >= value * 0.999);
    fits.unwrap_or(10.0 * power)
}

/// A number in few letters: 1.5, 20, 12k, 2M.
pub fn short(value: f64) -> String {
    shortened(value, prefix(value))
}

/// The prefix for a number, and what it is divided by.
fn prefix(value: f64) -> (f64, &'static str) {
    match value {
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    }
}

fn shortened(value: f64, (by, unit): (f64, &str)) -> String {
    let text = format!("{:.2}", value / by);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "0" { text.into() } else { format!("{text}{unit}") }
}

/// Escapes text between tags.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Escapes text within an attribute.
pub fn quoted(text: &str) -> String {
    escaped(text).replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn legend(source: bool) -> Vec<Line> {
        vec![Line { source, ..Line::new("a") }]
    }

    fn lines(values: &[Option<f64>]) -> Lines {
        Lines {
            title: "a < \"b\"".into(),
            unit: String::new(),
            across: "x".into(),
            places: (0..values.len()).map(|n| n.to_string()).collect(),
            lines: vec![values.to_vec()],
        }
    }

    #[test]
    fn points_are_where_they_belong_and_none_is_invented() {
        let svg = svg(&lines(&[Some(0.0), None, Some(4.0), Some(2.0)]), &legend(false));
        assert!(svg.contains("aria-label=\"a &lt; &quot;b&quot;\""), "{svg}");
        // The scale ends at 4.
        assert!(svg.contains("d=\"M85.5 166.0L235.5 10.0L310.5 88.0\""), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }

    #[test]
    fn values_that_are_far_apart_are_on_a_logarithmic_scale() {
        let far = lines(&[Some(3.0), Some(2000.0)]);
        assert!(far.is_logarithmic() && !lines(&[Some(3.0), Some(80.0)]).is_logarithmic());
        // A logarithmic scale has no 0.
        assert!(!lines(&[Some(0.0), Some(2000.0)]).is_logarithmic());
        let scale = Scale::of(&[3.0, 2000.0]);
        assert_eq!(scale.ticks, [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        assert!((scale.part(100.0) - 0.5).abs() < 1e-9);
        assert_eq!(Scale::of(&[2.0, 70.0]).ticks, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn an_axis_has_one_prefix_and_says_what_is_good() {
        for (unit, most, expected) in [
            ("KiB/s", 900.0, (1.0, "KiB/s")),
            ("KiB/s", 2_300_000.0, (1_048_576.0, "GiB/s")),
            ("MiB", 5000.0, (1024.0, "GiB")),
            ("GiB", 5000.0, (1.0, "GiB")),
            ("IOPS", 5e6, (1.0, "IOPS")),
        ] {
            assert_eq!(scaled(unit, most), (expected.0, expected.1.to_owned()), "{unit} {most}");
        }
        let mut chart = lines(&[Some(1024.0), Some(4096.0)]);
        chart.unit = "KiB/s".into();
        assert_eq!(chart.heading(), "a < \"b\", MiB/s");
        let svg = svg(&chart, &legend(false));
        assert!(svg.contains(">4</text>") && !svg.contains("4096"), "{svg}");
        let scale = Scale::of(&[2000.0, 20_000.0]);
        let labels: Vec<String> = scale.ticks.iter().map(|tick| scale.label(*tick)).collect();
        assert_eq!(labels, ["0", "5k", "10k", "15k", "20k"]);
        assert_eq!(direction("KiB/s"), Some("higher is better"));
        assert_eq!(direction("ms"), Some("lower is better"));
        assert_eq!(direction(""), None);
    }

    #[test]
    fn labels_stay_apart() {
        let places = |n: usize, text: &str| vec![text.to_owned(); n];
        assert_eq!(step(&places(9, "16M")), 1);
        assert_eq!(step(&places(13, "512K")), 2);
        assert_eq!(step(&places(300, "300")), 29);
        assert_eq!(step(&[]), 1);
    }

    #[test]
    fn many_points_are_a_line_alone() {
        let many: Vec<Option<f64>> = (0..100).map(|n| (n != 50).then_some(f64::from(n))).collect();
        let svg = svg(&lines(&many), &legend(true));
        assert_eq!(svg.matches("class=\"mark\"").count(), 0);
        assert!(svg.contains("class=\"s6 source\""));
    }

    #[test]
    fn scales_end_at_round_numbers() {
        for (value, expected) in [
            (0.0, "1"),
            (0.9, "1"),
            (1.0, "1"),
            (1.1, "2"),
            (2.2, "2.5"),
            (2600.0, "5000"),
            (0.03, "0.05"),
            (6.0, "10"),
        ] {
            assert_eq!(short(round_up(value)), expected, "{value}");
        }
        assert_eq!(short(12_500.0), "12.5k");
        assert_eq!(short(2e6), "2M");
    }
}
