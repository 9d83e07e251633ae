//! What a chain needs of a store of objects.
//!
//! Invariants that every store keeps: of several that create one key, exactly one succeeds; what
//! was created or swapped survives a loss of power, and is read by all from then on; a key has its
//! object, or none: never a part of it.

use crate::error::Result as Checked;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// What an object is known by when it is swapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tag(pub String);

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The store has no object of that key.
    #[error("no such object")]
    Missing,
    /// There is an object of that key already.
    #[error("the object exists")]
    Exists,
    /// The object has another tag.
    #[error("the object has changed")]
    Changed,
    /// Any other failure; what was asked may have been done, or may still be.
    #[error("{0}")]
    Other(Trouble),
}

/// A failure of the store, or on the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The system's error number, or that which fits best.
    pub errno: i32,
    /// What failed, on what.
    pub text: String,
}

impl Trouble {
    /// Whether asking again soon is in vain: a right, a key or the bucket is missing.
    pub fn lasts(&self) -> bool {
        let lasting = [rustix::io::Errno::ACCESS, rustix::io::Errno::NXIO];
        lasting.iter().any(|errno| errno.raw_os_error() == self.errno)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A store, below one prefix. Keys are words separated by `/`.
///
/// # Errors
/// Every method fails with a [`Failure`].
pub trait Store: Send + Sync {
    /// Where it is, for users.
    fn place(&self) -> String;

    /// What a place needs, for users whose store can't be used.
    fn needs(&self) -> &'static str {
        "use a file system with hard links, renames and locks"
    }

    /// Makes what objects need, before the first of them.
    ///
    /// # Errors
    /// It can't be made.
    fn prepare(&self) -> Checked<()>;

    /// Makes an object.
    fn create(&self, key: &str, content: &[u8]) -> Result<(), Failure>;

    /// Like [`Store::create`], of content in pieces that a request may hold, so that they are not
    /// copied.
    fn create_large(&self, key: &str, content: &[Bytes]) -> Result<(), Failure> {
        self.create(key, &content.concat())
    }

    /// The whole object.
    fn get(&self, key: &str) -> Result<(Vec<u8>, Tag), Failure>;

    /// A part of an object, shorter where the object ends.
    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Failure>;

    /// Puts `content` in the place of the object that has the tag `before`.
    fn swap(&self, key: &str, content: &[u8], before: &Tag) -> Result<Tag, Failure>;

    /// Makes an object, or puts it in the place of another.
    fn put(&self, key: &str, content: &[u8]) -> Result<(), Failure>;

    /// Removes an object.
    fn remove(&self, key: &str) -> Result<(), Failure>;

    /// The time since an object was put, by the store's own clock.
    fn age(&self, key: &str) -> Result<Duration, Failure>;

    /// From now on all requests, also those under way, end within the time `most`; those that would
    /// not, fail. Where the system does not let a request be given up, nothing changes.
    fn hurry(&self, most: Duration) {
        let _ = most;
    }
}

/// The key of the root.
pub const ROOT: &str = "root";
/// The key of the object that an owner puts again and again.
pub const BEAT: &str = "beat";

/// The key of a slot.
pub fn slot(number: u64) -> String {
    format!("chain/{number:016x}")
}
