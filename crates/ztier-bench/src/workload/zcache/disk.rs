//! The slow disk below a file system: modelled, or a rate-limited file on this machine's disk.
//!
//! Invariants: the disk's content is not in the page cache a second time, and its memory belongs to
//! no group; a made file is removed with the disk.

use crate::model::{Held, Kind, ModelDrive, Name};
use crate::rival::raw::RawDevice;
use crate::rival::served::Served;
use crate::workload::log::Source;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use ztier::error::{Error, Result};
use ztier::media::{Access, Drive, FileDrive};

/// Limit on the requests in flight on a disk: threads that serve it.
const QUEUE: usize = 16;
/// Number of files made.
static FILES: AtomicU32 = AtomicU32::new(0);

/// The kind of disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slow {
    /// `sim:hdd-7200`.
    Modelled,
    /// A file in this directory, limited to this number of bytes a second.
    Real(PathBuf, u64),
}

/// A running disk. Its server is dropped before what is below.
pub struct Disk {
    served: Served,
    about: String,
    _file: Option<Source>,
}

impl Disk {
    /// A disk of `size` bytes, with its memory allocated if it is `busy`: allocation would take
    /// time that a disk does not take.
    ///
    /// # Errors
    /// No FUSE here; no room for the file.
    pub fn new(slow: &Slow, size: u64, number: usize, busy: bool) -> Result<Self> {
        let (drive, about, file): (Arc<dyn Drive>, _, _) = match slow {
            Slow::Modelled => {
                let drive = ModelDrive::real_time(Name { size, ..Kind::Hdd7200.into() });
                if busy {
                    drive.reserve(size);
                }
                (Arc::new(drive), "sim:hdd-7200".to_owned(), None)
            }
            Slow::Real(dir, bytes_per_second) => {
                // The disk of the system before may still exist.
                let file = FILES.fetch_add(1, Ordering::Relaxed);
                let file = Source::make(dir, &format!("slow{file}"), size)?;
                let path = file.path().ok_or_else(|| Error::failure("a file has no path"))?;
                let drive = Arc::new(FileDrive::open(path, Access::Exclusive)?);
                let held = Held::new(drive, *bytes_per_second);
                let about = format!("{file}, held to {} MB/s", bytes_per_second / 1_000_000);
                (Arc::new(held), about, Some(file))
            }
        };
        let served = Served::by(Arc::new(RawDevice(drive)), &format!("slow{number}"), QUEUE)?;
        Ok(Self { served, about, _file: file })
    }

    /// Its block device.
    pub fn path(&self) -> &Path {
        self.served.path()
    }

    /// A description for reports.
    pub fn about(&self) -> String {
        let device = self.path().display();
        format!(
            "{}: {device}, FUSE and a loop device, at most {QUEUE} requests under way",
            self.about
        )
    }
}
