//! ztier on hosts that share a store of objects: each host is a set of directories, so that volumes
//! of one name on two hosts are owners of their own.
//!
//! Invariants: volumes are exported over NBD, which needs no root and leaves no mount. What a host
//! has brought up is taken down with it, whatever state its daemon is in; the next run does it for
//! a run that was killed.

use super::nbd::Client;
use super::ztier::{binary, endpoint};
use crate::report::warn;
use crate::sys::command::{run, undo};
use crate::sys::remains::Volume as Left;
use crate::sys::usage::{Usage, pss_of_family};
use crate::sys::workdir::Tree;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// Limit on the time of a command: longer than the product tries to reach a store.
const LIMIT: Duration = Duration::from_secs(150);
/// Limit on the time to bring a log's data to a store.
const DRAIN_LIMIT: Duration = Duration::from_secs(600);
/// Limit on the time until a killed daemon is gone.
const DYING: Duration = Duration::from_secs(10);
/// The only volume of a host.
const NAME: &str = "vol";

/// A host; its volume goes down when it is dropped.
pub struct Host {
    dir: Tree,
    binary: PathBuf,
    access: Vec<(String, String)>,
}

impl Host {
    /// A host without volumes. `access` are the variables with which it reaches the store.
    ///
    /// # Errors
    /// There is no `ztier`; no directory can be made.
    pub fn new(access: &[(String, String)]) -> Result<Self> {
        Ok(Self { dir: Tree::new("host")?, binary: binary()?, access: access.into() })
    }

    /// Arguments of `env` for `ztier` on this host, with no variables of another store.
    fn command(&self, args: &[&str]) -> Vec<String> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let others = names.filter(|name| name.starts_with("AWS_"));
        let mut all: Vec<String> = others.flat_map(|name| ["-u".to_owned(), name]).collect();
        all.extend(environment(self.dir.path()));
        all.extend(self.access.iter().map(|(name, value)| format!("{name}={value}")));
        all.push(self.binary.to_string_lossy().into_owned());
        all.extend(args.iter().map(|&arg| arg.to_owned()));
        all
    }

    /// `ztier ARGS`, with its output.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn ztier(&self, args: &[&str], limit: Duration) -> Result<String> {
        run("env", &self.command(args), limit)
    }

    /// `ztier up vol --export nbd ARGS`.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn up(&self, args: &[&str]) -> Result<Volume<'_>> {
        let up = ["up", NAME, "--export", "nbd"];
        let text = self.ztier(&[&up[..], args].concat(), LIMIT)?;
        let uri = endpoint(&text).map(str::to_owned);
        let uri =
            uri.ok_or_else(|| Error::failure(format!("ztier up printed no URI: {text:?}")))?;
        Ok(Volume { host: self, uri, pid: OnceLock::new() })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for (name, done) in take_down(&self.binary, self.dir.path()) {
            if let Err(e) = done {
                warn(&format!("left volume {name} of {}: {e}", self.dir.path().display()));
            }
        }
    }
}

/// The directories of a host, as arguments of `env`.
fn environment(dir: &Path) -> Vec<String> {
    let of = |(name, sub): (&str, &str)| format!("{name}={}", dir.join(sub).display());
    [("ZTIER_RUN_DIR", "run"), ("ZTIER_STATE_DIR", "var"), ("ZTIER_CONFIG_DIR", "etc")]
        .map(of)
        .into()
}

/// Takes down all volumes of a host, with their data; a daemon that does not answer is killed.
fn take_down(binary: &Path, dir: &Path) -> Vec<(String, Result<()>)> {
    let entries = std::fs::read_dir(dir.join("run")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().strip_suffix(".json")?.to_owned();
        (!name.starts_with('.')).then_some(name)
    });
    let down = |name: String| {
        let mut args = environment(dir);
        args.push(binary.to_string_lossy().into_owned());
        args.extend(["down", &name, "--discard", "--force"].map(str::to_owned));
        let down = || undo("env", &args, LIMIT).map(drop);
        let done = down().or_else(|e| {
            kill_recorded(&dir.join("run").join(format!("{name}.json")));
            down().map_err(|_| e)
        });
        (name, done)
    };
    names.collect::<Vec<_>>().into_iter().map(down).collect()
}

