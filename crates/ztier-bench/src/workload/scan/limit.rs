//! The limit on the load's memory: a control group, of either version.
//!
//! Invariants: the group holds only processes that a workload puts there; dropping the guard
//! removes it. The processes that serve swap space stay outside, as the memory of a kernel's zram
//! does.

use crate::report::warn;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};
use ztier::kernel_text::kernel_text;

static NEXT: AtomicU32 = AtomicU32::new(0);
/// Limit on the time until a group is empty after its last process has ended.
const EMPTY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The hierarchy of the memory controller.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// Mount point of its root.
    mount: PathBuf,
    /// Path of this process's group.
    own: PathBuf,
}

/// A group with a limit.
#[derive(Debug)]
pub struct Limit {
    version: Version,
    dir: PathBuf,
}

impl Limit {
    /// A new group limited to `bytes`; swap is not limited.
    ///
    /// # Errors
    /// No memory controller here, or no right to use it.
    pub fn new(bytes: u64) -> Result<Self> {
        let read = |path: &str| kernel_text(path).context(format!("cannot read {path}"));
        let found = find(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?);
        let hierarchy = found.ok_or_else(|| {
            Error::failure("no control groups that limit memory are mounted")
                .hint("mount them, or run with --limit 0 where memory itself is as small")
        })?;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ztier-bench-{}-{n}", std::process::id());
        let dir = hierarchy.parent()?.join(name);
        fs::create_dir(&dir).context(format!("cannot make {} (needs root)", dir.display()))?;
        // From here on the guard removes the group.
        let limit = Self { version: hierarchy.version, dir };
        limit.set(bytes)?;
        Ok(limit)
    }

    /// Changes the limit.
    ///
    /// # Errors
    /// The group uses more, and cannot release it.
    pub fn set(&self, bytes: u64) -> Result<()> {
        let file = self.file("memory.limit_in_bytes", "memory.max");
        fs::write(&file, bytes.to_string())
            .context(format!("cannot set {} to {bytes}", file.display()))
    }

    /// The file for process ids.
    pub fn join(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The maximum memory of the group.
    ///
    /// # Errors
    /// The kernel does not count it (version 2 before Linux 5.19).
    pub fn peak(&self) -> Result<u64> {
        let path = self.file("memory.max_usage_in_bytes", "memory.peak");
        number(&path)
    }

    /// Number of processes in the group that the OOM killer ended.
    pub fn killed(&self) -> u64 {
        let path = self.file("memory.oom_control", "memory.events");
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// A description for reports.
    pub fn about(&self) -> String {
        let version = match self.version {
            Version::V1 => "version 1",
            Version::V2 => "version 2",
        };
        let zswap = if self.counts_zswap() { "counts" } else { "does not count" };
        format!("a memory control group ({version}), which {zswap} what zswap keeps")
    }

    /// Whether the compressed pages of zswap count as memory of the group.
    pub fn counts_zswap(&self) -> bool {
        self.version == Version::V2
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.dir.join(match self.version {
            Version::V1 => v1,
            Version::V2 => v2,
        })
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let end = Instant::now() + EMPTY;
        loop {
            match fs::remove_dir(&self.dir) {
                Ok(()) => return,
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                Err(e) => return warn(&format!("cannot remove {}: {e}", self.dir.display())),
            }
        }
    }
}

impl Hierarchy {
    /// The group in which groups can be made. Version 2 allows none below a group with processes;
    /// there it is the nearest group above that delegates the controller.
    fn parent(&self) -> Result<PathBuf> {
        if self.version == Version::V1 {
            return Ok(self.own.clone());
        }
        let passes = |dir: &Path| {
            let text = fs::read_to_string(dir.join("cgroup.subtree_control"));
            text.is_ok_and(|text| text.split_whitespace().any(|word| word == "memory"))
        };
        let above = self.own.ancestors().take_while(|dir| dir.starts_with(&self.mount));
        above.into_iter().find(|dir| passes(dir)).map(Path::to_owned).ok_or_else(|| {
            Error::failure(format!("no group above {} limits memory", self.own.display()))
                .hint("write +memory to cgroup.subtree_control of the root, or use systemd-run")
        })
    }
}

fn number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).context(format!("cannot read {}", path.display()))?;
    text.trim().parse().map_err(|_| Error::failure(format!("{} holds {text:?}", path.display())))
}

