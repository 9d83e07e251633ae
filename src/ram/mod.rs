//! The memory engine: blocks compressed in memory, and on a spill device when memory is short.
//!
//! [`store`] keeps the bytes and never makes room. [`Ram`] makes the room that the store asks for,
//! keeps memory near its payload, and refuses what does not fit; where there is a spill device, the
//! coldest segments go there first ([`SpillTo`]). What to clean and spill is decided by [`policy`],
//! which is pure.

mod allowance;
mod demote;
mod engine;
mod hindsight;
mod mempool;
pub mod policy;
mod recompress;
mod spill;
pub mod store;

pub use demote::Unread;
pub use engine::{NoSpace, Ram};
pub use recompress::{Pass, Pressed, Recompress, RecompressCounts};
pub use spill::{SpillCounts, SpillTo};
