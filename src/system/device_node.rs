//! Nodes of devices in `/dev`, where nothing else (devtmpfs, udev) makes them.
//!
//! Invariant: a node leads to the device that `/sys` calls by its name; one that led to another
//! device, as an old one in the `/dev` of a container may, is replaced in one step.

use crate::error::{Context, Result};
use crate::media::sysfs;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Makes the node `path` of the device with the directory `sys` below `/sys`, unless it is there.
///
/// # Errors
/// There is no such device, or the node can't be made.
pub(crate) fn make_missing(path: &Path, sys: &Path, kind: FileType, mode: Mode) -> Result<()> {
    let cannot = || format!("cannot make {}", path.display());
    let number = sysfs::number_in(sys).ok_or(Errno::NODEV).context(cannot())?;
    if leads_to(path, kind, number) {
        return Ok(());
    }
    // Renamed into place: another process may be opening the device by the node that is there.
    let mut new = OsString::from(".new.");
    new.push(path.file_name().unwrap_or_default());
    let new = path.with_file_name(new);
    let _ = fs::remove_file(&new); // in most cases there is none
    let made = mknodat(CWD, &new, kind, mode, number).and_then(|()| rustix::fs::rename(&new, path));
    // Another process may have made it meanwhile, and taken the new node for it.
    if made.is_err() && leads_to(path, kind, number) {
        return Ok(());
    }
    made.context(cannot())
}

/// Whether `path` is a node of the device with this number.
fn leads_to(path: &Path, kind: FileType, number: u64) -> bool {
    fs::metadata(path)
        .is_ok_and(|m| m.rdev() == number && FileType::from_raw_mode(m.mode()) == kind)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::makedev;

    /// The numbers of `/dev/null` and `/dev/zero`.
    const NULL: (u32, u32) = (1, 3);
    const ZERO: (u32, u32) = (1, 5);

    #[test]
    fn a_node_of_another_device_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (path, sys) = (dir.path().join("node"), dir.path().join("sys"));
        fs::create_dir(&sys).unwrap();
        let (kind, mode) = (FileType::CharacterDevice, Mode::RUSR | Mode::WUSR);
        let make = || make_missing(&path, &sys, kind, mode);
        assert!(make().unwrap_err().to_string().contains("cannot make"));
        fs::write(sys.join("dev"), format!("{}:{}\n", NULL.0, NULL.1)).unwrap();
        let old = mknodat(CWD, &path, kind, mode, makedev(ZERO.0, ZERO.1));
        if let Err(e) = old {
            eprintln!("skipped: no node can be made here: {e}");
            return;
        }
        let number = || fs::metadata(&path).unwrap().rdev();
        make().unwrap();
        assert_eq!(number(), makedev(NULL.0, NULL.1));
        // One that is right stays.
        let before = fs::metadata(&path).unwrap().ino();
        make().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), before);
        // What is no node of a device is in its place by mistake.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "x").unwrap();
        make().unwrap();
        assert_eq!(number(), makedev(NULL.0, NULL.1));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