/// Reads `/proc/self/cgroup` and `/proc/self/mountinfo`. Only one version has the controller at a
/// time; where both are mounted, version 1 has it if it lists it.
fn find(groups: &str, mounts: &str) -> Option<Hierarchy> {
    let group = |wanted: fn(&str, &str) -> bool| {
        groups.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(number, controllers).then_some(path)
        })
    };
    let v1 = group(|_, controllers| controllers.split(',').any(|c| c == "memory"));
    let (version, path) = match v1 {
        Some(path) => (Version::V1, path),
        None => {
            (Version::V2, group(|number, controllers| number == "0" && controllers.is_empty())?)
        }
    };
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let kind: Vec<&str> = kind.split(' ').collect();
        let fits = match version {
            Version::V1 => {
                kind.first() == Some(&"cgroup") && kind.last()?.split(',').any(|o| o == "memory")
            }
            Version::V2 => kind.first() == Some(&"cgroup2"),
        };
        let (root, mount) = (place.split(' ').nth(3)?, Path::new(place.split(' ').nth(4)?));
        // In a container, the mounted part may begin further down.
        let below =
            Path::new(path).strip_prefix(root).or_else(|_| Path::new(path).strip_prefix("/"));
        fits.then(|| Hierarchy {
            version,
            mount: mount.to_owned(),
            own: mount.join(below.unwrap_or(Path::new(""))),
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MOUNTS: &str = "\
29 28 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 29 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
32 29 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 29 0:30 / /sys/fs/cgroup/unified rw - cgroup2 none rw
";

    fn found(groups: &str, mounts: &str) -> Option<(Version, String)> {
        find(groups, mounts).map(|h| (h.version, h.own.to_string_lossy().into_owned()))
    }

    #[test]
    fn the_group_of_a_process_is_found_by_either_version() {
        let v1 = "3:cpu:/\n4:memory:/user/session\n0::/\n";
        let own = "/sys/fs/cgroup/memory/user/session".to_owned();
        assert_eq!(found(v1, MOUNTS), Some((Version::V1, own)));

        let v2 = "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let own = "/sys/fs/cgroup/user.slice/a:b".to_owned();
        assert_eq!(found("0::/user.slice/a:b\n", v2), Some((Version::V2, own)));

        let mounts = MOUNTS.replace("0:29 /", "0:29 /docker/7");
        let own = "/sys/fs/cgroup/memory/inner".to_owned();
        assert_eq!(found("4:memory:/docker/7/inner\n", &mounts), Some((Version::V1, own)));

        assert_eq!(found("", MOUNTS), None);
        assert_eq!(found("4:memory:/\n", "29 28 0:26 / /sys rw - sysfs sysfs rw\n"), None);
    }

    #[test]
    fn version_two_makes_groups_where_the_controller_is_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("slice/scope");
        fs::create_dir_all(&own).unwrap();
        let hierarchy = Hierarchy { version: Version::V2, mount: dir.path().into(), own };
        let error = hierarchy.parent().unwrap_err().to_string();
        assert!(error.contains("limits memory"), "{error}");
        fs::write(dir.path().join("slice/cgroup.subtree_control"), "cpu memory\n").unwrap();
        assert_eq!(hierarchy.parent().unwrap(), dir.path().join("slice"));
    }

    /// Where no group can be made, the refusal must name the requirement.
    #[test]
    fn a_group_comes_holds_no_process_and_goes() {
        let limit = match Limit::new(32 << 20) {
            Ok(limit) => limit,
            Err(e) => {
                let text = e.to_string();
                let known = ["needs root", "mounted", "limits memory", "cannot set"];
                return assert!(known.iter().any(|part| text.contains(part)), "{text}");
            }
        };
        let dir = limit.dir.clone();
        let own = fs::read_to_string(limit.file("memory.limit_in_bytes", "memory.max")).unwrap();
        assert_eq!(own.trim(), (32u64 << 20).to_string());
        assert_eq!(limit.killed(), 0);
        drop(limit);
        assert!(!dir.exists());
    }
}
