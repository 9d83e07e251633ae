//! The failures that a run can find, and their names.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The kinds of trouble. A shrunk run must have the same kind as the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No prefix of the writes explains what the volume holds after a cut.
    Prefix,
    /// A read returned content that the block did not hold.
    Read,
    /// Data is lost or damaged, and no fault explains it.
    Lost,
    /// The log could not be opened again.
    Refused,
    /// An acknowledged change is missing after the process died.
    Kept,
    /// Two recoveries gave different volumes.
    Twice,
    /// After a drain the backing store differs from the volume.
    Backing,
    /// A volume that has grown has a size that is none of those.
    Size,
    /// A drive got a request that is not allowed.
    Misuse,
    /// The log failed although its drives did not.
    Failed,
    /// An actor waits, and nothing is in flight.
    Hang,
    /// A refused open detected a lie of a drive: the intended outcome.
    Detected,
    /// The code panicked.
    Panic,
}

/// A failure that a run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its kind.
    pub kind: Kind,
    /// Details.
    pub text: String,
    /// The step of the program that found it, from 0.
    pub step: usize,
}

impl Trouble {
    /// Trouble whose step is filled in later.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), step: 0 }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at step {}: {}", self.kind, self.step, self.text)
    }
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Calls `run`; turns a panic in it into trouble, and prints nothing.
///
/// # Errors
/// Those of `run`, and its panics.
pub fn caught<T>(run: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let named = std::thread::current().name().is_some_and(|n| n.starts_with(WORKER));
            LAST_PANIC.with(|last| *last.borrow_mut() = Some(info.to_string()));
            if !named {
                usual(info);
            }
        }));
    });
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let text = LAST_PANIC.with(|last| last.borrow_mut().take()).unwrap_or_default();
        Err(Trouble::new(Kind::Panic, text.replace('\n', " ")))
    })
}

/// Name prefix of the threads whose panics are results.
pub const WORKER: &str = "sim-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_trouble() {
        let found = caught(|| -> Result<(), Trouble> { panic!("of a test") }).unwrap_err();
        assert_eq!(found.kind, Kind::Panic);
        assert!(found.text.contains("of a test"), "{found}");
        assert_eq!(caught(|| Ok(3)), Ok(3));
    }
}
