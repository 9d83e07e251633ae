//! Pictures: panels with lines, as one SVG that needs nothing else.
//!
//! Invariants: each panel begins at 0 and has a scale of its own; a point that was not measured is
//! left out, and no line is drawn over it; all text is escaped.

use std::fmt::Write as _;

/// A panel's plot and its margins, in pixels.
const PLOT: (f64, f64) = (250.0, 150.0);
const LEFT: f64 = 62.0;
const TOP: f64 = 28.0;
const BELOW: f64 = 46.0;
const RIGHT: f64 = 16.0;
/// The head of a picture: its title and what the lines are.
const HEAD: f64 = 62.0;
/// Of equal lightness, and apart for most who see colours differently (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/// Lines across a panel.
const TICKS: u32 = 4;

/// A picture.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What each line is, in the order of [`Panel::lines`].
    pub lines: Vec<String>,
    /// Panels in a row.
    pub columns: usize,
    /// All panels.
    pub panels: Vec<Panel>,
}

/// A part of it.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// What it shows, with the unit.
    pub title: String,
    /// What goes from left to right.
    pub across: String,
    /// Where points are, from left to right.
    pub places: Vec<String>,
    /// The points of each line, one a place.
    pub lines: Vec<Vec<Option<f64>>>,
}

impl Chart {
    /// The text of an SVG file.
    pub fn svg(&self) -> String {
        let columns = self.columns.max(1);
        let rows = self.panels.len().div_ceil(columns);
        let (width, height) = (LEFT + PLOT.0 + RIGHT, TOP + PLOT.1 + BELOW);
        let (all, down) = (width * columns as f64, HEAD + height * rows as f64);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{all}\" height=\"{down}\" \
             viewBox=\"0 0 {all} {down}\" font-family=\"sans-serif\" font-size=\"11\" \
             fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"12\" y=\"22\" font-size=\"15\">{}</text>\n",
            escaped(&self.title)
        );
        let mut x = 12.0;
        for (i, line) in self.lines.iter().enumerate() {
            let _ = writeln!(
                text,
                "<line x1=\"{x}\" y1=\"42\" x2=\"{}\" y2=\"42\" stroke=\"{}\" \
                 stroke-width=\"3\"/><text x=\"{}\" y=\"46\">{}</text>",
                x + 20.0,
                colour(i),
                x + 26.0,
                escaped(line)
            );
            x += 46.0 + 6.5 * line.chars().count() as f64;
        }
        for (i, panel) in self.panels.iter().enumerate() {
            let (column, row) = ((i % columns) as f64, (i / columns) as f64);
            let at = (column * width + LEFT, HEAD + row * height + TOP);
            let _ = writeln!(text, "<g transform=\"translate({},{})\">", at.0, at.1);
            text += &panel.svg();
            text += "</g>\n";
        }
        text + "</svg>\n"
    }
}

impl Panel {
    fn svg(&self) -> String {
        let (wide, high) = PLOT;
        let most = self.lines.iter().flatten().flatten().copied().fold(0.0, f64::max);
        let step = round_up(most / f64::from(TICKS));
        let top = step * f64::from(TICKS);
        let x = |n: usize| match self.places.len() {
            0 | 1 => wide / 2.0,
            count => wide * (n as f64 + 0.5) / count as f64,
        };
        let y = |value: f64| high - high * value / top;
        let mut text =
            format!("<text y=\"-10\" font-weight=\"bold\">{}</text>\n", escaped(&self.title));
        for tick in 0..=TICKS {
            let value = step * f64::from(tick);
            let at = y(value);
            let _ = writeln!(
                text,
                "<line x1=\"0\" y1=\"{at:.1}\" x2=\"{wide}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"-6\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                at + 4.0,
                short(value)
            );
        }
        // Not so many that they run into each other.
        let every = self.places.len().div_ceil(8).max(1);
        for (n, place) in self.places.iter().enumerate().step_by(every) {
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                x(n),
                high + 15.0,
                escaped(place)
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{}</text>",
            wide / 2.0,
            high + 31.0,
            escaped(&self.across)
        );
        for (i, line) in self.lines.iter().enumerate() {
            text += &drawn(line, colour(i), &x, &y);
        }
        text
    }
}

/// A line with its points, interrupted where there is none.
fn drawn(
    line: &[Option<f64>],
    colour: &str,
    x: &dyn Fn(usize) -> f64,
    y: &dyn Fn(f64) -> f64,
) -> String {
    let (mut path, mut points, mut pen) = (String::new(), String::new(), 'M');
    for (n, value) in line.iter().enumerate() {
        let Some(value) = value else {
            pen = 'M';
            continue;
        };
        let (x, y) = (x(n), y(*value));
        let _ = write!(path, "{pen}{x:.1} {y:.1}");
        let _ = write!(points, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
        pen = 'L';
    }
    format!("<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>{points}\n")
}

fn colour(line: usize) -> &'static str {
    COLOURS[line % COLOURS.len()]
}

/// The next of 1, 2, 2.5, 5 and their tens and tenths.
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
    let (value, unit) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}

/// Text between tags.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_where_they_belong_and_gaps_stay() {
        let panel = Panel {
            title: "a < b".into(),
            across: "x".into(),
            places: ["1", "2", "3"].map(str::to_owned).into(),
            lines: vec![vec![Some(0.0), None, Some(4.0)]],
        };
        let lines = vec!["one".to_owned()];
        let chart = Chart { title: "t".into(), lines, columns: 1, panels: vec![panel] };
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
        // The scale ends at 4: the largest is at the top, 0 at the bottom, and nothing joins them.
        assert!(svg.contains("d=\"M41.7 150.0M208.3 0.0\""), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
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
