//! Loop devices: attach a file, grow, detach, with what the kernel's ioctls need and nothing more.
//!
//! Invariants: no descriptor of a loop device is kept, so a dead process leaves nothing that keeps it
//! attached; before anything is changed on a device, the file behind it must be the expected one;
//! detaching first claims the device exclusively, so that it can't be mounted meanwhile.

use super::holders::{backing_file, of_block_device};
use crate::error::{Context, Error, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, NoArg, Opcode, Setter, Updater, ioctl};
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;

const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Major number of all loop devices (a fixed one: `LOOP_MAJOR`).
const LOOP_MAJOR: u32 = 7;

/// How long a detach waits for those who only look (udev, blkid) before they count as holders.
const PROBE_WAIT: Duration = Duration::from_secs(1);

/// How long the kernel may take to detach once it was told to.
const DETACH_WAIT: Duration = Duration::from_secs(5);

/// `struct loop_info64` of the kernel's ABI.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel's ABI.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

impl LoopInfo {
    const ZERO: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// `LOOP_CTL_GET_FREE`: the number of a free device is what the call returns.
struct GetFree;

// SAFETY: the opcode takes no argument and touches no memory of ours; the return value is the result.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| Errno::INVAL)
    }
}

/// Opens `/dev/loop-control`, which makes and finds devices.
pub(super) fn open_control() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Shows `file` as a block device with blocks of `block_size` bytes and direct I/O, and says which.
/// `name` is the path that tools are told.
pub(super) fn attach(file: impl AsFd, name: &Path, block_size: u32) -> Result<PathBuf> {
    let control = open_control().context("cannot open /dev/loop-control")?;
    // Others may take the same free device between the two calls; then there is another one.
    for _ in 0..64 {
        // SAFETY: `GetFree` describes this opcode truly (see its implementation).
        let number =
            unsafe { ioctl(&control, GetFree) }.context("cannot get a free loop device")?;
        let device = node_of(number)?;
        match configure(&device, file.as_fd(), name, block_size) {
            Ok(()) => {
                require_direct(&device, name)?;
                return Ok(device);
            }
            Err(Errno::BUSY) => {}
            Err(Errno::INVAL | Errno::NOTTY) => {
                return Err(Error::failure(format!(
                    "cannot attach {}: the kernel refuses LOOP_CONFIGURE with blocks of {block_size} bytes",
                    device.display()
                ))
                .mend("use Linux 5.8 or newer, or --export nbd"));
            }
            Err(e) => return Err(e).context(format!("cannot attach {}", device.display())),
        }
    }
    Err(Error::failure("cannot get a free loop device: others take each one first")
        .mend("try again"))
}

/// The node of loop device `number`, made when nothing else (devtmpfs, udev) makes it.
fn node_of(number: u32) -> Result<PathBuf> {
    let path = PathBuf::from(format!("/dev/loop{number}"));
    if !path.exists() {
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
        let rdev = rustix::fs::makedev(LOOP_MAJOR, number);
        match rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::BlockDevice,
            mode,
            rdev,
        ) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e).context(format!("cannot make {}", path.display())),
        }
    }
    Ok(path)
}

