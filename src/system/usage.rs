//! Starts and ends the use that a block device's owner gave it: swap, or a mounted file system.
//!
//! Invariants: a device with any content is never formatted; only uses of this device are ended;
//! each program has a time limit.

pub use super::holders::is_swap;
use super::holders::{mounted_at, of_block_device};
use super::mounts::mounted_on;
pub use super::swaps::{Room, SwapWith, kept_twice, room, swap_with, swapped};
pub use super::tuning::{PAGE_CLUSTER, SWAPPINESS, Tuned};
use super::{depth, within};
use crate::error::{Context, Error, Result};
use crate::escape::join_lines;
pub use crate::media::swap_areas::Swapped;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The use of a device, with all settings that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Usage {
    /// Swap space.
    Swap {
        /// The kernel uses swap of higher priority first.
        priority: i32,
        /// The value of `vm.page-cluster` meanwhile; `None`: unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        page_cluster: Option<u64>,
        /// The value of `vm.swappiness` meanwhile; `None`: unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        swappiness: Option<u64>,
        /// Settings of the machine while the device is swap.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tuned: Vec<Tuned>,
        /// When ballast makes the kernel free the slots of pages that are read back.
        #[serde(default, skip_serializing_if = "Ballast::is_auto")]
        ballast: Ballast,
        /// Whether blocks of freed slots are dropped.
        #[serde(default, skip_serializing_if = "SlotNews::is_auto")]
        freed_slots: SlotNews,
        /// A program that is run when memory and swap are nearly full, and when that is over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_full: Option<PathBuf>,
        /// Use a daemon that is not safe for swap, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        forced: bool,
    },
    /// An ext4 file system.
    Ext4 {
        /// The mount point.
        mount: PathBuf,
    },
}

impl Usage {
    /// Swap that sets nothing of the machine and has nothing beside it: of a device that a user has
    /// made swap, or that is only to end as such.
    pub fn bare_swap(priority: i32, forced: bool) -> Self {
        Self::Swap {
            priority,
            page_cluster: None,
            swappiness: None,
            tuned: Vec::new(),
            ballast: Ballast::Off,
            freed_slots: SlotNews::Off,
            on_full: None,
            forced,
        }
    }

    /// The use in the words in which a search for the holders of its device names it.
    pub fn holder(&self) -> String {
        match self {
            Self::Swap { .. } => "swap".to_owned(),
            Self::Ext4 { mount } => {
                // The kernel's table has no slash at the end.
                let point: PathBuf = mount.components().collect();
                format!("mounted on {}", point.display())
            }
        }
    }
}

/// When a swap area has ballast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ballast {
    /// While the machine has no other swap: the default.
    #[default]
    Auto,
    /// Also beside other swap, all of which then counts as full.
    On,
    /// Never.
    Off,
}

