//! A directory of this process for mount points and sockets.
//!
//! Invariant: only `rmdir` removes it, so that nothing behind a mount that could not be undone is
//! ever deleted.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use ztier::error::{Context, Result};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A new, empty directory; removed when dropped if it is empty then.
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// Makes a directory with a unique name.
    pub fn new(what: &str) -> Result<Self> {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ztier-bench-{}-{n}-{what}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).context(format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir(&self.0) {
            crate::report::warn(&format!("left {}: {e}", self.0.display()));
        }
    }
}
