//! Starts a daemon: this program again, detached from the terminal, which reports once when it is
//! ready.
//!
//! One socket pair, the child's standard input, carries the plan to the child, and the child's
//! progress and answer back. The messages are like those of the control protocol.

use super::credentials;
use super::lifetime::{LOOKERS, Ready, run};
use super::memory_holder::Kept;
use super::phase::End;
use super::resident::Locked;
use super::state::{self, Found, Lock};
use crate::config::paths::VolumeFiles;
use crate::config::{Paths, Plan};
use crate::control::{Envelope, LONGEST_REPLY, LONGEST_REQUEST, Reply, receive_next, send};
use crate::error::{Context, Error, Result};
use crate::patience::eventually;
use crate::private;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::value::to_raw_value;
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take until its device is usable, or until its next progress report.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same of a volume in a store: a request of a store may take a minute.
const PATIENCE_WITH_STORE: Duration = Duration::from_secs(90);
/// How long a late daemon may take to end.
const PATIENCE_TO_END: Duration = Duration::from_secs(5);

/// Starts a detached daemon for `plan` and waits until its device is usable. `progress` is called
/// with the daemon's reports.
///
/// # Errors
/// As [`Starting::finish`].
pub fn spawn(plan: &Plan, paths: &Paths, progress: &dyn Fn(&str)) -> Result<Ready> {
    Starting::begin(plan, paths, LOOKERS, false)?.finish(progress)
}

/// A daemon that was started. Dropping this before [`Starting::finish`] ends the daemon.
pub struct Starting<'a> {
    plan: &'a Plan,
    paths: &'a Paths,
    /// `None` once the daemon is up, or gone.
    child: Option<Child>,
    ours: UnixStream,
    /// How long the daemon may wait, without a report, for another daemon to release the volume.
    patience: Duration,
    /// Whether the daemon takes over kept memory.
    goes_on: bool,
    /// The daemon writes its first lines before it serves a volume that may carry swap.
    _log: Option<Locked>,
}

impl<'a> Starting<'a> {
    /// Starts a daemon. It touches nothing of the volume while another daemon has it, and waits for
    /// that up to `patience`.
    ///
    /// # Errors
    /// No process can be started.
    pub fn begin(
        plan: &'a Plan,
        paths: &'a Paths,
        patience: Duration,
        follows: bool,
    ) -> Result<Self> {
        paths.prepare()?;
        let what = || format!("cannot start the daemon of volume `{}`", plan.name);
        let (ours, theirs) = UnixStream::pair().context(what())?;
        let files = paths.volume(&plan.name);
        let (log, goes_on) = (open_log(&files.log)?, Kept::is_there(&files.keep));
        let locked = goes_on.then(|| Locked::end_of(&files.log).ok()).flatten();
        let child = Command::new("/proc/self/exe")
            .arg0_of(&plan.name)
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context(what())?;
        // The Command, and with it this process's copy of the child's end, is dropped: if the child
        // dies, reading ends.
        let starting =
            Self { plan, paths, child: Some(child), ours, patience, goes_on, _log: locked };
        let patience_ms = patience.as_millis() as u64;
        let order = Envelope::new(Told { plan, paths, patience_ms, follows });
        send(&starting.ours, &order, Instant::now() + PATIENCE).context(what())?;
        Ok(starting)
    }

    /// Tells the daemon to serve the volume even if this process ends: the present daemon is told
    /// to go.
    pub fn stays(&self) {
        let said = self
            .ours
            .try_clone()
            .context("cannot tell the next daemon")
            .and_then(|to| send(&to, &Envelope::new(Stay {}), Instant::now() + PATIENCE));
        // If the daemon is gone, `finish` reports that.
        let _ = said;
    }

