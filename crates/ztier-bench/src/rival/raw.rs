//! A drive as a device: what ztier's front-ends reach without a log.

use std::sync::Arc;
use std::time::Instant;
use ztier::device::{Channel, Device, Extent, ExtentKind, IoError, Request};
use ztier::media::{ALIGN, Drive, DriveError};

/// A drive without an engine. Takes whole blocks only.
pub struct RawDevice(pub Arc<dyn Drive>);

impl RawDevice {
    fn check(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let block = ALIGN as u64;
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(IoError::Unsupported);
        }
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.0.size());
        if inside { Ok(()) } else { Err(IoError::OutOfRange) }
    }
}

impl Device for RawDevice {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn discards(&self) -> bool {
        self.0.zeroes_quickly()
    }

    /// As for a drive: the kernel's readahead is that of a disk.
    fn waits(&self) -> bool {
        true
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(Lane(self))
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Result<Vec<Extent>, IoError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(vec![Extent { len, kind: ExtentKind::Data }]),
            _ => Err(IoError::OutOfRange),
        }
    }
}

struct Lane(Arc<RawDevice>);

impl Lane {
    fn serve(&self, request: Request<'_>) -> Result<(), DriveError> {
        let drive = &self.0.0;
        let fua = match request {
            Request::Read { offset, buf } => return drive.read(offset, buf),
            Request::Write { offset, data, fua } => {
                drive.write(offset, data)?;
                fua
            }
            Request::Flush => true,
            Request::Discard { offset, len } => return drive.zero(offset, len),
            Request::WriteZeroes { offset, len, fua, .. } => {
                drive.zero(offset, len)?;
                fua
            }
        };
        if fua { drive.flush() } else { Ok(()) }
    }
}

impl Channel for Lane {
    fn submit(&mut self, request: Request<'_>, _: Instant) -> Result<(), IoError> {
        let (offset, len) = match &request {
            Request::Read { offset, buf } => (*offset, buf.len() as u64),
            Request::Write { offset, data, .. } => (*offset, data.len() as u64),
            Request::Flush => (0, 0),
            Request::Discard { offset, len } | Request::WriteZeroes { offset, len, .. } => {
                (*offset, *len)
            }
        };
        self.0.check(offset, len)?;
        self.serve(request).map_err(|e| IoError::Drive(e.errno))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::{Kind, ModelDrive, Name};

    #[test]
    fn blocks_read_back_and_other_ranges_are_refused() {
        let name = Name { kind: Kind::SsdNull, size: 1 << 20 };
        let device = Arc::new(RawDevice(Arc::new(ModelDrive::virtual_time(name))));
        let mut lane = Arc::clone(&device).channel();
        let now = Instant::now();
        let data = [7; 8192];
        lane.submit(Request::Write { offset: 4096, data: &data, fua: true }, now).unwrap();
        lane.submit(Request::Discard { offset: 4096, len: 4096 }, now).unwrap();
        let mut back = [1; 8192];
        lane.submit(Request::Read { offset: 4096, buf: &mut back }, now).unwrap();
        assert!(back[..4096] == [0; 4096] && back[4096..] == [7; 4096]);
        let mut write = |offset, len| {
            lane.submit(Request::Write { offset, data: &data[..len], fua: false }, now)
        };
        assert_eq!(write(512, 4096), Err(IoError::Unsupported));
        assert_eq!(write(4096, 512), Err(IoError::Unsupported));
        assert_eq!(write((1 << 20) - 4096, 8192), Err(IoError::OutOfRange));
        assert_eq!(device.extents(0, 1 << 20, 1).unwrap().len(), 1);
    }
}