fn configure(
    device: &Path,
    file: rustix::fd::BorrowedFd<'_>,
    name: &Path,
    block_size: u32,
) -> rustix::io::Result<()> {
    let node = rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut info = LoopInfo { flags: LO_FLAGS_DIRECT_IO, ..LoopInfo::ZERO };
    let text = name.as_os_str().as_bytes();
    let len = text.len().min(info.file_name.len() - 1);
    info.file_name[..len].copy_from_slice(&text[..len]);
    let fd = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let config = LoopConfig { fd, block_size, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which `LoopConfig` is, byte for byte
    // (its size is checked above); the descriptor in it is open for the whole call.
    unsafe { ioctl(&node, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

/// Direct I/O that the kernel quietly declined would keep every block twice and could deadlock when
/// memory is short.
fn require_direct(device: &Path, file: &Path) -> Result<()> {
    let dio = sys(device).join("loop/dio");
    if std::fs::read_to_string(dio).is_ok_and(|t| t.trim() == "1") {
        return Ok(());
    }
    detach(device, file)?;
    Err(Error::failure(format!(
        "cannot attach {}: no direct I/O on the FUSE file",
        device.display()
    ))
    .mend("use --export nbd"))
}

/// The directory of a block device in `/sys`.
pub(super) fn sys(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// Makes the device as large as its file is now. The thread must not be one that serves the file.
#[cfg(feature = "fuse")]
pub(super) fn grow(device: &Path, file: &Path) -> Result<()> {
    require_backing(device, file)?;
    let node =
        open(device, OFlags::empty()).context(format!("cannot open {}", device.display()))?;
    // SAFETY: LOOP_SET_CAPACITY takes no argument and touches no memory of ours.
    unsafe { ioctl(&node, NoArg::<LOOP_SET_CAPACITY>::new()) }
        .context(format!("cannot grow {}", device.display()))
}

fn open(device: &Path, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    // Read-only: closing a descriptor that could write makes udev look at the device again.
    rustix::fs::open(device, OFlags::RDONLY | OFlags::CLOEXEC | extra, Mode::empty())
}

fn require_backing(device: &Path, file: &Path) -> Result<()> {
    match backing_file(device) {
        Some(b) if b == file => Ok(()),
        Some(b) => Err(Error::failure(format!(
            "{} shows {} now, not {}",
            device.display(),
            b.display(),
            file.display()
        ))),
        None => Err(Error::failure(format!("{} is not attached", device.display()))),
    }
}

/// Takes `device` off its file, waiting a little for those who only look at it (udev, blkid). The
/// thread must not be one that serves the file: what is dirty in the page cache is written first.
///
/// # Errors
/// The device shows another file, or is held (then it stays attached): the text names a holder.
pub(super) fn detach(device: &Path, file: &Path) -> Result<()> {
    require_backing(device, file)?;
    let node = claim(device, Instant::now() + PROBE_WAIT)?;
    let deadline = Instant::now() + DETACH_WAIT;
    // SAFETY: LOOP_CLR_FD takes no argument and touches no memory of ours.
    unsafe { ioctl(&node, NoArg::<LOOP_CLR_FD>::new()) }
        .context(format!("cannot detach {}", device.display()))?;
    drop(node);
    // The kernel detaches at the last close. A reader that came in between delays that.
    while backing_file(device).is_some_and(|b| b == file) {
        if Instant::now() >= deadline {
            keep(device);
            return Err(held(device));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Opens the device as its only exclusive user; a mount or swap makes this fail at once.
fn claim(device: &Path, deadline: Instant) -> Result<OwnedFd> {
    loop {
        match open(device, OFlags::EXCL) {
            Ok(node) => {
                if of_block_device(device).is_empty() {
                    return Ok(node);
                }
            }
            Err(Errno::BUSY) => {}
            Err(e) => return Err(e).context(format!("cannot open {}", device.display())),
        }
        // A mount stays; a process that probes goes away soon.
        let holders = of_block_device(device);
        let lasting = holders.iter().any(|h| !h.starts_with("process"));
        if lasting || Instant::now() >= deadline {
            return Err(held(device));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The refusal to detach a device that is in use.
fn held(device: &Path) -> Error {
    let holder = of_block_device(device).into_iter().next();
    let holder = holder.unwrap_or_else(|| "held by something invisible from here".to_owned());
    in_use(device, &holder)
}

/// The refusal to take away `device` because of `holder` (`mounted on /mnt`, `process 1 (fio)`).
pub(super) fn in_use(device: &Path, holder: &str) -> Error {
    let mend = match holder.split(' ').next() {
        Some("mounted") => "unmount it first",
        Some("swap") => "swapoff it first",
        _ => "end that first",
    };
    Error::failure(format!("{} is in use: {holder}", device.display())).mend(mend)
}

/// Undoes a detach that is still waiting for the last user, so that the device is not lost under it.
fn keep(device: &Path) {
    let Ok(node) = open(device, OFlags::empty()) else { return };
    let mut info = LoopInfo::ZERO;
    // SAFETY: LOOP_GET_STATUS64 fills one `struct loop_info64`, which `LoopInfo` is, byte for byte.
    let got = unsafe { ioctl(&node, Updater::<LOOP_GET_STATUS64, LoopInfo>::new(&mut info)) };
    if got.is_ok() && info.flags & LO_FLAGS_AUTOCLEAR != 0 {
        info.flags &= !LO_FLAGS_AUTOCLEAR;
        // SAFETY: LOOP_SET_STATUS64 reads one `struct loop_info64`. If it fails, the device goes at
        // its last close, which is what was asked for in the first place.
        let _ = unsafe { ioctl(&node, Setter::<LOOP_SET_STATUS64, LoopInfo>::new(info)) };
    }
}
