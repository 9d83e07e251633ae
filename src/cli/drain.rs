//! `ztier drain`: bring a log's data to the backing store while the volume works.

use super::{PATIENCE, client, output};
use crate::config::size::human;
use crate::config::{Paths, name};
use crate::control::{Client, Request};
use crate::error::{Error, Result};
use crate::stats::{LogStats, Stats};
use clap::Args;
use std::time::{Duration, Instant};

/// How often progress is asked for.
const ASK: Duration = Duration::from_millis(200);
/// How often progress is shown.
const SHOW: Duration = Duration::from_secs(2);

/// Bring everything in a volume's log to its backing store
///
/// When it returns, the backing store alone is the volume, until the next write.
#[derive(Args)]
pub struct Drain {
    /// Name of the volume
    name: String,
}

impl Drain {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        name::check(&self.name).map_err(Error::usage)?;
        let client = client(&Paths::of_this_user()?, &self.name)?;
        drain(&client, &self.name)?;
        output::print(&format!("{}: all is in the backing store\n", self.name))
    }
}

/// Drains a volume and waits for it, with progress.
///
/// # Errors
/// It has no log, or the log has failed, or nothing moves because a drive fails.
pub fn drain(client: &Client, name: &str) -> Result<()> {
    client.ask::<()>(&Request::Drain { on: true }, PATIENCE)?;
    let mut shown = Instant::now();
    let mut failures = None;
    loop {
        let log = ask(client)?;
        if log.clean {
            return Ok(());
        }
        let before = *failures.get_or_insert(log.windows_failed);
        if log.failed && !log.rescuing || log.windows_failed > before + 3 {
            client.ask::<()>(&Request::Drain { on: false }, PATIENCE)?;
            return Err(Error::failure(format!(
                "volume `{name}` still has {} blocks in its log: a drive fails",
                log.blocks_dirty
            ))
            .mend("see the kernel's log, then `ztier drain` again"));
        }
        if shown.elapsed() >= SHOW {
            let left = human(log.blocks_dirty * crate::BLOCK_SIZE as u64);
            output::remark(&format!("{name}: {left} left in the log"));
            shown = Instant::now();
        }
        std::thread::sleep(ASK);
    }
}

fn ask(client: &Client) -> Result<LogStats> {
    let stats: Stats = client.ask(&Request::Stats, PATIENCE)?;
    stats.log.ok_or_else(|| Error::failure("the volume has no log, so there is nothing to drain"))
}
