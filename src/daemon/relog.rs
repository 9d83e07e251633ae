//! Gives a volume another log: checks the new one, and that nothing is left in the old one.
//!
//! Invariant: the next daemon serves the new log only after the old log was drained and closed in
//! order, and none of its blocks is lost; then the old log holds nothing, and may come back later.

use crate::config::Plan;
use crate::control::NewLog;
use crate::device::{Pair, Serving};
use crate::error::{Error, Result};
use crate::remedy;
use std::path::Path;

/// The plan with another log. `records` is the directory with this machine's records of backing
/// stores.
///
/// # Errors
/// The volume has no backing store; or the log's drive can't be used.
pub(super) fn plan(now: &Plan, log: &NewLog, records: &Path) -> Result<Plan> {
    let NewLog::On { path, wipe } = log else { return now.with_log(None) };
    let next = now.with_log(Some((path, *wipe)))?;
    let log = |plan: &Plan| plan.log.as_ref().map(|l| (l.log.clone(), l.backing.clone()));
    let Some((path, backing)) = log(&next).filter(|(path, _)| {
        // The volume's present log is in use, and keeps what it holds.
        log(now).is_none_or(|(before, _)| before != *path)
    }) else {
        return Err(
            Error::busy(format!("{} is its log already", path.display())).hint("leave out --log")
        );
    };
    let pair =
        Pair { wipe: *wipe, ..Pair::new(path, backing, next.segment_bytes, records.to_owned()) };
    pair.check_log()?;
    Ok(next)
}

/// Refuses another log while only the present one knows which blocks are lost: without it these
/// would read as the backing store had them before.
///
/// # Errors
/// Blocks are lost.
pub(super) fn refuse_lost(volume: &dyn Serving) -> Result<()> {
    let lost: u64 = volume.stats().log_lost_blocks.iter().map(|&(_, count)| count).sum();
    if lost == 0 {
        return Ok(());
    }
    Err(Error::would_lose(format!(
        "only the log knows which blocks are lost ({lost}), so it stays"
    ))
    .hint(remedy::LOST_IN_LOG))
}
