//! A mount, undone also if the test fails.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use super::shell::{text, try_unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount, unmounted when dropped.
pub struct Mounted(pub PathBuf);

impl Mounted {
    /// Runs `mount ARGS POINT`. Makes the directory if it is missing.
    pub fn new(args: &[&str], point: &Path) -> Self {
        fs::create_dir_all(point).unwrap();
        let mut command = Command::new("timeout");
        let out = command.args(["-k", "2", "60", "mount"]).args(args).arg(point).output().unwrap();
        assert!(out.status.success(), "mount {args:?} {}: {}", point.display(), text(&out));
        Self(point.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(why) = try_unmount(&self.0) {
            eprintln!("{} was left: {why}", self.0.display());
        }
    }
}
