//! The state machine of a log: takes changes, makes chunks durable, moves the tail.
//!
//! Invariants: nothing here does I/O, waits, or reads a clock. [`Core`] issues [`Command`]s and
//! takes the [`Outcome`] of each; a [`Writeback`] does the same for one window. So a simulator can
//! drive both. The threads that drive them in a daemon are in `run`.

mod checkpoint;
pub(super) mod chunk;
mod command;
pub(super) mod commit;
mod copies;
mod fill;
mod gather;
pub(super) mod holes;
mod judge;
mod kept;
pub(super) mod map;
mod recommit;
mod replay;
mod rescue;
mod rewrite;
pub(super) mod state;
pub(super) mod summary;
mod window;
mod writeback;

pub use command::{Command, Device, Op, Outcome, join};
pub use commit::{Progress, Ticket};
pub use copies::Token;
pub use fill::Fills;
pub use holes::Tombstone;
pub use kept::Kept;
pub use rescue::Lost;
pub use state::{Core, Found, Options, Reading, Refused};
pub use window::{Ended, Plan, Planned};
pub use writeback::Writeback;
