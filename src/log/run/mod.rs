//! A log at work: its I/O, and the threads that do it.
//!
//! [`Logged`] serves blocks from a log before a backing store, [`Runtime`] moves them from one to
//! the other, and a [`LogReadDrive`] reads what the log has of the backing store. A thread that
//! waits for a commit carries it out; what each thread may wait for is in `waits`.

mod admission;
mod coalesce;
mod event_count;
mod frequency;
mod log_reads;
mod logged;
mod packing;
pub mod planted;
mod progress;
mod runtime;
mod waits;
mod watched;
mod write_throttle;
mod writeback_throttle;

pub use log_reads::LogReadDrive;
pub use logged::{Fault, LogIoContext, Logged, Standing};
pub use runtime::{Policy, Runtime};
