//! ztier as users have it: the `ztier` binary next to this program.
//!
//! Invariant: a volume that `ztier up` has begun is taken down, also when that failed, was too late
//! or was interrupted. The volumes of a killed run are taken down, too, if only that run can have
//! made them.

use super::Disk;
use crate::report::warn;
use crate::sys::command::{run, undo};
use crate::sys::remains::{Known, Volume, is_gone};
use crate::sys::workdir::WorkDir;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use ztier::error::{Context, Error, Result};
use ztier::system::footprint;

const LIMIT: Duration = Duration::from_secs(30);
/// Reading swap back from a slow disk takes this long at most.
const SWAP_LIMIT: Duration = Duration::from_secs(300);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A volume that is up; taken down, with its data, when dropped.
pub struct Up {
    binary: PathBuf,
    name: String,
    endpoint: PathBuf,
    /// Directory for the machine's record of the log.
    state: WorkDir,
    /// The daemon's process, once it was asked for.
    pid: OnceLock<u32>,
}

impl Up {
    /// `ztier up NAME --size SIZE --export EXPORT`, with a unique name.
    ///
    /// # Errors
    /// The error of `ztier`, or the absence of an endpoint in its output.
    pub fn new(size: u64, export: &str) -> Result<Self> {
        Self::with(&["--size", &size.to_string(), "--export", export])
    }

    /// `ztier up NAME --backing DEV --log DEV --segment BYTES --export EXPORT`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_log(log: &Path, backing: &Path, segment: u32, export: &str) -> Result<Self> {
        let segment = segment.to_string();
        let (log, backing) = (log.to_string_lossy(), backing.to_string_lossy());
        Self::with(&[
            "--log",
            &log,
            "--backing",
            &backing,
            "--segment",
            &segment,
            "--export",
            export,
        ])
    }

    /// `ztier up NAME …` for swap: `--size SIZE --export auto`, `--ram-limit LIMIT` if given, and
    /// `--spill FILE` if given.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn for_swap(size: u64, limit: Option<&str>, spill: Option<&Path>) -> Result<Self> {
        let size = size.to_string();
        let mut args = vec!["--size", &size, "--export", "auto"];
        args.extend(limit.iter().flat_map(|limit| ["--ram-limit", limit]));
        let spill = spill.map(Path::to_string_lossy);
        args.extend(spill.iter().flat_map(|file| ["--spill", file]));
        Self::with(&args)
    }

    /// `ztier up NAME --backing DEV --ram-limit LIMIT`, with `log` in front of it if given, in the
    /// control group whose file for process ids is `join`. The cache has what the page cache has
    /// dropped, if it is to be `exclusive`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn cached(
        backing: &Path,
        limit: &str,
        log: Option<&Path>,
        exclusive: bool,
        join: Option<&Path>,
    ) -> Result<Self> {
        let backing = backing.to_string_lossy();
        let mut args = vec!["--backing", &backing, "--ram-limit", limit, "--export", "auto"];
        let log = log.map(Path::to_string_lossy);
        args.extend(log.iter().flat_map(|log| ["--log", log]));
        if exclusive {
            args.extend(["--exclusive", "on"]);
        }
        Self::within(join, &args)
    }

    fn with(args: &[&str]) -> Result<Self> {
        Self::within(None, args)
    }

    fn within(join: Option<&Path>, args: &[&str]) -> Result<Self> {
        Self::start(binary()?, join, args)
    }

    fn start(binary: PathBuf, join: Option<&Path>, args: &[&str]) -> Result<Self> {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{n}", std::process::id());
        // Temporary logs do not belong in the machine's record of logs.
        let state = WorkDir::new("state")?;
        let variable = format!("ZTIER_STATE_DIR={}", state.path().display());
        // Also after a failed, late or interrupted command there may be a volume: the guard comes
        // first.
        let mut new = Self { binary, name, endpoint: PathBuf::new(), state, pid: OnceLock::new() };
        let up = [&variable, &*new.binary.to_string_lossy(), "up", &new.name];
        let text = match join.map(Path::to_string_lossy) {
            None => run(Path::new("env"), &[&up[..], args].concat(), LIMIT)?,
            // The shell joins the group, and becomes the program.
            Some(join) => {
                let shell = ["-c", "echo $$ >\"$0\" && exec env \"$@\"", &*join];
                run(Path::new("sh"), &[&shell[..], &up[..], args].concat(), LIMIT)?
            }
        };
        let endpoint = endpoint(&text).ok_or_else(|| {
            Error::failure(format!("ztier up printed neither a device nor an NBD URI: {text:?}"))
        })?;
        new.endpoint = PathBuf::from(endpoint);
        Ok(new)
    }

    /// The NBD URI (with `--export nbd`) or the path of the device.
    pub fn endpoint(&self) -> std::borrow::Cow<'_, str> {
        self.endpoint.to_string_lossy()
    }

    /// `ztier restart NAME`.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn restart(&self) -> Result<()> {
        run(&self.binary, &["restart", &self.name], LIMIT).map(drop)
    }

    /// `ztier swapon NAME`, without changing settings of the machine.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn swapon(&self, priority: i32) -> Result<()> {
        let settings = ["--page-cluster", "keep", "--swappiness", "keep"];
        let priority = priority.to_string();
        // Where this is allowed at all, only a benchmark's machine would suffer.
        let args = [&["swapon", &self.name, "--force", "--priority", &priority], &settings[..]];
        run(&self.binary, &args.concat(), LIMIT).map(drop)
    }

    /// `ztier swapoff NAME`, which may take `limit`.
    pub fn swapoff(&self, limit: Duration) -> impl Fn() -> Result<()> + Send + Sync + 'static {
        let (binary, name) = (self.binary.clone(), self.name.clone());
        move || undo(&binary, &["swapoff", &name, "--force"], limit).map(drop)
    }

    /// `ztier status NAME --json`.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn status(&self) -> Result<serde_json::Value> {
        let text = run(&self.binary, &["status", &self.name, "--json"], LIMIT)?;
        serde_json::from_str(&text).context("`ztier status --json` is no JSON")
    }

    /// The daemon's process.
    fn pid(&self) -> Result<u32> {
        let lacks = || Error::failure("`ztier status --json` lacks the daemon's process");
        self.status()?["pid"].as_u64().and_then(|pid| pid.try_into().ok()).ok_or_else(lacks)
    }

    /// Bytes of memory that its daemon, memory holder and ballast have, as long as the daemon is
    /// the first one; asks no process.
    ///
    /// # Errors
    /// The error of `ztier`, or the daemon is gone.
    pub fn all_memory(&self) -> Result<u64> {
        // No process has the number 0.
        footprint::of_family(*self.pid.get_or_init(|| self.pid().unwrap_or(0)))
    }

    /// Bytes of memory that only its daemon has.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn memory(&self) -> Result<u64> {
        let pid = self.pid()?;
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).context(format!("cannot read {path}"))?;
        let kib = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        Ok((kib("RssAnon:") + kib("RssShmem:")) << 10)
    }

    /// `ztier stats NAME --format FORMAT`.
    pub fn stats(&self, format: &str) -> Result<String> {
        run(&self.binary, &["stats", &self.name, "--format", format], LIMIT)
    }
}

