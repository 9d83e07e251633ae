//! A file with charts: one self-contained SVG, on white.
//!
//! Invariants: the legend is above all charts, in as many rows as it needs; colours are literal,
//! because programs other than browsers know no variables.

use super::lines::{HIGH, Line, Lines, PALETTE, WIDE, drawing, escaped, mark, styles};
use std::fmt::Write as _;

/// Height of a chart's title, which is above the chart.
pub const TITLE: f64 = 26.0;
/// Distance between charts, and from the edge.
pub const APART: f64 = 14.0;
/// Height of the picture's title, and of a row of the legend.
pub const HEAD: f64 = 34.0;
const ROW: f64 = 22.0;
/// Length of a legend's sample line, and upper bound on the units of a letter behind it.
const SAMPLE: f64 = 30.0;
const LETTER: f64 = 7.5;

/// Charts with the same lines.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Title of the picture.
    pub title: String,
    /// The legend, in the order of [`Lines::lines`].
    pub legend: Vec<Line>,
    /// Charts in a row.
    pub columns: usize,
    /// All charts.
    pub charts: Vec<Lines>,
}

impl Picture {
    /// The text of an SVG file.
    pub fn svg(&self) -> String {
        let columns = self.columns.max(1);
        let rows = self.charts.len().div_ceil(columns);
        let wide = APART + (WIDE + APART) * columns as f64;
        let (legend, top) = self.legend(wide);
        let high = top + (TITLE + HIGH + APART) * rows as f64;
        let mut text = legend;
        for (i, chart) in self.charts.iter().enumerate() {
            let x = APART + (WIDE + APART) * (i % columns) as f64;
            let y = top + (TITLE + HIGH + APART) * (i / columns) as f64;
            let note = if chart.is_logarithmic() { ", logarithmic scale" } else { "" };
            let _ = writeln!(
                text,
                "<g transform=\"translate({x},{y})\"><text class=\"name\" y=\"16\">{}{note}</text>\
                 <g transform=\"translate(0,{TITLE})\">\n{}</g></g>",
                escaped(&chart.heading()),
                drawing(chart, &self.legend)
            );
        }
        file(&self.title, (wide, high), &text)
    }

    /// Draws the legend; returns its lower end, too.
    fn legend(&self, wide: f64) -> (String, f64) {
        let (mut text, mut x, mut y) = (String::new(), APART, HEAD);
        for (line, style) in self.legend.iter().zip(styles(&self.legend)) {
            let takes = SAMPLE + LETTER * (line.name.chars().count() + 3) as f64;
            if x > APART && x + takes > wide {
                (x, y) = (APART, y + ROW);
            }
            let _ = writeln!(
                text,
                "<g transform=\"translate({x},{y})\"><g class=\"{}\">\
                 <path class=\"line\" d=\"M0 10h24\"/>{}</g>\
                 <text x=\"{SAMPLE}\" y=\"14\">{}</text></g>",
                style.class,
                mark(style.mark, 12.0, 10.0),
                escaped(&line.name)
            );
            x += takes;
        }
        (text, y + ROW)
    }
}

/// The text of an SVG file of that width and height, with a title above the drawing.
pub fn file(title: &str, (wide, high): (f64, f64), drawn: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" \
         viewBox=\"0 0 {wide} {high}\">\n<style>\n{}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text class=\"head\" x=\"{APART}\" y=\"24\">{}</text>\n{drawn}</svg>\n",
        style(),
        escaped(title)
    )
}

fn style() -> String {
    let mut text = String::from(
        "text{font:12px sans-serif;fill:#57606a}.head{font-size:16px;fill:#1b1f24}\n\
         .name{font-weight:bold;fill:#1b1f24}.grid{stroke:#d5dae0;fill:none}\n\
         .line{stroke-width:2;fill:none;stroke-linejoin:round}\n",
    );
    for (n, colour) in PALETTE.iter().enumerate() {
        let _ = writeln!(
            text,
            ".s{n} .line{{stroke:{colour}}}.s{n} .mark{{fill:{colour};stroke:{colour}}}"
        );
    }
    text + ".source .line{stroke-dasharray:4 3}.source .mark{fill:#fff}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(names: &[&str], charts: usize) -> Picture {
        let line = |name: &&str| Line::new(*name);
        let chart = Lines {
            title: "a < b".into(),
            places: vec!["1".into(), "2".into()],
            lines: vec![vec![Some(1.0), Some(2.0)]; names.len()],
            ..Lines::default()
        };
        Picture {
            title: "t".into(),
            legend: names.iter().map(line).collect(),
            columns: 2,
            charts: vec![chart; charts],
        }
    }

    #[test]
    fn it_is_whole_and_text_can_not_become_markup() {
        let svg = picture(&["one", "<two>"], 3).svg();
        assert!(svg.contains("a &lt; b") && svg.contains("&lt;two&gt;") && !svg.contains("a < b"));
        assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
        assert_eq!((svg.matches("class=\"name\"").count(), svg.matches("<svg").count()), (3, 1));
        // Two rows of charts.
        assert!(svg.contains(&format!("width=\"{}\"", 2.0 * WIDE + 3.0 * APART)), "{svg}");
        assert!(!svg.contains("var(") && svg.contains(PALETTE[1]));
    }

    #[test]
    fn a_long_legend_takes_more_rows() {
        let long = "a system with a name that is long";
        let (_, one) = picture(&["a", "b"], 2).legend(760.0);
        let (text, three) = picture(&[long; 6], 2).legend(760.0);
        assert_eq!((one, three), (HEAD + ROW, HEAD + 3.0 * ROW), "{text}");
    }
}
