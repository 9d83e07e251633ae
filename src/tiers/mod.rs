//! Where blocks live, and when they move.
//!
//! [`Ram`] makes the room that the store asks for, keeps memory near its payload, and refuses what
//! does not fit; what to clean is decided by [`policy`], which is pure. [`Logged`] serves blocks
//! from a durable log before a backing store, and [`Tending`] moves them from one to the other.

mod brake;
mod logged;
mod news;
mod pace;
mod packing;
pub mod policy;
mod ram;
mod tending;

pub use logged::{Fault, LogHand, Logged};
pub use ram::{NoSpace, Ram};
pub use tending::{Policy, Tending};
