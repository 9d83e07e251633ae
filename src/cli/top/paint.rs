//! Lines of styled pieces, and how a terminal shows them.
//!
//! Invariant: text from outside (names, paths, a daemon's answers) can't steer the terminal: a
//! piece has no control characters.

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
        let code = code(*style, colours);
        if code.is_empty() {
            out.push_str(text);
        } else {
            out += &format!("\x1b[{code}m{text}\x1b[0m");
        }
    }
    let chosen = line.iter().any(|(style, _)| *style == Style::Chosen);
    let rest = " ".repeat(columns.saturating_sub(used));
    out + &if chosen { format!("\x1b[7m{rest}\x1b[0m") } else { rest }
}

/// The code of a style for a terminal. Without colours, troubles are bold and the selection is
/// reversed.
fn code(style: Style, colours: bool) -> &'static str {
    match style {
        Style::Plain => "",
        Style::Head => "1",
        Style::Chosen => "7",
        Style::Label if colours => "2",
        Style::Bad if colours => "1;31",
        Style::Bad => "1",
        Style::Warn if colours => "33",
        Style::Ram if colours => "36",
        Style::Log if colours => "35",
        Style::Spill if colours => "33",
        Style::Backing if colours => "34",
        _ => "",
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
