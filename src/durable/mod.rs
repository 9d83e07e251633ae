//! The durable log: changes of a volume, compressed, in the order in which they came.
//!
//! Data flows [`core`](Core) → `chunk` → `commit` → the log's drive, and from there by `window` and
//! [`Writeback`] to the backing store; [`open`] goes the way back after a cut, from the last
//! `checkpoint` on. `format` has every byte, `map` and `holes` are the index.

mod checkpoint;
mod chunk;
pub mod cluster;
mod command;
mod commit;
mod copies;
mod core;
mod fill;
pub mod format;
mod gather;
mod holes;
mod judge;
mod kept;
mod load;
mod map;
pub mod planted;
mod recommit;
mod recover;
mod replay;
mod rescue;
mod rewrite;
mod sheet;
mod step;
mod summary;
mod walk;
mod window;
mod writeback;

pub use self::core::{Core, Found, Options, Reading, Refused};
pub use command::{Command, Device, Op, Outcome, join};
pub use commit::{Progress, Ticket};
pub use copies::Token;
pub use fill::Fills;
pub use holes::Tombstone;
pub use kept::Kept;
pub use recover::{
    Accepted, Inspection, OpenError, Report, format, inspect, inspect_telling, inspect_warm,
    least_size, open, read_superblock,
};
pub use rescue::Lost;
pub use step::Step;
pub use window::{Ended, Plan, Planned};
pub use writeback::{Writeback, decode};
