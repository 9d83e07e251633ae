//! How much memory this process may use.

use crate::kernel_text::kernel_text;
use crate::media::mounts::unescape;
use std::fs;
use std::path::{Path, PathBuf};

/// The smaller of the machine's RAM and the limits of this process's cgroups, in bytes.
pub fn memory_bytes() -> u64 {
    match cgroup_limit() {
        Some(limit) => limit.bytes.min(ram_bytes()),
        None => ram_bytes(),
    }
}

/// The machine's RAM in bytes, as the kernel counts it.
pub fn ram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion)] // the field is narrower on 32-bit machines
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

/// A limit on memory that a cgroup sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// The file that sets it.
    pub file: PathBuf,
}

/// The lowest memory limit among this process's cgroup and its parents, if there is one.
pub fn cgroup_limit() -> Option<CgroupLimit> {
    let groups = kernel_text("/proc/self/cgroup").ok()?;
    lowest_limit(&groups, Path::new("/sys/fs/cgroup"))
}

fn lowest_limit(groups: &str, root: &Path) -> Option<CgroupLimit> {
    let mut lowest: Option<CgroupLimit> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (base, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            c if c.split(',').any(|c| c == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for part in unescape(path.trim_start_matches('/')).ancestors() {
            let file = base.join(part).join(file);
            let Ok(text) = fs::read_to_string(&file) else { continue };
            let Ok(bytes) = text.trim().parse::<u64>() else { continue }; // `max`
            // Version 1 says "no limit" by a number near the largest.
            if bytes < 1 << 60 && lowest.as_ref().is_none_or(|l| bytes < l.bytes) {
                lowest = Some(CgroupLimit { bytes, file });
            }
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let v1 = root.path().join("memory/a/b");
        fs::create_dir_all(&v1).unwrap();
        fs::write(v1.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(root.path().join("memory/a/memory.limit_in_bytes"), "1048576\n").unwrap();
        let found = lowest_limit("5:cpu:/x\n4:memory:/a/b\n", root.path()).unwrap();
        assert_eq!(found.bytes, 1048576);
        assert!(found.file.ends_with("memory/a/memory.limit_in_bytes"));

        let v2 = root.path().join("u/s");
        fs::create_dir_all(&v2).unwrap();
        fs::write(v2.join("memory.max"), "max\n").unwrap();
        assert_eq!(lowest_limit("0::/u/s\n", root.path()), None);
        fs::write(v2.join("memory.max"), "4096\n").unwrap();
        assert_eq!(lowest_limit("0::/u/s\n", root.path()).unwrap().bytes, 4096);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_bytes() >= 1 << 20 && memory_bytes() <= ram_bytes());
    }
}
