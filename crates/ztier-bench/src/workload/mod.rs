//! The sections of the tables, each a function that measures and reports.

pub mod cached;
pub mod devices;
pub mod engine;
pub mod export;
pub mod iozone;
pub mod log;
pub mod memory;
pub mod models;
pub mod object;
mod random;
pub mod restart;
pub mod scan;
pub mod sequential;
pub mod soak;
pub mod startup;
pub mod stress;
pub mod worst;
pub mod zcache;

use crate::data::Kind;
use crate::report::Report;
use crate::rival::System;
use std::path::Path;

/// Seed that gives the same data in every run.
pub const SEED: u64 = 0x7a74_6965_7221;

/// State shared by all sections of a run.
pub struct Context {
    /// Where figures go.
    pub report: Report,
    /// Whether to end within a minute instead of measuring well.
    pub quick: bool,
    /// The data of the file tests, at least one kind; the other speed tests use the first. Memory
    /// is compared on other data.
    pub data: Vec<Kind>,
    /// Whether the machine is small and slow: an emulated one.
    pub small: bool,
    /// Whether the machine's clock counts instructions.
    pub counted: bool,
    /// The systems whose block devices are compared, ztier first.
    pub systems: Vec<System>,
    /// The access modes of the file tests.
    pub modes: Vec<iozone::Mode>,
}

/// Whether a device of ztier's is exported by ublk, for which there are targets that no other
/// export could meet.
fn over_ublk(device: &Path) -> bool {
    std::fs::canonicalize(device).is_ok_and(|path| path.to_string_lossy().contains("ublk"))
}

impl Context {
    /// Fills in the values that the command line left open: with `all`, everything that the source
    /// and its figures need; otherwise the most important part. A small machine is a virtual one,
    /// which has hardly any files.
    pub fn set_defaults(&mut self, all: bool) {
        let (data, modes) = (
            [Kind::Ratio(2.0), Kind::Iozone, Kind::Files],
            [iozone::Mode::Mmap, iozone::Mode::Plain],
        );
        if self.data.is_empty() {
            let has = |kind: &Kind| !(self.small && *kind == Kind::Files);
            let some = data.into_iter().filter(has);
            self.data = some.take(if all { data.len() } else { 1 }).collect();
        }
        if self.modes.is_empty() {
            self.modes = if all { modes.into() } else { vec![modes[0]] };
        }
    }

    /// `quick` or `full`, by the kind of run.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}
