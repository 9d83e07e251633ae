//! The line to the agent inside a machine: many tasks at a time, each with its output and its end.
//!
//! Invariant: no thread waits for a machine that is gone: when the line breaks, all waits end.

use crate::wire::{Kind, PAYLOAD_MAX, receive, send};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// Half of the longest interval between two calls of `go_on` by a thread that follows a task.
const LOOK: Duration = Duration::from_millis(250);

/// The result of a script, with all that it printed on either output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its exit status; 128 and the signal, if it was killed.
    pub status: i32,
    /// Its output.
    pub text: String,
}

impl Done {
    /// The output, if the script succeeded.
    ///
    /// # Errors
    /// The script failed; names the status and the last lines.
    pub fn ok(self) -> Result<String> {
        if self.status == 0 {
            return Ok(self.text);
        }
        let lines: Vec<_> = self.text.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join(" | ");
        Err(Error::failure(format!("a script ended with status {}: {last}", self.status)))
    }
}

/// The test's end of the line.
#[derive(Debug)]
pub(crate) struct Line {
    writer: Mutex<UnixStream>,
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of times that an agent has come up.
    boots: u32,
    broken: bool,
    last: u32,
    tasks: HashMap<u32, Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    bytes: Vec<u8>,
    end: Option<(i32, String)>,
}

impl Line {
    /// Takes over a connection.
    pub fn new(stream: UnixStream) -> Result<Arc<Self>> {
        let mut reader = stream.try_clone().context("cannot share a socket")?;
        // A machine that hangs reads nothing; messages are small, or wait for an answer.
        stream.set_write_timeout(Some(Duration::from_secs(60))).context("cannot limit a socket")?;
        let (state, news) = (Mutex::default(), Condvar::new());
        let line = Arc::new(Self { writer: Mutex::new(stream), state, news });
        let other = Arc::clone(&line);
        let read = move || {
            while let Ok(frame) = receive(&mut reader) {
                other.take(frame.kind, frame.id, &frame.payload);
            }
            other.state.lock().broken = true;
            other.news.notify_all();
        };
        std::thread::Builder::new().name("vm-line".into()).spawn(read).context("no thread")?;
        Ok(line)
    }

    fn take(&self, kind: Kind, id: u32, payload: &[u8]) {
        let mut state = self.state.lock();
        match (kind, state.tasks.get_mut(&id)) {
            (Kind::Ready, _) => {
                state.boots += 1;
                // Tasks from before a reset never report their end.
                for task in state.tasks.values_mut().filter(|task| task.end.is_none()) {
                    task.end = Some((-1, "the machine was started again".to_owned()));
                }
            }
            (Kind::Data, Some(task)) => task.bytes.extend(payload),
            (Kind::End, Some(task)) => {
                let (status, why) = payload.split_at(payload.len().min(4));
                let status = status.try_into().map_or(-1, i32::from_le_bytes);
                task.end = Some((status, String::from_utf8_lossy(why).into_owned()));
            }
            _ => {}
        }
        drop(state);
        self.news.notify_all();
    }

    /// Waits until agents have come up `boots` times.
    pub fn wait_for_boots(&self, boots: u32, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.boots < boots {
            if state.broken {
                return Err(Error::failure("the machine ended while it started"));
            }
            if self.news.wait_until(&mut state, end).timed_out() && state.boots < boots {
                let seconds = patience.as_secs();
                return Err(Error::failure(format!("no machine was up within {seconds} s")));
            }
        }
        Ok(())
    }

    /// Number of times that an agent has come up.
    pub fn boots(&self) -> u32 {
        self.state.lock().boots
    }

    /// Whether the machine has closed the line.
    pub fn broken(&self) -> bool {
        self.state.lock().broken
    }

    /// Begins a task with a new number.
    pub fn begin(self: &Arc<Self>, kind: Kind, payload: &[u8]) -> Result<Task> {
        let id = {
            let mut state = self.state.lock();
            state.last += 1;
            let id = state.last;
            state.tasks.insert(id, Progress::default());
            id
        };
        let task = Task { line: Arc::clone(self), id };
        task.send(kind, payload)?;
        Ok(task)
    }
}

/// A task of a machine. Dropping it does not end the task.
#[derive(Debug)]
pub struct Task {
    line: Arc<Line>,
    id: u32,
}

