//! A table as a separate process.
//!
//! Invariants: the table's output goes to its log, which it keeps locked while it lives. It has its
//! own process group, so that a ^C reaches only the run, which ends the group in order. It ends in
//! order, too, when the run is gone, and no other run measures before that.

use super::Turn;
use crate::report::warn;
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// Time that a table may take to undo its work: it unmounts file systems on slow drives.
const GRACE: Duration = Duration::from_secs(90);
/// Kept bytes of a line without an end.
const LINE_MAX: usize = 1 << 16;

/// Option that passes the run's process id to a table.
const SUITE: &str = "--suite";

/// Ties this process, a table, to the run that has started it: when the run is gone, the kernel
/// signals the table to end.
///
/// # Errors
/// The run is gone already.
pub fn tie(suite: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("cannot tie a table to its run")?;
    let parent = getppid().map(Pid::as_raw_pid);
    if parent.and_then(|id| u32::try_from(id).ok()) == Some(suite) {
        Ok(())
    } else {
        Err(Error::failure("the run that has started this table is gone"))
    }
}

/// A running table; dropping it ends it.
pub struct Child {
    name: String,
    child: std::process::Child,
    log: File,
    line: Vec<u8>,
    last: String,
    show: bool,
}

impl Child {
    /// Starts this program with other arguments, and with the turn of this run; with `show` its
    /// output is repeated here. The calling thread has to live as long as the table: the kernel
    /// signals the table to end when that thread ends.
    ///
    /// # Errors
    /// The table can't be started; its log can't be written, or is held by a table that still runs
    /// after an earlier run was killed.
    pub fn start(name: &str, args: &[String], log: &Path, show: bool, turn: &Turn) -> Result<Self> {
        let what = || format!("cannot write {}", log.display());
        let mut output = File::options().create(true).append(true).open(log).context(what())?;
        output.try_lock().map_err(|_| {
            Error::failure(format!("{name} still works for a run that was killed"))
                .hint(format!("wait until it has ended; it writes {}", log.display()))
        })?;
        output.set_len(0).context(what())?;
        writeln!(output, "$ ztier-bench {}", args.join(" ")).context(what())?;
        let own = std::env::current_exe().context("cannot find out where this program is")?;
        let child = Command::new(own)
            .args([SUITE, &std::process::id().to_string()])
            .args(args)
            .stdin(turn.share()?)
            .stderr(output.try_clone().context("cannot duplicate a file")?)
            .stdout(output)
            .process_group(0)
            .spawn()
            .context(format!("cannot start {name}"))?;
        let log = File::open(log).context(format!("cannot read {}", log.display()))?;
        let name = name.to_owned();
        Ok(Self { name, child, log, line: Vec::new(), last: String::new(), show })
    }

    /// Reads new output of the table; returns its exit status, if it has ended.
    ///
    /// # Errors
    /// Its log can't be read.
    pub fn look(&mut self) -> Result<Option<ExitStatus>> {
        // Checked first, so that no output from before the end is missed.
        let ended = self.child.try_wait().context(format!("cannot wait for {}", self.name))?;
        let mut new = Vec::new();
        self.log.read_to_end(&mut new).context(format!("cannot read the log of {}", self.name))?;
        if self.show {
            let _ = std::io::stdout().write_all(&new);
        }
        self.line.extend_from_slice(&new);
        if let Some(end) = self.line.iter().rposition(|&byte| byte == b'\n') {
            let whole = String::from_utf8_lossy(&self.line[..end]).into_owned();
            if let Some(last) = whole.lines().rev().find(|line| !line.trim().is_empty()) {
                last.trim().clone_into(&mut self.last);
            }
            self.line.drain(..=end);
        }
        self.line.truncate(LINE_MAX);
        Ok(ended)
    }

    /// The last line of output.
    pub fn last(&self) -> &str {
        &self.last
    }

    /// Ends the table, and everything that it has started.
    pub fn end(&mut self) {
        let group = Pid::from_child(&self.child);
        // Not reaped before it has ended, so the group is still its own.
        for signal in [Signal::TERM, Signal::KILL] {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            let _ = kill_process_group(group, signal);
            let end = Instant::now() + GRACE;
            while Instant::now() < end {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            warn(&format!("{} does not end within {} s", self.name, GRACE.as_secs()));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_log_that_is_held_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("zram.log");
        let held = File::create(&log).unwrap();
        held.lock().unwrap();
        let turn = Turn::at(&dir.path().join("lock"), false).unwrap();
        let error = Child::start("zram", &[], &log, false, &turn).err().unwrap().to_string();
        assert!(error.contains("zram still works"), "{error}");
        assert_eq!(std::fs::read(&log).unwrap(), b"");
    }
}
