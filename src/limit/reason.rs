//! Why a limit is changed, or not.

use crate::config::size::human;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a limit is changed, or not. Waits are shares of the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// Nothing is known yet.
    Starting,
    /// The limit was outside of its bounds.
    Bounds,
    /// Less: dropped files are missed more than this volume's coldest data would be.
    FileCache {
        /// Wait for files.
        files: f64,
        /// Wait for this volume's data, if its coldest went.
        own: f64,
    },
    /// Less: others would have too little memory.
    Floor {
        /// What is available, in bytes.
        available: u64,
        /// The floor, in bytes.
        floor: u64,
    },
    /// More: this volume's evicted data is missed more than files are.
    Missed {
        /// Wait for evicted data.
        own: f64,
        /// Wait for files.
        files: f64,
    },
    /// Less or more: as much as others leave, for data that has no other place.
    Room {
        /// What is available, in bytes.
        available: u64,
    },
    /// The highest limit: swapped-out pages have no other place.
    KeepsSwap,
    /// The limit should be lower, but is at its lowest.
    AtLeast,
    /// The limit should be higher, but is at its highest.
    AtMost,
    /// The limit should be higher, but others would have too little memory then.
    NoRoom {
        /// What is available, in bytes.
        available: u64,
        /// The floor, in bytes.
        floor: u64,
    },
    /// The limit was changed in the other direction not long ago.
    Waiting,
    /// Files and this volume's data are missed about equally.
    Balanced {
        /// Wait for files.
        files: f64,
        /// Wait for evicted data, and for the coldest if it went.
        own: f64,
    },
    /// Nothing is missed.
    Idle,
}

impl Reason {
    /// In one word, as in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Bounds => "bounds",
            Self::FileCache { .. } => "file_cache",
            Self::Floor { .. } => "floor",
            Self::Missed { .. } => "missed",
            Self::Room { .. } => "room",
            Self::KeepsSwap => "keeps_swap",
            Self::AtLeast => "at_least",
            Self::AtMost => "at_most",
            Self::NoRoom { .. } => "no_room",
            Self::Waiting => "waiting",
            Self::Balanced { .. } => "balanced",
            Self::Idle => "idle",
        }
    }
}

/// A share of the time, formatted for people.
struct Part(f64);

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        let digits = usize::from(percent < 9.95);
        write!(f, "{percent:.digits$} %")
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Starting => write!(f, "nothing is known yet"),
            Self::Bounds => write!(f, "ram-min and ram-max want it so"),
            Self::FileCache { files, own } => write!(
                f,
                "files that the machine had to drop are waited for {} of the time, the coldest \
                 data here would be {}",
                Part(files),
                Part(own)
            ),
            Self::Floor { available, floor } => write!(
                f,
                "only {} of memory are available, and {} are to be",
                human(available),
                human(floor)
            ),
            Self::Missed { own, files } => write!(
                f,
                "what had to go is waited for {} of the time, and files that the machine had to \
                 drop {}",
                Part(own),
                Part(files)
            ),
            Self::Room { available } => write!(
                f,
                "data here has no other place, and {} of memory are available for it and others",
                human(available)
            ),
            Self::KeepsSwap => {
                write!(f, "what is swapped out has no other place, and frees more than it takes")
            }
            Self::AtLeast => write!(f, "should be less, and is the least"),
            Self::AtMost => write!(f, "should be more, and is the most"),
            Self::NoRoom { available, floor } => write!(
                f,
                "should be more, but {} of memory are available, and {} are to stay",
                human(available),
                human(floor)
            ),
            Self::Waiting => write!(f, "was changed the other way not long ago"),
            Self::Balanced { files, own } => write!(
                f,
                "files that the machine had to drop are waited for {} of the time, data here {}: \
                 about the same",
                Part(files),
                Part(own)
            ),
            Self::Idle => write!(f, "nothing is missed"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn in_words_and_in_json() {
        let reason = Reason::FileCache { files: 0.312, own: 0.004 };
        assert_eq!(
            reason.to_string(),
            "files that the machine had to drop are waited for 31 % of the time, the coldest data \
             here would be 0.4 %"
        );
        let json = serde_json::to_value(reason).unwrap();
        assert_eq!(json["kind"], "file_cache");
        let (files, own) = (0.5, 0.25);
        for reason in [
            Reason::Starting,
            Reason::Bounds,
            Reason::FileCache { files, own },
            Reason::Floor { available: 1, floor: 2 },
            Reason::Missed { own, files },
            Reason::Room { available: 1 },
            Reason::KeepsSwap,
            Reason::AtLeast,
            Reason::AtMost,
            Reason::NoRoom { available: 1, floor: 2 },
            Reason::Waiting,
            Reason::Balanced { files, own },
            Reason::Idle,
        ] {
            assert_eq!(serde_json::to_value(reason).unwrap()["kind"], reason.kind());
        }
        assert_eq!(serde_json::from_value::<Reason>(json).unwrap(), reason);
        let reason = Reason::Floor { available: 20 << 20, floor: 25 << 20 };
        assert_eq!(reason.to_string(), "only 20 MiB of memory are available, and 25 MiB are to be");
    }
}
