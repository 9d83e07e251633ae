//! The file system: a directory with one file in it, whose bytes are the device's.
//!
//! Invariants: a request is served on the thread that received it, through a [`Channel`] of that
//! thread, without a lock and without an allocation; the errno of a failed request reaches the
//! caller; the file has the size of the device, always (as with a block device, truncation by
//! `O_TRUNC` does nothing).

use crate::BLOCK_SIZE;
use crate::device::{Channel, Device, ExtentKind, IoError, Request};
use crate::export::buffers::FUSE_REQUEST;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Requests without a waiting caller, such as the loop device's direct I/O, that the kernel may
/// have in flight: as many as a loop device has in its queue.
const MAX_BACKGROUND: u16 = 128;

/// How long the kernel may cache attributes; a change of size invalidates them.
const TTL: Duration = Duration::from_secs(3600);

/// The inode of the file; its directory is [`INodeNo::ROOT`].
pub(super) const FILE: INodeNo = INodeNo(2);

const PUNCH_HOLE: i32 = 2;
const KEEP_SIZE: i32 = 1;
const ZERO_RANGE: i32 = 16;
const O_DSYNC: i32 = rustix::fs::OFlags::DSYNC.bits() as i32;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// A thread's channel into the device, and a buffer for what it reads, or writes aligned.
struct IoSlot {
    channel: Box<dyn Channel>,
    buf: Box<[u8]>,
    start: usize,
}

thread_local! {
    // A serving thread belongs to one file system for its whole life, so one slot is enough.
    static IO_SLOT: RefCell<Option<IoSlot>> = const { RefCell::new(None) };
}

impl IoSlot {
    fn new(device: Arc<dyn Device>) -> Self {
        let buf = vec![0; FUSE_REQUEST + BLOCK_SIZE].into_boxed_slice();
        let start = buf.as_ptr().align_offset(BLOCK_SIZE);
        let mut channel = device.channel();
        // The library receives into its own buffer of the same size.
        channel.count_buffers(2 * buf.len() as u64);
        Self { channel, buf, start }
    }
}

/// The file system of one device.
pub(super) struct BlockFile {
    device: Arc<dyn Device>,
    name: OsString,
    born: SystemTime,
    uid: u32,
    gid: u32,
}

