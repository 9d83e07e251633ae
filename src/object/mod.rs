//! A volume in a store of objects: one chain of numbered objects that are made once and never
//! change, and one root.
//!
//! Writes gather in memory as a window. A window is uploaded as parts, in slots that follow each
//! other, and counts with its last part: the store always has a past state of the volume. One
//! session at a time owns the chain; the next one fences it ([`TakeOver`]), without a clock.

mod adoption;
mod ahead;
mod branch;
mod change;
mod checkpoint;
mod checkpointing;
mod contents;
mod counted;
mod directory;
mod drive;
mod format;
mod index;
mod issuer;
mod mark;
mod opening;
mod packer;
mod pieces;
pub mod planted;
mod probe;
mod restoring;
mod root;
#[cfg(feature = "object-store")]
mod s3;
mod sessions;
mod state;
mod store;
mod takeover;
mod uploads;
mod window;
mod window_end;

pub use adoption::Adoption;
pub use branch::{copy_past, last_window};
pub use change::{Changed, RootChange, What};
pub use checkpoint::{write_blocks, write_rest};
pub use contents::{Adopted, Contents};
pub use counted::Counted;
pub use directory::Directory;
pub use drive::ObjectDrive;
pub use format::{
    Damage, Entry, Identity, Object, Part, Seed, Session, WIDTH, check_of, decode, fence, part,
    payloads, table_end,
};
pub use issuer::{Issuer, Taken, judge};
pub use mark::Mark;
pub use opening::{Newest, Opened, VolumeFound, Wanted, open, root, session_name};
pub use pieces::{PieceReader, PieceWriter, key as piece_key};
pub use probe::probe;
pub use root::{Checkpoint, Root};
#[cfg(feature = "object-store")]
pub use s3::S3;
pub use store::{Failure, Store, Tag, Trouble};
pub use takeover::{Answer, Ask, Owned, Step, TakeOver};
pub use window_end::WindowEnd;
