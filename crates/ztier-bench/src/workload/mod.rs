//! The sections of the tables, each a function that measures and reports.

pub mod engine;
pub mod export;
pub mod iozone;
pub mod memory;
mod random;
pub mod sequential;
pub mod soak;
pub mod startup;
pub mod stress;

use crate::data::Kind;
use crate::report::Report;

/// The same data in every run.
pub const SEED: u64 = 0x7a74_6965_7221;

/// What all sections of a run share.
pub struct Context {
    /// Where figures go.
    pub report: Report,
    /// End within a minute instead of measuring well.
    pub quick: bool,
    /// The data of the file tests.
    pub data: Vec<Kind>,
    /// How the file tests access their files.
    pub modes: Vec<iozone::Mode>,
}

impl Context {
    /// One of two values: the quick one or the full one.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}
