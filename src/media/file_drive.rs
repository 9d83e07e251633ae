//! A drive that is a block device or a regular file.
//!
//! Invariants:
//! - what was opened as [`Access::Exclusive`] is ours until it is dropped: a block device by
//!   `O_EXCL`, which the kernel holds against mounts, swap and other claims; a file by a lock on
//!   its open description, which ends with the process however that ends; the layers below by
//!   [`super::claims`];
//! - nothing outside of [`Drive::size`] is touched, so a file never grows;
//! - I/O goes past the page cache wherever the file system can ([`FileDrive::is_direct`]); where it
//!   can't, a flush still brings everything to the medium.

use super::buffer::Buffer;
use super::claims::{self, Access, Busy, Claims};
use super::contents;
use super::drive::{ALIGN, Action, Drive, DriveError, write_part_as_block};
use super::failures::Failures;
use super::flushes::Flushes;
use super::holder;
use super::ioctls;
use super::layers::{self, Layer, Tree};
use super::sector::{Made as MadeFor, Sector};
use super::sysfs;
use super::transfer::{Progress, check, failed};
use crate::error::{Context, Error, Result};
use crate::remedy;
use parking_lot::Mutex;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;
use std::cell::Cell;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long opening a drive waits for another process to let it go.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// The same for a process that is known to be dead: its requests to the drive have to end first.
const DEAD_WAIT: Duration = Duration::from_secs(10);

/// Bytes copied at a time through a bounce buffer.
const BOUNCE: usize = 256 << 10;

/// Threads that read at once for [`Drive::read_many`].
const READERS: usize = 16;

thread_local! {
    /// This thread's bounce buffer, kept as long as the thread lives. A buffer for each request
    /// would be mapped, touched and unmapped each time, and would wait when the machine is short of
    /// memory: perhaps for writes to this very device.
    static OWN: Cell<Option<Buffer>> = const { Cell::new(None) };
}

/// The ways in which the kernel makes a range read as zeros, the best first: giving the space back,
/// and keeping it. Both work on files and on block devices (there they are `BLKZEROOUT`); where
/// unsupported, they fail with `EOPNOTSUPP`.
pub(super) const ZERO_MODES: [FallocateFlags; 2] = [
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
    FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    /// A block device, and its number.
    Device(u64),
    File,
}

/// Why an attempt to open failed.
enum Failure {
    /// The drive, or a layer below it, is in use.
    Busy(Busy),
    Other(Error),
}

