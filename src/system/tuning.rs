//! Settings of the kernel's memory management that go with a swap device.
//!
//! Invariant: a setting is restored only while it has the value that was set here, so that another
//! process's later change stays.

use crate::error::{Context, Error, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The number of pages, as a power of two, that the kernel reads from swap at once.
pub const PAGE_CLUSTER: &str = "vm.page-cluster";
/// How readily the kernel swaps out instead of dropping files, 0 to 200.
pub const SWAPPINESS: &str = "vm.swappiness";

/// Directory of the kernel's settings.
const SETTINGS: &str = "/proc/sys";

/// A setting that is changed while a device carries swap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuned {
    /// Its name: `vm.swappiness`.
    pub key: String,
    /// The value before the change.
    pub before: u64,
    /// The value while the device carries swap.
    pub set: u64,
}

impl Tuned {
    /// Plans the change of `key` from its present value to `set`. Changes nothing yet.
    ///
    /// # Errors
    /// The kernel does not show the setting.
    pub fn plan(key: &str, set: u64) -> Result<Self> {
        Ok(Self { key: key.to_owned(), before: read(Path::new(SETTINGS), key)?, set })
    }

    /// The present value.
    ///
    /// # Errors
    /// The kernel does not show the setting.
    pub fn now(&self) -> Result<u64> {
        read(Path::new(SETTINGS), &self.key)
    }

    /// Sets the value, unless another process changed it since [`Tuned::plan`].
    ///
    /// # Errors
    /// The setting cannot be changed here.
    pub fn apply(&self) -> Result<()> {
        self.change(Path::new(SETTINGS), self.before, self.set).map(drop)
    }

    /// Restores the value, unless another process changed it since. Returns whether the setting now
    /// has its earlier value.
    ///
    /// # Errors
    /// The setting cannot be changed here.
    pub fn restore(&self) -> Result<bool> {
        self.change(Path::new(SETTINGS), self.set, self.before)
    }

    /// Changes the value from `from` to `to`, if it is `from`. Returns whether it is `to`
    /// afterwards.
    fn change(&self, root: &Path, from: u64, to: u64) -> Result<bool> {
        let now = read(root, &self.key)?;
        if now == from && from != to {
            let what = || format!("cannot set {} to {to}", self.key);
            fs::write(file(root, &self.key), to.to_string())
                .context(what())
                .map_err(|e| e.hint("run as root, where /proc/sys can be written"))?;
            return Ok(true);
        }
        Ok(now == to)
    }
}

fn file(root: &Path, key: &str) -> PathBuf {
    root.join(key.replace('.', "/"))
}

fn read(root: &Path, key: &str) -> Result<u64> {
    let text = fs::read_to_string(file(root, key)).context(format!("cannot read {key}"))?;
    let number = text.trim().parse();
    number.map_err(|_| Error::failure(format!("{key} is `{}`, which is no number", text.trim())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_another_process_set_stays() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("vm")).unwrap();
        let at = root.path().join("vm/page-cluster");
        let is = |text: &str| assert_eq!(fs::read_to_string(&at).unwrap().trim(), text);
        let tuned = Tuned { key: PAGE_CLUSTER.into(), before: 3, set: 0 };
        let change = |from, to| tuned.change(root.path(), from, to).unwrap();
        fs::write(&at, "3\n").unwrap();
        assert!(change(3, 0));
        is("0");
        assert!(change(3, 0), "a second time changes nothing");
        is("0");
        assert!(change(0, 3));
        is("3");
        fs::write(&at, "5\n").unwrap();
        assert!(!change(3, 0) && !change(0, 3));
        is("5");
    }

    #[test]
    fn this_kernel_has_them() {
        for key in [PAGE_CLUSTER, SWAPPINESS] {
            let tuned = Tuned::plan(key, 1).unwrap();
            assert_eq!(tuned.now().unwrap(), tuned.before);
        }
        let error = Tuned::plan("vm.no-such", 1).unwrap_err().to_string();
        assert!(error.contains("cannot read vm.no-such"), "{error}");
    }
}