impl BlockFile {
    pub(super) fn new(device: Arc<dyn Device>, name: &str) -> Self {
        Self {
            device,
            name: name.into(),
            born: SystemTime::now(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        }
    }

    fn with_slot<T>(&self, f: impl FnOnce(&mut IoSlot) -> T) -> T {
        IO_SLOT
            .with_borrow_mut(|slot| f(slot.get_or_insert_with(|| IoSlot::new(self.device.clone()))))
    }

    fn submit(&self, request: Request<'_>, arrived: Instant) -> Result<(), Errno> {
        self.with_slot(|slot| slot.channel.submit(request, arrived)).map_err(errno)
    }

    /// `len` cut at the end of the device; `None` when `offset` is not before it.
    fn clip(&self, offset: u64, len: u64) -> Option<u64> {
        self.device.size().checked_sub(offset).filter(|left| *left > 0).map(|left| left.min(len))
    }

    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, perm, nlink, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0o700, 2, 0),
            FILE => (FileType::RegularFile, 0o600, 1, self.device.size()),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: self.born,
            mtime: self.born,
            ctime: self.born,
            crtime: self.born,
            kind,
            perm,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: BLOCK_SIZE as u32,
            flags: 0,
        })
    }

    fn fallocate_request(&self, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        let arrived = Instant::now();
        let clipped = self.clip(offset, len);
        match mode {
            m if m == PUNCH_HOLE | KEEP_SIZE => {
                let Some(len) = clipped else { return Ok(()) };
                self.submit(Request::Discard { offset, len }, arrived)
            }
            m if m & !KEEP_SIZE == ZERO_RANGE => {
                // Without KEEP_SIZE the file would have to grow.
                if m & KEEP_SIZE == 0 && clipped != Some(len) {
                    return Err(Errno::ENOSPC);
                }
                let Some(len) = clipped else { return Ok(()) };
                let request = Request::WriteZeroes { offset, len, no_hole: true, fua: false };
                self.submit(request, arrived)
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// The first byte at or after `offset` that is data (or, with `hole`, that is none).
    fn seek(&self, offset: u64, hole: bool) -> Result<u64, Errno> {
        let size = self.device.size();
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let mut at = offset;
        while at < size {
            let extents = self.device.extents(at, size - at, 64).map_err(errno)?;
            for extent in &extents {
                if (extent.kind == ExtentKind::Hole) == hole {
                    return Ok(at);
                }
                at += extent.len;
            }
            if extents.iter().all(|e| e.len == 0) {
                return Err(Errno::EIO); // would never end
            }
        }
        // Every file ends with a hole; there is no data after the last.
        if hole { Ok(size) } else { Err(Errno::ENXIO) }
    }
}

fn errno(e: IoError) -> Errno {
    Errno::from_i32(e.errno())
}

fn done(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

impl Filesystem for BlockFile {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without this capability the loop device waits for each request before it sends the next.
        // A kernel without it works, but slower.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let refused =
            |e| std::io::Error::other(format!("the FUSE library accepts at most {e} here"));
        config.set_max_write(FUSE_REQUEST as u32).map_err(refused)?;
        config.set_max_background(MAX_BACKGROUND).map_err(|e| refused(u32::from(e)))?;
        config.set_congestion_threshold(MAX_BACKGROUND).map_err(|e| refused(u32::from(e)))?;
        Ok(())
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attr(FILE).filter(|_| parent == INodeNo::ROOT && name == self.name) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attr) = self.attr(ino) else { return reply.error(Errno::ENOENT) };
        // Size 0 is what O_TRUNC asks for, and a block device ignores that.
        let resize = size.is_some_and(|s| s != 0 && s != attr.size);
        if resize || mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&TTL, &attr);
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if ino != FILE {
            return reply.error(Errno::EISDIR);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let arrived = Instant::now();
        let Some(len) = self.clip(offset, u64::from(size)) else { return reply.data(&[]) };
        let len = (len as usize).min(FUSE_REQUEST);
        self.with_slot(|slot| {
            let buf = &mut slot.buf[slot.start..slot.start + len];
            match slot.channel.submit(Request::Read { offset, buf }, arrived) {
                Ok(()) => reply.data(buf),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let arrived = Instant::now();
        // As on a block device, a write past the end is cut, and one that begins there fails.
        let Some(len) = self.clip(offset, data.len() as u64) else {
            return reply.error(Errno::ENOSPC);
        };
        let (fua, data) = (flags.0 & O_DSYNC != 0, &data[..len as usize]);
        let result = self.with_slot(|slot| {
            // The library's buffer begins with a header: a drive would get pieces of a copy.
            let aligned = &mut slot.buf[slot.start..];
            let data = match aligned.get_mut(..data.len()) {
                Some(aligned) if self.device.writes_through() => {
                    aligned.copy_from_slice(data);
                    aligned
                }
                _ => data,
            };
            slot.channel.submit(Request::Write { offset, data, fua }, arrived)
        });
        match result {
            Ok(()) => reply.written(len as u32),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn flush(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        // This is close(2), which promises nothing; fsync(2) is below. Kernels before 5.17 send
        // this once; after this answer, a process that closes the file waits for nothing.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        done(reply, self.submit(Request::Flush, Instant::now()));
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        done(reply, self.fallocate_request(offset, length, mode));
    }

    fn lseek(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = match (u64::try_from(offset), whence) {
            (Ok(offset), SEEK_DATA) => self.seek(offset, false),
            (Ok(offset), SEEK_HOLE) => self.seek(offset, true),
            _ => Err(Errno::EINVAL),
        };
        match found {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(e),
        }
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, OsStr::new(".")),
            (INodeNo::ROOT, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, self.name.as_os_str()),
        ];
        for (i, (ino, kind, name)) in (1u64..).zip(entries).skip(offset as usize) {
            if reply.add(ino, i, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    /// The loop device takes its discard granularity from the block size told here.
    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        let block = BLOCK_SIZE as u32;
        reply.statfs(self.device.size() / u64::from(block), 0, 0, 1, 0, block, 255, block);
    }
}
