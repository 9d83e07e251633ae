//! A Debian system with systemd, udev, LVM and LUKS, as a disk to boot from.
//!
//! `mmdebstrap` (or `debootstrap`, which takes longer) makes the tree once, into the cache; each
//! image is a copy with additions, made without mounts.

use crate::cache::Cache;
use crate::command::{find, run};
use crate::kernel::{Kernel, mirror};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use ztier::error::{Context, Error, Result};

const SUITE: &str = "bookworm";
const PACKAGES: &str = "systemd,systemd-sysv,udev,dbus,lvm2,cryptsetup,e2fsprogs,util-linux,fuse3,\
                        mount,kmod,procps";
/// Directories that no machine here needs.
const NEEDLESS: [&str; 5] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/lib/apt/lists",
    "var/cache/apt/archives",
];
/// Units that would only cost time.
const MASKED: [&str; 8] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "serial-getty@ttyS0.service",
];
const AGENT: &str = "\
[Service]
ExecStart=/usr/local/bin/ztier-vm-agent
[Install]
WantedBy=multi-user.target
";

/// A directory tree that becomes a disk.
pub struct Debian {
    place: TempDir,
}

impl Debian {
    /// A copy of the system, with the modules of `kernel` and the `agent` as a service.
    ///
    /// # Errors
    /// The system is unavailable: no mmdebstrap, no network, or not root.
    pub fn new(cache: &Cache, kernel: &Kernel, agent: &Path) -> Result<Self> {
        let system = cache.get(&format!("debian-{SUITE}-systemd"), bootstrap)?;
        let place = tempfile::Builder::new().prefix("ztier-vm-debian-").tempdir();
        let debian = Self { place: place.context("cannot make a directory for a system")? };
        let tree = debian.tree();
        run(120, "cp", &["-a", &system.to_string_lossy(), &tree.to_string_lossy()])?;
        let modules = tree.join("lib/modules");
        fs::create_dir_all(&modules).context("cannot make a directory for modules")?;
        let from = kernel.modules();
        run(60, "cp", &["-a", &from.to_string_lossy(), &modules.to_string_lossy()])?;
        debian.file("etc/fstab", "/dev/disk/by-id/virtio-root / ext4 defaults 0 0\n")?;
        debian.file("etc/hostname", "vm\n")?;
        debian.file("etc/systemd/system/agent.service", AGENT)?;
        debian
            .link("etc/systemd/system/multi-user.target.wants/agent.service", "../agent.service")?;
        debian
            .link("etc/systemd/system/default.target", "/lib/systemd/system/multi-user.target")?;
        debian.mask(&MASKED)?;
        // The journal is kept from boot to boot.
        fs::create_dir_all(tree.join("var/log/journal")).context("cannot make the journal")?;
        fs::copy(agent, tree.join("usr/local/bin/ztier-vm-agent")).context("cannot copy")?;
        Ok(debian)
    }

    /// Masks units, so that they never start.
    ///
    /// # Errors
    /// The tree cannot be changed.
    pub fn mask(&self, units: &[&str]) -> Result<()> {
        let mask = |unit| self.link(&format!("etc/systemd/system/{unit}"), "/dev/null");
        units.iter().try_for_each(mask)
    }

    /// The root directory of the tree.
    pub fn tree(&self) -> PathBuf {
        self.place.path().join("tree")
    }

    /// Makes a file.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn file(&self, name: &str, content: &str) -> Result<()> {
        let path = self.parent_of(name)?;
        fs::write(&path, content).context(format_args!("cannot make {name}"))
    }

    fn link(&self, name: &str, to: &str) -> Result<()> {
        let path = self.parent_of(name)?;
        let _ = fs::remove_file(&path); // there is none, or it is replaced
        symlink(to, &path).context(format_args!("cannot make {name}"))
    }

    fn parent_of(&self, name: &str) -> Result<PathBuf> {
        let path = self.tree().join(name);
        fs::create_dir_all(path.parent().unwrap_or(&path)).context("cannot make a directory")?;
        Ok(path)
    }

    /// Makes the disk, with `free` MiB left on it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn image(&self, path: &Path, free: u64) -> Result<()> {
        let (tree, image) = (self.tree(), path.to_string_lossy());
        let tree = tree.to_string_lossy();
        let used = run(60, "du", &["-sm", &tree])?;
        let used = used.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        let size = format!("{}M", used.unwrap_or(1024) * 5 / 4 + free);
        run(120, "mkfs.ext4", &["-q", "-F", "-d", &tree, &image, &size]).map(drop)
    }
}

fn bootstrap(path: &Path) -> Result<()> {
    let Some(program) = ["mmdebstrap", "debootstrap"].into_iter().find(|name| find(name).is_some())
    else {
        return Err(Error::failure("there is no mmdebstrap").hint("install it"));
    };
    let (include, tree) = (format!("--include={PACKAGES}"), path.to_string_lossy());
    let mirror = mirror();
    run(1500, program, &["--variant=minbase", &include, SUITE, &tree, &mirror])
        .map_err(|e| e.hint("it needs root and the network"))?;
    for directory in NEEDLESS {
        let directory = path.join(directory);
        fs::remove_dir_all(&directory).context("cannot remove what is needless")?;
        fs::create_dir(&directory).context("cannot make a directory")?;
    }
    Ok(())
}
