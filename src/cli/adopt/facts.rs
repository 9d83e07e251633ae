//! What there is of a disk that is to get a volume before it: content, mounts, lines of
//! `/etc/fstab`, holders.
//!
//! Invariant: nothing is changed, and nothing on a mounted file system is opened.

use crate::device;
use crate::error::{Context, Error, Result};
use crate::media::{Access, FileDrive, Signature};
use crate::system::fstab::{Entry, Fstab};
use crate::system::holders;
use crate::system::mounts::{MountEntry, mounts, number_of};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Where what is mounted is needed before ztier can start, or while it ends.
const OF_SYSTEM: [&str; 8] =
    ["/", "/usr", "/etc", "/var", "/var/lib", "/boot", "/boot/efi", "/run"];

/// Content that is no file system, and what to do instead.
const NO_FILE_SYSTEM: [(&str, &str); 6] = [
    ("swap", "compressed swap is `ztier up NAME --size 4G --use swap`"),
    ("LVM2_member", "give a logical volume of it"),
    ("crypto_LUKS", "give the opened device, in /dev/mapper"),
    ("linux_raid_member", "give the array"),
    ("partition table", "give a partition of it"),
    ("several", "see what is on it with `wipefs`"),
];

/// See the module.
pub(super) struct Facts {
    /// The disk by the name that the user gave, which may be more lasting than the kernel's.
    pub given: PathBuf,
    /// The disk, without symbolic links.
    pub device: PathBuf,
    pub content: Signature,
    /// The sector that the volume will have, in bytes.
    pub sector: u32,
    /// Its mounts, in the order in which they were made.
    pub mounts: Vec<MountEntry>,
    entries: Vec<Entry>,
    holders: Vec<String>,
}

impl Facts {
    /// Looks.
    ///
    /// # Errors
    /// It is no block device, or nothing known is on it.
    pub fn find(given: &Path, fstab: &Path) -> Result<Self> {
        let what = || format!("cannot look at {}", given.display());
        let device = fs::canonicalize(given).context(what())?;
        let meta = fs::metadata(&device).context(what())?;
        if !meta.file_type().is_block_device() {
            return Err(Error::usage(format!("{} is no block device", given.display()))
                .hint("give a disk or a partition"));
        }
        if given.starts_with("/dev/ztier") {
            return Err(Error::usage(format!("{} is a volume of ztier", given.display()))
                .hint("`ztier restart NAME --log DEV` gives it a log"));
        }
        let mounts = mounted(&device);
        let drive = FileDrive::open(&device, Access::ReadOnly)?;
        let content = Signature::of(&drive)?.ok_or_else(|| {
            Error::usage(format!("{} has no file system that is known", given.display()))
                .hint("`ztier up NAME --backing DEV` is for a new one")
        })?;
        drop(drive);
        let (sector, _) = device::sector::of_drive(&device)?;
        let fstab = Fstab::read(fstab)?;
        let entries = fstab.entries().filter(|entry| leads(entry, &device, &content)).collect();
        let holders = holders::of_block_device(&device);
        let given = std::path::absolute(given).context(what())?;
        Ok(Self { given, device, content, sector: sector.bytes(), mounts, entries, holders })
    }

    /// Refuses what can't have a volume before it.
    ///
    /// # Errors
    /// The reason, and what to do instead.
    pub fn refuse(&self) -> Result<()> {
        let device = self.given.display();
        let kind = &self.content.kind;
        if let Some((_, instead)) = NO_FILE_SYSTEM.iter().find(|(part, _)| kind.contains(part)) {
            return Err(
                Error::usage(format!("{device} holds {kind}, no file system")).hint(*instead)
            );
        }
        let points = self.points().into_iter().chain(self.lines_points());
        if let Some(point) = points.into_iter().find(|point| is_of_system(point)) {
            let (what, shown) = match point == Path::new("/") {
                true => ("the root file system", String::new()),
                false => ("needed to boot", format!(" on {}", point.display())),
            };
            return Err(Error::usage(format!(
                "{device}{shown} is {what}: the machine needs it before ztier can start"
            ))
            .hint("give a disk with other data"));
        }
        let is_mount = |holder: &&String| holder.starts_with("mounted on ");
        if let Some(holder) = self.holders.iter().find(|holder| !is_mount(holder)) {
            return Err(Error::busy(format!("{device} is held: {holder}")).hint("end that first"));
        }
        let unlisted = |mount: &&MountEntry| !self.lists(&mount.point);
        let part = |mount: &&MountEntry| mount.root != Path::new("/");
        match self.mounts.iter().filter(unlisted).find(part) {
            Some(mount) => Err(Error::busy(format!(
                "a part of {device} is mounted on {}, and fstab does not say how",
                mount.point.display()
            ))
            .hint("unmount that first")),
            None => Ok(()),
        }
    }

    /// Where it is mounted.
    pub fn points(&self) -> Vec<PathBuf> {
        self.mounts.iter().map(|mount| mount.point.clone()).collect()
    }

    /// Where fstab mounts it.
    pub fn lines_points(&self) -> Vec<PathBuf> {
        self.entries.iter().map(|entry| entry.point.clone()).collect()
    }

    /// The lines of fstab that lead to it.
    pub fn lines(&self) -> Vec<Entry> {
        self.entries.clone()
    }

    fn lists(&self, point: &Path) -> bool {
        self.entries.iter().any(|entry| entry.point == point)
    }
}

fn is_of_system(point: &Path) -> bool {
    OF_SYSTEM.iter().any(|of| point == Path::new(of))
}

/// The mounts of a device.
fn mounted(device: &Path) -> Vec<MountEntry> {
    let Some(number) = number_of(device) else { return Vec::new() };
    mounts().into_iter().filter(|mount| mount.is_of(number)).collect()
}

/// Whether a line of fstab leads to `device`, which has this content.
fn leads(entry: &Entry, device: &Path, content: &Signature) -> bool {
    let same = |path: PathBuf| fs::canonicalize(path).is_ok_and(|path| path == device);
    let Some((key, value)) = entry.spec.split_once('=').filter(|(key, _)| !key.contains('/'))
    else {
        return entry.spec.starts_with('/') && same(entry.spec.clone().into());
    };
    let value = value.trim_matches('"');
    let by = |dir: &str| same(Path::new("/dev/disk").join(dir).join(value));
    match key {
        "UUID" => content.uuid.as_deref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(value)),
        "LABEL" => content.label.as_deref() == Some(value),
        "PARTUUID" => by("by-partuuid"),
        "PARTLABEL" => by("by-partlabel"),
        _ => false,
    }
}
