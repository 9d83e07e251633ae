//! The status of a loop device: `LOOP_GET_STATUS64`.
//!
//! `/sys` gives the path of the backing file, which may lead to another file by now or in this
//! mount namespace. The status has the file's device and inode.

use rustix::fd::AsFd;
use rustix::ioctl::{Opcode, Updater, ioctl};

const LOOP_GET_STATUS64: Opcode = 0x4C05;

/// `struct loop_info64` of the kernel's ABI.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
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

    /// The status of the loop device `node`.
    ///
    /// # Errors
    /// The system's: no file is attached to it, or it is no loop device.
    pub fn of(node: impl AsFd) -> rustix::io::Result<Self> {
        let mut info = Self::ZERO;
        // SAFETY: LOOP_GET_STATUS64 fills one `struct loop_info64`, which `LoopInfo` is, byte for
        // byte (its size is checked above).
        unsafe { ioctl(node, Updater::<LOOP_GET_STATUS64, Self>::new(&mut info)) }?;
        Ok(info)
    }

    /// The number of the block device behind it, if it is one.
    pub(super) fn block_device(&self) -> Option<u64> {
        (self.rdevice != 0).then(|| number(self.rdevice))
    }

    /// Device and inode of the file behind it.
    pub(super) fn file(&self) -> (u64, u64) {
        (number(self.device), self.inode)
    }
}

/// A device number as the kernel encodes it for user space (`new_encode_dev`).
fn number(encoded: u64) -> u64 {
    let (major, minor) = (encoded >> 8 & 0xfff, encoded & 0xff | encoded >> 12 & 0xf_ff00);
    rustix::fs::makedev(major as u32, minor as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_decoded_as_the_kernel_encodes_them() {
        for (major, minor) in [(8, 1), (259, 3), (7, 0x1_2345), (4095, 0xf_ffff)] {
            // `(minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12)`
            let encoded = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
            assert_eq!(number(encoded), rustix::fs::makedev(major as u32, minor as u32));
        }
    }
}
