//! `ztier drain`: bring a log's data to the backing store while the volume works.

use super::{PATIENCE, client, output};
use crate::config::size::human;
use crate::config::{Paths, name};
use crate::control::{Client, Draining, Request};
use crate::error::{Error, Result};
use crate::stats::{LogStats, Stats};
use clap::Args;
use std::time::{Duration, Instant};

/// How often progress is asked for.
const ASK: Duration = Duration::from_millis(200);
/// Bytes in a log that a volume that goes down brings to its backing store by itself.
const ENOUGH: u64 = 1 << 20;
/// How often progress is shown.
const SHOW: Duration = Duration::from_secs(2);

/// Bring to its backing store what a volume's log holds
///
/// When it returns, everything that was written before it began is in the backing store. If nothing
/// was written meanwhile, the backing store alone is the volume.
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
        let left = drain(&client, &self.name)?;
        let name = &self.name;
        output::print(&match left {
            0 => format!("{name}: all is in the backing store\n"),
            left => format!(
                "{name}: all that was written before is in the backing store; {} came meanwhile\n",
                human(left)
            ),
        })
    }
}

/// Drains a volume again and again, as long as that leaves less: what clients write meanwhile is
/// left at last.
///
/// # Errors
/// As [`drain`].
pub fn drain_most(client: &Client, name: &str) -> Result<()> {
    let mut left = drain(client, name)?;
    while left > ENOUGH {
        let less = drain(client, name)?;
        if less > left / 2 {
            break;
        }
        left = less;
    }
    Ok(())
}

/// Drains a volume and waits for it, with progress: of what its log holds when this begins. Bytes
/// that came to the log meanwhile.
///
/// # Errors
/// It has no log, or the log has failed, or nothing moves because a drive fails.
fn drain(client: &Client, name: &str) -> Result<u64> {
    let draining: Draining = client.ask(&Request::Drain { on: true }, PATIENCE)?;
    let mut shown = Instant::now();
    let mut failures = None;
    loop {
        let log = ask(client)?;
        if log.clean || log.segment_tail >= draining.until_segment {
            return Ok(log.blocks_dirty * crate::BLOCK_SIZE as u64);
        }
        let before = *failures.get_or_insert(log.windows_failed);
        if log.failed && !log.rescuing || log.windows_failed > before + 3 {
            client.ask::<Draining>(&Request::Drain { on: false }, PATIENCE)?;
            return Err(Error::degraded(format!(
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
    stats.log.ok_or_else(|| Error::usage("the volume has no log, so there is nothing to drain"))
}
