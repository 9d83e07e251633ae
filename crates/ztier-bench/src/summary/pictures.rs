//! One SVG for each source document, for pages that can't show HTML: the first charts of its
//! section, which belong to its main table.
//!
//! Invariant: each file is self-contained.

use super::model::{Bars, Chart, Charts, Document, Item, number};
use crate::report::Picture;
use crate::report::lines::{Lines, WIDE, class, escaped};
use crate::report::picture::{APART, HEAD, TITLE, file};
use std::fmt::Write as _;

/// Height of a bar with its name and value, and of the bar alone.
const ROW: f64 = 32.0;
const BAR: f64 = 8.0;
/// Charts in a row.
const COLUMNS: usize = 3;

/// The name and text of each file.
pub fn files(document: &Document) -> Vec<(String, String)> {
    let of_section = |section: &super::model::Section| {
        let group = section.items.iter().find_map(|item| match item {
            Item::Charts(group) => Some(group),
            _ => None,
        })?;
        Some((format!("report-{}.svg", section.id), picture(&section.title, group)))
    };
    document.sections.iter().filter_map(of_section).collect()
}

fn picture(title: &str, group: &Charts) -> String {
    let (mut lines, mut bars): (Vec<Lines>, Vec<&Bars>) = Default::default();
    for chart in &group.charts {
        match chart {
            Chart::Lines(chart) => lines.push(chart.clone()),
            Chart::Bars(chart) => bars.push(chart),
        }
    }
    if lines.is_empty() {
        return of_bars(title, &bars);
    }
    let (legend, columns) = (group.legend.clone(), COLUMNS.min(lines.len()));
    Picture { title: title.to_owned(), legend, columns, charts: lines }.svg()
}

/// Bars on scales that begin at 0.
fn of_bars(title: &str, all: &[&Bars]) -> String {
    let columns = all.len().clamp(1, COLUMNS);
    let most = all.iter().map(|chart| chart.bars.len()).max().unwrap_or(0) as f64;
    let (wide, tall) = (APART + (WIDE + APART) * columns as f64, TITLE + ROW * most + APART);
    let mut text = String::new();
    for (i, chart) in all.iter().enumerate() {
        let x = APART + (WIDE + APART) * (i % columns) as f64;
        let y = HEAD + tall * (i / columns) as f64;
        let _ = writeln!(
            text,
            "<g transform=\"translate({x},{y})\"><text class=\"name\" y=\"16\">{}{}</text>\n{}</g>",
            escaped(&chart.title),
            if chart.unit.is_empty() {
                String::new()
            } else {
                format!(", {}", escaped(&chart.unit))
            },
            bars(chart)
        );
    }
    file(title, (wide, HEAD + tall * all.len().div_ceil(columns) as f64), &text)
}

fn bars(chart: &Bars) -> String {
    let most = chart.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let (mut text, mut line) = (String::new(), 0);
    for (row, bar) in chart.bars.iter().enumerate() {
        let y = TITLE + ROW * row as f64;
        let _ = writeln!(
            text,
            "<g class=\"{}\" transform=\"translate(0,{y})\"><text y=\"14\">{}</text>\
             <text x=\"{WIDE}\" y=\"14\" text-anchor=\"end\">{}</text>\
             <rect class=\"mark\" y=\"19\" height=\"{BAR}\" width=\"{:.1}\"/></g>",
            class(if bar.source { 0 } else { line }, bar.source),
            escaped(&bar.name),
            number(bar.value),
            WIDE * (bar.value / most).clamp(0.0, 1.0)
        );
        line += usize::from(!bar.source);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::model::{Bar, Section};
    use super::*;

    #[test]
    fn bars_are_whole_and_text_can_not_become_markup() {
        let bar = |name: &str, value| Bar { name: name.into(), value, ..Bar::default() };
        let chart = Bars {
            title: "a < b".into(),
            unit: "s".into(),
            bars: vec![bar("<one>", 2.0), bar("two", 1.0)],
        };
        let group = Charts { charts: vec![Chart::Bars(chart); 4], ..Charts::default() };
        let items = vec![Item::Text("t".into()), Item::Charts(group)];
        let section = Section { id: "swap".into(), title: "Swap".into(), items };
        let document = Document { sections: vec![section], ..Document::default() };
        let all = files(&document);
        let [(name, svg)] = &all[..] else { panic!("{all:?}") };
        assert_eq!(name, "report-swap.svg");
        assert!(svg.contains("a &lt; b") && svg.contains("&lt;one&gt;") && !svg.contains("<one"));
        assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
        assert_eq!(svg.matches("width=\"180.0\"").count(), 4, "half as long as the longest: {svg}");
    }
}