impl From<Busy> for Failure {
    fn from(busy: Busy) -> Self {
        Self::Busy(busy)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// An open block device or regular file.
#[derive(Debug)]
pub struct FileDrive {
    fd: OwnedFd,
    path: PathBuf,
    node: Node,
    access: Access,
    size: u64,
    /// Bytes behind `size`, less than a block.
    rest: u64,
    sector: Sector,
    direct: bool,
    flushes: Flushes,
    failures: Failures,
    /// The drive itself, and the layers below it.
    layers: Vec<Layer>,
    _claims: Claims,
}

impl FileDrive {
    /// Opens the block device or the regular file `path`, and changes nothing on it. Waits a second
    /// for a process that holds it: a killed process lets go a little after its end.
    ///
    /// # Errors
    /// It is missing, something else than a device or file, in use (the error names the holder, if
    /// visible), read-only, forbidden, smaller than a block, or has sectors above [`ALIGN`].
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        Self::open_within(path, access, BUSY_WAIT)
    }

    /// The same with [`Access::Exclusive`]. If `another` process had the drive and is dead, waits
    /// longer for its last requests to end.
    ///
    /// # Errors
    /// See [`FileDrive::open`].
    pub fn take(path: &Path, another: bool) -> Result<Self> {
        let patience = if another { DEAD_WAIT } else { BUSY_WAIT };
        Self::open_within(path, Access::Exclusive, patience)
    }

    fn open_within(path: &Path, access: Access, patience: Duration) -> Result<Self> {
        let deadline = Instant::now() + patience;
        loop {
            let busy = match Self::attempt(path, access) {
                Ok(drive) => return Ok(drive),
                Err(Failure::Other(error)) => return Err(error),
                Err(Failure::Busy(busy)) => busy,
            };
            let ends =
                |holder: &String| ["process", "volume"].iter().any(|p| holder.starts_with(p));
            let passing = busy.holder.as_ref().is_none_or(ends);
            if !passing || Instant::now() >= deadline {
                return Err(in_use(path, busy));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn attempt(path: &Path, access: Access) -> Result<Self, Failure> {
        let stat = rustix::fs::stat(path).map_err(|e| cannot_open(path, e))?;
        let node = node_of(path, &stat)?;
        let (fd, direct) = open_node(path, node, access)?;
        let stat = rustix::fs::fstat(&fd).context(cannot(path))?;
        if node_of(path, &stat)? != node {
            return Err(Error::failure(format!("{} changed meanwhile", path.display())).into());
        }
        let (flushes, failures) = (Flushes::default(), Failures::new(path));
        let (layers, claims) = (layers_of(node, &stat, &name_of(&fd, path)), Claims::default());
        let (path, size, rest, sector) = (path.into(), 0, 0, Sector::Block);
        let mut drive = Self {
            fd,
            path,
            node,
            access,
            size,
            rest,
            sector,
            direct,
            flushes,
            failures,
            layers,
            _claims: claims,
        };
        if access != Access::ReadOnly {
            drive.claim()?;
        }
        drive.measure(&stat)?;
        drive.settle_direct()?;
        Ok(drive)
    }

    /// The name it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of a block device; `None` for a regular file.
    pub fn device_number(&self) -> Option<u64> {
        match self.node {
            Node::Device(number) => Some(number),
            Node::File => None,
        }
    }

    /// Whether reads and writes bypass the page cache. Otherwise a write may need memory that the
    /// kernel is short of, and errors of the medium show only at the flush.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The sector that a device on this drive should have, and why: that of its content, of the
    /// block device itself, or of a file.
    pub fn sector(&self) -> (Sector, &'static str) {
        let mut read = |range| contents::bytes(self, range);
        match MadeFor::of(self.size, &mut read) {
            Some(made) => (made.sector, made.content),
            None => self.own_sector(),
        }
    }

    /// The same without regard to the drive's content.
    pub fn own_sector(&self) -> (Sector, &'static str) {
        match self.node {
            Node::Device(_) => (self.sector, "that of the drive"),
            Node::File => (self.sector, "a file"),
        }
    }

    /// Refuses a drive whose size is not a multiple of [`ALIGN`]: a device on it would lack the
    /// last bytes.
    ///
    /// # Errors
    /// The size is not a multiple of [`ALIGN`].
    pub fn require_whole(&self) -> Result<()> {
        if self.rest == 0 {
            return Ok(());
        }
        let (path, all) = (self.path.display(), self.size + self.rest);
        let text = format!("{path} has {all} bytes, which is no multiple of {ALIGN}");
        Err(Error::failure(text).hint(match self.node {
            Node::File => format!("make it larger: `truncate -s %{ALIGN} {path}`"),
            Node::Device(_) => format!("give a partition of {} bytes on it", self.size),
        }))
    }

    /// The access that the drive was opened with.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Hints that the content of a range is no longer needed, so that an SSD or a file system can
    /// use its space. The range reads as anything afterwards. Best effort.
    pub fn discard_hint(&self, at: u64, len: u64) {
        if len == 0 || self.allowed(Action::Zero, at, len).is_err() {
            return;
        }
        let _ = match self.node {
            Node::File => rustix::fs::fallocate(&self.fd, ZERO_MODES[0], at, len),
            Node::Device(_) => ioctls::discard(&self.fd, at, len),
        };
    }

    /// The descriptor, for callers that do I/O of their own.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A second, read-only, shared descriptor of the same file or device, even if its name leads
    /// elsewhere by now.
    pub(super) fn reopen(&self) -> rustix::io::Result<OwnedFd> {
        rustix::fs::open(self.link(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// The name by which the kernel knows the descriptor.
    fn link(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// The drive itself and the layers below it, from top to bottom.
    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Claims the drive and the layers below it; `O_EXCL` has claimed a block device already.
    fn claim(&mut self) -> Result<(), Failure> {
        match self.node {
            Node::File => self.lock_file()?,
            Node::Device(_) if self.access == Access::Exclusive => {
                if ioctls::is_read_only(&self.fd).context(cannot(&self.path))? {
                    return Err(read_only(&self.path).into());
                }
            }
            Node::Device(_) => {}
        }
        self._claims = Claims::below(&self.layers, self.access)?;
        Ok(())
    }

    fn lock_file(&self) -> Result<(), Failure> {
        let name = name_of(&self.fd, &self.path);
        if holder::is_swap(&name) {
            return Err(Busy::itself(Some("swap".to_owned())).into());
        }
        let (writes, inode) = (self.access == Access::Exclusive, self.inode()?);
        match claims::lock(self.fd.as_fd(), writes, &(0..u64::MAX)) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let holder = || holder::of_file(&name, inode, &(0..u64::MAX));
                let busy = claims::elsewhere(&self.layers);
                Err(busy.unwrap_or_else(|| Busy::itself(holder())).into())
            }
            Err(e) => {
                let text = format!("cannot lock {}: {e}", self.path.display());
                Err(Error::failure(text).into())
            }
        }
    }

    fn inode(&self) -> Result<u64> {
        Ok(rustix::fs::fstat(&self.fd).context(cannot(&self.path))?.st_ino)
    }

    /// Finds the size and, for a block device, the sector.
    fn measure(&mut self, stat: &Stat) -> Result<()> {
        let bytes = match self.node {
            Node::File => stat.st_size as u64,
            Node::Device(_) => {
                let sector = rustix::fs::ioctl_blksszget(&self.fd).context(cannot(&self.path))?;
                if sector as usize > ALIGN {
                    let text = format!("{} has sectors of {sector} bytes", self.path.display());
                    return Err(Error::failure(text)
                        .hint(format!("give a drive with sectors of at most {ALIGN} bytes")));
                }
                self.sector = Sector::of_requests(sector);
                ioctls::size_bytes(&self.fd).context(cannot(&self.path))?
            }
        };
        self.rest = bytes % ALIGN as u64;
        self.size = bytes - self.rest;
        if self.size == 0 {
            let text = format!(
                "{} is too small: it has {bytes} bytes, and the least is {ALIGN}",
                self.path.display()
            );
            return Err(Error::failure(text).hint("give a larger one"));
        }
        Ok(())
    }

    /// Tries a direct read: file systems with blocks above [`ALIGN`] take the flag and refuse the
    /// request.
    fn settle_direct(&mut self) -> Result<()> {
        let mut probe = Buffer::new(ALIGN);
        if self.direct && self.read_aligned(0, &mut probe) == Err(Errno::INVAL) {
            let flags = rustix::fs::fcntl_getfl(&self.fd).context(cannot(&self.path))?;
            rustix::fs::fcntl_setfl(&self.fd, flags - OFlags::DIRECT)
                .context(cannot(&self.path))?;
            self.direct = false;
        }
        Ok(())
    }

    fn allowed(&self, action: Action, at: u64, len: u64) -> Result<(), DriveError> {
        check(action, at, len, self.size)?;
        let changes = matches!(action, Action::Write | Action::Zero);
        if changes && self.access != Access::Exclusive {
            return Err(failed(action, at, len)(Errno::ROFS));
        }
        Ok(())
    }

    /// Makes the error of a request that the system has failed, and notes it.
    fn fails(&self, action: Action, at: u64, len: u64) -> impl Fn(Errno) -> DriveError {
        move |errno| {
            let error = failed(action, at, len)(errno);
            self.failures.note(&error);
            error
        }
    }

    /// Reads into memory that needs no bounce buffer.
    fn read_aligned(&self, at: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let mut progress = Progress::new(buf.len() as u64);
        while progress.left() > 0 {
            let done = progress.done();
            match rustix::io::pread(&self.fd, &mut buf[done as usize..], at + done) {
                Ok(got) => progress.advance(got as u64)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn write_aligned(&self, at: u64, data: &[u8]) -> Result<(), Errno> {
        let mut progress = Progress::new(data.len() as u64);
        while progress.left() > 0 {
            let done = progress.done();
            match rustix::io::pwrite(&self.fd, &data[done as usize..], at + done) {
                Ok(got) => progress.advance(got as u64)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether a transfer needs the bounce buffer: direct I/O takes only aligned memory.
    fn bounces(&self, memory: &[u8]) -> bool {
        self.direct && !memory.is_empty() && !memory.as_ptr().addr().is_multiple_of(ALIGN)
    }

    fn write_zeros(&self, at: u64, len: u64) -> Result<(), Errno> {
        let zeros = Buffer::new(BOUNCE.min(len as usize));
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(zeros.len() as u64);
            self.write_aligned(at + done, &zeros[..piece as usize])?;
            done += piece;
        }
        Ok(())
    }
}

/// Runs `work` with this thread's bounce buffer.
fn bouncing<R>(work: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = OWN.take().unwrap_or_else(|| Buffer::new(BOUNCE));
    let result = work(&mut buffer);
    OWN.set(Some(buffer));
    result
}

impl Drive for FileDrive {
    fn size(&self) -> u64 {
        self.size
    }

    /// A block device without discards has no space to give back, so zeroing it writes zeros.
    fn zeroes_quickly(&self) -> bool {
        match self.node {
            Node::File => true,
            Node::Device(number) => sysfs::dir_of(number).is_some_and(|dir| sysfs::discards(&dir)),
        }
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let fail = self.fails(Action::Read, at, buf.len() as u64);
        self.allowed(Action::Read, at, buf.len() as u64)?;
        if !self.bounces(buf) {
            return self.read_aligned(at, buf).map_err(fail);
        }
        bouncing(|bounce| {
            let mut at = at;
            for piece in buf.chunks_mut(bounce.len()) {
                self.read_aligned(at, &mut bounce[..piece.len()]).map_err(&fail)?;
                piece.copy_from_slice(&bounce[..piece.len()]);
                at += piece.len() as u64;
            }
            Ok(())
        })
    }

    fn read_many(&self, wanted: Vec<(u64, Buffer)>) -> Vec<Result<(u64, Buffer), DriveError>> {
        let readers = wanted.len().min(READERS);
        let mut all: Vec<_> = wanted.into_iter().map(Ok).collect();
        let left = Mutex::new(all.iter_mut());
        let next = || left.lock().next();
        let read = || {
            while let Some(one) = next() {
                if let Ok((at, buffer)) = one
                    && let Err(e) = self.read(*at, buffer)
                {
                    *one = Err(e);
                }
            }
        };
        std::thread::scope(|scope| {
            // As many threads as the system gives; the caller reads as well.
            for _ in 1..readers {
                if Builder::new().spawn_scoped(scope, read).is_err() {
                    break;
                }
            }
            read();
        });
        all
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        let fail = self.fails(Action::Write, at, data.len() as u64);
        self.allowed(Action::Write, at, data.len() as u64)?;
        if !self.bounces(data) {
            return self.write_aligned(at, data).map_err(fail);
        }
        bouncing(|bounce| {
            let mut at = at;
            for piece in data.chunks(bounce.len()) {
                bounce[..piece.len()].copy_from_slice(piece);
                self.write_aligned(at, &bounce[..piece.len()]).map_err(&fail)?;
                at += piece.len() as u64;
            }
            Ok(())
        })
    }

    fn write_part(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        let (len, small) = (data.len() as u64, u64::from(Sector::Small.bytes()));
        let block = at - at % ALIGN as u64;
        self.allowed(Action::Write, block, ALIGN as u64)?;
        if !at.is_multiple_of(small) || !len.is_multiple_of(small) {
            return write_part_as_block(self, at, data);
        }
        let direct = bouncing(|bounce| {
            bounce[..data.len()].copy_from_slice(data);
            self.write_aligned(at, &bounce[..data.len()])
        });
        match direct {
            // The drive, or the file system below, has larger sectors.
            Err(Errno::INVAL) => write_part_as_block(self, at, data),
            done => done.map_err(self.fails(Action::Write, at, len)),
        }
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        let fail = self.fails(Action::Zero, at, len);
        self.allowed(Action::Zero, at, len)?;
        if len == 0 {
            return Ok(());
        }
        for mode in ZERO_MODES {
            let result = loop {
                match rustix::fs::fallocate(&self.fd, mode, at, len) {
                    Err(Errno::INTR) => {}
                    result => break result,
                }
            };
            match result {
                Err(e) if is_unsupported(e) => {}
                result => return result.map_err(fail),
            }
        }
        self.write_zeros(at, len).map_err(fail)
    }

    fn failures(&self) -> Option<&Failures> {
        Some(&self.failures)
    }

    fn flush(&self) -> Result<(), DriveError> {
        let sync = || {
            loop {
                match rustix::fs::fdatasync(&self.fd) {
                    Err(Errno::INTR) => {}
                    result => return result,
                }
            }
        };
        // With direct I/O only the medium can lose data between a write and a flush.
        let result = match self.direct {
            true => sync(),
            false => self.flushes.run(self.flushes.ask(), sync),
        };
        result.map_err(self.fails(Action::Flush, 0, 0))
    }
}

/// Whether an error means that this way to zero is not supported, and not that zeroing failed.
pub(super) fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV)
}

/// The layer in which both drives have bytes in common, if they have any and exist.
pub fn common_layer(one: &Path, other: &Path) -> Option<PathBuf> {
    let layers = |path: &Path| {
        let stat = rustix::fs::stat(path).ok()?;
        let name = std::fs::canonicalize(path).ok()?;
        Some(layers_of(node_of(path, &stat).ok()?, &stat, &name))
    };
    let (one, other) = (layers(one)?, layers(other)?);
    layers::common(&one, &other).map(|layer| layer.name.clone())
}

fn layers_of(node: Node, stat: &Stat, name: &Path) -> Vec<Layer> {
    match node {
        Node::Device(number) => Tree::of_machine().device(number),
        Node::File => Tree::file((stat.st_dev, stat.st_ino), name),
    }
}

/// The present name of an open file, or else the one that it was opened by.
fn name_of(fd: &OwnedFd, path: &Path) -> PathBuf {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::read_link(link).unwrap_or_else(|_| path.into())
}

/// Opens the drive, with `O_DIRECT` if possible; the flag says whether.
fn open_node(path: &Path, node: Node, access: Access) -> Result<(OwnedFd, bool), Failure> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    flags |= match (access, node) {
        (Access::ReadOnly, _) | (Access::Still, Node::File) => OFlags::RDONLY,
        (Access::Still, Node::Device(_)) => OFlags::RDONLY | OFlags::EXCL,
        (Access::Exclusive, Node::File) => OFlags::RDWR,
        (Access::Exclusive, Node::Device(_)) => OFlags::RDWR | OFlags::EXCL,
    };
    let opened = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
        Err(Errno::INVAL) => rustix::fs::open(path, flags, Mode::empty()).map(|fd| (fd, false)),
        opened => opened.map(|fd| (fd, true)),
    };
    opened.map_err(|e| match (e, node) {
        (Errno::BUSY, Node::Device(number)) => Busy::itself(holder::of_device(number)).into(),
        _ => cannot_open(path, e).into(),
    })
}

fn node_of(path: &Path, stat: &Stat) -> Result<Node> {
    let what = match FileType::from_raw_mode(stat.st_mode as RawMode) {
        FileType::BlockDevice => return Ok(Node::Device(stat.st_rdev)),
        FileType::RegularFile => return Ok(Node::File),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something unknown",
    };
    let text = format!("{} is {what}", path.display());
    Err(Error::usage(text).hint("give a block device or a regular file"))
}

fn cannot(path: &Path) -> impl Display + use<> {
    format!("cannot use {}", path.display())
}

fn cannot_open(path: &Path, errno: Errno) -> Error {
    let shown = path.display();
    match errno {
        Errno::NOENT | Errno::NOTDIR if path.starts_with("/dev") => {
            Error::failure(format!("{shown} does not exist")).hint("check the name with `lsblk`")
        }
        Errno::NOENT | Errno::NOTDIR => Error::failure(format!("{shown} does not exist")).hint(
            "check the name; --log-size and --spill-size of `ztier up` make a file for a log or \
             a spill device",
        ),
        Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM => {
            Error::failure(format!("nothing is behind {shown}")).hint("attach the drive first")
        }
        Errno::ROFS => read_only(path),
        Errno::BUSY => in_use(path, Busy::default()),
        Errno::TXTBSY => {
            in_use(path, Busy::itself(Some("being executed or swapped to".to_owned())))
        }
        Errno::ACCESS | Errno::PERM => {
            Error::failure(format!("cannot open {shown}: permission denied"))
                .hint("run as root, or as its owner")
        }
        _ => Error::failure(format!("cannot open {shown}: {errno}")),
    }
}

fn read_only(path: &Path) -> Error {
    Error::failure(format!("{} is read-only", path.display())).hint(remedy::DRIVE_READ_ONLY)
}

fn in_use(path: &Path, busy: Busy) -> Error {
    let holder = busy.holder.unwrap_or_else(|| "held by something invisible from here".to_owned());
    let hint = match holder.split(' ').next() {
        Some("mounted") => "unmount it first",
        Some("swap") => "swapoff it first",
        Some("given") => "give another",
        Some("volume") => "take that volume down first, or give another drive",
        Some("loop") => "detach that device first (`losetup -d`), or give another drive",
        _ => "end that first, or give another",
    };
    let path = path.display();
    Error::busy(match busy.below {
        None => format!("{path} is in use: {holder}"),
        Some(below) => format!("{path} is in use by way of {}: {holder}", below.display()),
    })
    .hint(hint)
}

#[cfg(all(test, not(miri)))]
mod tests;
