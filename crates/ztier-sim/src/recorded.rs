//! Cases that failed once: `tests/sim/seeds.txt`, replayed before anything else.
//!
//! A line has a case, and `only=LIST` if it was shrunk; `#` begins a comment.

use crate::case::Case;
use crate::shrink::Kept;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// A recorded case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The case.
    pub case: Case,
    /// The case's remaining steps, if not all.
    pub only: Option<Kept>,
}

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/sim/seeds.txt"))
}

/// All recorded cases.
///
/// # Errors
/// The file cannot be read, or a line is no case.
pub fn all() -> Result<Vec<Recorded>, String> {
    let text = fs::read_to_string(path()).map_err(|e| format!("{}: {e}", path().display()))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Recorded>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(parse_line).collect()
}

fn parse_line(line: &str) -> Result<Recorded, String> {
    let (case, only) = match line.split_once(char::is_whitespace) {
        None => (line, None),
        Some((case, rest)) => {
            let list = rest.trim().strip_prefix("only=");
            let list = list.ok_or_else(|| format!("{line:?}: expected only=LIST"))?;
            (case, Some(list.parse()?))
        }
    };
    Ok(Recorded { case: case.parse()?, only })
}

/// Adds a case.
///
/// # Errors
/// The file cannot be written.
pub fn add(recorded: &Recorded, why: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path())?;
    let only = recorded.only.as_ref().map(|kept| format!(" only={kept}")).unwrap_or_default();
    writeln!(file, "{}{only}  # {why}", recorded.case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let found = parse("# none\n\ncuts:3:4\ncuts:5:6 only=1-3  # why\n").unwrap();
        assert_eq!(found[0], Recorded { case: Case::Cuts(3, 4), only: None });
        let only = Some(Kept(vec![1, 2, 3]));
        assert_eq!(found[1], Recorded { case: Case::Cuts(5, 6), only });
        parse("cuts:5:6 most=3").unwrap_err();
    }

    #[test]
    fn the_file_can_be_read() {
        all().unwrap();
    }
}
