//! Limits the dirty pages of a device, as on a machine with less memory.
//!
//! Invariant: only that device's limit is changed, not the machine's. Dropping the guard restores
//! the former value, because device names are reused.

use super::knob::{Knob, read};
use crate::report::warn;
use std::path::{Path, PathBuf};
use ztier::error::{Context, Result};

/// Percent of a machine's memory that may be dirty by the kernel's default. Writeback begins at
/// half of it.
const PERCENT: u64 = 20;
/// Directory of block devices.
const DEVICES: &str = "/sys/class/block";
/// The kernel's defaults for new devices.
const DEFAULTS: [(&str, &str); 3] =
    [("max_ratio", "100"), ("min_ratio", "0"), ("strict_limit", "0")];

/// A changed limit.
pub struct Dirty {
    // Restored in this order: the minimum never exceeds the maximum.
    _least: Knob,
    _most: Knob,
    _strict: Knob,
}

impl Dirty {
    /// Sets the limit that a kernel with `memory` bytes would allow by default.
    ///
    /// # Errors
    /// A kernel before 6.2; no root; the machine's own limit is lower.
    pub fn limited(device: &Path, memory: u64) -> Result<Self> {
        let device =
            std::fs::canonicalize(device).context(format!("cannot find {}", device.display()))?;
        let name = device.file_name().unwrap_or_default();
        Self::at(&Path::new(DEVICES).join(name).join("bdi"), memory)
    }

    fn at(bdi: &Path, memory: u64) -> Result<Self> {
        let file = |name: &str| -> PathBuf { bdi.join(name) };
        // Kept as they are for now: setting bytes changes them.
        let as_is = |name: &str| Knob::set(file(name), &read(&file(name))?);
        let (least, most) = (as_is("min_ratio")?, as_is("max_ratio")?);
        let strict = Knob::set(file("strict_limit"), "1")?;
        let bytes = memory / 100 * PERCENT;
        // The device's own share, independent of writes to other devices.
        for path in [file("max_bytes"), file("min_bytes")] {
            std::fs::write(&path, bytes.to_string())
                .context(format!("cannot set {} to {bytes}", path.display()))?;
        }
        Ok(Self { _least: least, _most: most, _strict: strict })
    }
}

/// Restores the kernel's limits on free loop devices. A killed run has left its own, and they would
/// slow the next user of the device.
pub fn put_back() {
    let Ok(devices) = std::fs::read_dir(DEVICES) else { return };
    let paths = devices.flatten().map(|device| device.path());
    paths.for_each(|device| put_back_at(&device));
}

fn put_back_at(device: &Path) {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let bdi = device.join("bdi");
    let is_free = name.starts_with("loop") && !device.join("loop/backing_file").exists();
    if !is_free || !read(&bdi.join("strict_limit")).is_ok_and(|strict| strict == "1") {
        return;
    }
    let set = |(knob, value)| std::fs::write(bdi.join(knob), value);
    if let Err(e) = DEFAULTS.into_iter().try_for_each(set) {
        warn(&format!(
            "{name} has limits on what may be dirty, left by a run that was killed: {e}"
        ));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn what_was_set_comes_back() {
        let root = tempfile::tempdir().unwrap();
        let is = |name: &str, text: &str| {
            assert_eq!(fs::read_to_string(root.path().join(name)).unwrap(), text, "{name}");
        };
        for (name, text) in [
            ("strict_limit", "0"),
            ("max_ratio", "100"),
            ("max_bytes", "9"),
            ("min_ratio", "1"),
            ("min_bytes", "0"),
        ] {
            fs::write(root.path().join(name), text).unwrap();
        }
        let dirty = Dirty::at(root.path(), 1000 << 20).unwrap();
        is("strict_limit", "1");
        is("max_bytes", &(200 << 20).to_string());
        is("min_bytes", &(200 << 20).to_string());
        drop(dirty);
        is("strict_limit", "0");
        is("max_ratio", "100");
        is("min_ratio", "1");
    }

    #[test]
    fn what_a_killed_run_has_left_goes_from_free_devices() {
        let root = tempfile::tempdir().unwrap();
        let is = |device: &str, strict: &str, most: &str| {
            let read = |knob| fs::read_to_string(root.path().join(device).join("bdi").join(knob));
            assert_eq!(read("strict_limit").unwrap(), strict, "{device}");
            assert_eq!(read("max_ratio").unwrap(), most, "{device}");
        };
        for device in ["loop0", "loop1", "sda", "loop2"] {
            let bdi = root.path().join(device).join("bdi");
            fs::create_dir_all(&bdi).unwrap();
            let strict = if device == "loop2" { "0" } else { "1" };
            for (knob, text) in [("strict_limit", strict), ("max_ratio", "7"), ("min_ratio", "7")] {
                fs::write(bdi.join(knob), text).unwrap();
            }
        }
        let used = root.path().join("loop1/loop");
        fs::create_dir(&used).unwrap();
        fs::write(used.join("backing_file"), "/some/file").unwrap();
        for device in ["loop0", "loop1", "sda", "loop2", "loop3"] {
            put_back_at(&root.path().join(device));
        }
        is("loop0", "0", "100");
        is("loop1", "1", "7");
        is("sda", "1", "7");
        is("loop2", "0", "7");
    }
}
