//! A drive limited to a number of bytes a second, however fast the drive below is.
//!
//! Invariant: requests use the path to the drive one after the other, in order of arrival. Each
//! ends when the limit allows, or when the drive below is done, if that is later.

use super::{Nanos, wait};
use std::sync::Arc;
use ztier::media::{Drive, DriveError};
use ztier::sync::Mutex;

/// A rate-limited drive.
pub struct Held {
    drive: Arc<dyn Drive>,
    bytes_per_second: u64,
    /// Time at which the path is free again.
    free: Mutex<Nanos>,
}

impl Held {
    /// Limits `drive` to `bytes_per_second`, reads and writes together.
    pub fn new(drive: Arc<dyn Drive>, bytes_per_second: u64) -> Self {
        Self { drive, bytes_per_second: bytes_per_second.max(1), free: Mutex::new(0) }
    }

    fn moved<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        let time = (bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second)) as Nanos;
        let end = {
            let mut free = self.free.lock();
            *free = wait::now().max(*free) + time;
            *free
        };
        let result = work();
        wait::until(end, false);
        result
    }
}

impl Drive for Held {
    fn size(&self) -> u64 {
        self.drive.size()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.moved(buf.len(), || self.drive.read(at, buf))
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.moved(data.len(), || self.drive.write(at, data))
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.drive.zero(at, len)
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.drive.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Kind, ModelDrive, Name};
    use super::*;

    #[test]
    fn two_threads_together_get_no_more_than_there_is() {
        let name = Name { kind: Kind::SsdNull, size: 1 << 20 };
        let held = Held::new(Arc::new(ModelDrive::virtual_time(name)), 40 << 20);
        let begun = wait::now();
        std::thread::scope(|scope| {
            for at in [0, 1 << 19] {
                let held = &held;
                scope.spawn(move || {
                    held.write(at, &[1; 1 << 19]).unwrap();
                    let mut back = [0; 4096];
                    held.read(at, &mut back).unwrap();
                    assert!(back == [1; 4096]);
                });
            }
        });
        assert!(wait::now() - begun >= 25_000_000, "1 MiB at 40 MiB/s");
    }
}