    /// Waits until the device is usable. `progress` is called with the daemon's reports.
    ///
    /// # Errors
    /// The daemon's own error; or it died or was late: then it was ended, and its leftovers were
    /// removed.
    pub fn finish(mut self, progress: &dyn Fn(&str)) -> Result<Ready> {
        let most = if self.plan.is_in_store() { PATIENCE_WITH_STORE } else { PATIENCE };
        match listen(&mut self.ours, progress, self.patience + most).map(Reply::into_result) {
            Ok(Ok(ready)) => {
                self.child = None;
                serde_json::from_str(ready.get())
                    .context(format!("cannot understand the daemon of `{}`", self.plan.name))
            }
            // The child has cleaned up and is about to end; waiting leaves no zombie.
            Ok(Err(e)) => Err(e),
            Err(e) => {
                self.end();
                Err(after_failure(self.plan, self.paths, &e))
            }
        }
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            end(&mut child, self.goes_on);
        }
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The parent's order to the child.
#[derive(serde::Serialize)]
struct Told<'a> {
    plan: &'a Plan,
    paths: &'a Paths,
    patience_ms: u64,
    follows: bool,
}

/// The order as the child reads it.
#[derive(serde::Deserialize)]
struct Heard {
    plan: Plan,
    paths: Paths,
    #[serde(default)]
    patience_ms: u64,
    #[serde(default)]
    follows: bool,
}

/// Tells the child to go on without the parent.
#[derive(serde::Serialize, serde::Deserialize)]
struct Stay {}

/// A message of the child to the parent.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    /// Its progress.
    Progress(String),
    /// The last message: it is up, or the error.
    Done(Reply),
}

/// Waits for the child's last message, at most `patience` from one message to the next.
fn listen(ours: &mut UnixStream, progress: &dyn Fn(&str), patience: Duration) -> Result<Reply> {
    let mut rest = Vec::new();
    loop {
        match receive_next(ours, &mut rest, LONGEST_REPLY, Instant::now() + patience)? {
            Word::Progress(text) => progress(&text),
            Word::Done(reply) => return Ok(reply),
        }
    }
}

trait Arg0 {
    fn arg0_of(&mut self, name: &str) -> &mut Self;
}

impl Arg0 for Command {
    /// The name that `ps` shows: `ztier daemon NAME`.
    fn arg0_of(&mut self, name: &str) -> &mut Self {
        use std::os::unix::process::CommandExt;
        self.arg0("ztier").args(["daemon", name])
    }
}

/// Runs the child's side in this process, whose standard input is the socket pair.
///
/// # Errors
/// No parent is there to receive the error; otherwise errors go to the parent.
pub fn detached_main() -> Result<()> {
    // Fails only for a process that already leads its group, which is equivalent.
    let _ = rustix::process::setsid();
    let input = std::io::stdin().as_fd().try_clone_to_owned().context("cannot use the input")?;
    let parent = UnixStream::from(input);
    let deadline = Instant::now() + PATIENCE;
    // Another message may follow directly behind the order.
    let mut rest = Vec::new();
    let Heard { plan, paths, patience_ms, follows } =
        receive_next(&parent, &mut rest, LONGEST_REQUEST, deadline)
            .map_err(|e| e.hint("`ztier daemon` is started by `ztier up` alone"))?;
    let rest = RefCell::new(rest);
    let tell = |word| {
        let message = Envelope::new(word);
        send(&parent, &message, Instant::now() + PATIENCE)
    };
    let done = |result| tell(Word::Done(Reply::of(result)));
    let progress = |text: &str| {
        // It matters only when the device is usable whether the parent still listens.
        let _ = tell(Word::Progress(text.to_owned()));
    };
    let mut is_ready = false;
    let patience = LOOKERS.max(Duration::from_millis(patience_ms));
    let parted = Cell::new(false);
    let wanted = || {
        // A parent that hangs up without a message no longer wants the daemon.
        let mut rest = rest.borrow_mut();
        if !parted.get() && (!rest.is_empty() || says_something(&parent)) {
            let deadline = Instant::now() + PATIENCE;
            let word = receive_next::<Stay>(&parent, &mut rest, LONGEST_REQUEST, deadline);
            parted.set(word.is_ok());
            return word.is_ok();
        }
        true
    };
    let order =
        super::Order { plan, paths: &paths, patience, foreground: false, follows, wanted: &wanted };
    let ran = run(order, &progress, |ready| {
        is_ready = true;
        done(Ok(to_raw_value(ready).context("cannot encode readiness")?))
    });
    if is_ready { ran.map(drop) } else { ran.map(drop).or_else(|e| done(Err(e))) }
}

/// Whether the stream is readable; its end counts, too.
fn says_something(stream: &UnixStream) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
}

