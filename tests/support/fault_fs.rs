//! Drives that fail on demand below a real daemon: files in the test's own FUSE file system.
//!
//! The daemon sees a failing drive as the kernel reports it: a read, write, or flush that returns
//! an errno, or takes long. Zeroing counts as a write.
#![allow(clippy::unwrap_used)]

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::mount::{UnmountFlags, unmount};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const TTL: Duration = Duration::from_secs(3600);
/// Inode of the first drive.
const FIRST: u64 = 2;
const PAGE: u64 = 4096;
/// The mode bits of `fallocate` that make a range read as zeros.
const PUNCH_OR_ZERO: i32 = 2 | 16;

/// An operation of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
    Flush,
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next operation fails.
    Once(Errno),
    /// Every operation fails.
    Always(Errno),
    /// Every `n`-th operation fails, the first one included.
    OneIn(u64, Errno),
    /// Writes to pages without space fail, as in a file with holes on a full file system.
    Full,
    /// No operation fails, but each takes this long.
    Slow(Duration),
}

/// One drive.
struct Drive {
    name: String,
    bytes: Mutex<Vec<u8>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    faults: Vec<(Op, Fault)>,
    asked: u64,
    /// Number of times that a fault has struck.
    struck: u64,
    /// Pages that have space, by number.
    written: BTreeSet<u64>,
}

impl Drive {
    /// The outcome of an operation on a byte range: its duration, and its error.
    fn fate(&self, op: Op, at: Range<u64>) -> (Duration, Result<(), Errno>) {
        let mut state = self.state.lock();
        let pages = at.start / PAGE..at.end.div_ceil(PAGE);
        let fate = state.fate(op, &pages);
        if op == Op::Write && fate.1.is_ok() {
            state.written.extend(pages);
        }
        fate
    }
}

impl State {
    fn fate(&mut self, op: Op, pages: &Range<u64>) -> (Duration, Result<(), Errno>) {
        let state = self;
        let Some(i) = state.faults.iter().position(|(of, _)| *of == op) else {
            return (Duration::ZERO, Ok(()));
        };
        state.asked += 1;
        let fate = match state.faults[i].1 {
            Fault::Once(errno) => {
                state.faults.remove(i);
                (Duration::ZERO, Err(errno))
            }
            Fault::Always(errno) => (Duration::ZERO, Err(errno)),
            Fault::OneIn(n, errno) if state.asked % n == 1 => (Duration::ZERO, Err(errno)),
            Fault::OneIn(..) => (Duration::ZERO, Ok(())),
            Fault::Full if pages.clone().all(|page| state.written.contains(&page)) => {
                (Duration::ZERO, Ok(()))
            }
            Fault::Full => (Duration::ZERO, Err(Errno::ENOSPC)),
            Fault::Slow(time) => (time, Ok(())),
        };
        state.struck += u64::from(fate != (Duration::ZERO, Ok(())));
        fate
    }
}

/// A mounted file system of such drives; unmounted when it is dropped.
pub struct FaultFs {
    /// The mount point, outside of the sandbox: a sandbox, which ends its daemons first, cannot
    /// remove a mounted directory.
    point: TempDir,
    drives: Vec<Arc<Drive>>,
    session: Option<BackgroundSession>,
}

impl FaultFs {
    /// Mounts zeroed drives, given by name and size in bytes.
    pub fn mount(drives: &[(&str, u64)]) -> Self {
        let drive = |(name, bytes): &(&str, u64)| Drive {
            name: (*name).to_owned(),
            bytes: Mutex::new(vec![0; *bytes as usize]),
            state: Mutex::default(),
        };
        let drives: Vec<_> = drives.iter().map(drive).map(Arc::new).collect();
        let mut config = Config::default();
        config.mount_options = vec![fuser::MountOption::FSName("faults".into())];
        let point = tempfile::Builder::new().prefix("ztier-").tempdir().unwrap();
        let session = Session::new(Files(drives.clone()), point.path(), &config).unwrap();
        Self { point, drives, session: Some(session.spawn().unwrap()) }
    }

