//! The bytes of a log on its drive: superblocks and chunks, clusters of blocks, the pages of a
//! checkpoint (`docs/format.md`).
//!
//! Invariant: bytes in, values out, and the other way round. Nothing here knows the state of a log.

pub(super) mod checkpoint_page;
pub mod cluster;
pub mod format;
pub(super) mod open_error;
