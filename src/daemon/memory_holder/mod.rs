//! Memory that outlives the daemon: a small process for each volume has the descriptors of its
//! memory files, and does nothing else.
//!
//! The daemon gives it copies of the descriptors before its device is usable
//! ([`MemoryHolder::start`]). If the daemon dies, the next one gets the descriptors back
//! ([`Kept::find`]) and goes on with the content. `down` ends the memory holder, and with it the
//! memory.
//!
//! Invariants:
//! - the memory holder never reads or writes the memory: it only keeps it, and keeps it from being
//!   swapped out while no daemon does;
//! - `NAME.keep` is its socket as long as it lives; it admits only its owner and root;
//! - messages carry a version, because a memory holder may be older than its daemon.

mod link;
mod process;
mod wire;

pub use link::{Kept, MemoryHolder, end};
pub use process::main;

use serde::{Deserialize, Serialize};

/// The version of the messages.
const VERSION: u32 = 1;

/// Describes the memory files; written by the daemon that made them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The layout of their content, see [`crate::device::MEMORY_LAYOUT`].
    pub layout: u32,
    /// The volume's name.
    pub volume: String,
    /// Bytes in a segment.
    pub segment_bytes: u32,
    /// The highest possible memory limit, in bytes: it sets the size of the files.
    pub ram_limit_max_bytes: u64,
    /// Version of the program that made them; only for display.
    pub program: String,
    /// Whether the files are never swapped out, whichever process has them.
    pub resident: bool,
}

/// A message to a memory holder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Say {
    /// Keep these files; the packet has one descriptor for each name. The first message, once.
    Keep { manifest: Manifest, names: Vec<String>, socket: std::path::PathBuf },
    /// Send copies of the descriptors, and watch this connection: its peer is the daemon now.
    Give,
    /// End, and free the memory.
    End,
}

/// A memory holder's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
enum Answer {
    /// The request is carried out.
    Done,
    /// The packet has one descriptor for each name.
    Given { manifest: Manifest, names: Vec<String> },
    /// The request failed.
    Failed { why: String },
}
