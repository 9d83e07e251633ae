//! Memory that outlives the daemon: a small process, one a volume, that has the descriptors of its
//! memory files and nothing else to do.
//!
//! The daemon gives it copies of the descriptors before its device is usable
//! ([`MemoryHolder::start`]). When the daemon dies the next one gets them back ([`Kept::find`]) and
//! goes on with what is in them. `down` ends the memory holder, and with it the memory.
//!
//! Invariants:
//! - the memory holder never reads or writes the memory: it only has it, and keeps it from being
//!   swapped out while no daemon does;
//! - `NAME.keep` is its socket as long as it lives; it admits only its owner and root;
//! - messages carry a version, because a memory holder may be older than the daemon that it serves.

mod link;
mod process;
mod wire;

pub use link::{Kept, MemoryHolder, end};
pub use process::main;

use serde::{Deserialize, Serialize};

/// The version of the messages.
const VERSION: u32 = 1;

/// What the memory files are, told by the daemon that made them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// How what is in them is laid out, see [`crate::device::MEMORY_LAYOUT`].
    pub layout: u32,
    /// The volume's name.
    pub volume: String,
    /// Bytes in a segment.
    pub segment_bytes: u32,
    /// The most that the limit on memory could be raised to, in bytes: how large the files are.
    pub ram_limit_max_bytes: u64,
    /// The program that made them, to be shown.
    pub program: String,
    /// Whether the files are never swapped out, whichever process has them.
    pub resident: bool,
}

/// What is said to a memory holder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Say {
    /// Keep these; the descriptors come along, one a name. The first message, once.
    Keep { manifest: Manifest, names: Vec<String>, socket: std::path::PathBuf },
    /// Give copies of them, and watch this connection: its peer is the daemon now.
    Give,
    /// End, and let the memory go.
    End,
}

/// What a memory holder answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
enum Answer {
    /// It is done.
    Done,
    /// The descriptors come along, one a name.
    Given { manifest: Manifest, names: Vec<String> },
    /// It can't be done.
    Failed { why: String },
}
