//! What a user says of a log and its backing store: both places, and the exceptions that flags
//! allow.

use crate::log::Accepted;
use std::path::PathBuf;

/// Both drives, and the exceptions that the user's flags allow.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The log's drive.
    pub log: PathBuf,
    /// The backing store.
    pub backing: PathBuf,
    /// Bytes in a segment, if a log is made.
    pub segment: u32,
    /// Overwrite any content of the log's drive, except a log with data.
    pub wipe: bool,
    /// Accept a copy of the backing store in its place.
    pub moved: bool,
    /// Overwrite also a log with data.
    pub force: bool,
    /// Give up what the backing store's log holds if that log cannot be used, and make it anew.
    pub abandon: bool,
    /// Accept a backing store that was changed without its log.
    pub accept_changed: bool,
    /// Accept a log that is older than the state of it that this machine has seen.
    pub accept_older: bool,
    /// Losses of the log that the user knows and accepts.
    pub accepted: Accepted,
    /// Directory with this machine's records of backing stores.
    pub state: PathBuf,
}

/// Exceptions that took effect because of a flag.
#[derive(Default)]
pub(super) struct Granted {
    pub changed: bool,
    pub older: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Pair {
    /// Both drives, with every flag off that may lose data.
    pub fn new(log: PathBuf, backing: PathBuf, segment: u32, state: PathBuf) -> Self {
        Self {
            log,
            backing,
            segment,
            wipe: false,
            moved: false,
            force: false,
            abandon: false,
            accept_changed: false,
            accept_older: false,
            accepted: Accepted::default(),
            state,
        }
    }
}
