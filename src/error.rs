//! Errors that a person meets: one line that says what failed, on what, and what to do.
//!
//! Invariant: the text of an [`Error`] never holds a line break, so that whatever prints it
//! (a terminal, a log, a control reply) stays one line an error. Errors of single requests are
//! [`crate::volume::IoError`]; they carry an errno and no text.

use std::fmt;

/// How a program should end because of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The command line, a key or a value is wrong: exit status 2.
    Usage,
    /// The work itself failed: exit status 1.
    Failure,
}

/// One failure: what failed, on what, why, and what to do about it.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    text: String,
    mend: Option<String>,
}

/// A result whose error is for a person, if nothing else is said.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure of the work itself (exit status 1), for example `cannot open /dev/fuse: …`.
    pub fn failure(text: impl Into<String>) -> Self {
        Self { kind: Kind::Failure, text: one_line(text.into()), mend: None }
    }

    /// A mistake in what was asked for (exit status 2).
    pub fn usage(text: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, text: one_line(text.into()), mend: None }
    }

    /// Adds what the person should do, printed after a semicolon.
    #[must_use]
    pub fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(one_line(mend.into()));
        self
    }

    /// Whether the question or the work was wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The exit status that goes with it: 2 for usage, 1 for failure.
    pub fn exit_status(&self) -> u8 {
        match self.kind {
            Kind::Usage => 2,
            Kind::Failure => 1,
        }
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
