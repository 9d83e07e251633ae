//! The logical sector of a volume: that of what it holds, else that of its backing store.

use super::{Device, Request};
use crate::error::Result;
use crate::media::{Access, FileDrive, MadeFor, Sector};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

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
pub fn of_volume(volume: Arc<dyn Device>, path: &Path) -> Result<Judged> {
    let size = volume.size();
    let mut channel = volume.channel();
    let mut read = |range: Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let request = Request::Read { offset: range.start, buf: &mut bytes };
        channel.submit(request, Instant::now()).ok()?;
        Some(bytes)
    };
    match MadeFor::of(size, &mut read) {
        Some(made) => Ok((made.sector, made.content)),
        None => Ok(FileDrive::open(path, Access::ReadOnly)?.own_sector()),
    }
}
