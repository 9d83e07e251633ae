//! `ztier drain`: bring a log's data to the backing store while the volume works.

use super::{PATIENCE, client, output, sound};
use crate::config::size::human;
use crate::config::{Paths, name};
use crate::control::{Client, Question, Request};
use crate::error::{Context, Error, Result};
use crate::stats::Stats;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;

/// Bytes that may be left in a log: a volume that goes down drains them by itself.
const ENOUGH: u64 = 1 << 20;
/// How often progress is shown.
const SHOW: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Write what a volume's log holds back to its backing store
///
/// When it returns, every write from before it began is in the backing store. If nothing was
/// written meanwhile, the backing store alone is the volume.
#[derive(Args)]
pub struct Drain {
    /// Name of the volume
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Drain {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        name::check(&self.name).map_err(Error::usage)?;
        let paths = Paths::of_this_user()?;
        client(&paths, &self.name)?;
        let name = &self.name;
        let stats = drain(&paths, name)?;
        let lost = stats.lost_blocks();
        if self.json {
            let left_bytes = dirty(&stats);
            output::json(&json!({"name": name, "left_bytes": left_bytes, "lost_blocks": lost}))?;
            return sound(name, stats.loss().as_deref());
        }
        output::print(&match dirty(&stats) {
            0 if lost > 0 => {
                format!("{name}: all but {lost} lost blocks is in the backing store\n")
            }
            0 => format!("{name}: all is in the backing store\n"),
            left => format!(
                "{name}: all that was written before is in the backing store; {} came meanwhile\n",
                human(left)
            ),
        })?;
        sound(name, stats.loss().as_deref())
    }
}

/// Drains a volume repeatedly, while each pass at least halves what is left: clients may write
/// meanwhile, and the last of that stays.
///
/// # Errors
/// As [`drain`].
pub fn drain_most(paths: &Paths, name: &str) -> Result<()> {
    let mut left = dirty(&drain(paths, name)?);
    while left > ENOUGH {
        let less = dirty(&drain(paths, name)?);
        if less > left / 2 {
            break;
        }
        left = less;
    }
    Ok(())
}

/// Bytes that the backing store lacks.
fn dirty(stats: &Stats) -> u64 {
    stats.log.map_or(0, |log| log.blocks_dirty * crate::BLOCK_SIZE as u64)
}

/// Drains what a volume's log holds when this begins, waits for the end, and shows progress. The
/// daemon hurries only as long as this process waits. Returns the counters at the end.
///
/// # Errors
/// The volume has no log, the log has failed, or a failing drive stops all progress.
fn drain(paths: &Paths, name: &str) -> Result<Stats> {
    let socket = paths.volume(name).control;
    let client = Client::new(&socket);
    let mut asked = Question::ask(&socket, &Request::Drain)?;
    loop {
        if let Some(stats) = asked.answer()? {
            return Ok(stats);
        }
        let answered = PollFd::new(&asked, PollFlags::IN);
        match poll(&mut [answered], Some(&SHOW)) {
            Ok(0) => {}
            Ok(_) | Err(Errno::INTR) => continue,
            Err(e) => return Err(e).context("cannot wait for the daemon"),
        }
        // A stopped daemon does not answer this request, either.
        let stats: Stats = client.ask(&Request::Stats, PATIENCE)?;
        output::remark(&format!("{name}: {} left in the log", human(dirty(&stats))));
    }
}
