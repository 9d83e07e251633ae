//! What front-ends see: the one entry for requests, with range check, blocks, read-modify-write,
//! counters and latency.
//!
//! A volume is one of three: [`Volume`] in memory, [`LogVolume`] with a log in front of its backing
//! store, [`PassthroughVolume`] that passes requests to its backing store, with or without a read
//! cache.
//!
//! Invariant: a front-end reaches stored data only through a [`Channel`]; every request is counted
//! exactly once, whether it succeeds or fails.

mod attach;
mod backing;
mod branch;
mod claimed;
mod contract;
mod counters;
mod drives;
mod fitting;
mod forgetting;
mod front;
mod logged;
mod marks;
mod object_setup;
mod pair;
mod passthrough;
mod precedence;
mod record;
pub mod sector;
mod spill_setup;
mod split;
mod stored;
mod volume;
mod worker;

pub use crate::cache::{RAM_LIMIT_MIN as CACHE_LIMIT_MIN, check_limit as check_cache_limit};
pub use crate::codec::Algorithm;
pub use crate::log::{Policy, Unsent};
pub use crate::media::Sector;
pub use crate::ram::{Recompress, SpillTo};
pub use attach::Opened;
pub use branch::branch;
pub use contract::{Channel, Device, Extent, ExtentKind, IoError, Request};
pub use contract::{DataMover, Load, Way};
pub use contract::{InMemory, LogControl, Serving, SpillChange, Tuning, no_log};
pub use drives::Alarm;
pub use fitting::cannot_use;
pub use forgetting::{Known, forget, known};
pub use logged::{LogOptions, LogVolume};
pub use marks::Marks;
pub use object_setup::{
    LastSession, StoreOptions, is_store, last_session, probe_store, store_size,
};
pub use pair::Pair;
pub use passthrough::PassthroughVolume;
pub(crate) use precedence::come_first;
pub use spill_setup::{LabelCopy, SpillDevice};
pub(crate) use volume::no_spill_device;
pub use volume::{MEMORY_LAYOUT, Options, SIZE_MAX, THREADS_MAX, Volume};
pub use volume::{held_in_full, min_ram_limit, min_ram_limit_above, ram_in_full, ram_limit_max_of};
pub(crate) use worker::Worker;