impl Task {
    fn send(&self, kind: Kind, payload: &[u8]) -> Result<()> {
        let mut writer = self.line.writer.lock();
        send(&mut *writer, kind, self.id, payload).context("cannot reach the machine")
    }

    /// Sends a file's content, after its path.
    pub(crate) fn fill(&self, content: &[u8]) -> Result<()> {
        for piece in content.chunks(PAYLOAD_MAX / 4) {
            self.send(Kind::Data, piece)?;
        }
        self.send(Kind::End, &[])
    }

    /// Whether the task has ended.
    pub fn ended(&self) -> bool {
        let state = self.line.state.lock();
        state.broken || state.tasks.get(&self.id).is_none_or(|task| task.end.is_some())
    }

    /// The output so far.
    pub fn output(&self) -> String {
        let state = self.line.state.lock();
        let bytes = state.tasks.get(&self.id).map(|task| task.bytes.as_slice());
        String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
    }

    /// Kills the task, and all processes of its process group.
    ///
    /// # Errors
    /// The machine cannot be reached.
    pub fn kill(&self) -> Result<()> {
        self.send(Kind::Kill, &[])
    }

    /// Waits until the task has printed `text`.
    ///
    /// # Errors
    /// The task ended before, or took longer than `patience`.
    pub fn wait_for(&self, text: &str, patience: Duration) -> Result<()> {
        self.wait_until(patience, |task| {
            let said = String::from_utf8_lossy(&task.bytes).contains(text);
            match &task.end {
                _ if said => Some(Ok(())),
                Some((status, _)) => Some(Err(Error::failure(format!(
                    "a script ended with status {status} before it said {text:?}"
                )))),
                None => None,
            }
        })?
    }

    /// Waits for the task's end.
    ///
    /// # Errors
    /// The task takes longer than `patience`, or the machine is gone.
    pub fn wait(&self, patience: Duration) -> Result<Done> {
        let (bytes, status, why) = self.finish(patience)?;
        Ok(Done { status, text: String::from_utf8_lossy(&bytes).into_owned() + &why })
    }

    /// Waits for the task's end; returns output, status and reason.
    pub(crate) fn finish(&self, patience: Duration) -> Result<(Vec<u8>, i32, String)> {
        self.wait_until(patience, |task| {
            let (status, why) = task.end.clone()?;
            Some((std::mem::take(&mut task.bytes), status, why))
        })
    }

    /// Copies the output to `to` as it comes, until the end; returns the status.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn follow(&self, patience: Duration, to: impl Write) -> Result<i32> {
        self.follow_while(patience, to, || Ok(()))
    }

    /// As [`Self::follow`], while `go_on`, called at least each half second, does not fail.
    ///
    /// # Errors
    /// As [`Self::wait`], and errors of `go_on`.
    pub fn follow_while(
        &self,
        patience: Duration,
        mut to: impl Write,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<i32> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            go_on()?;
            let look = Instant::now() + LOOK;
            let (piece, ended) = self.wait_until(2 * LOOK, |task| {
                let some = !task.bytes.is_empty() || task.end.is_some() || Instant::now() >= look;
                some.then(|| (std::mem::take(&mut task.bytes), task.end.clone()))
            })?;
            to.write_all(&piece).and_then(|()| to.flush()).context("cannot print")?;
            if let Some((status, why)) = ended {
                if !why.is_empty() {
                    writeln!(to, "{why}").context("cannot print")?;
                }
                return Ok(status);
            }
        }
        Err(Error::failure(format!("not within {} s", patience.as_secs())))
    }

    fn wait_until<T>(
        &self,
        patience: Duration,
        mut so: impl FnMut(&mut Progress) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + patience;
        let mut state = self.line.state.lock();
        loop {
            let task = state.tasks.get_mut(&self.id);
            if let Some(result) = task.and_then(&mut so) {
                return Ok(result);
            }
            if state.broken {
                return Err(Error::failure("the machine is gone"));
            }
            if Instant::now() >= end {
                let said = state.tasks.get(&self.id).map(|task| task.bytes.as_slice());
                let said = String::from_utf8_lossy(said.unwrap_or_default());
                let lines: Vec<_> = said.lines().rev().take(5).collect();
                let last = lines.into_iter().rev().collect::<Vec<_>>().join(" | ");
                let seconds = patience.as_secs();
                return Err(Error::failure(format!("not within {seconds} s; last: {last}")));
            }
            self.line.news.wait_until(&mut state, end);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.line.state.lock().tasks.remove(&self.id);
    }
}
