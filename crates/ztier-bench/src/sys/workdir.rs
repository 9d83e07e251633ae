//! Directories of this process: one for mount points and sockets, and one for files.
//!
//! Invariant: only `rmdir` removes the first, so that nothing behind a mount that could not be
//! undone is ever deleted. Nothing is mounted below the second, which goes with its content.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use ztier::error::{Context, Result};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Makes a directory with a unique name.
fn below(dir: &Path, what: &str) -> Result<PathBuf> {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!("ztier-bench-{}-{n}-{what}", std::process::id()));
    std::fs::create_dir(&path).context(format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// A new, empty directory; removed when dropped if it is empty then.
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// Makes a directory with a unique name.
    pub fn new(what: &str) -> Result<Self> {
        below(&std::env::temp_dir(), what).map(Self)
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

/// A new directory; removed with its content when dropped.
pub struct Tree(PathBuf);

impl Tree {
    /// Makes a directory for small files with a unique name.
    pub fn new(what: &str) -> Result<Self> {
        below(&std::env::temp_dir(), what).map(Self)
    }

    /// Makes a directory for files that are too large for memory.
    pub fn large(what: &str) -> Result<Self> {
        below(Path::new(super::remains::LARGE), what).map(Self)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            crate::report::warn(&format!("left {}: {e}", self.0.display()));
        }
    }
}
