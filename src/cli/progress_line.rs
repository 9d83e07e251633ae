//! Progress on standard error, while the user waits.
//!
//! Invariants: a terminal shows one line, which disappears with the [`ProgressLine`]; any other
//! output gets a line every few seconds, and none for quick work.

use crate::escape::escape;
use std::cell::RefCell;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line on a terminal may change.
const REWRITE: Duration = Duration::from_millis(100);
/// Without a terminal, work that takes less prints nothing.
const QUICK: Duration = Duration::from_secs(2);
/// Without a terminal, the time between two lines.
const PAUSE: Duration = Duration::from_secs(5);

/// Shows the progress of long work.
pub struct ProgressLine(RefCell<State>);

struct State {
    terminal: bool,
    /// When the next output is allowed.
    next: Instant,
    /// Whether the terminal shows the line.
    shown: bool,
}

impl ProgressLine {
    /// A progress line on this process's standard error.
    pub fn new() -> Self {
        Self(RefCell::new(State::new(std::io::stderr().is_terminal(), Instant::now())))
    }

    /// Shows what is being done now.
    pub fn show(&self, what: &dyn Display) {
        let what = what.to_string();
        if let Some(text) = self.0.borrow_mut().text(&escape(&what), Instant::now()) {
            put(&text);
        }
    }

    /// Takes the line from the terminal.
    pub fn end(&self) {
        if std::mem::take(&mut self.0.borrow_mut().shown) {
            put("\r\x1b[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.end();
    }
}

impl State {
    fn new(terminal: bool, now: Instant) -> Self {
        let next = if terminal { now } else { now + QUICK };
        Self { terminal, next, shown: false }
    }

    fn text(&mut self, what: &dyn Display, now: Instant) -> Option<String> {
        if now < self.next {
            return None;
        }
        self.next = now + if self.terminal { REWRITE } else { PAUSE };
        self.shown = self.terminal;
        Some(if self.terminal { format!("\r{what}\x1b[K") } else { format!("{what}\n") })
    }
}

fn put(text: &str) {
    // A failed write loses progress, not the result.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_one_line_and_a_file_few() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let texts = |terminal, ms: &[u64]| -> Vec<Option<String>> {
            let mut state = State::new(terminal, began);
            ms.iter().map(|ms| state.text(ms, at(*ms))).collect()
        };
        let line = |text: &str| Some(text.to_owned());
        assert_eq!(texts(true, &[0, 99, 100]), [line("\r0\x1b[K"), None, line("\r100\x1b[K")]);
        assert_eq!(
            texts(false, &[0, 1999, 2000, 6999, 7000]),
            [None, None, line("2000\n"), None, line("7000\n")]
        );
    }
}
