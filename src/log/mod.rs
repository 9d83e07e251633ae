//! The log engine: a volume's changes, compressed and in order, on a fast drive in front of a slow
//! one.
//!
//! [`disk`] has every byte on the log's drive; `core` is the state machine, which does no I/O:
//! commands come out, outcomes go in; `recovery` makes a log and opens one after a power cut;
//! [`run`] carries commands out, on the threads of a volume. Each uses only those before it.
//!
//! Data flows [`Logged`] → [`Core`] → the log's drive, and from there by [`Writeback`], which
//! [`Runtime`] drives, to the backing store. A [`LogReadDrive`] reads blocks of the backing store
//! from the log where that has them.

mod core;
pub mod disk;
pub mod planted;
mod recovery;
pub mod run;

pub use self::core::{
    Command, Core, Device, Ended, Fills, Found, Kept, Lost, Op, Options, Outcome, Plan, Planned,
    Progress, Reading, Refused, Ticket, Token, Tombstone, Writeback, join,
};
pub use disk::cluster::decode;
pub use disk::open_error::OpenError;
pub use recovery::{
    Accepted, Inspection, Report, Step, format, inspect, inspect_committed, inspect_telling,
    inspect_warm, least_size, newest_superblock, open, read_superblock,
};
pub use run::{Fault, LogIoContext, LogReadDrive, Logged, Policy, Runtime, Standing, Unsent};
