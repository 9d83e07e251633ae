//! Swap on a device, while a run needs it.
//!
//! Invariants: other swap of the machine is left alone, and the run refuses if the kernel could use
//! other swap first; dropping the guard turns swap off, and the owner of the device drops the
//! device later.

use crate::report::warn;
use crate::sys::command::{run, undo};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ztier::error::{Context, Error, Result};
use ztier::kernel_text::kernel_text;

/// Above the priority of other swap; the kernel's highest is 32767.
pub const PRIORITY: i32 = 32000;
const LIMIT: Duration = Duration::from_secs(60);
/// Limit on reading everything back from a slow disk.
pub const OFF: Duration = Duration::from_secs(300);
/// Number of attempts.
const TRIES: u32 = 3;

/// A line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    path: PathBuf,
    used: u64,
    priority: i32,
}

/// A function that ends swap.
type End = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// Active swap.
pub struct SwapOn {
    device: PathBuf,
    end: End,
}

/// Makes swap space on a device; its content is lost.
///
/// # Errors
/// The error of `mkswap`.
pub fn make(device: &Path) -> Result<()> {
    run("mkswap", &[device], LIMIT).map(drop)
}

impl SwapOn {
    /// Turns on swap with priority over all other swap.
    ///
    /// # Errors
    /// Other swap would have priority; the error of `swapon`.
    pub fn new(device: &Path) -> Result<Self> {
        let path = device.to_path_buf();
        let end = move || undo("swapoff", &[&path], OFF).map(drop);
        let priority = PRIORITY.to_string();
        let args = ["--priority", &priority, &device.to_string_lossy()];
        Self::by(device, || run("swapon", &args, LIMIT).map(drop), Box::new(end))
    }

    /// Turns on swap with `begin`, and off with `end`.
    ///
    /// # Errors
    /// Other swap would have priority; the error of `begin`.
    pub fn by(device: &Path, begin: impl FnOnce() -> Result<()>, end: End) -> Result<Self> {
        refuse_others(&table()?)?;
        let device = std::fs::canonicalize(device)
            .context(format_args!("cannot find {}", device.display()))?;
        // A program that failed may have turned it on before: the guard checks that.
        let guard = Self { device, end };
        begin()?;
        Ok(guard)
    }

    /// Bytes of it in use; `None` if it is off.
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

/// The active swap.
fn table() -> Result<Vec<Entry>> {
    let text = kernel_text("/proc/swaps").context("cannot read /proc/swaps")?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<Entry> {
    let entry = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [path, _, _, used, priority] = fields[..] else { return None };
        // The kernel's escape of blanks in paths.
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
