//! Files and devices as drives.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use ztier::media::{Access, FileDrive};

/// A directory for a test, with its path without links.
pub fn dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::Builder::new().prefix("ztier-").tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    (dir, path)
}

/// Makes a file of zeros.
pub fn file(path: &Path, size: u64) -> PathBuf {
    File::create(path).unwrap().set_len(size).unwrap();
    path.to_owned()
}

/// Opens a drive exclusively. Programs that scan every new device (udev), or format it, may hold it
/// for a moment.
#[track_caller]
pub fn exclusive(path: &Path) -> FileDrive {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match FileDrive::open(path, Access::Exclusive) {
            Ok(drive) => return drive,
            Err(e) => assert!(Instant::now() < deadline, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
