//! Errors that a person meets: one line that says what failed, on what, and what to do.
//!
//! Invariant: the text of an [`Error`] never holds a line break, so that whatever prints it
//! (a terminal, a log, a control reply) stays one line an error. Errors of single requests are
//! [`crate::volume::IoError`]; they carry an errno and no text.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The exit status of a command that did not end with 0 («done»). The only table of them;
/// documented in `docs/control.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Status {
    /// The work failed.
    Failed = 1,
    /// The command line, a key or a value is wrong.
    Usage = 2,
    /// There is no such volume.
    NotFound = 3,
    /// The volume or a drive is in use, or already is what was asked for.
    Busy = 4,
    /// Refused, because data would be lost.
    WouldLose = 5,
    /// Done as far as possible: the volume is degraded, or data is lost.
    Degraded = 6,
}

/// One failure: what failed, on what, why, and what to do about it.
#[derive(Debug)]
pub struct Error {
    status: Status,
    text: String,
    mend: Option<String>,
}

/// A result whose error is for a person, if nothing else is said.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that ends a command with `status`, for example `cannot open /dev/fuse: …`.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: one_line(text.into()), mend: None }
    }

    /// A failure of the work itself.
    pub fn failure(text: impl Into<String>) -> Self {
        Self::new(Status::Failed, text)
    }

    /// A mistake in what was asked for.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Status::Usage, text)
    }

    /// There is no such volume.
    pub fn not_found(text: impl Into<String>) -> Self {
        Self::new(Status::NotFound, text)
    }

    /// The volume or a drive is in use, or already is what was asked for.
    pub fn busy(text: impl Into<String>) -> Self {
        Self::new(Status::Busy, text)
    }

    /// Refused, because data would be lost.
    pub fn would_lose(text: impl Into<String>) -> Self {
        Self::new(Status::WouldLose, text)
    }

    /// Done as far as possible: the volume is degraded, or data is lost.
    pub fn degraded(text: impl Into<String>) -> Self {
        Self::new(Status::Degraded, text)
    }

    /// Adds what the person should do, printed after a semicolon.
    #[must_use]
    pub fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(one_line(mend.into()));
        self
    }

    /// What kind of failure it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The exit status of a command that ends with it.
    pub fn exit_status(&self) -> u8 {
        self.status as u8
    }
}

fn one_line(text: String) -> String {
    if text.contains(['\n', '\r']) {
        text.split(['\n', '\r'])
            .map(str::trim)
            .filter(|s| !s.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    } else {
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.mend {
            Some(mend) => write!(f, "; {mend}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Adds «doing what, on what» to the operating system's own errors.
pub trait Context<T> {
    /// Turns an error into a failure that begins with `what`, for example
    /// `cannot attach /dev/loop3: Device or resource busy`.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| Error::failure(format!("{what}: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_line_and_ends_with_the_mend() {
        let e = Error::usage("size is\n  zero\r\n").mend("give at least 4096");
        assert_eq!(e.to_string(), "size is zero; give at least 4096");
        assert_eq!(e.exit_status(), 2);
    }
}