    /// The file of a drive.
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    fn drive(&self, name: &str) -> &Drive {
        self.drives.iter().find(|drive| drive.name == name).unwrap()
    }

    /// From now on an operation of a drive fails in this way.
    pub fn fail(&self, name: &str, op: Op, fault: Fault) {
        let mut state = self.drive(name).state.lock();
        state.faults.push((op, fault));
        state.asked = 0;
    }

    /// From now on everything works.
    pub fn heal(&self) {
        self.drives.iter().for_each(|drive| drive.state.lock().faults.clear());
    }

    /// Number of times that faults of a drive have struck.
    pub fn struck(&self, name: &str) -> u64 {
        self.drive(name).state.lock().struck
    }

    /// Changes the bytes of a drive behind the daemon's back, as damage does.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        change(&mut self.drive(name).bytes.lock());
    }
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        self.heal();
        // Detached, so that a daemon that a failed test left behind cannot keep it mounted.
        let _ = unmount(self.point.path(), UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

struct Files(Vec<Arc<Drive>>);

impl Files {
    fn drive(&self, ino: INodeNo) -> Option<&Arc<Drive>> {
        self.0.get(ino.0.checked_sub(FIRST)? as usize)
    }

    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let drive = self.drive(ino);
        if drive.is_none() && ino != INodeNo::ROOT {
            return None;
        }
        let size = drive.map_or(0, |drive| drive.bytes.lock().len() as u64);
        let (kind, perm) = match drive {
            Some(_) => (FileType::RegularFile, 0o600),
            None => (FileType::Directory, 0o700),
        };
        let born = SystemTime::UNIX_EPOCH;
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: born,
            mtime: born,
            ctime: born,
            crtime: born,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Does `work` now, or, on a slow drive, in a thread of its own after the drive's delay, so
    /// that other requests are served meanwhile.
    fn serve(
        &self,
        ino: INodeNo,
        (op, at): (Op, Range<u64>),
        work: impl FnOnce(Result<&mut Vec<u8>, Errno>) + Send + 'static,
    ) {
        let Some(drive) = self.drive(ino) else { return work(Err(Errno::EISDIR)) };
        let (time, fate) = drive.fate(op, at);
        let drive = Arc::clone(drive);
        let act = move || match fate {
            Ok(()) => work(Ok(&mut drive.bytes.lock())),
            Err(errno) => work(Err(errno)),
        };
        if time.is_zero() {
            return act();
        }
        thread::spawn(move || {
            thread::sleep(time);
            act();
        });
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let at = self.0.iter().position(|drive| *drive.name == *name);
        match at.and_then(|at| self.attr(INodeNo(FIRST + at as u64))) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
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
        match self.attr(ino) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve(ino, (Op::Read, offset..offset + u64::from(size)), move |bytes| match bytes {
            Ok(bytes) => {
                let from = (offset as usize).min(bytes.len());
                let to = (from + size as usize).min(bytes.len());
                reply.data(&bytes[from..to]);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        self.serve(
            ino,
            (Op::Write, offset..offset + data.len() as u64),
            move |bytes| match bytes {
                Ok(bytes) => {
                    let at = offset as usize;
                    match bytes.get_mut(at..at + data.len()) {
                        Some(place) => {
                            place.copy_from_slice(&data);
                            reply.written(data.len() as u32);
                        }
                        None => reply.error(Errno::ENOSPC),
                    }
                }
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & PUNCH_OR_ZERO == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.serve(ino, (Op::Write, offset..offset + length), move |bytes| match bytes {
            Ok(bytes) => {
                let end = ((offset + length) as usize).min(bytes.len());
                bytes[(offset as usize).min(end)..end].fill(0);
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.serve(ino, (Op::Flush, 0..0), move |bytes| match bytes {
            Ok(_) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }
}
