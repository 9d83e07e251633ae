//! A small process that works for a daemon, and ends with it.
//!
//! Both sides exchange numbers of 64 bits in native order over the process's standard input and
//! output: the daemon sends an order, the process answers. The process ends with its input.
//!
//! Invariant: the daemon never waits longer than [`PATIENCE`] for an answer; a process that takes
//! longer is to be dropped, which kills it.

use super::itself;
use crate::device::come_first;
use crate::error::{Context, Error, Result};
use crate::patience::{eventually, readable};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the process may take to end after it was killed.
const END: Duration = Duration::from_secs(2);

/// The daemon's side; dropping this ends the process.
pub(super) struct Companion {
    what: &'static str,
    child: Child,
    orders: ChildStdin,
    answers: ChildStdout,
}

impl Companion {
    /// Starts `ztier WORD VOLUME`; `what` names the process in messages.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(word: &str, volume: &str, what: &'static str) -> Result<Self> {
        let failed = || format!("cannot start {what}");
        let mut child = Command::new("/proc/self/exe")
            .arg0("ztier")
            .args([word, volume])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env_remove("NOTIFY_SOCKET")
            .spawn()
            .context(failed())?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(answers)) => Ok(Self { what, child, orders, answers }),
            _ => Err(Error::failure(failed())),
        }
    }

    /// Sends an order.
    ///
    /// # Errors
    /// The process is gone.
    pub fn order(&mut self, number: u64) -> Result<()> {
        let sent = self.orders.write_all(&number.to_ne_bytes());
        sent.context(format!("{} is gone", self.what))
    }

    /// Waits for a number of an answer.
    ///
    /// # Errors
    /// The process is gone, or does not answer in time.
    pub fn answer(&mut self) -> Result<u64> {
        let what = self.what;
        let answers = readable(&self.answers, Instant::now() + PATIENCE);
        if !answers.context(format!("cannot wait for {what}"))? {
            let seconds = PATIENCE.as_secs();
            return Err(Error::failure(format!("{what} does not answer for {seconds} s")));
        }
        let mut answer = [0; 8];
        self.answers.read_exact(&mut answer).context(format!("{what} is gone"))?;
        Ok(u64::from_ne_bytes(answer))
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let ended = || !matches!(self.child.try_wait(), Ok(None));
        eventually(END, Duration::from_millis(1), ended);
    }
}

/// Prepares this process, which has just begun, to be a companion of the daemon of `volume`, as
/// `role` in the list of processes.
pub(super) fn become_one(role: &str, volume: &str) {
    // A terminal's signals are for the daemon. Fails only for a process that leads its group.
    let _ = rustix::process::setsid();
    itself::call(role, volume);
    come_first(false);
    itself::keep_out_of_dumps();
    // Its size is not the reason why memory is short. Without the right to say so, the kernel may
    // end it, which costs memory but no data.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}

/// The next order, of a companion's standard input; `None` at its end.
///
/// # Errors
/// It can't be read.
pub(super) fn next_order(from: &mut impl Read) -> Result<Option<u64>> {
    let mut message = [0; 8];
    match from.read_exact(&mut message) {
        Ok(()) => Ok(Some(u64::from_ne_bytes(message))),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e).context("cannot read the daemon's message"),
    }
}

/// Sends the numbers of an answer to the daemon.
///
/// # Errors
/// The daemon is gone.
pub(super) fn answer(to: &mut impl Write, numbers: &[u64]) -> Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    to.write_all(&bytes).and_then(|()| to.flush()).context("cannot answer")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn messages_are_numbers_until_the_end() {
        let mut sent = Vec::new();
        answer(&mut sent, &[7, 1 << 40]).unwrap();
        let mut input = &sent[..];
        assert_eq!(next_order(&mut input).unwrap(), Some(7));
        assert_eq!(next_order(&mut input).unwrap(), Some(1 << 40));
        assert_eq!(next_order(&mut input).unwrap(), None);
    }
}
