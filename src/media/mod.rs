//! The only seam to the machine's memory and its drives.
//!
//! Stored references are offsets into memory files, not pointers, so that another process can map
//! the files again.

mod arena;
pub mod budget;
mod buffer;
mod change_counter;
mod claims;
mod commit;
mod contents;
mod drive;
mod failures;
mod file_drive;
mod flushes;
mod holder;
mod identity;
#[cfg(miri)]
mod interpreted;
pub mod ioctls;
mod layers;
mod loops;
mod mapping;
mod memory;
pub mod mounts;
mod packed_block;
mod part;
mod pool;
mod prefetch;
pub mod ring;
mod ring_buffers;
mod sector;
mod signature;
mod spares;
mod stable_id;
pub mod swap_areas;
pub(crate) mod sysfs;
mod transfer;
mod words;

pub use arena::Arena;
pub use buffer::Buffer;
pub use change_counter::ChangeCounter;
pub use claims::Access;
pub use commit::{Commit, Tail};
pub use drive::{ALIGN, Action, Drive, DriveError};
pub use failures::{Alarm, Failures};
pub use file_drive::{FileDrive, common_layer};
pub use holder::process_name;
pub use identity::{Identity, Match};
pub use mapping::{Hint, MappedFor, Mapping};
pub use memory::Memory;
pub use packed_block::{Blocks, Given, PackedBlock, PackedRun};
pub use pool::{Frame, Pool};
pub use prefetch::prefetch;
pub use ring::{Completion, Ring, Submission, Waker};
pub use ring_buffers::RingBuffers;
pub use sector::{Made as MadeFor, Sector};
pub use signature::Signature;
pub use spares::Spares;
pub use stable_id::{IdKind, Place, StableId};
pub use sysfs::loop_file;
pub use words::Words;

/// Bytes in a page of the machine; x86-64 and the usual aarch64 kernels have this size.
pub const PAGE: usize = 4096;
