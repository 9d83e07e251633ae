//! The kernel's ABI of ublk (`linux/ublk_cmd.h`), as far as it is used here.
//!
//! Invariant: every structure has the kernel's size and field order, and holds only plain numbers,
//! so any bytes are a valid value, and none is padding.

/// Everything below is encoded as an ioctl of this type (Linux 6.4 and later).
const IOCTL_TYPE: u32 = b'u' as u32;
const READ: u32 = 2;
const WRITE: u32 = 1;

const fn ioctl(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | IOCTL_TYPE << 8 | number
}

/// A command to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command(u32);

impl Command {
    pub(super) const GET_DEV_INFO: Self = Self::reads(0x02);
    pub(super) const ADD_DEV: Self = Self::changes(0x04);
    pub(super) const DEL_DEV: Self = Self::changes(0x05);
    pub(super) const START_DEV: Self = Self::changes(0x06);
    pub(super) const STOP_DEV: Self = Self::changes(0x07);
    pub(super) const SET_PARAMS: Self = Self::changes(0x08);
    pub(super) const GET_PARAMS: Self = Self::reads(0x09);
    pub(super) const START_USER_RECOVERY: Self = Self::changes(0x10);
    pub(super) const END_USER_RECOVERY: Self = Self::changes(0x11);
    pub(super) const GET_FEATURES: Self = Self::reads(0x13);
    pub(super) const DEL_DEV_ASYNC: Self = Self::reads(0x14);
    pub(super) const UPDATE_SIZE: Self = Self::changes(0x15);

    const fn reads(number: u32) -> Self {
        Self(ioctl(READ, number, size_of::<ControlCommand>()))
    }

    const fn changes(number: u32) -> Self {
        Self(ioctl(READ | WRITE, number, size_of::<ControlCommand>()))
    }

    /// The number of the command for the kernel; `plain`: without the ioctl encoding, as before
    /// Linux 6.4.
    pub(super) const fn code(self, plain: bool) -> u32 {
        if plain { self.0 & 0xff } else { self.0 }
    }
}

const FETCH: u32 = ioctl(READ | WRITE, 0x20, size_of::<IoCommand>());
const COMMIT_AND_FETCH: u32 = ioctl(READ | WRITE, 0x21, size_of::<IoCommand>());

/// The operation that asks for the first request of a tag.
pub(super) const fn fetch(plain: bool) -> u32 {
    if plain { FETCH & 0xff } else { FETCH }
}

/// The operation that reports a tag's result and asks for its next request.
pub(super) const fn commit_and_fetch(plain: bool) -> u32 {
    if plain { COMMIT_AND_FETCH & 0xff } else { COMMIT_AND_FETCH }
}

/// The device stays when its server dies, and the next server gets all requests that were not
/// answered.
pub(super) const F_USER_RECOVERY: u64 = 1 << 3;
pub(super) const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// Commands are encoded as ioctls.
pub(super) const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// Data is moved by reading and writing the character device.
pub(super) const F_USER_COPY: u64 = 1 << 7;
/// `UPDATE_SIZE` exists.
pub(super) const F_UPDATE_SIZE: u64 = 1 << 10;

/// The device is not started yet, or it is stopped.
pub(super) const STATE_DEAD: u16 = 0;
/// It has a server, or had one whose end the kernel has not seen yet.
pub(super) const STATE_LIVE: u16 = 1;
/// It waits for its next server, with all requests.
pub(super) const STATE_QUIESCED: u16 = 2;

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ControlCommand {
    pub device: u32,
    pub queue: u16,
    pub len: u16,
    pub addr: u64,
    pub data: u64,
    pub path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}

const _: () = assert!(size_of::<ControlCommand>() == 32);