impl Ballast {
    /// Whether it is the default, which is not written down.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Whether the kernel is asked which slots of a swap area it frees, to drop their blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotNews {
    /// Where the kernel can tell: the default.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl SlotNews {
    /// Whether it is the default, which is not written down.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Time limit of a program that formats a device or starts its use.
const BEGIN: Duration = Duration::from_secs(120);
/// Time limit of a program that ends a use: less than `ztier down` waits.
pub const END: Duration = Duration::from_secs(50);
/// The same limit for a command that only waits for this end: the kernel may have to read all swap.
pub const END_ALONE: Duration = Duration::from_secs(4 * 3600);
/// Interval between calls of `progress`.
const TELL: Duration = Duration::from_secs(1);

/// Directories of system programs, beside those of `PATH`.
const DIRS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// Characters of a failed program's words that an error has.
const SAID: usize = 4 << 10;

/// Starts the use of `device`. Formats it first if it is `empty` (or its content is not needed);
/// otherwise keeps its content. New swap space has `swap` bytes, at most the size of the device.
/// `progress` is called now and then with what is going on.
///
/// # Errors
/// A program is missing or fails, the mount point is taken, or a time limit passes.
pub fn begin(
    usage: &Usage,
    device: &Path,
    (empty, swap): (bool, u64),
    progress: &dyn Fn(&str),
) -> Result<()> {
    let run_and = |program: &str, args: &[&str], rest: &[&str]| {
        run(program, (args, rest), device, BEGIN, progress)
    };
    let run = |program: &str, args: &[&str]| run_and(program, args, &[]);
    match usage {
        Usage::Swap { priority, .. } => {
            if empty {
                // With --force, mkswap overwrites a partition table, too; the caller knows the
                // content.
                run_and("mkswap", &["--force"], &[&(swap >> 10).to_string()])?;
            } else if is_swap(device) {
                return Ok(());
            }
            depth::narrow(device);
            // With --discard, the kernel discards pages that it no longer needs, so that their
            // memory returns; and all old content at once, which cannot be read any more.
            let begun = run("swapon", &["--discard", "--priority", &priority.to_string()]);
            begun.inspect_err(|_| {
                if !is_swap(device) {
                    depth::widen(device);
                }
            })
        }
        Usage::Ext4 { mount } => {
            if mounted_at(device, mount) {
                return Ok(());
            }
            refuse_place(usage)?;
            if empty {
                // A file system that is gone after a crash needs no journal and no blocks reserved
                // for root.
                run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", "-m", "0"])?;
            } else if !is_mounted(device) {
                // The device may have gone away while mounted, and the memory was kept.
                run("e2fsck", &["-p"])?;
            }
            fs::create_dir_all(mount).context(format!("cannot make {}", mount.display()))?;
            let point = mount.to_string_lossy();
            run("mount", &["-t", "ext4", "-o", "discard", "--target", &point, "--source"])
        }
    }
}

/// Ends the use of `device`. A device that is not in use is no error; one that a user has ended as
/// swap gets the queue of other devices.
///
/// # Errors
/// The file system is busy, memory lacks room for what is swapped out, or the time limit passes;
/// then the device is still in use.
pub fn end(usage: &Usage, device: &Path) -> Result<()> {
    end_within(usage, device, END)
}

/// As [`end`], with the time limit `limit`.
///
/// # Errors
/// As [`end`].
pub fn end_within(usage: &Usage, device: &Path, limit: Duration) -> Result<()> {
    let quiet = |_: &str| {};
    match usage {
        Usage::Swap { .. } if is_swap(device) => run("swapoff", (&[], &[]), device, limit, &quiet)
            .map(|()| depth::widen(device))
            .map_err(|e| match limit > END {
                true => e.hint("end some programs, so that what is swapped out has room"),
                false => e.hint(
                    "`ztier swapoff` has more patience; or end some programs, so that what is \
                     swapped out has room",
                ),
            }),
        Usage::Swap { .. } => {
            depth::widen(device);
            Ok(())
        }
        Usage::Ext4 { mount } if mounted_at(device, mount) => {
            run("umount", (&[], &[]), mount, limit, &quiet).map_err(|e| {
                let text = e.to_string();
                let e = if text.contains("is busy") { Error::busy(text) } else { e };
                e.hint("end what uses it")
            })
        }
        Usage::Ext4 { .. } => Ok(()),
    }
}

/// Applies the machine's settings for a use. Returns one line for each that failed: the use works
/// without it, only slower.
pub fn tune(usage: &Usage) -> Vec<String> {
    tuned(usage).iter().filter_map(|t| t.apply().err()).map(|e| e.to_string()).collect()
}

/// Restores what [`tune`] set, except settings that others still need (`needed`). Returns one line
/// for each that failed.
pub fn untune(usage: &Usage, needed: impl Fn(&Tuned) -> bool) -> Vec<String> {
    let mine = tuned(usage).iter().filter(|t| !needed(t));
    mine.filter_map(|t| t.restore().err()).map(|e| e.to_string()).collect()
}

/// The values that the machine's settings are to have for a use; `None`: unchanged.
pub fn wanted(usage: &Usage) -> [(&'static str, Option<u64>); 2] {
    let (page_cluster, swappiness) = match usage {
        Usage::Swap { page_cluster, swappiness, .. } => (*page_cluster, *swappiness),
        Usage::Ext4 { .. } => (None, None),
    };
    [(PAGE_CLUSTER, page_cluster), (SWAPPINESS, swappiness)]
}

/// The machine's settings for a use.
pub fn tuned(usage: &Usage) -> &[Tuned] {
    match usage {
        Usage::Swap { tuned, .. } => tuned,
        Usage::Ext4 { .. } => &[],
    }
}

/// Refuses a mount point where nothing can be mounted, or something is mounted.
///
/// # Errors
/// As [`refuse_unmounted`]; or something is mounted on it.
pub fn refuse_place(usage: &Usage) -> Result<()> {
    if let Usage::Ext4 { mount } = usage {
        refuse_taken(mount)?;
    }
    refuse_unmounted(usage)
}

/// Refuses a mount point where nothing is mounted and whose real path is not an empty or missing
/// directory: a file system there would hide files, or be elsewhere than the kernel's tables say.
/// Does not touch a mounted file system, whose daemon may be dead.
///
/// # Errors
/// The directory holds something, the path is no directory, or it leads through a symbolic link.
pub fn refuse_unmounted(usage: &Usage) -> Result<()> {
    let Usage::Ext4 { mount } = usage else { return Ok(()) };
    if mounted_on(mount).is_some() {
        return Ok(());
    }
    refuse_link(mount)?;
    let what = || format!("cannot mount on {}", mount.display());
    let first = match fs::read_dir(mount) {
        Ok(mut entries) => entries.next().transpose().context(what())?,
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            return Err(Error::usage(format!("{}: it is no directory", what()))
                .hint("give an empty directory, or one that is not there yet"));
        }
        Err(e) => return Err(e).context(what()),
    };
    let Some(entry) = first else { return Ok(()) };
    let name = Path::new(&entry.file_name()).display().to_string();
    Err(Error::usage(format!("{}: it holds {name}, which would be hidden", what()))
        .hint("empty it, or give another directory"))
}

/// Whether the file system of `device` is mounted anywhere, also in another mount namespace: then
/// it needs no check, and can't be checked.
fn is_mounted(device: &Path) -> bool {
    of_block_device(device).iter().any(|holder| holder.starts_with("mounted on "))
}

fn refuse_link(point: &Path) -> Result<()> {
    // Missing directories at the end of the path are made later.
    let there = point.ancestors().find(|path| fs::symlink_metadata(path).is_ok());
    let there = there.unwrap_or(point);
    let leads = |to: &Path| format!("mount point {} leads to {}", point.display(), to.display());
    let real = fs::canonicalize(there).map_err(|e| {
        let to = fs::read_link(there).unwrap_or_else(|_| there.to_owned());
        Error::usage(format!("{}: {e}", leads(&to)))
            .hint("remove that symbolic link, or give another directory")
    })?;
    if real == there {
        return Ok(());
    }
    let rest = point.strip_prefix(there).unwrap_or(Path::new(""));
    let real: PathBuf = real.components().chain(rest.components()).collect();
    Err(Error::usage(leads(&real)).hint("give that directory itself, or another one"))
}

fn refuse_taken(point: &Path) -> Result<()> {
    match mounted_on(point) {
        None => Ok(()),
        Some(entry) => Err(Error::busy(format!(
            "{} is mounted on {} already",
            entry.source.display(),
            point.display()
        ))
        .hint("unmount it first, or give another place")),
    }
}

/// Runs `program` with `args` around `on`, until it succeeds, within `limit`.
fn run(
    program: &str,
    args: (&[&str], &[&str]),
    on: &Path,
    limit: Duration,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let what = || format!("{program} {}", on.display());
    progress(&what());
    let mut command = Command::new(find(program)?);
    command.args(args.0).arg(on).args(args.1).env("LC_ALL", "C");
    let mut tell = TELL;
    let look = |time| {
        if time >= tell {
            progress(&what());
            tell += TELL;
        }
    };
    let done = within::output(&mut command, &what(), limit, look)?;
    // With status 1, e2fsck reports that it corrected something.
    if done.status.success() || (program == "e2fsck" && done.status.code() == Some(1)) {
        return Ok(());
    }
    let said = join_lines(&done.err.chars().take(SAID).collect::<String>());
    Err(Error::failure(format!("{} failed ({}): {said}", what(), done.status)))
}

/// The program's file.
fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(DIRS.map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file()).ok_or_else(|| {
        Error::failure(format!("there is no {program}")).hint(match program {
            "mkfs.ext4" | "e2fsck" => "install e2fsprogs",
            _ => "install util-linux",
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Instant;

    #[test]
    fn programs_are_bounded_and_their_errors_told() {
        let count = std::cell::Cell::new(0);
        let tell = |_: &str| count.set(count.get() + 1);
        let run = |program: &str, args: &[&str], limit| {
            run(program, (args, &[]), Path::new("30"), Duration::from_secs(limit), &tell)
        };
        let begun = Instant::now();
        let late = run("sleep", &[], 5).unwrap_err().to_string();
        assert!(late.contains("sleep 30 takes longer than 5 s"), "{late}");
        assert!(begun.elapsed() < Duration::from_secs(25) && count.get() > 1, "{}", count.get());
        run("test", &["30", "-eq"], 20).unwrap();
    }

    #[test]
    fn what_is_missing_or_fails_is_named() {
        let path = Path::new("/nonexistent");
        let quiet = |_: &str| {};
        let run =
            |program: &str| run(program, (&[], &[]), path, BEGIN, &quiet).unwrap_err().to_string();
        let failed = run("ls");
        assert!(
            failed.contains("ls /nonexistent failed") && failed.contains("No such"),
            "{failed}"
        );
        let missing = run("mkfs.none");
        assert_eq!(missing, "there is no mkfs.none; install util-linux");
    }

    #[test]
    fn a_place_that_is_not_what_it_seems_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let at = |name: &str| Usage::Ext4 { mount: real.join(name) };
        let refused = |name: &str, parts: &[&str]| {
            let error = refuse_place(&at(name)).unwrap_err();
            assert_eq!(error.exit_status(), 2);
            let error = error.to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        refuse_place(&at("a/b")).unwrap();
        fs::create_dir_all(real.join("a/b")).unwrap();
        refuse_place(&at("a/b")).unwrap();
        refused("a", &["cannot mount on", "it holds b,", "give another"]);
        fs::write(real.join("file"), "").unwrap();
        refused("file", &["no directory"]);
        refused("file/x", &["no directory"]);
        for (link, to) in [("link", "a"), ("none", "nothing")] {
            std::os::unix::fs::symlink(real.join(to), real.join(link)).unwrap();
        }
        let leads = |to: &str| format!("leads to {}", real.join(to).display());
        refused("link", &[&leads("a;")]);
        refused("link/b", &[&leads("a/b;")]);
        refused("link/b/new/er", &[&leads("a/b/new/er;")]);
        refused("a/../a/b", &[&leads("a/b;")]);
        refused("none", &[&leads("nothing: "), "remove that symbolic link"]);
        refused("none/x", &[&leads("nothing: ")]);
    }

    #[test]
    fn a_taken_place_is_refused() {
        let error = refuse_taken(Path::new("/proc")).unwrap_err().to_string();
        assert!(error.contains("is mounted on /proc already"), "{error}");
        refuse_taken(Path::new("/nonexistent")).unwrap();
    }
}
