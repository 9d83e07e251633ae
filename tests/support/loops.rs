//! Loop devices, detached whatever happens to the test.
#![allow(clippy::unwrap_used, dead_code)]

use super::shell::{ok, run, text};
use std::path::{Path, PathBuf};

/// A loop device, detached when dropped.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn on(file: &Path, args: &[&str]) -> Self {
        let all = [args, &["--find", "--show", file.to_str().unwrap()]].concat();
        Self(ok(60, "losetup", &all).trim().into())
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let out = run(20, "losetup", &["-d", self.path()]);
        if !out.status.success() {
            eprintln!("{} was left: {}", self.path(), text(&out));
        }
    }
}
