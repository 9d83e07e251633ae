//! The logical sector of a volume: that of its content, else that of its backing store.

use super::contract::Serving;
use crate::error::Result;
use crate::media::{Access, FileDrive, Sector};
use std::path::Path;

/// A sector, and the reason for it in words.
pub type Judged = (Sector, &'static str);

/// The sector of a volume in memory whose content tells none.
pub const IN_MEMORY: Judged = (Sector::Block, "a block");

/// The sector of a drive, judged by the drive alone: a log may hold newer content of it.
///
/// # Errors
/// The drive can't be opened.
pub fn of_drive(path: &Path) -> Result<Judged> {
    Ok(FileDrive::open(path, Access::ReadOnly)?.sector())
}

/// The sector of a volume above a drive: that of its content, in its log or below.
///
/// # Errors
/// The drive can't be opened.
pub fn of_volume(volume: &dyn Serving, path: &Path) -> Result<Judged> {
    match volume.made_for() {
        Some(made) => Ok((made.sector, made.content)),
        None => Ok(FileDrive::open(path, Access::ReadOnly)?.own_sector()),
    }
}
