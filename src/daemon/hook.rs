//! Runs a program of the administrator's: when memory and swap are nearly full, and when that is
//! over. How it runs holds for the program of `on-event`, too.
//!
//! Invariants: one at a time, each for [`LONGEST`] at most; what happens meanwhile is told next,
//! the last of it. The program has none of the daemon's privileges in a shortage of memory
//! (`ztier hook`): it could take the last memory, and would not be ended for that.

use super::log;
use crate::device::come_first;
use crate::error::{Context, Error, Result};
use crate::system::within;
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The word that starts the process: `ztier hook PROGRAM`.
pub const WORD: &str = "hook";
/// How long the program may run.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// Interval between looks whether it has ended.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// What of the daemon's environment the program gets, besides what begins with `ZTIER_` or `LC_`:
/// no credentials of a store, no sockets of the service manager.
const GIVEN: [&str; 7] = ["PATH", "HOME", "LANG", "LOGNAME", "SHELL", "TZ", "USER"];

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    /// Memory and swap are nearly full, or that is over.
    pub full: bool,
    /// The room for pages, in bytes.
    pub room: u64,
}

#[derive(Debug, Default)]
struct Inbox {
    news: Mutex<(Option<News>, bool)>,
    changed: Condvar,
}

impl Inbox {
    /// Waits for news; `None`: the thread has to end.
    fn next(&self) -> Option<News> {
        let mut inbox = self.news.lock();
        loop {
            match &mut *inbox {
                (_, true) => return None,
                (news @ Some(_), _) => return news.take(),
                _ => self.changed.wait(&mut inbox),
            }
        }
    }

    fn stops(&self) -> bool {
        self.news.lock().1
    }
}

/// The thread that runs the program; dropping this ends both.
pub(super) struct Hook {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl Hook {
    /// Runs `program` for `volume` from now on.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(program: PathBuf, volume: String) -> Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let theirs = Arc::clone(&inbox);
        let work = move || {
            while let Some(news) = theirs.next() {
                let command = command_for(&program, &volume, news);
                if let Err(e) = run(command, None, &|| theirs.stops()) {
                    log::line(&format!("the program on-full, {}, {e}", program.display()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("ztier-hook".into()).spawn(work);
        Ok(Self { inbox, thread: Some(thread.context("cannot start a thread")?) })
    }

    /// Has the program run, soon.
    pub fn tell(&self, news: News) {
        self.inbox.news.lock().0 = Some(news);
        self.inbox.changed.notify_one();
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.inbox.news.lock().1 = true;
        self.inbox.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // the thread returns nothing
        }
    }
}

fn command_for(program: &Path, volume: &str, news: News) -> Command {
    let mut command = command(program);
    command
        .env("ZTIER_VOLUME", volume)
        .env("ZTIER_EVENT", if news.full { "full" } else { "over" })
        .env("ZTIER_ROOM_BYTES", news.room.to_string());
    command
}

/// The command that becomes `program` without the daemon's privileges, see [`main`].
pub(super) fn command(program: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ztier").arg(WORD).arg(program).current_dir("/").env_clear();
    let given = |name: &str| {
        GIVEN.contains(&name) || ["ZTIER_", "LC_"].iter().any(|start| name.starts_with(start))
    };
    command.envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(given)));
    command
}

/// Runs a command in a process group of its own, with `input`, of less than a pipe's 64 KiB, as
/// its standard input. The group is killed if it takes too long, or when `stops` says so.
pub(super) fn run(
    mut command: Command,
    input: Option<&[u8]>,
    stops: &dyn Fn() -> bool,
) -> Result<()> {
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    // What it says goes to the daemon's log.
    command.process_group(0).stdin(stdin).stdout(Stdio::null());
    let mut child = command.spawn().context("can't be run")?;
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        let _ = pipe.write_all(input); // it need not read
    }
    match wait(&mut child, stops) {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(Error::failure(format!("failed: {status}"))),
        None if stops() => Ok(()),
        None => Err(Error::failure(format!("was killed after {} s", LONGEST.as_secs()))),
    }
}

/// Waits for the program; `None`: it was killed.
fn wait(child: &mut Child, stops: &dyn Fn() -> bool) -> Option<ExitStatus> {
    let until = Instant::now() + LONGEST;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= until || stops() {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL); // it may have ended just now
            }
            let _ = within::killed(child); // the system's errors end nothing here
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

/// Becomes `program` in this process, without the daemon's privileges in a shortage of memory.
///
/// # Errors
/// The program can't be run.
pub fn main(program: &Path) -> Result<()> {
    // Giving up a privilege needs none, and without these the program runs as well.
    come_first(false);
    let _ = rustix::process::configure_io_flusher_behavior(false);
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    Err(Command::new(program).exec()).context(format!("cannot run {}", program.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;

    fn sh(script: &str) -> Command {
        let mut sh = Command::new("sh");
        sh.args(["-c", script]);
        sh
    }

    #[test]
    fn a_program_that_fails_is_told_of() {
        run(sh("exit 0"), None, &|| false).unwrap();
        let failed = run(sh("exit 3"), None, &|| false).unwrap_err().to_string();
        assert!(failed.contains("failed: exit status: 3"), "{failed}");
        let reads = sh("read -r line && [ \"$line\" = '{\"a\":1}' ]");
        run(reads, Some(b"{\"a\":1}\n"), &|| false).unwrap();
        run(sh("exit 0"), Some(&[b'x'; 9000]), &|| false).unwrap();
        assert!(run(Command::new("/no/such program"), None, &|| false).is_err());
    }

    #[test]
    fn what_happens_while_it_runs_is_told_next_the_last_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let inbox = Inbox::default();
        for (full, room) in [(true, 1), (false, 2), (true, 3)] {
            inbox.news.lock().0 = Some(News { full, room });
        }
        assert_eq!(inbox.next(), Some(News { full: true, room: 3 }));
        let hook = Hook::start(dir.path().join("none"), "v".into()).unwrap();
        inbox.news.lock().1 = true;
        assert_eq!(inbox.next(), None);
        drop(hook);
    }

    #[test]
    fn a_program_that_takes_too_long_ends_with_what_it_has_started() {
        let mut child = sh("sleep 1000 & echo $!; wait")
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pid = [0; 16];
        let read = child.stdout.take().unwrap().read(&mut pid).unwrap();
        let pid = std::str::from_utf8(&pid[..read]).unwrap().trim().to_owned();
        assert_eq!(wait(&mut child, &|| true), None);
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let until = Instant::now() + Duration::from_secs(10);
        while !state().is_empty() && !state().contains(") Z ") {
            assert!(Instant::now() < until, "{}", state());
            std::thread::sleep(LOOK);
        }
    }
}
