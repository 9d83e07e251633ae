//! The screen of `?`: keys, columns and colours.
//!
//! Invariant: it fits 80 columns and 24 rows.

use super::look::Look;
use super::paint::{Line, Style, cut};

/// Keys and columns with what they mean; a heading has no meaning.
const LINES: &[(&str, &str)] = &[
    ("Keys", ""),
    ("q, Ctrl-C", "end"),
    ("arrows, j, k", "choose the volume whose details are shown; Home, End, g, G"),
    ("s", "order by name, requests, memory"),
    ("+, -", "double, halve the interval"),
    ("Ctrl-L, space", "draw anew"),
    ("", ""),
    ("Columns", ""),
    ("R/s, W/s", "read, write requests a second"),
    ("RB/s, WB/s", "bytes read, written a second"),
    ("p50, p99", "latency that half, 99 of 100 reads and writes did not exceed"),
    ("QD, BUSY", "requests in flight; share of the threads' time (from 100 columns on)"),
    ("MEM, RATIO", "memory used; bytes of data a compressed byte"),
    ("WHERE", "the volume's size by place; the last line has the places"),
    ("", ""),
    ("Colours", ""),
    ("red", "a name: dead, failed, or data is lost; a trouble"),
    ("yellow", "a name: degraded, filling, does not answer; what slows a volume down"),
];

/// The lines of the screen.
pub fn lines(columns: usize, height: usize, look: &Look) -> Vec<Line> {
    let rule = if look.unicode { "─" } else { "-" };
    let mut lines: Vec<Line> = LINES
        .iter()
        .map(|(term, meaning)| match (*term, *meaning) {
            (heading, "") => vec![(Style::Head, heading.to_owned())],
            (term, meaning) => {
                let style = match term {
                    "red" => Style::Bad,
                    "yellow" => Style::Warn,
                    _ => Style::Plain,
                };
                vec![(style, format!("  {term:<14}")), (Style::Plain, meaning.to_owned())]
            }
        })
        .collect();
    lines.truncate(height.saturating_sub(2));
    lines.push(vec![(Style::Label, rule.repeat(columns))]);
    lines.resize_with(height.saturating_sub(1), Line::new);
    lines.push(vec![(Style::Label, "any key goes back  q ends".into())]);
    lines.truncate(height);
    lines.into_iter().map(|line| cut(line, columns)).collect()
}
