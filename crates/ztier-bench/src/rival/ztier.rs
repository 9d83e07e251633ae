//! Ours as users have it: the `ztier` binary that stands beside this one.

use super::Disk;
use crate::report::warn;
use crate::sys::command::{run, undo};
use crate::sys::workdir::WorkDir;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use ztier::error::{Context, Error, Result};

const LIMIT: Duration = Duration::from_secs(30);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A volume that is up; taken down, with its data, when dropped.
pub struct Up {
    binary: PathBuf,
    name: String,
    endpoint: PathBuf,
    /// What the machine remembers of its log.
    state: WorkDir,
}

impl Up {
    /// `ztier up NAME --size SIZE --export EXPORT`, with a name that nobody else has.
    ///
    /// # Errors
    /// What `ztier` says, or that it printed nothing to open.
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

    /// `ztier up NAME …` for swap: `--size SIZE --export auto`, `--ram-limit LIMIT` if there is
    /// one, and `--spill FILE`.
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

    /// `ztier up NAME --backing DEV --ram-limit LIMIT`, with `log` before it if there is one, in
    /// the control group whose file that takes process ids is `join`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn cached(
        backing: &Path,
        limit: &str,
        log: Option<&Path>,
        join: Option<&Path>,
    ) -> Result<Self> {
        let backing = backing.to_string_lossy();
        let mut args = vec!["--backing", &backing, "--ram-limit", limit, "--export", "auto"];
        let log = log.map(Path::to_string_lossy);
        args.extend(log.iter().flat_map(|log| ["--log", log]));
        Self::within(join, &args)
    }

    fn with(args: &[&str]) -> Result<Self> {
        Self::within(None, args)
    }

    fn within(join: Option<&Path>, args: &[&str]) -> Result<Self> {
        let binary = binary()?;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{n}", std::process::id());
        // What this machine remembers of a log is not for logs that are thrown away.
        let state = WorkDir::new("state")?;
        let variable = format!("ZTIER_STATE_DIR={}", state.path().display());
        let up = [&variable, &*binary.to_string_lossy(), "up", &name];
        let text = match join.map(Path::to_string_lossy) {
            None => run(Path::new("env"), &[&up[..], args].concat(), LIMIT)?,
            // The shell joins, and becomes the program.
            Some(join) => {
                let shell = ["-c", "echo $$ >\"$0\" && exec env \"$@\"", &*join];
                run(Path::new("sh"), &[&shell[..], &up[..], args].concat(), LIMIT)?
            }
        };
        // From here on the volume is up: the guard must exist before anything else can fail.
        let mut up = Self { binary, name, endpoint: PathBuf::new(), state };
        let endpoint = endpoint(&text).ok_or_else(|| {
            Error::failure(format!("ztier up printed neither a device nor an NBD URI: {text:?}"))
        })?;
        up.endpoint = PathBuf::from(endpoint);
        Ok(up)
    }

    /// The NBD URI (with `--export nbd`) or the path of the device.
    pub fn endpoint(&self) -> std::borrow::Cow<'_, str> {
        self.endpoint.to_string_lossy()
    }

    /// `ztier restart NAME`.
    ///
    /// # Errors
    /// What `ztier` says.
    pub fn restart(&self) -> Result<()> {
        run(&self.binary, &["restart", &self.name], LIMIT).map(drop)
    }

    /// `ztier swapon NAME`, with settings of the machine as they are.
    ///
    /// # Errors
    /// What `ztier` says.
    pub fn swapon(&self, priority: i32) -> Result<()> {
        let settings = ["--page-cluster", "keep", "--swappiness", "keep"];
        let priority = priority.to_string();
        // Where this may be done at all, it is a benchmark's machine that would suffer.
        let args = [&["swapon", &self.name, "--force", "--priority", &priority], &settings[..]];
        run(&self.binary, &args.concat(), LIMIT).map(drop)
    }

    /// `ztier swapoff NAME`, which may take so long.
    pub fn swapoff(&self, limit: Duration) -> impl Fn() -> Result<()> + Send + Sync + 'static {
        let (binary, name) = (self.binary.clone(), self.name.clone());
        move || undo(&binary, &["swapoff", &name, "--force"], limit).map(drop)
    }

    /// `ztier status NAME --json`.
    ///
    /// # Errors
    /// What `ztier` says.
    pub fn status(&self) -> Result<serde_json::Value> {
        let text = run(&self.binary, &["status", &self.name, "--json"], LIMIT)?;
        serde_json::from_str(&text).context("`ztier status --json` is no JSON")
    }

    /// Memory of its daemon that no other process has, in bytes.
    ///
    /// # Errors
    /// What `ztier` says.
    pub fn memory(&self) -> Result<u64> {
        let status = self.status()?;
        let lacks = || Error::failure("`ztier status --json` lacks the daemon's process");
        let pid = status["pid"].as_u64().ok_or_else(lacks)?;
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
        if let Err(e) = undo(&self.binary, &["down", &self.name, "--discard"], LIMIT) {
            warn(&format!("left volume {}: {e}", self.name));
        }
        for file in std::fs::read_dir(self.state.path()).into_iter().flatten().flatten() {
            if let Err(e) = std::fs::remove_file(file.path()) {
                warn(&format!("left {}: {e}", file.path().display()));
            }
        }
    }
}

/// Whether `ztier up` of the same build takes an option.
///
/// # Errors
/// There is no `ztier`.
pub fn takes(option: &str) -> Result<bool> {
    let help = run(binary()?, &["up", "--help"], LIMIT)?;
    Ok(help.split_whitespace().any(|word| word == option))
}

/// The `ztier` of the same build.
fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find out where this program is")?;
    let binary = own.with_file_name("ztier");
    if binary.is_file() {
        Ok(binary)
    } else {
        Err(Error::failure(format!("there is no {}", binary.display()))
            .mend("build the workspace, or run ./bench"))
    }
}

/// The first word of the output that can be opened.
fn endpoint(text: &str) -> Option<&str> {
    text.split_whitespace().find(|word| word.starts_with("/dev/") || word.starts_with("nbd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_the_first_thing_that_can_be_opened() {
        assert_eq!(endpoint("scratch: /dev/ztier/scratch (fuse)\n"), Some("/dev/ztier/scratch"));
        let uri = "nbd+unix:///scratch?socket=/run/ztier/scratch.sock";
        assert_eq!(endpoint(uri), Some(uri));
        assert_eq!(endpoint("nothing"), None);
    }
}
