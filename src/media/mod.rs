//! The only seam to the machine's memory and (with later homes) its drives.
//!
//! What is kept here outlives pointers: it is named by offsets into memory files, so that another
//! process can map it again.

mod arena;
mod words;

pub use arena::Arena;
pub use words::Words;

/// Bytes in a page of the machine; x86-64 and the usual aarch64 kernels have this size.
pub const PAGE: usize = 4096;
