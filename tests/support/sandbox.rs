//! The real program in its own directories, taken down also if the test fails.
#![allow(clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Limit on the time of each command and wait here.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A run directory and a configuration directory; dropping it takes down every volume in it.
pub struct Sandbox {
    dir: TempDir,
}

/// The result of a command.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    /// The output; the test fails if the command failed.
    pub fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.out
    }

    /// The output of a command that inspects a volume, whether the volume is healthy or not.
    pub fn looked(self) -> String {
        assert!(matches!(self.status, 0 | 6), "{self:?}");
        self.out
    }

    /// The one-line error, which must contain each of `parts`.
    pub fn refused(self, status: i32, parts: &[&str]) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "not one line: {self:?}");
        assert!(self.err.starts_with("ztier: "), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is missing in {self:?}");
        }
        self.err
    }

    /// The output as JSON.
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

impl Sandbox {
    pub fn new() -> Self {
        // Files for drives that other users can read are refused.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        Self { dir: tempfile::Builder::new().prefix("ztier-").tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A name for a volume with a block device, unique to this sandbox: all tests share
    /// `/dev/ztier`, also those of one process.
    pub fn device_name(&self, what: &str) -> String {
        let own = self.dir.path().file_name().unwrap().to_str().unwrap();
        format!("{what}-{}", own.trim_start_matches("ztier-"))
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub fn config_dir(&self) -> PathBuf {
        self.dir.path().join("etc")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("var")
    }

    /// Names of all files in the run directory.
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run_dir()).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ztier"));
        command
            .args(args)
            .env("ZTIER_RUN_DIR", self.run_dir())
            .env("ZTIER_CONFIG_DIR", self.config_dir())
            .env("ZTIER_STATE_DIR", self.state_dir())
            .env_remove("NOTIFY_SOCKET")
            .env_remove("COLUMNS")
            .stdin(Stdio::null());
        command
    }

    pub fn ztier(&self, args: &[&str]) -> Done {
        finish(self.command(args))
    }

    pub fn status(&self, name: &str) -> Value {
        serde_json::from_str(&self.ztier(&["status", name, "--json"]).looked()).unwrap()
    }

    pub fn pid(&self, name: &str) -> Pid {
        let pid = self.status(name)["pid"].as_i64().unwrap();
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    /// The pid of a volume's daemon, also if it does not answer.
    pub fn pid_of(&self, name: &str) -> Pid {
        let state = fs::read(self.run_dir().join(format!("{name}.json"))).unwrap();
        let state: Value = serde_json::from_slice(&state).unwrap();
        Pid::from_raw(i32::try_from(state["pid"].as_i64().unwrap()).unwrap()).unwrap()
    }

    /// The memory holder of a volume, as soon as there is one.
    pub fn memory_holder(&self, name: &str) -> Pid {
        let path = self.run_dir().join(format!("{name}.keep"));
        let mut memory_holder = None;
        eventually("memory is kept", || {
            memory_holder = listener(&path);
            memory_holder.is_some()
        });
        memory_holder.unwrap()
    }

    /// Kills a volume's daemon and the memory holder.
    pub fn kill_both(&self, name: &str) {
        let (daemon, memory_holder) = (self.pid(name), self.memory_holder(name));
        // Otherwise the daemon would notice the death of its memory holder, and start another.
        kill_process(daemon, Signal::STOP).unwrap();
        kill_process(memory_holder, Signal::KILL).unwrap();
        kill_process(daemon, Signal::KILL).unwrap();
        eventually("the daemon is gone", || {
            self.ztier(&["status", name]).err.contains("the daemon of volume")
        });
        // A dying memory holder takes connections, and answers nothing.
        let keep = self.run_dir().join(format!("{name}.keep"));
        eventually("the memory holder is gone", || UnixStream::connect(&keep).is_err());
    }

    /// Kills a volume's daemon with SIGKILL, and waits until it is gone.
    pub fn kill(&self, name: &str) {
        let pid = self.pid(name);
        kill_process(pid, Signal::KILL).unwrap();
        // A dying daemon does not answer, and still has its lock.
        eventually("the daemon is gone", || {
            self.ztier(&["status", name]).err.contains("the daemon of volume")
        });
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for file in self.files() {
            let Some(name) = file.strip_suffix(".json") else { continue };
            // Must not panic: a panic during unwinding would abort the process, and leave the
            // directories of all other tests behind.
            let down =
                || try_finish(self.command(&["down", name, "--discard", "--force"]), PATIENCE);
            let done = down();
            if done.as_ref().is_none_or(|done| done.status != 0) {
                eprintln!("{name} was left: {done:?}");
                self.kill_recorded(&file);
                eprintln!("{:?}", down());
            }
        }
    }
}

impl Sandbox {
    /// The last resort: kills the process that a state file names, if it is a ztier process of the
    /// test.
    fn kill_recorded(&self, file: &str) {
        let state = fs::read_to_string(self.run_dir().join(file)).unwrap_or_default();
        let state: Value = serde_json::from_str(&state).unwrap_or_default();
        let pid = state["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let Some(pid) = pid.filter(|pid| *pid > 1) else { return };
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.starts_with("ztier\0daemon\0") || line.contains("--foreground") {
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}

/// The process that listens on a Unix socket.
fn listener(path: &Path) -> Option<Pid> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let line = sockets.lines().find(|line| line.ends_with(path.to_str().unwrap()))?;
    let link = PathBuf::from(format!("socket:[{}]", line.split_whitespace().nth(6)?));
    let has = |pid: &str| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|to| to == link))
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| has(&pid.to_string())).and_then(Pid::from_raw)
}

