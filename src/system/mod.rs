//! Front-ends' needs of the operating system, apart from protocols: mounts, loop devices, swap,
//! holders of a device, settings of the machine, other processes.
//!
//! Invariant: nothing here knows a front-end or a volume; a front-end calls it with paths and file
//! descriptors.

pub(crate) mod above;
pub(crate) mod bpf;
mod check;
mod claim;
pub(crate) mod depth;
pub(crate) mod device_node;
pub mod footprint;
pub(crate) mod fstab;
pub mod helper;
pub(crate) mod holders;
pub mod job;
pub(crate) mod link;
pub(crate) mod loopdev;
pub(crate) mod mounts;
pub(crate) mod page_size;
pub mod reclaim;
mod swaps;
mod tuning;
pub mod usage;
pub(crate) mod within;

pub use check::Check;
