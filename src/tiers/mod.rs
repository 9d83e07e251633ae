//! Where blocks live, and when they move.
//!
//! [`Ram`] makes the room that the store asks for, keeps memory near its payload, and refuses what
//! does not fit; where there is a spill device, the coldest segments go there first ([`SpillTo`]).
//! What to clean and spill is decided by [`policy`], which is pure. [`Logged`] serves blocks from a
//! durable log before a backing store, and [`Tending`] moves them from one to the other; what the
//! log has of the backing store is on a [`Shelf`].

mod allowance;
mod brake;
mod demote;
mod gather;
mod heat;
mod hindsight;
mod keeper;
mod logged;
mod news;
mod pace;
mod packing;
pub mod planted;
pub mod policy;
mod progress;
mod ram;
mod recompress;
mod shelf;
mod spill;
mod stock;
mod tending;
mod waits;
mod watched;

pub use demote::Unread;
pub use logged::{Fault, LogHand, Logged, Standing};
pub use ram::{NoSpace, Ram};
pub use recompress::{Pass, Pressed, Recompress, RecompressCounts};
pub use shelf::Shelf;
pub use spill::{SpillCounts, SpillTo};
pub use tending::{Policy, Tending};
