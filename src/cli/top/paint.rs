//! Lines of styled pieces, and how a terminal shows them.
//!
//! Invariant: text from outside (names, paths, a daemon's answers) can't steer the terminal: a
//! piece has no control characters.

use anstyle::AnsiColor;

/// The style of a piece of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text.
    Plain,
    /// A heading.
    Head,
    /// The selected volume.
    Chosen,
    /// A label.
    Label,
    /// A trouble.
    Bad,
    /// A warning.
    Warn,
    /// Memory.
    Ram,
    /// The log.
    Log,
    /// The spill device.
    Spill,
    /// The backing store.
    Backing,
}

/// A piece of a line.
pub type Piece = (Style, String);
/// A line.
pub type Line = Vec<Piece>;

/// How many columns a character takes.
pub fn width_of(c: char) -> usize {
    // All characters that we draw with are narrow; most wide characters are in the other ranges.
    let narrow = (c as u32) < 0x1100 || ('\u{2010}'..='\u{2BFF}').contains(&c);
    if narrow { 1 } else { 2 }
}

/// How many columns a text takes.
pub fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

/// A line cut off after `columns` columns.
pub fn cut(line: Line, columns: usize) -> Line {
    let mut left = columns;
    let mut out = Line::new();
    for (style, text) in line {
        let mut kept = String::new();
        for c in text.chars() {
            let wide = width_of(c);
            if wide > left {
                left = 0;
                break;
            }
            left -= wide;
            kept.push(c);
        }
        if !kept.is_empty() {
            out.push((style, kept));
        }
    }
    out
}

/// A line as text alone.
pub fn plain(line: &Line) -> String {
    let text: String = line.iter().map(|(_, text)| text.as_str()).collect();
    text.trim_end().to_owned()
}

/// A line for a terminal, filled up to `columns`.
pub fn paint(line: &Line, columns: usize, colours: bool) -> String {
    let mut out = String::new();
    let mut used = 0;
    for (style, text) in line {
        used += width(text);
        let shown = shown(*style, colours);
        out += &format!("{shown}{text}{shown:#}");
    }
    let chosen = line.iter().any(|(style, _)| *style == Style::Chosen);
    let rest = " ".repeat(columns.saturating_sub(used));
    let shown = shown(if chosen { Style::Chosen } else { Style::Plain }, colours);
    out + &format!("{shown}{rest}{shown:#}")
}

/// How a terminal shows a style. Without colours, troubles are bold and the selection is reversed.
fn shown(style: Style, colours: bool) -> anstyle::Style {
    let plain = anstyle::Style::new();
    let in_colour = |colour: AnsiColor| match colours {
        true => plain.fg_color(Some(colour.into())),
        false => plain,
    };
    match style {
        Style::Plain => plain,
        Style::Head => plain.bold(),
        Style::Chosen => plain.invert(),
        Style::Label if colours => plain.dimmed(),
        Style::Label => plain,
        Style::Bad => in_colour(AnsiColor::Red).bold(),
        Style::Warn | Style::Spill => in_colour(AnsiColor::Yellow),
        Style::Ram => in_colour(AnsiColor::Cyan),
        Style::Log => in_colour(AnsiColor::Magenta),
        Style::Backing => in_colour(AnsiColor::Blue),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_filled_and_coloured() {
        let line: Line = vec![(Style::Ram, "ab".into()), (Style::Plain, "日cd".into())];
        assert_eq!(plain(&cut(line.clone(), 3)), "ab");
        assert_eq!(plain(&cut(line.clone(), 5)), "ab日c");
        assert_eq!(paint(&cut(line.clone(), 4), 6, true), "\x1b[36mab\x1b[0m日  ");
        assert_eq!(paint(&cut(line, 4), 4, false), "ab日");
        let chosen = vec![(Style::Chosen, "x".into())];
        assert_eq!(paint(&chosen, 3, false), "\x1b[7mx\x1b[0m\x1b[7m  \x1b[0m");
    }
}
