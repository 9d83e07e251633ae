//! Reads the kernel's directories of block devices, below `/sys/dev/block`.
//!
//! Invariant: this module opens no device; a value that cannot be read is `None`.

use crate::kernel_text::kernel_text;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Where the kernel's own tree is.
pub(super) const SYS: &str = "/sys";

/// The directory of a device number, by its real name (`/sys/devices/…/sda/sda1`).
pub(super) fn dir_of(number: u64) -> Option<PathBuf> {
    dir_in(Path::new(SYS), number)
}

/// The same in a tree like the kernel's.
pub(super) fn dir_in(sys: &Path, number: u64) -> Option<PathBuf> {
    fs::canonicalize(sys.join("dev/block").join(text_of(number))).ok()
}

/// A device number as the kernel's tables write it: `8:1`.
pub(super) fn text_of(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// The device number of a directory.
pub(crate) fn number_in(dir: &Path) -> Option<u64> {
    let (major, minor) = numbers(&line(&dir.join("dev"))?)?;
    Some(rustix::fs::makedev(major, minor))
}

/// Major and minor number in such a text.
pub(crate) fn numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The node of a directory's device, where the kernel puts it.
pub(super) fn node_of(dir: &Path) -> PathBuf {
    // A name with `/` in it (`cciss/c0d0`) has `!` there.
    Path::new("/dev").join(name(dir).replace('!', "/"))
}

/// The number in a file of one line.
pub(super) fn count(path: &Path) -> Option<u64> {
    line(path)?.parse().ok()
}

/// The first line of a file, without blanks around it; `None` when it is empty.
pub(super) fn line(path: &Path) -> Option<String> {
    let text = kernel_text(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// The value of `key` in the `uevent` file of a directory.
pub(super) fn event(dir: &Path, key: &str) -> Option<String> {
    let text = kernel_text(dir.join("uevent")).ok()?;
    text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}

/// Whether a directory is a partition's; its disk is the directory above.
pub(crate) fn is_partition(dir: &Path) -> bool {
    dir.join("partition").exists()
}

/// The directory of the disk that a device is, or is a partition of.
pub(crate) fn disk_of(dir: &Path) -> &Path {
    if is_partition(dir) { dir.parent().unwrap_or(dir) } else { dir }
}

/// Whether the device of a directory takes discards.
pub(super) fn discards(dir: &Path) -> bool {
    let disk = disk_of(dir);
    count(&disk.join("queue/discard_max_bytes")).is_some_and(|bytes| bytes > 0)
}

/// The file behind the loop device of a directory, as the kernel names it.
pub fn loop_file(dir: &Path) -> Option<PathBuf> {
    let mut path = fs::read(dir.join("loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(PathBuf::from(OsString::from_vec(path)))
}

/// The entries of a directory; none when it cannot be read.
pub(crate) fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path())
}

/// The last part of a path, as text.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers() {
        assert_eq!(numbers("259:3"), Some((259, 3)));
        assert_eq!((numbers("259"), numbers("a:b"), numbers("")), (None, None, None));
    }
}
