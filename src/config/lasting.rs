//! Names of drives and files that a restart of the machine does not change, for saved settings.
//!
//! Invariant: a name leads to the same drive or file as the one it was made from.

use super::paths::full;
use crate::device;
use crate::error::{Context, Result};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Where udev names each disk and partition by its model, serial number or world-wide name.
const BY_ID: &str = "/dev/disk/by-id";

/// Beginnings of the names there that come last: they say less to a reader than other names of the
/// drive, or name what is on the drive.
const LAST: [&str; 5] = ["wwn-", "nvme-eui.", "nvme-uuid.", "nvme-nvme.", "lvm-pv-"];

/// The absolute name of a drive or file: for the kernel's name of a block device, like `/dev/sdb`,
/// the name of the same device by its id, if it has one; for a file, its path without symbolic
/// links. Another name of a block device, like `/dev/mapper/vg-disk`, stays.
///
/// # Errors
/// There is no such file, or its path is not UTF-8.
pub fn lasting(path: &Path) -> Result<PathBuf> {
    if device::is_store(path) {
        return Ok(path.to_owned());
    }
    lasting_in(path, Path::new(BY_ID))
}

fn lasting_in(path: &Path, by_id: &Path) -> Result<PathBuf> {
    let what = || format!("cannot look at {}", path.display());
    let given = full(path)?;
    let real = fs::canonicalize(&given).context(what())?;
    if !fs::metadata(&real).context(what())?.file_type().is_block_device() {
        return full(&real);
    }
    if real != given {
        return Ok(given);
    }
    Ok(id_of(&real, by_id).unwrap_or(given))
}

/// The link in `by_id` that leads to `device` and says most about it.
fn id_of(device: &Path, by_id: &Path) -> Option<PathBuf> {
    let links = fs::read_dir(by_id).ok()?.flatten();
    let names = links.filter_map(|link| link.file_name().into_string().ok());
    let same = names
        .filter(|name| fs::canonicalize(by_id.join(name)).is_ok_and(|target| target == device));
    let best =
        same.min_by_key(|name| (LAST.iter().any(|start| name.starts_with(start)), name.clone()))?;
    Some(by_id.join(best))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_has_its_path_without_links() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir(dir.join("real")).unwrap();
        fs::write(dir.join("real/disk"), "").unwrap();
        symlink(dir.join("real"), dir.join("link")).unwrap();
        assert_eq!(lasting(&dir.join("link/disk")).unwrap(), dir.join("real/disk"));
        assert!(lasting(&dir.join("link/none")).is_err());
    }

    #[test]
    fn a_block_device_has_the_name_by_its_id() {
        let all = fs::read_dir("/dev").unwrap().flatten().map(|entry| entry.path());
        let is_device = |path: &PathBuf| {
            fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
        };
        let Some(device) = all.into_iter().find(is_device) else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(lasting_in(&device, dir.path()).unwrap(), device, "it has no id");
        for name in ["wwn-0x5000", "ata-Model_Serial", "nvme-eui.0025", "lvm-pv-uuid-x"] {
            symlink(&device, dir.path().join(name)).unwrap();
        }
        symlink("/dev/null", dir.path().join("ata-Another")).unwrap();
        let by_id = dir.path().join("ata-Model_Serial");
        assert_eq!(lasting_in(&device, dir.path()).unwrap(), by_id);
        let wwn = dir.path().join("wwn-0x5000");
        assert_eq!(lasting_in(&wwn, dir.path()).unwrap(), wwn, "a name that lasts stays");
        fs::remove_file(&by_id).unwrap();
        let left = lasting_in(&device, dir.path()).unwrap();
        assert_eq!(left, dir.path().join("lvm-pv-uuid-x"), "any is better than none");
    }
}
