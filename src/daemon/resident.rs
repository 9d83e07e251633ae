//! Keeps a daemon's log and state file in memory while its volume carries swap.
//!
//! The run directory is usually a tmpfs, whose pages are swapped out like others, and so to this
//! very volume. The next daemon writes its first line, and reads the state file, before it serves
//! the volume: it would wait for itself, and the machine with it. Here the page in which the next
//! line of the log begins, and the state file, are locked in memory.
//!
//! Invariant: pages are locked right after this process has written them, or before it carries
//! swap, so that locking does not wait for the volume.

use crate::config::paths::VolumeFiles;
use crate::media::{MappedFor, Mapping};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;

/// Pages of a file that stay in memory as long as this lives. They are only mapped; nothing reads
/// them here.
#[derive(Debug)]
pub(super) struct Locked {
    pages: Mapping,
    /// The first byte of the file that is locked.
    from: u64,
}

impl Locked {
    /// The whole file at `path`.
    ///
    /// # Errors
    /// There is no such file, or this process may not lock that much.
    fn whole(path: &Path) -> io::Result<Self> {
        Self::of(&File::open(path)?, 0)
    }

    /// The page of a log at `path` in which the next line begins.
    ///
    /// # Errors
    /// As [`Self::whole`]; or it is no file.
    pub fn end_of(path: &Path) -> io::Result<Self> {
        // A terminal, a pipe or a socket has no pages; opening a pipe would wait.
        if !path.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Self::of(&file, len / PAGE * PAGE)
    }

    fn of(file: &File, from: u64) -> io::Result<Self> {
        let len = (file.metadata()?.len().saturating_sub(from)) as usize;
        if len == 0 {
            // The next page is made by the write that needs it.
            return Ok(Self { pages: Mapping::EMPTY, from });
        }
        let pages = Mapping::shared(file, MappedFor::Reading, from, len)?;
        pages.lock()?;
        Ok(Self { pages, from })
    }
}

/// What this process keeps in memory.
struct Kept {
    state_path: PathBuf,
    log_path: PathBuf,
    state: Option<Locked>,
    log: Option<Locked>,
}

/// `None` while the volume carries no swap.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// Keeps the files of a volume in memory from now on. What can't be locked is not.
pub(super) fn begin(files: &VolumeFiles) {
    let log_path = PathBuf::from("/proc/self/fd/2");
    *KEPT.lock() = Some(Kept {
        state: Locked::whole(&files.state).ok(),
        log: Locked::end_of(&log_path).ok(),
        state_path: files.state.clone(),
        log_path,
    });
}

/// Keeps them no longer.
pub(super) fn end() {
    *KEPT.lock() = None;
}

/// To be called when the state file at `path` has been replaced.
pub(super) fn state_written(path: &Path) {
    if let Some(kept) = KEPT.lock().as_mut().filter(|kept| kept.state_path == path) {
        kept.state = Locked::whole(path).ok();
    }
}

/// To be called when a line was written to the log. Does not wait for another thread that is here:
/// that one locks the end, too, or the next line does.
pub(super) fn line_written() {
    let Some(mut kept) = KEPT.try_lock() else { return };
    let Some(kept) = kept.as_mut() else { return };
    let Ok(len) = kept.log_path.metadata().map(|log| log.len()) else { return };
    let from = len / PAGE * PAGE;
    if kept.log.as_ref().is_none_or(|log| log.from != from || log.pages.is_empty()) {
        // The new page first: the line may have crossed a border.
        let new = Locked::end_of(&kept.log_path).ok();
        kept.log = new;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    /// KiB that this process has locked.
    fn locked_kib() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn the_page_where_the_next_line_begins_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for (len, from, size) in [(0, 0, 0), (10, 0, 10), (4096, 4096, 0), (9000, 8192, 808)] {
            fs::write(&path, vec![b'x'; len]).unwrap();
            let locked = Locked::end_of(&path).unwrap();
            assert_eq!((locked.from, locked.pages.len()), (from, size), "{len}");
        }
        assert!(Locked::end_of(Path::new("/dev/null")).is_err());
        assert!(Locked::end_of(dir.path()).is_err());
    }

    #[test]
    fn a_whole_file_is_locked_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        fs::write(&path, vec![7; 100 << 10]).unwrap();
        let smaps = || fs::read_to_string("/proc/self/smaps").unwrap();
        let flags = |text: &str| {
            let (_, own) = text.split_once(path.to_str().unwrap())?;
            own.lines().find(|line| line.starts_with("VmFlags:")).map(str::to_owned)
        };
        let locked = Locked::whole(&path).unwrap();
        assert!(flags(&smaps()).unwrap().contains(" lo"), "{} KiB", locked_kib());
        drop(locked);
        assert_eq!(flags(&smaps()), None);
    }
}
