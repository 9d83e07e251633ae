//! The state machine of a log: takes changes, makes chunks durable, moves the tail.
//!
//! Invariants: nothing here does I/O, waits, or reads a clock. [`Core`] issues [`Command`]s and
//! takes the [`Outcome`] of each; a [`Writeback`] does the same for one window. So a simulator can
//! drive both. The threads that drive them in a daemon are in `run`.

mod answer;
mod checkpoint;
mod checkpoint_state;
pub(super) mod chunk;
mod command;
pub(super) mod commit;
pub(super) mod commit_state;
mod committing;
mod copies;
mod fill;
mod gather;
pub(super) mod holes;
mod judge;
mod judging;
mod kept;
pub(super) mod map;
pub(super) mod options;
mod recommit;
mod release;
mod replay;
mod rescue;
mod rescue_state;
mod rewrite;
pub(super) mod segment;
pub(super) mod state;
pub(super) mod summary;
mod window;
mod window_state;
mod writeback;

pub use answer::{Found, Reading, Refused};
pub use command::{Command, Device, Op, Outcome, join};
pub use commit_state::{Progress, Ticket};
pub use fill::Fills;
pub use holes::Tombstone;
pub use kept::Kept;
pub use options::Options;
pub use release::Token;
pub use rescue_state::Lost;
pub use state::Core;
pub use window_state::{Ended, Plan, Planned};
pub use writeback::Writeback;
