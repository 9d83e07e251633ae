//! Gives a log that other owners of its volume have overtaken a store of its own.

use super::backing::Backing;
use super::drives::failed;
use super::fitting::cannot_use;
use super::object_setup::store;
use super::stored::Stored;
use crate::BLOCK_SIZE;
use crate::error::{Error, Result};
use crate::log;
use crate::media::{Access, FileDrive, Match};
use crate::object::{self, VolumeFound};
use crate::remedy;
use std::path::Path;

/// Copies the volume in the store `from`, as the log on `log` had last brought it there, to the
/// store `to`, where the log can be opened. `progress` hears what is done and how many objects of
/// it. Returns the number of objects that were copied.
///
/// # Errors
/// The log is not of that volume; or the store lacks what it had brought there; or `to` is not
/// empty; or a store or the log's drive fails.
pub fn branch(log: &Path, (from, to): (&Path, &Path), progress: &dyn Fn(&str, u64)) -> Result<u64> {
    let drive = FileDrive::open(log, Access::Exclusive)?;
    let (sb, ..) = log::read_superblock(&drive).map_err(|e| match e {
        log::OpenError::Drive(e) => failed(log, &e),
        e => cannot_use(log, &e),
    })?;
    let (place, log) = (from.display(), log.display());
    let (from_store, to_store) = (store(from)?, store(to)?);
    let root = object::root(&*from_store)?
        .ok_or_else(|| Error::failure(format!("{place} has no volume yet")))?;
    let other = || {
        Error::failure(format!("{log} is not the log of the volume in {place}"))
            .hint("give the place of its volume")
    };
    let stored = Stored::decode(&sb.identity).ok_or_else(other)?;
    if stored.volume != root.volume {
        return Err(other());
    }
    let own = |window: &object::Newest| {
        window.mark.is_some_and(|mark| mark.log == sb.uuid) || stored.saw(window)
    };
    let newest = object::last_window(&*from_store, &root, own, &|n| progress("read", n))?;
    let size = sb.blocks * BLOCK_SIZE as u64;
    let past = VolumeFound { volume: root.volume, size, newest };
    match past.compare(&sb, &sb.identity)? {
        Some(Match::Same) => {}
        _ => {
            return Err(Error::would_lose(format!("{place} lacks windows that {log} had brought"))
                .hint(remedy::STORE_BEHIND));
        }
    }
    let until = (newest.map(|newest| newest.slot), size);
    object::copy_past(&*from_store, &*to_store, until, &|n| progress("copied", n))
}
