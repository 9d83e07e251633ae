//! The `ioctl` calls for block devices and loop devices, each a safe function, with the kernel's
//! structures (`linux/fs.h`, `linux/blkpg.h`, `linux/loop.h`).
//!
//! Invariant: each opcode has the argument that the kernel reads or writes for it. A device that
//! is no loop device refuses the calls for one.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, Updater, ioctl};
use std::ffi::c_void;

const BLKROGET: Opcode = 0x125E;
const BLKRRPART: Opcode = 0x125F;
const BLKPG: Opcode = 0x1269;
const BLKDISCARD: Opcode = 0x1277;
const BLKGETSIZE64: Opcode = 0x8008_1272;
const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;

const BLKPG_DEL_PARTITION: i32 = 2;

/// The size of the block device `node` in bytes.
///
/// # Errors
/// The system's.
pub(super) fn size_bytes(node: impl AsFd) -> Result<u64> {
    // SAFETY: BLKGETSIZE64 stores one u64; the kernel's header names `size_t` by mistake.
    unsafe { ioctl(node, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// Whether the block device `node` refuses writes.
///
/// # Errors
/// The system's.
pub(super) fn is_read_only(node: impl AsFd) -> Result<bool> {
    // SAFETY: BLKROGET stores one int.
    Ok(unsafe { ioctl(node, Getter::<BLKROGET, i32>::new()) }? != 0)
}

/// Tells the block device `node` that the content of a range is no longer needed.
///
/// # Errors
/// The system's.
pub(super) fn discard(node: impl AsFd, at: u64, len: u64) -> Result<()> {
    // SAFETY: BLKDISCARD reads two u64, start and length in bytes, from its argument.
    unsafe { ioctl(node, Setter::<BLKDISCARD, [u64; 2]>::new([at, len])) }
}

/// Makes the kernel read the partition table of the block device `node` again.
///
/// # Errors
/// The system's: it scans no partitions, or one is in use.
pub fn read_partitions(node: impl AsFd) -> Result<()> {
    // SAFETY: BLKRRPART takes no argument and touches no memory of ours.
    unsafe { ioctl(node, NoArg::<BLKRRPART>::new()) }
}

/// `struct blkpg_ioctl_arg`.
#[repr(C)]
struct PartitionChange {
    op: i32,
    flags: i32,
    len: i32,
    data: *mut Partition,
}

/// `struct blkpg_partition`.
#[repr(C)]
struct Partition {
    start: i64,
    length: i64,
    number: i32,
    device_name: [u8; 64],
    volume_name: [u8; 64],
}

const _: () = assert!(size_of::<Partition>() == 152);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<PartitionChange>() == 24);

/// Removes partition `number` of the block device `node`; its content stays.
///
/// # Errors
/// The system's: `NXIO` without such a partition, `BUSY` if it is in use.
pub fn remove_partition(node: impl AsFd, number: i32) -> Result<()> {
    let mut partition =
        Partition { start: 0, length: 0, number, device_name: [0; 64], volume_name: [0; 64] };
    let (len, data) = (size_of::<Partition>() as i32, &raw mut partition);
    let change = PartitionChange { op: BLKPG_DEL_PARTITION, flags: 0, len, data };
    // SAFETY: BLKPG reads one `struct blkpg_ioctl_arg` and the `struct blkpg_partition` that it
    // points to, which these are, byte for byte (sizes are checked above); `partition` lives until
    // the call has returned.
    unsafe { ioctl(node, Setter::<BLKPG, PartitionChange>::new(change)) }
}

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LoopInfo {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) rdevice: u64,
    /// Where in the file the device begins, in bytes.
    pub offset: u64,
    /// The most bytes of the file that the device shows; 0: no limit.
    pub size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    /// `LO_FLAGS_…`.
    pub flags: u32,
    /// The name given when it was attached.
    pub file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

impl LoopInfo {
    /// All zeros.
    pub const ZERO: Self = Self {
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

/// The status of the loop device `node`.
///
/// # Errors
/// The system's: no file is attached to it, or it is no loop device.
pub fn loop_info(node: impl AsFd) -> Result<LoopInfo> {
    let mut info = LoopInfo::ZERO;
    // SAFETY: LOOP_GET_STATUS64 fills one `struct loop_info64`, which `LoopInfo` is, byte for byte
    // (its size is checked above).
    unsafe { ioctl(node, Updater::<LOOP_GET_STATUS64, LoopInfo>::new(&mut info)) }?;
    Ok(info)
}

/// Sets the status of the loop device `node`.
///
/// # Errors
/// The system's.
pub fn set_loop_info(node: impl AsFd, info: LoopInfo) -> Result<()> {
    // SAFETY: LOOP_SET_STATUS64 reads one `struct loop_info64`.
    unsafe { ioctl(node, Setter::<LOOP_SET_STATUS64, LoopInfo>::new(info)) }
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

/// Attaches the loop device `node` to `file`, with blocks of `block_size` bytes.
///
/// # Errors
/// The system's: `BUSY` if it is attached already; `INVAL` or `NOTTY` before Linux 5.8.
pub fn attach_loop(
    node: impl AsFd,
    file: BorrowedFd<'_>,
    block_size: u32,
    info: LoopInfo,
) -> Result<()> {
    let fd = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let config = LoopConfig { fd, block_size, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which `LoopConfig` is, byte for byte
    // (its size is checked above); the descriptor in it is open for the whole call.
    unsafe { ioctl(node, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

/// Detaches the loop device `node` from its file, at its last close if it is still open.
///
/// # Errors
/// The system's: `NXIO` if it is not attached.
pub fn detach_loop(node: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument and touches no memory of ours.
    unsafe { ioctl(node, NoArg::<LOOP_CLR_FD>::new()) }
}

/// Makes the loop device `node` as large as its file is.
///
/// # Errors
/// The system's.
pub fn grow_loop(node: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument and touches no memory of ours.
    unsafe { ioctl(node, NoArg::<LOOP_SET_CAPACITY>::new()) }
}

/// The call returns the number of a free device.
struct GetFree;

// SAFETY: the opcode takes no argument and touches no memory of ours; the return value is the
// result.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<u32> {
        u32::try_from(out).map_err(|_| Errno::INVAL)
    }
}

/// The number of a free loop device. `control` is `/dev/loop-control`.
///
/// # Errors
/// The system's.
pub fn free_loop(control: impl AsFd) -> Result<u32> {
    // SAFETY: `GetFree` implements this opcode correctly (see its implementation).
    unsafe { ioctl(control, GetFree) }
}
