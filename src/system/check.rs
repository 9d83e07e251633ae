//! What a machine has for an export, and how to get what is missing.
//!
//! Invariant: only what does not work has something to do about it.

/// One thing that the export needs or profits from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// What was looked at: `/dev/fuse`.
    pub what: &'static str,
    /// Whether it is there and usable.
    pub works: bool,
    /// What was found, or why it does not work.
    pub found: String,
    /// How to get it; empty when it works.
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
