//! Where blocks live, and when they move.
//!
//! [`Ram`] is the one home so far: it makes the room that the store asks for, keeps memory near its
//! payload, and refuses what does not fit. What to clean is decided by [`policy`], which is pure.

pub mod policy;
mod ram;

pub use ram::{NoSpace, Ram};
