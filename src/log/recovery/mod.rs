//! Making a log, and opening one after a cut: from the last checkpoint on, chunk by chunk.
//!
//! Invariants: opening changes nothing but superblocks, and only after everything was read; done
//! twice, it ends in the same state.

mod load;
mod recover;
mod step;
mod walk;

pub use recover::{
    Accepted, Inspection, Report, format, inspect, inspect_telling, inspect_warm, least_size, open,
    read_superblock,
};
pub use step::Step;
