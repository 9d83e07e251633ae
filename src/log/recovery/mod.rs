//! Makes a log, and opens one after a power cut: from the last checkpoint on, chunk by chunk.
//!
//! Invariants: opening changes nothing but superblocks, and only after everything was read; done
//! twice, it ends in the same state.

mod load;
mod recover;
mod report;
mod step;
mod walk;

pub use recover::{
    Inspection, format, inspect, inspect_committed, inspect_telling, inspect_warm, least_size,
    newest_superblock, open, read_superblock,
};
pub use report::{Accepted, Report};
pub use step::Step;