impl ControlCommand {
    /// The command as it lies in a submission, which has room for 80 bytes.
    pub(super) fn bytes(&self) -> [u8; 80] {
        let mut out = [0; 80];
        out[0..4].copy_from_slice(&self.device.to_ne_bytes());
        out[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        out[6..8].copy_from_slice(&self.len.to_ne_bytes());
        out[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        out[16..24].copy_from_slice(&self.data.to_ne_bytes());
        out
    }
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub max_io_bytes: u32,
    pub id: u32,
    pub server_pid: i32,
    pub pad1: u32,
    pub flags: u64,
    /// The kernel keeps this field without using it: it holds the mark of the volume.
    pub server_flags: u64,
    pub owner_uid: u32,
    pub owner_gid: u32,
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<DeviceInfo>() == 64);

/// The beginning of `struct ublk_params`: all of it that is set here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Params {
    pub len: u32,
    pub types: u32,
    pub attrs: u32,
    pub logical_block_shift: u8,
    pub physical_block_shift: u8,
    pub io_opt_shift: u8,
    pub io_min_shift: u8,
    pub max_sectors: u32,
    pub chunk_sectors: u32,
    pub device_sectors: u64,
    pub virt_boundary_mask: u64,
    pub discard_alignment: u32,
    pub discard_granularity: u32,
    pub max_discard_sectors: u32,
    pub max_write_zeroes_sectors: u32,
    pub max_discard_segments: u16,
    pub reserved: u16,
    /// The first field of the next part; valid only if `types` says so.
    pub next: u32,
}

const _: () = assert!(size_of::<Params>() == 64);

pub(super) const PARAM_BASIC: u32 = 1;
pub(super) const PARAM_DISCARD: u32 = 2;
pub(super) const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
pub(super) const ATTR_FUA: u32 = 1 << 3;

/// `struct ublksrv_io_desc`: a request, in memory that the kernel shares.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub op_flags: u32,
    pub sectors: u32,
    pub start_sector: u64,
    pub addr: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 24);

pub(super) const OP_READ: u32 = 0;
pub(super) const OP_WRITE: u32 = 1;
pub(super) const OP_FLUSH: u32 = 2;
pub(super) const OP_DISCARD: u32 = 3;
pub(super) const OP_WRITE_ZEROES: u32 = 5;
pub(super) const IO_FUA: u32 = 1 << 13;
pub(super) const IO_NO_UNMAP: u32 = 1 << 15;

/// `struct ublksrv_io_cmd`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IoCommand {
    pub queue: u16,
    pub tag: u16,
    pub result: i32,
    pub addr: u64,
}

const _: () = assert!(size_of::<IoCommand>() == 16);

impl IoCommand {
    /// The command as it lies in a submission.
    pub(super) fn bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[0..2].copy_from_slice(&self.queue.to_ne_bytes());
        out[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        out[4..8].copy_from_slice(&self.result.to_ne_bytes());
        out[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        out
    }
}

/// The most tags that a queue may have.
pub(super) const MAX_DEPTH: usize = 4096;

/// The offset of a tag's data in the character device.
pub(super) const fn data_at(queue: u16, tag: u16) -> u64 {
    const BASE: u64 = 0x8000_0000;
    const TAG_SHIFT: u32 = 25;
    const QUEUE_SHIFT: u32 = TAG_SHIFT + 16;
    BASE + ((queue as u64) << QUEUE_SHIFT | (tag as u64) << TAG_SHIFT)
}

/// The offset and length of the mapping of a queue's descriptors in the character device, for
/// `depth` tags and pages of `page` bytes.
pub(super) const fn descriptors_at(queue: u16, depth: u16, page: usize) -> (u64, usize) {
    let most = (MAX_DEPTH * size_of::<Descriptor>()).next_multiple_of(page);
    let len = (depth as usize * size_of::<Descriptor>()).next_multiple_of(page);
    (queue as u64 * most as u64, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_kernel() {
        assert_eq!(Command::ADD_DEV.code(false), 0xc020_7504);
        assert_eq!(Command::GET_FEATURES.code(false), 0x8020_7513);
        assert_eq!(Command::ADD_DEV.code(true), 4);
        assert_eq!(fetch(false), 0xc010_7520);
        assert_eq!(commit_and_fetch(true), 0x21);
    }

    #[test]
    fn places_in_the_character_device() {
        assert_eq!(data_at(0, 0), 0x8000_0000);
        assert_eq!(data_at(1, 2), 0x8000_0000 + (1 << 41) + (2 << 25));
        assert_eq!(descriptors_at(0, 128, 4096), (0, 4096));
        assert_eq!(descriptors_at(2, 256, 4096), (2 * 98304, 8192));
        assert_eq!(descriptors_at(1, 1, 65536), (131_072, 65536));
    }

    #[test]
    fn commands_lie_as_the_kernel_reads_them() {
        let io = IoCommand { queue: 1, tag: 2, result: -5, addr: 0x1122 }.bytes();
        assert_eq!(io[0..2], 1u16.to_ne_bytes());
        assert_eq!(io[2..4], 2u16.to_ne_bytes());
        assert_eq!(io[4..8], (-5i32).to_ne_bytes());
        assert_eq!(io[8..16], 0x1122u64.to_ne_bytes());
        let control = ControlCommand {
            device: 7,
            queue: u16::MAX,
            len: 64,
            addr: 0x3344,
            data: 9,
            path_len: 0,
            pad: 0,
            reserved: 0,
        };
        assert_eq!(control.bytes()[6..8], 64u16.to_ne_bytes());
        assert_eq!(control.bytes()[16..24], 9u64.to_ne_bytes());
    }
}