/// Becomes the next daemon in this process, in the foreground, with the plan of the volume's state
/// file: what a daemon in the foreground becomes when it replaces itself.
///
/// # Errors
/// There is nothing to take over; and those of [`run`].
pub fn again_main(name: &str) -> Result<()> {
    let paths = Paths::of_this_user()?;
    let state = match state::find(&paths, name) {
        Found::Dead(state) => state,
        Found::Broken(e) => return Err(e),
        Found::Up(_) | Found::Nothing => {
            return Err(Error::not_found(format!("volume `{name}` has no daemon to follow"))
                .hint("`ztier restart` does this alone"));
        }
    };
    let progress = |what: &str| super::log::line(what);
    let (plan, patience) = (state.plan, LOOKERS);
    let order = super::Order {
        plan,
        paths: &paths,
        patience,
        foreground: true,
        follows: true,
        wanted: &|| true,
    };
    follow(run(order, &progress, |_| Ok(()))?, name)
}

/// Ends a process in the foreground, or makes it the volume's next daemon: executes the now
/// installed program under the same process number, so that its supervisor keeps watching it.
///
/// # Errors
/// The program can't be started.
pub fn follow(end: End, name: &str) -> Result<()> {
    use std::os::unix::process::CommandExt;
    if end != End::Again {
        return Ok(());
    }
    crate::export::nbd::hand_on()?;
    let mut next = Command::new(installed());
    next.arg0(shown_as()).args(["daemon", name, "--again"]);
    for (name, value) in credentials::read(&Paths::of_this_user()?.credentials(name)) {
        match value {
            Some(value) => next.env(name, value),
            None => next.env_remove(name),
        };
    }
    let error = next.exec();
    Err(error).context(format!("cannot start the next daemon of volume `{name}`"))
}

/// The name of processes that this one starts: as its own, `ztier` or `@ztier`. When a service
/// manager kills all processes at shutdown, it spares names that begin with `@`.
pub(super) fn shown_as() -> &'static str {
    let spared = std::env::args_os().next().is_some_and(|name| name.as_bytes().starts_with(b"@"));
    if spared { "@ztier" } else { "ztier" }
}

/// The file that this program was started from, or the file that replaced it since.
fn installed() -> PathBuf {
    let itself = PathBuf::from("/proc/self/exe");
    let Ok(path) = std::fs::read_link(&itself) else { return itself };
    let text = path.as_os_str().as_bytes();
    let path = PathBuf::from(OsStr::from_bytes(text.strip_suffix(b" (deleted)").unwrap_or(text)));
    if path.exists() { path } else { itself }
}

fn open_log(path: &Path) -> Result<std::fs::File> {
    private::append(path).context(format!("cannot open the log {}", path.display()))
}

/// Ends a daemon that did not come up: waits a moment, then sends SIGTERM, then SIGKILL. If it
/// `goes_on` with kept memory, it gets no SIGTERM, which would make it take the volume down:
/// SIGKILL loses nothing.
fn end(child: &mut Child, goes_on: bool) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let ways = [None, Some(Signal::TERM), Some(Signal::KILL)];
    for signal in ways.into_iter().filter(|way| !goes_on || *way != Some(Signal::TERM)) {
        if let (Some(pid), Some(signal)) = (pid, signal) {
            let _ = kill_process(pid, signal); // the daemon may have ended just now
        }
        let wait = if signal.is_none() { Duration::from_millis(500) } else { PATIENCE_TO_END };
        let ended = || !matches!(child.try_wait(), Ok(None));
        if eventually(wait, Duration::from_millis(5), ended) {
            return;
        }
    }
}

/// The error for a daemon that died or was late, after its leftovers were removed.
fn after_failure(plan: &Plan, paths: &Paths, why: &Error) -> Error {
    let files = paths.volume(&plan.name);
    let last = std::fs::read_to_string(&files.log)
        .ok()
        .and_then(|log| log.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned))
        .map_or_else(String::new, |line| format!(" (its last words: {line})"));
    let cleaned = match state::find(paths, &plan.name) {
        // The next daemon may take it over.
        Found::Dead(state) if state.kept && Kept::is_there(&files.keep) => {
            return Error::failure(format!(
                "the daemon of volume `{}` did not come up: {why}{last}",
                plan.name
            ))
            .hint(format!(
                "what it held is kept: repair that, then `ztier restart {}`",
                plan.name
            ));
        }
        _ => clean_up(&files),
    };
    let error = Error::failure(format!(
        "the daemon of volume `{}` did not come up: {why}{last}",
        plan.name
    ));
    match cleaned {
        Ok(()) => error.hint("try --foreground to watch it"),
        Err(e) => error.hint(format!("and it left something behind: {e}")),
    }
}

