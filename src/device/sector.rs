//! The logical sector of a volume: that of what it holds, else that of its backing store.

use super::contract::Serving;
use crate::error::Result;
use crate::media::{Access, FileDrive, Sector};
use std::path::Path;

/// A sector, and what decided it, in words.
pub type Judged = (Sector, &'static str);

/// The sector of a volume in memory of which nothing is said.
pub const IN_MEMORY: Judged = (Sector::Block, "a block");

/// The sector of a drive, as far as the drive alone tells: a log may hold newer content of it.
///
/// # Errors
/// The drive can't be opened.
pub fn of_drive(path: &Path) -> Result<Judged> {
    Ok(FileDrive::open(path, Access::ReadOnly)?.sector())
}

/// The sector of a volume above a drive: that of what the volume holds, in its log or below.
///
/// # Errors
/// The drive can't be opened.
pub fn of_volume(volume: &dyn Serving, path: &Path) -> Result<Judged> {
    match volume.made_for() {
        Some(made) => Ok((made.sector, made.content)),
        None => Ok(FileDrive::open(path, Access::ReadOnly)?.own_sector()),
    }
}
