//! Files for a log or a spill device: makes them, and refuses those that other users can read.
//!
//! Invariant: a file that was made here is removed again, unless the volume comes up.

use crate::config::Amount;
use crate::config::paths::full;
use crate::config::size::{exact, human};
use crate::error::{Context, Error, Result};
use crate::private;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file to make.
pub(super) struct Wanted {
    /// The absolute path.
    pub path: PathBuf,
    /// The size in bytes.
    pub bytes: u64,
}

/// The file of `size` to make for `flag`; `None` without a size, or if the file exists already.
///
/// # Errors
/// A usage error: an impossible size, an existing file of another size, or a path below /dev.
pub(super) fn wanted(
    flag: &str,
    path: Option<&Path>,
    size: Option<Amount>,
) -> Result<Option<Wanted>> {
    let Some(size) = size else { return Ok(None) };
    let what = flag.trim_start_matches("--").trim_end_matches("-size");
    let Some(path) = path else {
        return Err(Error::usage(format!("{flag} is for a file"))
            .hint(format!("name it by --{what}, or leave out {flag}")));
    };
    let Amount::Bytes(bytes) = size else {
        return Err(Error::usage(format!("{flag} is a number of bytes")).hint("write it like 4G"));
    };
    if bytes == 0 || bytes % crate::BLOCK_SIZE as u64 != 0 {
        return Err(Error::usage(format!("{flag} {} is no multiple of 4096", exact(bytes)))
            .hint("write it like 4G"));
    }
    let (path, shown) = (full(path)?, path.display());
    match fs::metadata(&path) {
        Ok(there) if there.is_file() && there.len() == bytes => Ok(None),
        Ok(there) if there.is_file() => {
            let has = exact(there.len());
            Err(Error::usage(format!("{shown} is there already, and has {has} bytes"))
                .hint(format!("leave out {flag}, or give another name")))
        }
        Ok(_) => Err(Error::usage(format!("{shown} is no file"))
            .hint(format!("leave out {flag}, or give another name"))),
        Err(_) if path.starts_with("/dev") => {
            Err(Error::usage(format!("{shown} does not exist, and below /dev no files are made"))
                .hint("look for the drive with `lsblk`"))
        }
        Err(_) => Ok(Some(Wanted { path, bytes })),
    }
}

/// A file that was made; removed when dropped, unless it is kept.
pub(super) struct Made(PathBuf);

impl Wanted {
    /// Makes the file, readable by this user alone, and allocates all its space.
    ///
    /// # Errors
    /// No room, or no such directory; then no file is left.
    pub fn make(&self) -> Result<Made> {
        let what = || format!("cannot make {}", self.path.display());
        let file = private::create_new(&self.path).context(what())?;
        let made = Made(self.path.clone());
        fallocate(&file, FallocateFlags::empty(), 0, self.bytes).context(what())?;
        Ok(made)
    }

    /// Describes the file in words.
    pub fn describe(&self) -> String {
        format!("file {} of {}", self.path.display(), human(self.bytes))
    }
}

impl Made {
    /// The volume is up: the file stays.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // If that fails, a file of zeros of the requested size is left.
        let _ = fs::remove_file(&self.0);
    }
}

/// Refuses files that other users can read or write: they hold what is written to the volume.
///
/// # Errors
/// One line with the path and its mode.
pub(super) fn refuse_readable<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    for path in paths {
        // A path that can't be examined is reported where it is opened.
        let Ok(meta) = fs::metadata(path) else { continue };
        if meta.is_file() && meta.mode() & 0o066 != 0 {
            let (shown, mode) = (path.display(), meta.mode() & 0o777);
            return Err(Error::failure(format!(
                "other users can read or write {shown} (mode {mode:o}), and with it what the volume \
                 holds"
            ))
            .hint(format!("`chmod 600 {shown}`, or add --allow-readable")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_made_with_all_its_space_and_goes_unless_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let size = Some(Amount::Bytes(1 << 20));
        let wanted_now = || wanted("--log-size", Some(&path), size).unwrap();
        drop(wanted_now().unwrap().make().unwrap());
        assert!(!path.exists());
        wanted_now().unwrap().make().unwrap().keep();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o777), (1 << 20, 0o600));
        assert!(meta.blocks() * 512 >= 1 << 20, "it has space");
        assert!(wanted_now().is_none(), "it is there");
        refuse_readable([&*path]).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let text = refuse_readable([&*path]).unwrap_err().to_string();
            assert!(text.contains(&format!("(mode {mode:o})")), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_made_is_refused_with_the_mend() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, [0; 10]).unwrap();
        let bytes = |bytes| Some(Amount::Bytes(bytes));
        for (path, size, part) in [
            (None, bytes(4096), "name it by --spill"),
            (Some(&*path), bytes(0), "no multiple of 4096"),
            (Some(&*path), bytes(5000), "no multiple of 4096"),
            (Some(&*path), Some(Amount::Percent(5.0)), "a number of bytes"),
            (Some(&*path), bytes(8192), "is there already, and has 10 bytes"),
            (Some(dir.path()), bytes(8192), "is no file"),
            (Some(Path::new("/dev/no/such")), bytes(8192), "below /dev no files are made"),
        ] {
            let error = wanted("--spill-size", path, size).err().unwrap();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.exit_status(), 2);
        }
        let wanted = Wanted { path: dir.path().join("none/file"), bytes: 4096 };
        assert!(wanted.make().is_err());
        let wanted = Wanted { path: dir.path().join("huge"), bytes: 1 << 60 };
        assert!(wanted.make().is_err() && !wanted.path.exists());
    }
}
