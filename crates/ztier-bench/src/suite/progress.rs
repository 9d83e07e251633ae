//! How far a run is, on standard error.
//!
//! Invariant: on a terminal it is one line, no longer than that is wide; elsewhere a line a minute.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often there is a line elsewhere than on a terminal.
const PAUSE: Duration = Duration::from_secs(60);
/// Columns of a terminal that does not say.
const COLUMNS: usize = 80;

/// Shows it.
pub struct Progress {
    terminal: bool,
    next: Instant,
}

impl Progress {
    /// On this process's standard error.
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), next: Instant::now() + PAUSE }
    }

    /// What is going on; `last` is what was said last.
    pub fn show(&mut self, what: &str, last: &str) {
        if self.terminal {
            let columns = columns();
            put(&format!("\r{}\x1b[K", shortened(&format!("{what}: {last}"), columns)));
        } else if Instant::now() >= self.next {
            self.next = Instant::now() + PAUSE;
            put(&format!("{what}\n"));
        }
    }

    /// A line that stays.
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

/// As much of a text as fits before the last column, where a terminal would begin a new line.
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
