//! The memory engine: blocks compressed in memory, and on a spill device when memory is short.
//!
//! [`store`] keeps the bytes and never makes room. [`Ram`] makes the room that the store asks for,
//! keeps memory near its payload, and refuses what does not fit. With a spill device, it first
//! spills the coldest segments ([`SpillTo`]). [`policy`], which is pure, decides what to clean and
//! spill.

mod below;
mod demote;
mod engine;
mod lower;
mod mempool;
pub mod policy;
mod recompress;
mod recompression;
mod refaults;
mod refill;
mod seek_cost;
mod spill;
pub mod store;
mod write_budget;

pub use below::Change;
pub use demote::Unread;
pub use engine::{NoSpace, Ram};
pub use recompress::{Pass, Recompressed};
pub use recompression::{Recompress, RecompressCounts};
pub use spill::{SpillCounts, SpillTo};
