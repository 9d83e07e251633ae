//! Progress of a run, on standard error.
//!
//! Invariant: on a terminal the progress is one line that fits its width; elsewhere it is a line a
//! minute.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval between lines elsewhere than on a terminal.
const PAUSE: Duration = Duration::from_secs(60);
/// Columns of a terminal of unknown width.
const COLUMNS: usize = 80;

/// Prints the progress.
pub struct Progress {
    terminal: bool,
    next: Instant,
}

impl Progress {
    /// On standard error of this process.
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), next: Instant::now() + PAUSE }
    }

    /// Shows the state `what`, and `last`, the last line of output.
    pub fn show(&mut self, what: &str, last: &str) {
        if self.terminal {
            let columns = columns();
            put(&format!("\r{}\x1b[K", shortened(&format!("{what}: {last}"), columns)));
        } else if Instant::now() >= self.next {
            self.next = Instant::now() + PAUSE;
            put(&format!("{what}\n"));
        }
    }

    /// Prints a permanent line.
    pub fn say(&mut self, text: &str) {
        self.next = Instant::now() + PAUSE;
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        put(&format!("{clear}{text}\n"));
    }
}

fn put(text: &str) {
    // A failed write loses progress, not the report.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|&n| n > 0).unwrap_or(COLUMNS)
}

/// The part of a text that fits before the last column, where a terminal would begin a new line.
fn shortened(text: &str, columns: usize) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(columns.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn a_line_stays_within_the_terminal() {
        assert_eq!(shortened("one\ttwo", 80), "onetwo");
        assert_eq!(shortened("äöü", 3), "äö");
        assert_eq!(shortened("abc", 0), "");
    }
}
