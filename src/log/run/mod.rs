//! A log at work: its I/O, and the threads that do it.
//!
//! [`Logged`] serves blocks from a log before a backing store, [`Tending`] moves them from one to
//! the other, and a [`Shelf`] reads what the log has of the backing store. A thread that waits for
//! a commit carries it out; what each thread may wait for is in `waits`.

mod brake;
mod gather;
mod heat;
mod keeper;
mod logged;
mod news;
mod pace;
mod packing;
pub mod planted;
mod progress;
mod shelf;
mod tending;
mod waits;
mod watched;

pub use logged::{Fault, LogHand, Logged, Standing};
pub use shelf::Shelf;
pub use tending::{Policy, Tending};