impl Disk for Up {
    fn path(&self) -> &Path {
        &self.endpoint
    }

    fn about(&self) -> String {
        let real = std::fs::canonicalize(&self.endpoint).unwrap_or_else(|_| self.endpoint.clone());
        format!("{} ({})", self.endpoint(), real.display())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let done = undo(&self.binary, &["down", &self.name, "--discard"], LIMIT);
        // A volume that did not come up need not be taken down.
        let is_left = || names(&self.binary).map_or(true, |all| all.contains(&self.name));
        if let Some(e) = done.err().filter(|_| is_left()) {
            warn(&format!("left volume {}: {e}", self.name));
        }
        for file in std::fs::read_dir(self.state.path()).into_iter().flatten().flatten() {
            if let Err(e) = std::fs::remove_file(file.path()) {
                warn(&format!("left {}: {e}", file.path().display()));
            }
        }
    }
}

/// Takes down the volumes of dead runs, with their data: only those of `known` runs, which are
/// known to have had volumes, as a volume with such a name alone may be a user's.
pub fn down_of(known: &Known) -> Vec<Volume> {
    let Ok(binary) = binary() else { return Vec::new() };
    let mut all = down_by(&binary, &known.runs);
    all.extend(super::stored::down_of(&known.hosts));
    all
}

fn down_by(binary: &Path, known: &BTreeSet<u32>) -> Vec<Volume> {
    let names = names(binary).unwrap_or_default().into_iter();
    let left = names.filter_map(|name| Some((run_of(&name).filter(|&id| is_gone(id))?, name)));
    let down = |(run, name): (u32, String)| {
        let discard = || undo(binary, &["down", &name, "--discard"], LIMIT).map(drop);
        let done = if known.contains(&run) {
            discard().or_else(|_| {
                // The volume may be in use as swap.
                undo(binary, &["swapoff", &name, "--force"], SWAP_LIMIT).and_then(|_| discard())
            })
        } else {
            Err(Error::failure("nothing else of that run is there")
                .hint(format!("if it is not yours: ztier down {name} --discard")))
        };
        (run, name, done)
    };
    left.map(down).collect()
}

