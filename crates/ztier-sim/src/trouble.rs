//! What a run can find wrong, and how it says so.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The kinds of trouble. A shrunk run must be in the same kind of trouble as the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No prefix of the writes explains what the volume holds after a cut.
    Prefix,
    /// A read returned something that the block did not hold.
    Read,
    /// Data is lost, or damaged, and nothing that went wrong explains it.
    Lost,
    /// The log could not be opened again.
    Refused,
    /// A change that was acknowledged is gone after the process has died.
    Kept,
    /// Recovering twice gave two volumes.
    Twice,
    /// After a drain the backing store is not the volume.
    Backing,
    /// A drive got a request that is not allowed.
    Misuse,
    /// The log failed although its drives did not.
    Failed,
    /// Something waits, and nothing is under way.
    Hang,
    /// A lie of a drive was found out by refusing to open: what should happen.
    Detected,
    /// The code panicked.
    Panic,
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Of which kind.
    pub kind: Kind,
    /// What exactly.
    pub text: String,
    /// The step of the program that found it, from 0.
    pub step: usize,
}

impl Trouble {
    /// Trouble in a step that is filled in later.
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

/// Calls `run`; a panic in it is trouble like any other, and prints nothing.
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

/// How the names of threads begin whose panics are results.
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