/// Stops a process, and waits until all its threads have stopped: a thread may answer until then.
pub fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    eventually("the process is stopped", || {
        fs::read_dir(&tasks).unwrap().flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // A thread that has ended answers nothing.
            stat.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" T"))
        })
    });
}

/// Runs `command` to its end, at most for [`PATIENCE`].
pub fn finish(command: Command) -> Done {
    finish_within(command, PATIENCE)
}

/// Runs `command` to its end, at most for `patience`.
pub fn finish_within(command: Command, patience: Duration) -> Done {
    try_finish(command, patience).expect("the command never ends")
}

/// The result of a command; `None` if it still ran after `patience`, and was killed.
pub fn try_finish(mut command: Command, patience: Duration) -> Option<Done> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Guard(child);
    let mut pipes = (child.0.stdout.take().unwrap(), child.0.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let (mut out, mut err) = (String::new(), String::new());
        // The outputs are small, so reading one after the other cannot block the writer for long.
        let _ = pipes.0.read_to_string(&mut out);
        let _ = pipes.1.read_to_string(&mut err);
        (out, err)
    });
    let deadline = Instant::now() + patience;
    let mut status = None;
    while status.is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
        status = child.0.try_wait().unwrap();
    }
    if status.is_none() {
        eprintln!("{command:?} still runs: {}", waiting(child.0.id()));
    }
    drop(child);
    let (out, err) = reader.join().unwrap();
    Some(Done { status: status?.code().unwrap_or(-1), out, err })
}

/// Where each thread of a process waits, and what the process has open.
fn waiting(pid: u32) -> String {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let entries = |name| fs::read_dir(process.join(name)).into_iter().flatten().flatten();
    let threads = entries("task").map(|task| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{} in {}, {}", read("comm").trim(), read("wchan"), read("syscall").trim())
    });
    let open = entries("fd").filter_map(|fd| {
        let to = fs::read_link(fd.path()).ok()?;
        Some(format!("{} {}", fd.file_name().to_string_lossy(), to.display()))
    });
    threads.chain(open).collect::<Vec<_>>().join("; ")
}

/// The exit status of `child`, −1 for a signal.
pub fn wait(child: &mut Child) -> i32 {
    wait_within(child, PATIENCE)
}

fn wait_within(child: &mut Child, patience: Duration) -> i32 {
    let mut status = None;
    within(patience, "the command ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code().unwrap_or(-1)
}

/// A child that does not outlive the test.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Waits until `so` returns `true`, at most for [`PATIENCE`].
pub fn eventually(what: &str, so: impl FnMut() -> bool) {
    within(PATIENCE, what, so);
}

fn within(patience: Duration, what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
