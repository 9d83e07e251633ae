//! Prints results in aligned columns, to a reader that may have gone.
//!
//! Invariant: nothing that is printed steers a terminal, see [`crate::escape`].

use crate::error::{Context, Result};
use crate::escape::{escape, escape_json, escape_lines};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Prints lines of text to standard output. A reader that has gone (`| head`) is not an error.
///
/// # Errors
/// When it can't be written, for example because the disk is full.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(escape_lines(text).as_bytes()).and_then(|()| out.flush()) {
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
    let titles = head.iter().map(|title| title.trim_end_matches('>').to_owned()).collect();
    let escaped: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escape(cell).into_owned()).collect()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&titles).chain(&escaped).collect();
    let width = |column: usize| {
        all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in all {
        let mut line = String::new();
        for ((cell, width), title) in row.iter().zip(&widths).zip(head) {
            let cell = if title.ends_with('>') {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            };
            line.push_str(&cell);
            line.push_str("  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
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
        assert_eq!(pairs(&[("a", "1\r2".into())]), "a  1\\r2\n");
        assert_eq!(pairs(&[("a", "1".into()), ("bcd", "2".into())]), "a    1\nbcd  2\n");
    }
}
