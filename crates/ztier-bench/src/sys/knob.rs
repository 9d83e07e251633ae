//! A setting of the system in a file, for as long as a run needs it.
//!
//! Invariant: what was there before is put back when the guard is dropped, on every way out.

use crate::report::warn;
use std::path::{Path, PathBuf};
use ztier::error::{Context, Result};

/// A changed setting.
#[derive(Debug)]
pub struct Knob {
    path: PathBuf,
    before: String,
}

impl Knob {
    /// Sets it.
    ///
    /// # Errors
    /// There is no such setting, or the system does not take the value.
    pub fn set(path: impl AsRef<Path>, value: &str) -> Result<Self> {
        let path = path.as_ref();
        let before = read(path)?;
        let knob = Self { path: path.to_owned(), before };
        std::fs::write(path, value)
            .context(format_args!("cannot set {} to {value}", path.display()))?;
        Ok(knob)
    }
}

impl Drop for Knob {
    fn drop(&mut self) {
        if let Err(e) = std::fs::write(&self.path, &self.before) {
            warn(&format!("{} was {} and is not again: {e}", self.path.display(), self.before));
        }
    }
}

/// The value of a setting.
///
/// # Errors
/// There is none.
pub fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path)
        .context(format_args!("cannot read the setting {}", path.display()))?;
    Ok(chosen(&text).to_owned())
}

/// Of a list of choices, the one in brackets.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(word, _)| word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_there_comes_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a [b] c\n").unwrap();
        let knob = Knob::set(file.path(), "c").unwrap();
        assert_eq!(read(file.path()).unwrap(), "c");
        drop(knob);
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "b");
        assert!(Knob::set("/nonexistent", "1").is_err());
    }
}