/// The last resort: kills the process that a state file names, if it is a daemon of ztier.
fn kill_recorded(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let state: Value = serde_json::from_str(&text).unwrap_or_default();
    let pid = state["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let Some(pid) = pid.filter(|pid| *pid > 1) else { return };
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if line.starts_with("ztier\0daemon\0") {
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
    }
}

/// Takes down the volumes of hosts of dead runs.
pub fn down_of(hosts: &[(u32, PathBuf)]) -> Vec<Left> {
    let Ok(binary) = binary() else { return Vec::new() };
    let of = |(run, dir): &(u32, PathBuf)| {
        let run = *run;
        take_down(&binary, dir).into_iter().map(move |(name, done)| (run, name, done))
    };
    hosts.iter().flat_map(of).collect()
}

/// What a daemon has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// User and system time.
    pub cpu: Duration,
    /// Memory (PSS) of it and its children.
    pub memory: u64,
}

/// A volume that is up. It stays up when this is dropped, as long as its host.
pub struct Volume<'a> {
    host: &'a Host,
    uri: String,
    /// The daemon's process, once it was asked for.
    pid: OnceLock<u32>,
}

impl Volume<'_> {
    /// Its NBD URI.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// A new connection.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn connect(&self) -> Result<Client> {
        let socket = self.host.dir.path().join("run").join(format!("{NAME}.nbd"));
        Client::connect(&socket, NAME)
    }

    /// The daemon's process.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn pid(&self) -> Result<u32> {
        if let Some(pid) = self.pid.get() {
            return Ok(*pid);
        }
        let lacks = || Error::failure("`ztier status --json` lacks the daemon's process");
        let pid = self.status()?["pid"].as_u64().and_then(|pid| pid.try_into().ok());
        pid.map(|pid| *self.pid.get_or_init(|| pid)).ok_or_else(lacks)
    }

    fn status(&self) -> Result<Value> {
        let text = self.host.ztier(&["status", NAME, "--json"], LIMIT)?;
        serde_json::from_str(&text).context("`ztier status --json` is no JSON")
    }

    /// Its counters.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn stats(&self) -> Result<Value> {
        Ok(self.status()?["stats"].clone())
    }

    /// A counter of the volume in its store.
    ///
    /// # Errors
    /// The error of `ztier`; there is no such counter.
    pub fn counted(&self, name: &str) -> Result<u64> {
        let lacks = || Error::failure(format!("`ztier status --json` has no {name} of the store"));
        self.stats()?["object"][name].as_u64().ok_or_else(lacks)
    }

    /// Brings all that its log holds to the backing store.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn drain(&self) -> Result<()> {
        self.host.ztier(&["drain", NAME], DRAIN_LIMIT).map(drop)
    }

    /// What its daemon has used so far.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn used(&self) -> Result<Used> {
        let pid = self.pid()?;
        Ok(Used { cpu: Usage::of(pid)?.cpu(), memory: pss_of_family(pid)? })
    }

    /// Sends its daemon SIGKILL, as the end of a host does to it.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn kill(&self) -> Result<()> {
        let pid = i32::try_from(self.pid()?).ok().and_then(Pid::from_raw);
        let no_process = || Error::failure("the daemon has no process");
        kill_process(pid.ok_or_else(no_process)?, Signal::KILL).context("cannot kill a daemon")
    }

    /// Waits until its daemon, which was killed, is gone.
    ///
    /// # Errors
    /// It is still there.
    pub fn wait_for_death(&self) -> Result<()> {
        let pid = self.pid()?;
        let path = format!("/proc/{pid}/cmdline");
        let end = Instant::now() + DYING;
        // A dead process that nothing has waited for has an empty command line.
        while std::fs::read(&path).is_ok_and(|line| !line.is_empty()) {
            if Instant::now() > end {
                return Err(Error::failure(format!("process {pid} does not die")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Takes it down in order.
    ///
    /// # Errors
    /// The error of `ztier`.
    pub fn down(self) -> Result<()> {
        self.host.ztier(&["down", NAME], LIMIT).map(drop)
    }
}
