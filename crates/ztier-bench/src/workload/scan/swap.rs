//! Swap on a device, for as long as a run needs it.
//!
//! Invariants: other swap of the machine is left alone, and refused if it could be used before
//! ours; swap is off again when the guard is dropped, and the owner of the device drops that later.

use crate::report::warn;
use crate::sys::command::{run, undo};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ztier::error::{Context, Error, Result};

/// Above what others have; the kernel's highest is 32767.
pub const PRIORITY: i32 = 32000;
const LIMIT: Duration = Duration::from_secs(60);
/// Reading everything back from a slow disk takes its time.
pub const OFF: Duration = Duration::from_secs(300);
/// How often to try.
const TRIES: u32 = 3;

/// A line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    path: PathBuf,
    used: u64,
    priority: i32,
}

/// How swap is ended.
type End = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// Swap that is on.
pub struct SwapOn {
    device: PathBuf,
    end: End,
}

/// Makes swap space of a device; whatever was on it is gone.
///
/// # Errors
/// What `mkswap` says.
pub fn make(device: &Path) -> Result<()> {
    run("mkswap", &[device], LIMIT).map(drop)
}

impl SwapOn {
    /// Uses it before all other swap.
    ///
    /// # Errors
    /// Other swap would be used before it; what `swapon` says.
    pub fn new(device: &Path) -> Result<Self> {
        let path = device.to_path_buf();
        let end = move || undo("swapoff", &[&path], OFF).map(drop);
        let priority = PRIORITY.to_string();
        let args = ["--priority", &priority, &device.to_string_lossy()];
        Self::by(device, || run("swapon", &args, LIMIT).map(drop), Box::new(end))
    }

    /// The same by what `begin` does, until `end`.
    ///
    /// # Errors
    /// Other swap would be used before it; that of `begin`.
    pub fn by(device: &Path, begin: impl FnOnce() -> Result<()>, end: End) -> Result<Self> {
        refuse_others(&table()?)?;
        let device = std::fs::canonicalize(device)
            .context(format_args!("cannot find {}", device.display()))?;
        // A program that failed may have done it before: the guard sees.
        let guard = Self { device, end };
        begin()?;
        Ok(guard)
    }

    /// Bytes of it that are in use; `None` if it is not on.
    pub fn used(&self) -> Option<u64> {
        let entries = table().ok()?;
        entries.into_iter().find(|entry| entry.path == self.device).map(|entry| entry.used)
    }
}

impl Drop for SwapOn {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            let Some(used) = self.used() else { return };
            let available = crate::report::available_bytes();
            if used > available {
                let (used, free) = (used >> 20, available >> 20);
                warn(&format!("{used} MiB are in swap, and {free} MiB of memory are free"));
            }
            if let Err(e) = (self.end)() {
                warn(&e.to_string());
            }
        }
        if self.used().is_some() {
            warn(&format!("left swap on {}", self.device.display()));
        }
    }
}

/// What is on now.
fn table() -> Result<Vec<Entry>> {
    let text = std::fs::read_to_string("/proc/swaps").context("cannot read /proc/swaps")?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<Entry> {
    let entry = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [path, _, _, used, priority] = fields[..] else { return None };
        // As the kernel writes spaces in paths.
        let path = PathBuf::from(path.replace("\\040", " "));
        let used = used.parse::<u64>().ok()? * 1024;
        Some(Entry { path, used, priority: priority.parse().ok()? })
    };
    text.lines().skip(1).filter_map(entry).collect()
}

fn refuse_others(entries: &[Entry]) -> Result<()> {
    match entries.iter().find(|entry| entry.priority >= PRIORITY) {
        None => Ok(()),
        Some(entry) => {
            let (path, priority) = (entry.path.display(), entry.priority);
            Err(Error::failure(format!(
                "swap on {path} has priority {priority} and would be used before ours"
            ))
            .hint(format!("turn it off, or give it a priority below {PRIORITY}")))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TEXT: &str = "\
Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/loop0                              partition\t1048572\t\t512\t\t100
/var/a\\040file                          file\t\t1048572\t\t0\t\t-2
";

    #[test]
    fn the_kernels_table_is_read() {
        let entries = parse(TEXT);
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].used, entries[0].priority), (512 * 1024, 100));
        assert_eq!(entries[1].path, Path::new("/var/a file"));
        assert_eq!(parse(""), []);
    }

    #[test]
    fn only_swap_that_comes_first_is_refused() {
        refuse_others(&parse(TEXT)).unwrap();
        let error = refuse_others(&parse(&TEXT.replace("\t100", "\t32000"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/dev/loop0 has priority 32000") && text.contains("turn it off"));
    }

    #[test]
    fn what_is_no_swap_space_is_refused_and_leaves_nothing_on() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![0; 1 << 20]).unwrap();
        assert!(SwapOn::new(file.path()).is_err());
        assert!(table().unwrap().iter().all(|entry| entry.path != file.path()));
        assert!(SwapOn::new(Path::new("/nonexistent")).is_err());
    }
}
