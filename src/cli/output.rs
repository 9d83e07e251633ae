//! Prints results in aligned columns, to a reader that may have gone.
//!
//! Invariant: nothing that is printed steers a terminal, see [`crate::escape`].

use crate::error::{Context, Result};
use crate::escape::{escape, escape_json, escape_lines};
use anstyle::Style;
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};

/// Prints lines of text to standard output. A reader that has gone (`| head`) is not an error.
///
/// # Errors
/// When it can't be written, for example because the disk is full.
pub fn print(text: &str) -> Result<()> {
    print_styled(&escape_lines(text))
}

/// As [`print`], for text of [`styled_table`], whose cells are escaped already.
///
/// # Errors
/// As [`print`].
pub fn print_styled(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write the result"),
    }
}

/// Prints `value` as indented JSON.
///
/// # Errors
/// As [`print`].
pub fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot encode the result")?;
    print(&format!("{}\n", escape_json(&text)))
}

/// Prints each of `lines` on a line of its own.
///
/// # Errors
/// As [`print`].
pub fn list(lines: &[String]) -> Result<()> {
    print(&lines.iter().map(|line| format!("{}\n", escape(line))).collect::<String>())
}

/// Prints a line to standard error.
pub fn remark(line: &str) {
    // There is no other place to report a failure to.
    let _ = writeln!(std::io::stderr(), "{}", escape(line));
}

/// `rows` in columns, two spaces apart. Columns whose heading in `head` ends with `>` are
/// right-aligned.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    styled_table(head, rows, &|_, _| Style::new())
}

/// As [`table`], with the style of the cell in a row and a column.
pub fn styled_table(
    head: &[&str],
    rows: &[Vec<String>],
    style: &dyn Fn(usize, usize) -> Style,
) -> String {
    let titles = head.iter().map(|title| title.trim_end_matches('>').to_owned()).collect();
    let escaped: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escape(cell).into_owned()).collect()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&titles).chain(&escaped).collect();
    let width = |column: usize| {
        all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for (n, row) in all.iter().enumerate() {
        let mut line = String::new();
        for (column, ((cell, width), title)) in row.iter().zip(&widths).zip(head).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            let style = n.checked_sub(1).map_or(Style::new(), |row| style(row, column));
            let cell = format!("{style}{cell}{style:#}");
            let cell = if title.ends_with('>') { pad + &cell } else { cell + &pad };
            line.push_str(&cell);
            line.push_str("  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Columns of a text in which words are wrapped.
const WRAPPED: usize = 80;

/// Words in lines of at most 80 columns; all but the first line begin with `indent` spaces.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let (mut used, mut begun) = (0, false);
    for word in escape(text).split_inclusive(' ') {
        let width = word.trim_end().chars().count();
        if begun && used + width > WRAPPED {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            (used, begun) = (indent, false);
        }
        out.push_str(word);
        used += word.chars().count();
        begun |= width > 0;
    }
    out
}

/// Whether standard output is a terminal that may show colours.
pub fn has_colours() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let able = set("TERM").is_some_and(|term| term != "dumb") && set("NO_COLOR").is_none();
    able && std::io::stdout().is_terminal()
}

/// Columns of the terminal that standard output is; `None`: it is none.
pub fn columns() -> Option<usize> {
    let out = std::io::stdout();
    let size = tcgetwinsize(&out).ok().filter(|_| out.is_terminal())?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Whether the locale has more than ASCII.
pub fn has_unicode() -> bool {
    let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// `rows` of names and values, the values in one column.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {}\n", escape(value))).collect()
}

/// `3 d 4 h`, `5 min 6 s`: the two largest units.
pub fn duration(seconds: u64) -> String {
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
    ];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    parts[first..]
        .iter()
        .take(2)
        .map(|(count, unit)| format!("{count} {unit}"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["a".to_owned(), "1 GiB".to_owned(), "x".to_owned()],
            vec!["longer".to_owned(), "10 GiB".to_owned(), "y".to_owned()],
        ];
        let golden = "\
NAME      SIZE  WHERE
a        1 GiB  x
longer  10 GiB  y
";
        assert_eq!(table(&["NAME", "SIZE>", "WHERE"], &rows), golden);
        let steers = [vec!["a\nb".to_owned(), "\u{1b}[m".to_owned()]];
        assert_eq!(table(&["X", "Y>"], &steers), "X            Y\na\\nb  \\u{1b}[m\n");
        let bold = Style::new().bold();
        let styled = styled_table(&["X", "Y>"], &steers, &|row, column| {
            if (row, column) == (0, 1) { bold } else { Style::new() }
        });
        assert_eq!(styled, "X            Y\na\\nb  \u{1b}[1m\\u{1b}[m\u{1b}[0m\n");
        assert_eq!(pairs(&[("a", "1\r2".into())]), "a  1\\r2\n");
        assert_eq!(pairs(&[("a", "1".into()), ("bcd", "2".into())]), "a    1\nbcd  2\n");
    }

    #[test]
    fn words_are_wrapped() {
        let text = "word ".repeat(40);
        let lines = wrapped(text.trim_end(), 4);
        assert!(lines.lines().count() == 3, "{lines}");
        assert!(lines.lines().all(|line| line.chars().count() <= 80 && line == line.trim_end()));
        assert!(lines.lines().skip(1).all(|line| line.starts_with("    word")));
        let long = "x".repeat(100);
        assert_eq!(wrapped(&format!("a {long} b"), 2), format!("a\n  {long}\n  b"));
    }
}
