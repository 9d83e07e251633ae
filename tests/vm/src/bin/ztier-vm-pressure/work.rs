//! The memory load: stress-ng, which compares what it has written, and this program's own load.
//!
//! Invariant: the work succeeds only if both have compared everything without a difference.

use crate::say;
use clap::Args;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use ztier::error::{Context, Error, Result};

/// How much of each, and for how long.
#[derive(Clone, Debug, Args)]
pub struct Work {
    /// Memory of stress-ng in MiB.
    #[arg(long)]
    stress: u64,
    /// Its processes.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// What it writes, as its option `--vm-method` has it.
    #[arg(long)]
    method: String,
    /// Memory of our own load in MiB.
    #[arg(long)]
    own: u64,
    /// Seconds.
    #[arg(long)]
    seconds: u64,
}

impl Work {
    /// Arguments with which this program runs this work.
    pub fn args(&self) -> Vec<String> {
        let Self { stress, workers, method, own, seconds } = self;
        let text = format!(
            "work --stress {stress} --workers {workers} --method {method} --own {own} \
             --seconds {seconds}"
        );
        text.split(' ').map(str::to_owned).collect()
    }

    /// Work with these parameters.
    pub fn new(stress: u64, workers: u32, method: &str, own: u64, seconds: u64) -> Self {
        Self { stress, workers, method: method.to_owned(), own, seconds }
    }

    /// Runs both loads.
    ///
    /// # Errors
    /// Content differed from what was written, or a load was killed.
    pub fn run(self) -> Result<()> {
        let mut stress = self.stress_ng()?;
        let own = std::env::current_exe().context("cannot find this program")?;
        let seconds = self.seconds.to_string();
        let load = Command::new(own)
            .args(["load", &self.own.to_string(), "--seconds", &seconds])
            .stdin(Stdio::null())
            .spawn();
        let load = load.context("cannot start the load").and_then(|mut load| wait(&mut load));
        let stress = wait(&mut stress)?;
        say(&format!("stress-ng ended with {}", end(stress)));
        say(&format!("load ended with {}", end(load.as_ref().copied().unwrap_or_default())));
        match (stress.success(), load?.success()) {
            (true, true) => Ok(()),
            (false, _) => Err(Error::failure(format!("stress-ng ended with {}", end(stress)))),
            (_, false) => Err(Error::failure("the load did not come to its end")),
        }
    }

    fn stress_ng(&self) -> Result<Child> {
        let (bytes, workers) = (format!("{}m", self.stress), self.workers.to_string());
        let seconds = self.seconds.to_string();
        let mut command = Command::new("stress-ng");
        command.args(["--vm", &workers, "--vm-bytes", &bytes, "--vm-method", &self.method]);
        command.args(["--vm-keep", "--verify", "--timeout", &seconds, "--temp-path", "/tmp"]);
        command.stdin(Stdio::null()).spawn().context("cannot start stress-ng")
    }
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    child.wait().context("cannot wait for a load")
}

fn end(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("status {}", status.code().unwrap_or_default()),
    }
}