fn clean_up(files: &VolumeFiles) -> Result<()> {
    match Lock::acquire(files, Duration::from_secs(1))? {
        Some(lock) => state::clean(lock, files).map(drop),
        None => Ok(()), // another process holds the lock by now
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::export::Kind;
    use crate::config::{Amount, Settings};
    use crate::daemon::state::State;
    use crate::export::Leftover;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn after_a_daemon_that_died_nothing_is_left_but_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            run: dir.path().join("run"),
            config: dir.path().into(),
            state: dir.path().into(),
        };
        paths.prepare().unwrap();
        let settings = Settings { size: Some(Amount::Bytes(1 << 20)), ..Settings::default() };
        let plan = Plan::resolve("x", &settings, Kind::Nbd, &paths).unwrap();
        let left = dir.path().join("left");
        std::fs::create_dir(&left).unwrap();
        let leftovers = vec![Leftover::Directory(left.clone())];
        let files = paths.volume("x");
        let state = State {
            pid: 1,
            started_unix_s: 0,
            plan: plan.clone(),
            kept: false,
            restarts: 0,
            compresses_percent: None,
            session: None,
            foreground: false,
            leftovers,
        };
        state.write(&files).unwrap();
        std::fs::write(&files.log, "one\nmemory is full\n\n").unwrap();
        let error = after_failure(&plan, &paths, &Error::failure("it closed")).to_string();
        assert!(error.contains("`x` did not come up: it closed"), "{error}");
        assert!(error.contains("memory is full") && error.contains("--foreground"), "{error}");
        assert!(!left.exists());
        assert_eq!(std::fs::read_dir(&paths.run).unwrap().count(), 0);
    }

    #[test]
    fn who_says_how_far_it_is_may_take_longer() {
        // A machine that is busy with other work may spoil some tries.
        assert!((0..5).any(|_| takes_longer_than(Duration::from_secs(1))));
    }

    /// Whether `listen` waits longer than `patience` for a child that reports its progress.
    fn takes_longer_than(patience: Duration) -> bool {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let child = std::thread::spawn(move || {
            let tell = |word| {
                let message = Envelope::new(word);
                // The listener may have given up.
                let _ = send(&theirs, &message, Instant::now() + patience);
            };
            for i in 0..6 {
                // Two messages at once: the second must not be lost with the first.
                tell(Word::Progress(format!("{i}")));
                tell(Word::Progress("and more".into()));
                std::thread::sleep(patience / 4);
            }
            tell(Word::Done(Reply::of(Ok(to_raw_value("up").unwrap()))));
            theirs
        });
        let heard = RefCell::new(Vec::new());
        let progress = |text: &str| heard.borrow_mut().push(text.to_owned());
        let Ok(answer) = listen(&mut ours, &progress, patience) else { return false };
        assert_eq!(answer.into_result().unwrap().get(), "\"up\"");
        let all: Vec<String> = (0..6).flat_map(|i| [format!("{i}"), "and more".into()]).collect();
        assert_eq!(*heard.borrow(), all);
        let silent = listen(&mut ours, &progress, patience / 4).err().unwrap();
        assert!(silent.to_string().contains("in time"), "{silent}");
        child.join().unwrap();
        true
    }

    #[test]
    fn a_daemon_that_is_late_is_ended() {
        for (goes_on, signal) in [(false, Signal::TERM), (true, Signal::KILL)] {
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            let begun = Instant::now();
            end(&mut child, goes_on);
            let ended = child.try_wait().unwrap().unwrap();
            assert_eq!(ended.signal(), Some(signal.as_raw()));
            assert!(begun.elapsed() < PATIENCE_TO_END);
        }
    }
}
