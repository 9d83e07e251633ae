//! How much of the machine's page cache may be dirty, as on a machine with less memory.
//!
//! Invariant: what was there before is put back when the guard is dropped, whether it was bytes or
//! a part of the memory: setting one makes the kernel forget the other.

use crate::report::{say, warn};
use std::fs;
use std::path::{Path, PathBuf};
use ztier::error::{Context, Result};

const SETTINGS: &str = "/proc/sys/vm";
/// The limit and where writing begins: in bytes, as a part of the memory, and that part by default.
const PAIRS: [(&str, &str, u64); 2] =
    [("dirty_bytes", "dirty_ratio", 20), ("dirty_background_bytes", "dirty_background_ratio", 10)];

/// Changed limits.
pub struct Dirty {
    before: Vec<(PathBuf, String)>,
}

impl Dirty {
    /// What the kernel would have by default with so much `memory`, in bytes.
    ///
    /// # Errors
    /// No root.
    pub fn of(memory: u64) -> Result<Self> {
        Self::at(Path::new(SETTINGS), memory)
    }

    fn at(root: &Path, memory: u64) -> Result<Self> {
        let mut dirty = Self { before: Vec::new() };
        for (bytes, ratio, percent) in PAIRS {
            let (bytes, ratio) = (root.join(bytes), root.join(ratio));
            let value = read(&bytes)?;
            let before =
                if value == "0" { (ratio.clone(), read(&ratio)?) } else { (bytes.clone(), value) };
            dirty.before.push(before);
            let wanted = memory / 100 * percent;
            fs::write(&bytes, wanted.to_string())
                .context(format!("cannot set {} to {wanted} (needs root)", bytes.display()))?;
        }
        let most = (memory / 100 * PAIRS[0].2) >> 20;
        say(&format!(
            "at most {most} MiB of this machine's page cache may be dirty meanwhile (vm.dirty_bytes)"
        ));
        Ok(dirty)
    }
}

impl Drop for Dirty {
    fn drop(&mut self) {
        for (path, value) in &self.before {
            if let Err(e) = fs::write(path, value) {
                warn(&format!("{} was {value} and is not again: {e}", path.display()));
            }
        }
    }
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).context(format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_set_comes_back() {
        let root = tempfile::tempdir().unwrap();
        let file = |name: &str| root.path().join(name);
        let is = |name: &str, text: &str| assert_eq!(read(&file(name)).unwrap(), text, "{name}");
        for (name, text) in [
            ("dirty_bytes", "0"),
            ("dirty_ratio", "30"),
            ("dirty_background_bytes", "77"),
            ("dirty_background_ratio", "0"),
        ] {
            fs::write(file(name), text).unwrap();
        }
        let dirty = Dirty::at(root.path(), 1000 << 20).unwrap();
        is("dirty_bytes", &(200 << 20).to_string());
        is("dirty_background_bytes", &(100 << 20).to_string());
        fs::write(file("dirty_ratio"), "0").unwrap();
        drop(dirty);
        is("dirty_ratio", "30");
        is("dirty_background_bytes", "77");
        is("dirty_background_ratio", "0");
    }
}
