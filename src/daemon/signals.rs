//! Turns signals that ask the daemon to end into events on a channel.
//!
//! SIGHUP is caught and ignored: closing a terminal must not take a disk from its users.

use super::log;
use super::process::RESTORE;
use crate::error::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc::SyncSender;
use std::thread;

/// Events that wake the daemon's main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// SIGTERM or SIGINT arrived.
    Signal,
    /// A command asks to restore missing files in the run directory.
    Restore,
    /// A control request has ended the daemon; its phase says how.
    Ended,
    /// A drive has failed a request, or blocks are lost.
    Trouble,
    /// The `ztier run` that uses the volume ended without taking it down.
    Abandoned,
}

/// Starts a thread that sends an event for every SIGTERM, SIGINT and [`RESTORE`], on which a daemon
/// checks its files.
///
/// # Errors
/// The signals can't be caught.
pub fn watch(events: SyncSender<Event>) -> Result<()> {
    let restore = RESTORE.as_raw();
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
