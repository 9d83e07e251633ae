//! Claims on the layers below a drive, where the kernel makes none.
//!
//! Invariants: as long as a drive is open, each file below it is locked, in the bytes that the
//! drive can reach, and each block device below a loop device is open with `O_EXCL`. Two openers of
//! the same bytes meet at the lowest layer that they share, by any path and in any order, and one
//! of them is refused. Locks are on inodes: names, links and other mounts do not matter. Locks and
//! claims end with the process.
//!
//! Not detected: a file that is reached through two file systems (an overlay and its upper
//! directory, two network clients), and overlapping parts of a stacked device (two device-mapper
//! tables over the same sectors). A file whose path leads elsewhere by now, or is in another mount
//! namespace, cannot be locked; for it, locks that `/proc` shows count.

use super::holder;
use super::layers::{Base, Layer, Tree};
use super::mounts::{MountEntry, mount_of, mounts};
use parking_lot::Mutex;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Block devices below drives of this process. Several drives may lie on separate parts of one.
static DEVICES: Mutex<Vec<(u64, Weak<OwnedFd>)>> = Mutex::new(Vec::new());

/// What a drive is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read and write, and to keep other processes out.
    Exclusive,
    /// To read only, while no process writes.
    Still,
    /// To read only, even when another process has it: the content may be changing.
    ReadOnly,
}

/// Claims on the layers below a drive, released on drop.
#[derive(Debug, Default)]
pub(super) struct Claims {
    _files: Vec<OwnedFd>,
    _devices: Vec<Arc<OwnedFd>>,
}

/// A drive, or a layer below it, is in use.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// The layer; `None` for the drive itself.
    pub below: Option<PathBuf>,
    /// The holder in words, as [`holder`] gives it; `None` if it is not visible.
    pub holder: Option<String>,
}

impl Busy {
    /// The drive itself is in use.
    pub fn itself(holder: Option<String>) -> Self {
        Self { below: None, holder }
    }

    fn of(layer: &Layer, holder: Option<String>) -> Self {
        Self { below: Some(layer.name.clone()), holder }
    }
}

impl Claims {
    /// Claims all layers but the first one, which the caller has opened.
    ///
    /// # Errors
    /// Bytes of a layer are claimed already, or a loop device outside of the layers shows some.
    pub fn below(layers: &[Layer], access: Access) -> Result<Self, Busy> {
        let (mut claims, mounts) = (Self::default(), mounts());
        for layer in layers.iter().skip(1) {
            match (layer.base, layer.number) {
                (Base::File(..), _) => {
                    claims._files.extend(lock_below(layer, access, &mounts)?);
                }
                (Base::Disk(_), Some(number)) if layer.shown => {
                    claims._devices.extend(claim_device(layer, number)?);
                }
                // The kernel claims it for the device above.
                (Base::Disk(_), _) => {}
            }
        }
        elsewhere(layers).map_or(Ok(claims), Err)
    }
}

/// Whether a loop device outside of the layers shows bytes of them.
pub(super) fn elsewhere(layers: &[Layer]) -> Option<Busy> {
    let (number, node, layer) = Tree::of_machine().shown_elsewhere(layers)?;
    let mut holder = format!("loop device {}", node.display());
    if let Some(above) = holder::of_device(number) {
        holder += &format!(" ({above})");
    }
    let itself = layers.first() == Some(layer);
    Some(if itself { Busy::itself(Some(holder)) } else { Busy::of(layer, Some(holder)) })
}

/// Locks the bytes of a file below a loop device; `None` if it cannot be locked and `/proc` shows
/// no lock on them.
fn lock_below(
    layer: &Layer,
    access: Access,
    mounts: &[MountEntry],
) -> Result<Option<OwnedFd>, Busy> {
    let Base::File(device, inode) = layer.base else { return Ok(None) };
    // The FUSE file of another volume: only its own loop device shows it, and an open descriptor
    // would keep its daemon from unmounting.
    if mount_of(mounts, &layer.name).is_some_and(MountEntry::is_ours) {
        return Ok(None);
    }
    let writes = access == Access::Exclusive && !layer.shared;
    let open = |flags| {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        rustix::fs::open(&layer.name, flags, Mode::empty())
    };
    let opened = match writes.then(|| open(OFlags::RDWR)) {
        Some(Ok(file)) => Ok((file, true)),
        Some(Err(Errno::TXTBSY)) => {
            return Err(Busy::of(layer, holder::of_file(&layer.name, inode, &layer.bytes)));
        }
        // A read lock still conflicts with writers.
        _ => open(OFlags::RDONLY).map(|file| (file, false)),
    };
    let is_it = |file: &OwnedFd| {
        rustix::fs::fstat(file).is_ok_and(|s| (s.st_dev, s.st_ino) == (device, inode))
    };
    match opened {
        Ok((file, writes)) if is_it(&file) => {
            match lock(file.as_fd(), writes, &layer.bytes) {
                Ok(()) => Ok(Some(file)),
                Err(Errno::AGAIN | Errno::ACCESS) => {
                    Err(Busy::of(layer, holder::of_file(&layer.name, inode, &layer.bytes)))
                }
                // The file system has no locks.
                Err(_) => Ok(None),
            }
        }
        _ => match holder::lock_on(&layer.name, inode, &layer.bytes) {
            Some(holder) => Err(Busy::of(layer, Some(holder))),
            None => Ok(None),
        },
    }
}

/// Claims a device below a loop device. A shared one is only probed: it must not be claimed as a
/// whole.
fn claim_device(layer: &Layer, number: u64) -> Result<Option<Arc<OwnedFd>>, Busy> {
    let mut devices = DEVICES.lock();
    devices.retain(|(_, held)| held.strong_count() > 0);
    let held = devices.iter().find(|(device, _)| *device == number);
    if let Some(held) = held.and_then(|(_, held)| held.upgrade()) {
        return Ok(Some(held));
    }
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(&layer.name, flags, Mode::empty()) {
        Ok(node) if is_device(&node, number) => {
            let node = Arc::new(node);
            if layer.shared {
                return Ok(None);
            }
            devices.push((number, Arc::downgrade(&node)));
            Ok(Some(node))
        }
        Err(Errno::BUSY) => Err(Busy::of(layer, holder::of_device(number))),
        // This mount namespace has no node of it.
        _ => Ok(None),
    }
}

fn is_device(node: &OwnedFd, number: u64) -> bool {
    rustix::fs::fstat(node).is_ok_and(|stat| stat.st_rdev == number)
}

/// Locks bytes of a file for its open description, for writing or for reading. A lock on the whole
/// file also conflicts with the locks of virtual machines on their images.
pub(super) fn lock(fd: BorrowedFd<'_>, writes: bool, bytes: &Range<u64>) -> rustix::io::Result<()> {
    let kind = if writes { libc::F_WRLCK } else { libc::F_RDLCK };
    // A length of 0 is up to the end, wherever that will be.
    let len = if bytes.end > i64::MAX as u64 { 0 } else { bytes.end - bytes.start };
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start.cast_signed(),
        l_len: len.cast_signed(),
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads one `struct flock`, which outlives the call; the descriptor is
    // open.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
