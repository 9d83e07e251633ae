//! The daemon's link to the process that has the ballast.
//!
//! Invariant: the daemon never waits longer than [`PATIENCE`] for an answer; a process that takes
//! longer is killed, and its ballast is gone.

use crate::error::{Context, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a change may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the process may take to end after it was killed.
const END: Duration = Duration::from_secs(2);

/// A process with ballast; dropping this ends it.
pub(super) struct Holder {
    child: Child,
    orders: ChildStdin,
    answers: ChildStdout,
    held: u64,
}

impl Holder {
    /// Starts a process that can have up to `most` bytes of ballast for `volume`.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(volume: &str, most: u64) -> Result<Self> {
        let what = "cannot start the process for ballast";
        let mut child = Command::new("/proc/self/exe")
            .arg0("ztier")
            .args([super::WORD, volume])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env_remove("NOTIFY_SOCKET")
            .spawn()
            .context(what)?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failure(what));
        };
        let mut holder = Self { child, orders, answers, held: 0 };
        holder.order(most)?;
        Ok(holder)
    }

    /// Bytes of ballast.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Makes the ballast `bytes` large, or as large as the kernel swaps out. Returns its size.
    ///
    /// # Errors
    /// The process is gone, or does not answer in time.
    pub fn resize(&mut self, bytes: u64) -> Result<u64> {
        self.order(bytes)?;
        let what = "the process for ballast";
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut looked = [PollFd::new(&self.answers, PollFlags::IN)];
        match retry_on_intr(|| poll(&mut looked, Some(&patience))) {
            Ok(0) => {
                return Err(Error::failure(format!(
                    "{what} does not answer for {} s",
                    PATIENCE.as_secs()
                )));
            }
            looked => looked.context(format!("cannot wait for {what}"))?,
        };
        let mut answer = [0; 8];
        self.answers.read_exact(&mut answer).context(format!("{what} is gone"))?;
        self.held = u64::from_ne_bytes(answer);
        Ok(self.held)
    }

    fn order(&mut self, bytes: u64) -> Result<()> {
        let sent = self.orders.write_all(&bytes.to_ne_bytes());
        sent.context("the process for ballast is gone")
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let until = Instant::now() + END;
        while !matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
