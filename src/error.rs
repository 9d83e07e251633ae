//! Errors for people: one line that says what failed, on what, and what to do.
//!
//! Invariant: the text of an [`Error`] has no line break and no control character, whatever paths
//! and names it contains, so it can be printed anywhere (a terminal, a log, a control reply) as one
//! line. Errors of single requests are [`crate::device::IoError`]; they carry an errno and no text.

use crate::escape::escape;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::borrow::Cow;
use std::{fmt, io};

/// The exit status of a command that did not end with 0 («done»). With [`Status::MEANINGS`] this is
/// the only table of them; documented in `docs/control.md`.
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
    /// The volume or a drive is in use, or is already in the requested state.
    Busy = 4,
    /// Refused, because data would be lost.
    WouldLose = 5,
    /// Done as far as possible: the volume is degraded, its daemon is gone, or data is lost.
    Degraded = 6,
    /// The volume is up with other settings than those that were asked for.
    Differs = 7,
}

impl Status {
    /// Each status with its meaning, as in `docs/control.md`.
    pub const MEANINGS: [(Self, &'static str); 7] = [
        (Self::Failed, "failed, or no daemon answered and nothing was changed"),
        (Self::Usage, "the command line, a key or a value is wrong"),
        (Self::NotFound, "there is no such volume"),
        (Self::Busy, "volume or drive is in use or at work, or already so"),
        (Self::WouldLose, "refused, because data would be lost"),
        (Self::Degraded, "done as far as possible: degraded, its daemon gone, or data lost"),
        (Self::Differs, "the volume is up with other settings than those asked for"),
    ];
}

/// One failure: what failed, on what, why, and what to do about it.
#[derive(Debug)]
pub struct Error {
    status: Status,
    text: String,
    hint: Option<String>,
}

/// A result whose error is for people by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that ends a command with `status`, for example `cannot open /dev/fuse: …`.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: one_line(text.into()), hint: None }
    }

    /// A failure of the work itself.
    pub fn failure(text: impl Into<String>) -> Self {
        Self::new(Status::Failed, text)
    }

    /// A mistake in the request.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Status::Usage, text)
    }

    /// There is no such volume.
    pub fn not_found(text: impl Into<String>) -> Self {
        Self::new(Status::NotFound, text)
    }

    /// The volume or a drive is in use, or is already in the requested state.
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

    /// The volume is up with other settings than those that were asked for.
    pub fn differs(text: impl Into<String>) -> Self {
        Self::new(Status::Differs, text)
    }

    /// Adds what the user should do, printed after a semicolon.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(one_line(hint.into()));
        self
    }

    /// What failed, on what, without what to do.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What to do, if that is known.
    pub fn remedy(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Appends a clause to the text, before the hint.
    #[must_use]
    pub fn but(mut self, clause: impl fmt::Display) -> Self {
        self.text = one_line(format!("{}, and {clause}", self.text));
        self
    }

    /// Appends to the hint.
    #[must_use]
    pub fn and(self, further: impl fmt::Display) -> Self {
        let hint = self.hint.as_ref().map_or(String::new(), |hint| format!("{hint}; "));
        self.hint(format!("{hint}{further}"))
    }

    /// Fills the name of the volume into the commands that are advised, in place of `NAME`. Advice
    /// of a daemon is part of the text.
    #[must_use]
    pub fn of(mut self, name: &str) -> Self {
        const COMMANDS: [&str; 4] = ["up", "down", "restart", "status"];
        let fill = |text: String| {
            let fill = |text: String, command| {
                let before = format!("`ztier {command} NAME");
                text.replace(&before, &format!("`ztier {command} {name}"))
            };
            COMMANDS.into_iter().fold(text, fill)
        };
        (self.text, self.hint) = (fill(self.text), self.hint.map(fill));
        self
    }

    /// Puts `before` in front of the text.
    #[must_use]
    pub fn after(mut self, before: impl fmt::Display) -> Self {
        self.text = one_line(format!("{before}{}", self.text));
        self
    }

    /// The kind of the failure.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The exit status of a command that ends with this error.
    pub fn exit_status(&self) -> u8 {
        self.status as u8
    }
}

fn one_line(text: String) -> String {
    match escape(&text) {
        Cow::Owned(escaped) => escaped,
        Cow::Borrowed(_) => text,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Puts «doing what, on what» in front of an error.
pub trait Context<T> {
    /// Turns an error into one that begins with `what`, for example
    /// `cannot attach /dev/loop3: Device or resource busy`. An [`Error`] keeps its status and hint;
    /// `EBUSY` becomes [`Status::Busy`], any other error a failure.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display + 'static> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| {
            let mut slot = Some(e);
            let ours = (&mut slot as &mut dyn Any).downcast_mut::<Option<Error>>();
            if let Some(error) = ours.and_then(Option::take) {
                return error.after(format_args!("{what}: "));
            }
            let Some(e) = slot else { return Error::failure(what.to_string()) };
            let status = if is_busy(&e) { Status::Busy } else { Status::Failed };
            Error::new(status, format!("{what}: {e}"))
        })
    }
}

/// Whether the system call failed with `EBUSY`.
fn is_busy(e: &dyn Any) -> bool {
    let code = e.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    let code = code.or_else(|| e.downcast_ref::<Errno>().map(|e| e.raw_os_error()));
    code == Some(Errno::BUSY.raw_os_error())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn text_is_one_line_and_ends_with_the_hint() {
        let e = Error::usage("size is\n\u{1b}[31mzero").hint("give at\tleast 4096");
        assert_eq!(e.to_string(), r"size is\n\u{1b}[31mzero; give at\tleast 4096");
        assert_eq!(e.exit_status(), 2);
        let e = Err::<(), _>(e).context("\r").unwrap_err().but("\u{9b}").and("\0");
        assert_eq!(
            e.to_string(),
            r"\r: size is\n\u{1b}[31mzero, and \u{9b}; give at\tleast 4096; \u{0}"
        );
    }

    #[test]
    fn statuses_mean_what_their_document_says() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/control.md");
        let document = std::fs::read_to_string(path).unwrap();
        for (status, meaning) in Status::MEANINGS {
            let name = serde_json::to_value(status).unwrap();
            let row = format!("| {} | `{}` | {meaning} |", status as u8, name.as_str().unwrap());
            assert!(document.contains(&row), "{row}");
        }
    }

    #[test]
    fn what_the_system_calls_busy_is_busy() {
        let busy = io::Error::from_raw_os_error(Errno::BUSY.raw_os_error());
        assert_eq!(Err::<(), _>(busy).context("x").unwrap_err().status(), Status::Busy);
        assert_eq!(Err::<(), _>(Errno::BUSY).context("x").unwrap_err().status(), Status::Busy);
        assert_eq!(Err::<(), _>(Errno::IO).context("x").unwrap_err().status(), Status::Failed);
    }

    #[test]
    fn context_keeps_the_status_and_the_hint() {
        let refused = || Err::<(), _>(Error::would_lose("it holds ext4").hint("add --wipe"));
        let e = refused().context("cannot use /dev/x").unwrap_err();
        assert_eq!(e.to_string(), "cannot use /dev/x: it holds ext4; add --wipe");
        assert_eq!(e.status(), Status::WouldLose);
        let e = "x".parse::<u8>().context("odd").unwrap_err();
        assert_eq!(
            (e.to_string().as_str(), e.exit_status()),
            ("odd: invalid digit found in string", 1)
        );
    }
}
