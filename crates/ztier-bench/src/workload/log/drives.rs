//! The drives of a table: models, files made for it, or drives named by the user.
//!
//! Invariants: a drive named by the user is opened exclusively, and refused if it holds anything
//! known. Only the two drives and the made files are written. The guard removes made files. A model
//! is new each time it is opened; other drives keep the content of the run before, so each log on
//! them begins with an epoch that no log before had.

use super::SPAN;
use crate::data::Rng;
use crate::model::{Model, ModelDrive, Name};
use crate::report::warn;
use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use ztier::error::{Context as _, Error, Result};
use ztier::log::read_superblock;
use ztier::media::{Access, Buffer, Drive, DriveError, FileDrive, Ring, Signature};

/// Requests in flight on a log's drive, as in the product.
const DEPTH: u32 = 32;
/// Bytes at the beginning that can hold a superblock of a log or of a file system.
const HEAD: u64 = 128 << 10;
/// Default directory for the files of `--real`: by convention on a disk, and large.
pub const REAL_DIR: &str = "/var/tmp";

/// A drive as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// `sim:…`.
    Model(Name),
    /// A block device or a file.
    Path(PathBuf),
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.starts_with("sim:") {
            return text.parse().map(Self::Model);
        }
        if text.is_empty() {
            return Err(Error::usage("a drive has no name").hint("give sim:hdd-7200 or a path"));
        }
        Ok(Self::Path(text.into()))
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(name) => name.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// The origin of the drives of one role.
pub struct Source {
    spec: Spec,
    /// Whether the file is removed at the end.
    made: bool,
    /// Whether the drive is overwritten, or about to be.
    used: AtomicBool,
}

impl Source {
    /// A drive named by the user.
    ///
    /// # Errors
    /// One line: the drive does not exist, is in use, too small, or holds something.
    pub fn new(spec: Spec) -> Result<Self> {
        if let Spec::Path(path) = &spec {
            let drive = FileDrive::open(path, Access::Exclusive)?;
            let hint = "give a drive that holds nothing; `wipefs` empties one";
            if let Some(found) = Signature::of(&drive)? {
                let text = format!("{} holds {found}", path.display());
                return Err(Error::failure(text).hint(hint));
            }
            if read_superblock(&drive).is_ok() {
                let text = format!("{} holds a log of ztier", path.display());
                return Err(Error::failure(text).hint(hint));
            }
        }
        Ok(Self { spec, made: false, used: AtomicBool::new(false) })
    }

    /// A file in `dir`, with each byte written once, so that later writes allocate nothing.
    ///
    /// # Errors
    /// The file can't be made, or takes more than half of the free space.
    pub fn make(dir: &Path, what: &str, bytes: u64) -> Result<Self> {
        let path = dir.join(format!("ztier-bench-{}-{what}", std::process::id()));
        let stat = rustix::fs::statvfs(dir).context(format!("cannot look at {}", dir.display()))?;
        let free = stat.f_bavail * stat.f_frsize;
        if free / 2 < bytes {
            let (wanted, free) = (bytes >> 20, free >> 20);
            return Err(Error::failure(format!(
                "{} has {free} MiB free, and a file of {wanted} MiB should leave half of it",
                dir.display()
            ))
            .hint("give another directory to --real"));
        }
        let file =
            ztier::private::create_new(&path).context(format!("cannot make {}", path.display()))?;
        // From here on the guard removes the file.
        let source = Self { spec: Spec::Path(path), made: true, used: AtomicBool::new(true) };
        let mut data = vec![0; 4 << 20];
        Rng::new(bytes).fill(&mut data);
        for at in (0..bytes).step_by(data.len()) {
            let len = (bytes - at).min(data.len() as u64) as usize;
            file.write_all_at(&data[..len], at).context("cannot fill a file")?;
        }
        file.sync_all().context("cannot fill a file")?;
        Ok(source)
    }

