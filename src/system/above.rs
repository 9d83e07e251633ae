//! What is above a block device, as the kernel numbers it: its partitions, devices that are made of
//! it (LVM, dm-crypt), and the file systems on all of these.
//!
//! Invariant: nothing here opens a device or touches a mounted file system.

use super::mounts::mounts;
use crate::media::sysfs;
use std::fs;
use std::path::Path;

/// Most devices of a chain; more than that is a loop.
const DEPTH: u32 = 8;

/// Numbers of the devices and file systems on `device`, itself included, as the kernel has them in
/// memory (`MKDEV`).
pub fn numbers(device: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    let name = fs::canonicalize(device).ok();
    if let Some(name) = name.as_deref().and_then(Path::file_name) {
        collect(&Path::new("/sys/class/block").join(name), DEPTH, &mut found);
    }
    let nodes = found.clone();
    let of = |(major, minor)| kernel(rustix::fs::makedev(major, minor));
    for mount in mounts() {
        // The file system may have a number of its own.
        let is_on = mount.source_number().is_some_and(|source| nodes.contains(&of(source)));
        let number = of(mount.device);
        if is_on && !found.contains(&number) {
            found.push(number);
        }
    }
    found
}

fn collect(dir: &Path, depth: u32, found: &mut Vec<u64>) {
    let number = sysfs::number_in(dir).map(kernel);
    let Some(number) = number.filter(|number| depth > 0 && !found.contains(number)) else { return };
    found.push(number);
    for partition in sysfs::entries(dir).filter(|dir| sysfs::is_partition(dir)) {
        collect(&partition, depth - 1, found);
    }
    for holder in sysfs::entries(&dir.join("holders")) {
        collect(&Path::new("/sys/class/block").join(sysfs::name(&holder)), depth - 1, found);
    }
}

/// A device number as the kernel has it in memory: 12 bits of major, 20 of minor number.
pub fn kernel(number: u64) -> u64 {
    u64::from(rustix::fs::major(number)) << 20 | u64::from(rustix::fs::minor(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel() {
        assert_eq!(kernel(rustix::fs::makedev(259, 1_048_575)), 259 << 20 | 1_048_575);
        assert!(numbers(Path::new("/dev/null")).is_empty(), "no block device");
    }
}
