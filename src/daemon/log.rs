//! Lines in the daemon's log (standard error): the time in UTC, then what happened.

use super::resident;
use crate::escape::escape;
use crate::stats::time::{now, rfc3339};

/// Writes one line.
pub fn line(text: &str) {
    use std::io::Write;
    // A log that can't be written must not stop the service.
    let _ = writeln!(std::io::stderr(), "{} {}", rfc3339(now()), escape(text));
    resident::line_written();
}