    /// The file or device, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match &self.spec {
            Spec::Path(path) => Some(path),
            Spec::Model(_) => None,
        }
    }

    /// A model of the first `most` bytes, for a model.
    pub fn model(&self, most: u64) -> Option<Model> {
        match &self.spec {
            Spec::Model(name) => Some(Model::new(Name { size: name.size.min(most), ..*name })),
            Spec::Path(_) => None,
        }
    }

    /// Removes what a run left on the drive.
    ///
    /// # Errors
    /// The drive can't be opened or written.
    pub fn clear(&self) -> Result<()> {
        self.path().map_or(Ok(()), empty)
    }

    /// Opens the first `most` bytes.
    ///
    /// # Errors
    /// The drive can't be opened.
    pub fn open(&self, most: u64) -> Result<Opened> {
        self.open_ready(most, 0)
    }

    /// Opens the first `most` bytes; a model has the memory for `ready` of them already.
    ///
    /// # Errors
    /// The drive can't be opened.
    pub fn open_ready(&self, most: u64, ready: u64) -> Result<Opened> {
        self.used.store(true, Ordering::Relaxed);
        Ok(match &self.spec {
            Spec::Model(name) => {
                let size = name.size.min(most);
                let drive = ModelDrive::real_time(Name { size, ..*name });
                drive.reserve(ready);
                Opened { drive: Arc::new(drive), file: None }
            }
            Spec::Path(path) => {
                let file = Arc::new(FileDrive::open(path, Access::Exclusive)?);
                let size = file.size().min(most);
                let drive = Arc::new(First { drive: Arc::clone(&file), size });
                Opened { drive, file: Some(file) }
            }
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let Spec::Path(path) = &self.spec else { return };
        let done = match self.made {
            true => std::fs::remove_file(path).context("cannot remove it"),
            false if self.used.load(Ordering::Relaxed) => empty(path),
            false => Ok(()),
        };
        if let Err(e) = done {
            warn(&format!("{}: {e}", path.display()));
        }
    }
}

/// Wipes logs and file systems from a drive, so that it can be used again.
fn empty(path: &Path) -> Result<()> {
    let drive = FileDrive::open(path, Access::Exclusive)?;
    let head = Buffer::new(HEAD.min(drive.size()) as usize);
    drive.write(0, &head).and_then(|()| drive.flush()).context("cannot empty it")
}

/// The drives of a run.
pub struct Drives {
    /// The drive of the log.
    pub log: Source,
    /// The backing store.
    pub backing: Source,
}

impl Drives {
    /// Size of the volume of a run on these drives, at most the source's 16 GB.
    ///
    /// # Errors
    /// The backing store can't be opened.
    pub fn span(&self) -> Result<u64> {
        Ok(self.backing.open(SPAN)?.drive.size())
    }
}

/// An open drive.
pub struct Opened {
    /// For single requests.
    pub drive: Arc<dyn Drive>,
    file: Option<Arc<FileDrive>>,
}

impl Opened {
    /// A ring for many requests, as in the product; `None` for models, which use threads.
    ///
    /// # Errors
    /// The system provides neither a ring nor threads.
    pub fn ring(&self) -> Result<Option<Ring>> {
        self.file.as_ref().map(|file| Ring::new(Arc::clone(file), DEPTH)).transpose()
    }
}

/// The first part of a drive.
struct First {
    drive: Arc<FileDrive>,
    size: u64,
}

impl Drive for First {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> std::result::Result<(), DriveError> {
        self.drive.read(at, buf)
    }

    fn read_many(
        &self,
        wanted: Vec<(u64, Buffer)>,
    ) -> Vec<std::result::Result<(u64, Buffer), DriveError>> {
        self.drive.read_many(wanted)
    }

    fn write(&self, at: u64, data: &[u8]) -> std::result::Result<(), DriveError> {
        self.drive.write(at, data)
    }

    fn zero(&self, at: u64, len: u64) -> std::result::Result<(), DriveError> {
        self.drive.zero(at, len)
    }

    fn zeroes_quickly(&self) -> bool {
        self.drive.zeroes_quickly()
    }

    fn flush(&self) -> std::result::Result<(), DriveError> {
        self.drive.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sys::workdir::WorkDir;
    use std::fs::File;

    #[test]
    fn drives_are_named_by_model_or_path() {
        for text in ["sim:hdd-7200", "sim:ssd-840pro:16G", "/dev/sdb", "a/file"] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
        assert_eq!("/dev/sdb".parse::<Spec>().unwrap(), Spec::Path("/dev/sdb".into()));
        for (text, part) in [("sim:floppy", "unknown drive model"), ("", "no name")] {
            let e = text.parse::<Spec>().unwrap_err().to_string();
            assert!(e.contains(part) && e.lines().count() == 1, "{e}");
        }
    }

    #[test]
    fn what_is_missing_or_holds_something_is_refused_in_one_line() {
        let dir = WorkDir::new("drives").unwrap();
        let path = dir.path().join("drive");
        let refused = |part: &str| {
            let e = Source::new(Spec::Path(path.clone())).err().unwrap().to_string();
            assert!(e.contains(part) && e.lines().count() == 1, "{e}");
        };
        refused("does not exist");
        let file = File::create_new(&path).unwrap();
        file.set_len(16 << 20).unwrap();
        // The magic of swap space, with its version.
        file.write_all_at(b"SWAPSPACE2", 4096 - 10).unwrap();
        file.write_all_at(&1u32.to_le_bytes(), 1024).unwrap();
        file.write_all_at(&4095u32.to_le_bytes(), 1028).unwrap();
        refused("holds swap");
        file.write_all_at(&[0; 4096], 0).unwrap();

        let source = Source::new(Spec::Path(path.clone())).unwrap();
        let opened = source.open(8 << 20).unwrap();
        assert_eq!(opened.drive.size(), 8 << 20);
        ztier::log::format(
            &*opened.drive,
            [0; 16],
            [0; ztier::log::disk::format::IDENTITY],
            100,
            256 << 10,
        )
        .unwrap();
        drop(opened);
        refused("holds a log of ztier");
        drop(source);
        // The log was removed with the run that made it.
        drop(Source::new(Spec::Path(path.clone())).unwrap());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_made_file_is_full_and_goes() {
        let dir = WorkDir::new("made").unwrap();
        let source = Source::make(dir.path(), "log", 5 << 20).unwrap();
        let path = source.path().unwrap().to_owned();
        use std::os::unix::fs::MetadataExt;
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 5 << 20);
        let other = Source::make(dir.path(), "huge", 1 << 60).err().unwrap().to_string();
        assert!(other.contains("should leave half"), "{other}");
        drop(source);
        assert!(!path.exists());
    }
}
