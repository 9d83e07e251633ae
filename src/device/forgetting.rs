//! What this machine has recorded of a backing store, for a volume that is forgotten.
//!
//! Invariant: a record that says that a log holds what its backing store lacks is never removed:
//! without it the store would be taken for whole.

use super::object_setup::is_store;
use super::record::{Book, Record};
use crate::error::{Context, Result};
use crate::media::{Access, FileDrive};
use std::fs;
use std::path::{Path, PathBuf};

/// The record of a backing store.
#[derive(Debug, PartialEq, Eq)]
pub enum Known {
    /// There is none.
    Nothing,
    /// The backing store has everything; this file says which logs it had.
    Whole(PathBuf),
    /// The file names a log that may hold what the backing store lacks.
    Lacking(PathBuf),
}

/// The record of `backing` in the directory `dir`.
///
/// # Errors
/// The record can't be read.
pub fn known(dir: &Path, backing: &Path) -> Result<Known> {
    let drive = match is_store(backing) {
        true => None,
        false => FileDrive::open(backing, Access::ReadOnly).ok(),
    };
    let own = drive.map(|drive| Book::of(dir, &drive));
    let found = match own {
        Some(book) => book.load()?.map(|record| (book.file().to_owned(), record)),
        // A store, or a drive that is gone: by its name.
        None => Book::all(dir).find(|(_, record)| record.backing == backing),
    };
    Ok(match found {
        None => Known::Nothing,
        Some((path, Record { dirty: true, .. })) => Known::Lacking(path),
        Some((path, _)) => Known::Whole(path),
    })
}

/// Removes the record of `backing`, unless it names a log that is needed. Returns what it was.
///
/// # Errors
/// As [`known`]; or the file can't be removed.
pub fn forget(dir: &Path, backing: &Path) -> Result<Known> {
    let known = known(dir, backing)?;
    if let Known::Whole(path) = &known {
        fs::remove_file(path).context(format!("cannot remove {}", path.display()))?;
    }
    Ok(known)
}
