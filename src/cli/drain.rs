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
            let left_bytes = left(&stats);
            output::json(&json!({"name": name, "left_bytes": left_bytes, "lost_blocks": lost}))?;
            return sound(name, stats.loss().as_deref());
        }
        output::print(&done(name, &stats))?;
        sound(name, stats.loss().as_deref())
    }
}

/// What a drain that ended with these counters has done.
fn done(name: &str, stats: &Stats) -> String {
    match (left(stats), stats.lost_blocks()) {
        (0, 0) => format!("{name}: all is in the backing store\n"),
        (0, lost) => format!("{name}: all but {lost} lost blocks is in the backing store\n"),
        (left, _) => format!(
            "{name}: all that was written before is in the backing store; {} came meanwhile\n",
            human(left)
        ),
    }
}

/// Drains a volume repeatedly, while each pass at least halves what is left: clients may write
/// meanwhile, and the last of that stays.
///
/// # Errors
/// As [`drain`].
pub fn drain_most(paths: &Paths, name: &str) -> Result<()> {
    let mut last = left(&drain(paths, name)?);
    while last > ENOUGH {
        let less = left(&drain(paths, name)?);
        if less > last / 2 {
            break;
        }
        last = less;
    }
    Ok(())
}

/// Bytes that the backing store lacks, zeros included.
fn left(stats: &Stats) -> u64 {
    stats.log.map_or(0, |log| log.left_bytes())
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
        output::remark(&format!("{name}: {} left in the log", human(left(&stats))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::LogStats;

    #[test]
    fn zeros_that_came_meanwhile_are_not_in_the_backing_store() {
        let stats = |blocks_dirty, blocks_zeroed| Stats {
            log: Some(LogStats { blocks_dirty, blocks_zeroed, ..LogStats::default() }),
            ..Stats::default()
        };
        assert_eq!(done("v", &stats(0, 0)), "v: all is in the backing store\n");
        for some in [stats(0, 256), stats(256, 0), stats(128, 128)] {
            let text = done("v", &some);
            assert!(text.ends_with("; 1 MiB came meanwhile\n"), "{text}");
        }
    }
}
