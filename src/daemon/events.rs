//! Makes udev look at a volume's drives again when the volume comes up or goes:
//! `etc/udev/61-ztier.rules` hides the drives below a volume.

use crate::config::Plan;
use rustix::fs::{major, minor};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Sends an event for each drive that is a block device. Best effort: nothing depends on udev or
/// the right to send events.
pub fn look_again(plan: &Plan) {
    let logged = plan.log.iter().flat_map(|log| [&log.backing, &log.log]);
    let spill = plan.spill.iter().map(|spill| &spill.device);
    look_at(logged.chain(&plan.backing).chain(spill).map(PathBuf::as_path));
}

/// As [`look_again`], for the drives of a volume that is gone.
pub fn look_at<'a>(drives: impl Iterator<Item = &'a Path>) {
    for drive in drives {
        let Ok(meta) = fs::metadata(drive) else { continue };
        if meta.file_type().is_block_device() {
            let number = meta.rdev();
            let file = format!("/sys/dev/block/{}:{}/uevent", major(number), minor(number));
            let _ = fs::write(file, "change");
        }
    }
}