/// The process that made a volume, from its name.
fn run_of(name: &str) -> Option<u32> {
    let (id, n) = name.strip_prefix("bench-")?.split_once('-')?;
    n.parse::<u32>().ok()?;
    id.parse().ok()
}

/// The names of all volumes.
fn names(binary: &Path) -> Result<Vec<String>> {
    let text = undo(binary, &["list", "--json"], LIMIT)?;
    let list: Vec<serde_json::Value> =
        serde_json::from_str(&text).context("`ztier list --json` is no JSON")?;
    Ok(list.iter().filter_map(|volume| volume["name"].as_str().map(str::to_owned)).collect())
}

/// Whether `ztier up` of the same build knows an option.
///
/// # Errors
/// There is no `ztier`.
pub fn takes(option: &str) -> Result<bool> {
    let help = run(binary()?, &["up", "--help"], LIMIT)?;
    Ok(help.split_whitespace().any(|word| word == option))
}

/// The `ztier` of the same build.
pub(super) fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find out where this program is")?;
    let binary = own.with_file_name("ztier");
    if binary.is_file() {
        Ok(binary)
    } else {
        Err(Error::failure(format!("there is no {}", binary.display()))
            .hint("build the workspace, or run ./bench"))
    }
}

/// The first word of the output that can be opened as an endpoint.
pub(super) fn endpoint(text: &str) -> Option<&str> {
    text.split_whitespace().find(|word| word.starts_with("/dev/") || word.starts_with("nbd"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A fake `ztier`, which records its arguments in files next to itself.
    fn fake(dir: &Path, what: &str) -> PathBuf {
        let path = dir.join("ztier");
        std::fs::write(&path, format!("#!/bin/sh\necho \"$@\" >>\"$0.log\"\n{what}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn told(binary: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(binary.with_extension("log")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_did_not_come_up_is_taken_down() {
        let dir = tempfile::tempdir().unwrap();
        for (what, why) in [
            ("[ $1 != up ] || { echo no room >&2; exit 1; }", "no room"),
            ("exit 0", "neither a device"),
        ] {
            let binary = fake(dir.path(), what);
            let _ = std::fs::remove_file(binary.with_extension("log"));
            let error = Up::start(binary.clone(), None, &["--size", "1M"]).err().unwrap();
            assert!(error.to_string().contains(why), "{error}");
            let told = told(&binary);
            let name = told[0].split(' ').nth(1).unwrap();
            assert_eq!(told[0], format!("up {name} --size 1M"));
            assert_eq!(told[1], format!("down {name} --discard"));
        }
    }

    #[test]
    fn volumes_of_runs_that_are_gone_are_taken_down() {
        let dir = tempfile::tempdir().unwrap();
        let gone = crate::sys::victim::gone();
        let other = crate::sys::victim::gone();
        let names = [
            format!("bench-{gone}-0"),
            format!("bench-{gone}-1"),
            format!("bench-{other}-0"),
            format!("bench-{}-0", std::process::id()),
            format!("bench-{gone}-data"),
            "bench".to_owned(),
        ];
        let list = names.clone().map(|name| format!("{{\"name\":\"{name}\"}}")).join(",");
        // The second volume is swap.
        let what = format!(
            "case $1 in list) echo '[{list}]';; swapoff) : >\"$0.off\";; \
             down) [ $2 = {} ] || [ -e \"$0.off\" ];; esac",
            names[0]
        );
        let binary = fake(dir.path(), &what);
        let done = down_by(&binary, &BTreeSet::from([gone]));
        let ended: Vec<(u32, &str, bool)> =
            done.iter().map(|(run, name, done)| (*run, &**name, done.is_ok())).collect();
        let expected =
            [(gone, &*names[0], true), (gone, &names[1], true), (other, &names[2], false)];
        assert_eq!(ended, expected);
        let down = |name: &str| format!("down {name} --discard");
        let swap = format!("swapoff {} --force", names[1]);
        let expected = ["list --json", &down(&names[0]), &down(&names[1]), &swap, &down(&names[1])];
        assert_eq!(told(&binary), expected);
    }

    #[test]
    fn the_endpoint_is_the_first_thing_that_can_be_opened() {
        assert_eq!(endpoint("scratch: /dev/ztier/scratch (fuse)\n"), Some("/dev/ztier/scratch"));
        let uri = "nbd+unix:///scratch?socket=/run/ztier/scratch.sock";
        assert_eq!(endpoint(uri), Some(uri));
        assert_eq!(endpoint("nothing"), None);
    }
}
