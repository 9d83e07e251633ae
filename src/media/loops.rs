//! What is behind a loop device, by its status.
//!
//! `/sys` gives the path of the backing file, which may lead to another file by now or in this
//! mount namespace. The status has the file's device and inode.

use super::ioctls::LoopInfo;

impl LoopInfo {
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
