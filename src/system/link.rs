//! The stable name of a block device for its users: the link `/dev/ztier/NAME`.
//!
//! Invariant: only links to devices of the kinds that front-ends make are replaced or removed.

use crate::error::{Context, Error, Result};
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Refuses a link whose place is taken. `alive` tells whether the device of an old link is still in
/// use.
pub(crate) fn refuse_taken(link: &Path, alive: impl FnOnce(&Path) -> bool) -> Result<()> {
    let ours = device_of(link).is_some_and(|to| is_device_of_ours(&to));
    if fs::symlink_metadata(link).is_ok() && !ours {
        return Err(Error::failure(format!("{} exists and is no link of ours", link.display()))
            .hint("remove it or use another name"));
    }
    if device_of(link).is_some_and(|to| alive(&to)) {
        return Err(Error::busy(format!("{} is in use by another device", link.display()))
            .hint("take that down first or use another name"));
    }
    Ok(())
}

/// Links `device`, and replaces a stale link of ztier; makes the directory if it is missing.
pub(crate) fn make(device: &Path, link: &Path) -> Result<()> {
    if let Some(dir) = link.parent() {
        let made = match fs::create_dir(dir) {
            // All users look up devices there, whatever the umask.
            Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o755)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            failed => failed,
        };
        made.context(format!("cannot make {}", dir.display()))?;
    }
    if device_of(link).is_some_and(|to| to == device) {
        return Ok(()); // udev was faster
    }
    // Replaced in one step: udev may make the same link meanwhile. No volume's name begins with a
    // dot.
    let mut new = OsString::from(".new.");
    new.push(link.file_name().unwrap_or_default());
    let new = link.with_file_name(new);
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => symlink(device, &new).and_then(|()| fs::rename(&new, link)),
    }
    .context(format!("cannot link {}", link.display()))
}

/// Removes the link if it still leads to `device`; an administrator may have replaced it.
pub(crate) fn remove(device: &Path, link: &Path) {
    if device_of(link).is_some_and(|to| to == device) {
        let _ = fs::remove_file(link); // a dangling link does no harm
    }
}

/// Removes the directory of links, unless other volumes have links in it.
pub(crate) fn remove_directory(link: &Path) {
    if let Some(dir) = link.parent() {
        let _ = fs::remove_dir(dir);
    }
}

/// The device of a link, made by ztier (`/dev/loop3`) or by udev (`../loop3`).
pub(crate) fn device_of(link: &Path) -> Option<PathBuf> {
    let to = fs::read_link(link).ok()?;
    Some(to.strip_prefix("..").map_or_else(|_| to.clone(), |name| Path::new("/dev").join(name)))
}

/// Whether `path` is a device of a kind that front-ends link: `/dev/loop3`, `/dev/ublkb0`.
pub(crate) fn is_device_of_ours(path: &Path) -> bool {
    path.strip_prefix("/dev").is_ok_and(|p| {
        p.to_str()
            .and_then(|name| name.strip_prefix("loop").or(name.strip_prefix("ublkb")))
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn links_to_our_kinds_of_devices_only() {
        assert!(is_device_of_ours(Path::new("/dev/loop12")));
        assert!(is_device_of_ours(Path::new("/dev/ublkb0")));
        for other in
            ["/dev/loop", "/dev/loop1p1", "/dev/sda", "loop1", "/tmp/dev/loop1", "/dev/ublkc0"]
        {
            assert!(!is_device_of_ours(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn what_is_not_ours_is_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("sub/a");
        let device = Path::new("/dev/ublkb77");
        make(device, &link).unwrap();
        make(device, &link).unwrap();
        refuse_taken(&link, |_| false).unwrap();
        let taken = refuse_taken(&link, |to| to == device).unwrap_err();
        assert!(taken.to_string().contains("in use by another"), "{taken}");
        remove(Path::new("/dev/ublkb78"), &link);
        assert!(link.is_symlink());
        remove(device, &link);
        assert!(!link.is_symlink());
        symlink("../ublkb77", &link).unwrap();
        refuse_taken(&link, |_| false).unwrap();
        remove(device, &link);
        assert!(!link.is_symlink());
        remove_directory(&link);
        assert!(!dir.path().join("sub").exists());

        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(
            refuse_taken(&file, |_| false).unwrap_err().to_string().contains("no link of ours")
        );
    }
}
