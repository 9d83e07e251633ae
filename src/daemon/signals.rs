//! Signals that ask the daemon to end, as events on a channel.
//!
//! SIGHUP is caught and does nothing: closing a terminal takes no disk away from its users.

use super::{log, restoring};
use crate::error::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc::SyncSender;
use std::thread;

/// What wakes the daemon's main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// SIGTERM or SIGINT came.
    Signal,
    /// A command misses the files by which this daemon is found.
    Restore,
    /// The volume was left to the next daemon, through the control socket.
    Left,
    /// The volume was taken down through the control socket.
    Down,
    /// A drive has failed a request, or blocks are lost.
    Trouble,
    /// The `ztier run` that the volume is for has ended without a word.
    Abandoned,
}

/// Sends an event for every SIGTERM, SIGINT and [`restoring::signal`] from now on, from a thread of
/// its own.
///
/// # Errors
/// When the signals can't be caught.
pub fn watch(events: SyncSender<Event>) -> Result<()> {
    let restore = restoring::signal();
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP, restore]).context("cannot catch signals")?;
    thread::Builder::new()
        .name("ztier-signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if signal == SIGHUP {
                    log::line("the terminal was closed, and the volume goes on");
                    continue;
                }
                let event = if signal == restore { Event::Restore } else { Event::Signal };
                if events.send(event).is_err() {
                    return;
                }
            }
        })
        .context("cannot start a thread")
        .map(drop)
}
