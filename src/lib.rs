//! ztier: a user-space block device that compresses data in RAM and can spill to, or log on, an
//! SSD.
//!
//! The modules are in the order in which a request passes them; a layer uses only those below it,
//! and the engines `cache`, `log`, `object` and `ram` do not use each other
//! (`tests/sources/tidy.rs` fails otherwise). `ARCHITECTURE.md` has the map and the reasons.
// Exports of lower layers that only `cli` to `system` use.
#![cfg_attr(any(sim, shuttle, miri), allow(unused_imports))]

// Simulations, explored schedules and Miri are about what is below these.
#[cfg(not(any(sim, shuttle, miri)))]
pub mod cli;

#[cfg(not(any(sim, shuttle, miri)))]
pub mod metrics;

#[cfg(not(any(sim, shuttle, miri)))]
pub mod daemon;

#[cfg(not(any(sim, shuttle, miri)))]
pub mod config;
#[cfg(not(any(sim, shuttle, miri)))]
pub mod control;
#[cfg(not(any(sim, shuttle, miri)))]
pub mod limit;

#[cfg(not(any(sim, shuttle, miri)))]
pub mod export;

#[cfg(not(any(sim, shuttle, miri)))]
pub mod system;

pub mod device;

pub mod cache;
pub mod log;
pub mod object;
pub mod ram;

pub mod codec;

pub mod media;

pub mod error;
pub mod escape;
pub mod intervals;
pub mod kernel_text;
pub mod patience;
pub mod places;
mod planted;
pub mod private;
pub mod remedy;
pub mod stats;
pub mod sync;
#[cfg(all(test, not(miri)))]
mod threadless;

/// Bytes in a block, the unit of storage.
pub const BLOCK_SIZE: usize = 4096;

/// Blocks in an aligned group: they share a lock, and a request is cut at the borders of groups.
pub const GROUP: usize = 16;
