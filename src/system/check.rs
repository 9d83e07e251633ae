//! Checks what an export needs from the machine, and tells how to get what is missing.
//!
//! Invariant: only a check that fails has a hint.

/// One thing that the export needs or profits from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// What was checked, such as `/dev/fuse`.
    pub what: &'static str,
    /// Whether it is there and usable.
    pub works: bool,
    /// What was found, or why it does not work.
    pub found: String,
    /// How to get it; empty if it works.
    pub hint: &'static str,
}

impl Check {
    pub(crate) fn new(
        what: &'static str,
        found: Result<String, String>,
        hint: &'static str,
    ) -> Self {
        let works = found.is_ok();
        let hint = if works { "" } else { hint };
        Self { what, works, found: found.unwrap_or_else(|why| why), hint }
    }
}
