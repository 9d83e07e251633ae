//! A log at work: its I/O, and the threads that do it.
//!
//! [`Logged`] serves blocks from a log in front of a backing store, [`Runtime`] writes them back,
//! and a [`LogReadDrive`] reads blocks of the backing store from the log where that has them. A
//! thread that waits for a commit carries it out itself; `waits` says what each thread may wait
//! for.

mod admission;
mod coalesce;
mod event_count;
mod frequency;
mod goal;
mod log_reads;
mod logged;
mod packing;
pub mod planted;
mod progress;
mod remote;
mod runtime;
mod waits;
mod watched;
mod write_throttle;
mod writeback_throttle;

pub use log_reads::LogReadDrive;
pub use logged::{Fault, LogIoContext, Logged, Standing};
pub use runtime::{Policy, Runtime, Unsent};
