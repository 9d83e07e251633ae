//! A volume in a store of objects: where its store is, and its opening.

use crate::codec::Algorithm;
use crate::error::{Error, Result};
use crate::object::{self, Counted, Directory, ObjectDrive, Store, VolumeFound};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the place of a store begins with.
const FILE: &str = "file://";
const BUCKET: &str = "s3://";

/// Whether `place` is that of a store, and not a drive's.
pub fn is_store(place: &Path) -> bool {
    place.to_str().is_some_and(|place| place.starts_with(FILE) || place.starts_with(BUCKET))
}

/// How to open a volume in a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Its place: `file:///dir` or `s3://bucket/prefix`.
    pub place: PathBuf,
    /// Bytes of the volume.
    pub size: u64,
    /// The owner's name.
    pub owner: String,
    /// Take it from an owner that may be alive.
    pub force: bool,
    /// The session that must have had the volume last; `None`: any.
    pub after: Option<String>,
    /// How blocks are compressed.
    pub algorithm: Algorithm,
    /// Most bytes of writes that the store has not got yet; as much again while they are sent.
    pub waiting_max: usize,
}

/// The store at `place`.
pub(super) fn store(place: &Path) -> Result<Arc<dyn Store>> {
    let text = place.to_str().unwrap_or_default();
    if text.starts_with(BUCKET) {
        return in_bucket(text);
    }
    match text.strip_prefix(FILE).filter(|dir| dir.starts_with('/')) {
        Some(dir) => Ok(Arc::new(Directory::open(Path::new(dir))?)),
        None => Err(Error::usage(format!("{} is no place of a store", place.display()))
            .hint("write it like file:///mnt/nfs/volume")),
    }
}

#[cfg(feature = "object-store")]
fn in_bucket(place: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(object::S3::open(place)?))
}

#[cfg(not(feature = "object-store"))]
fn in_bucket(_: &str) -> Result<Arc<dyn Store>> {
    let text = "this ztier was built without s3:// (cargo feature object-store)";
    Err(Error::usage(text))
}

/// The size of the volume in the store at `place`, in bytes; `None` if it has no volume yet.
///
/// # Errors
/// The store can't be read, or holds something else.
pub fn store_size(place: &Path) -> Result<Option<u64>> {
    Ok(object::root(&*store(place)?)?.map(|root| root.size))
}

/// The last time that a volume in a store had an owner.
#[derive(Clone, Debug)]
pub struct LastSession {
    /// Its number, as `ztier status --json` has it.
    pub session: String,
    /// The owner's name.
    pub owner: String,
    /// Whether it ended in order: all that was acknowledged is in the store.
    pub ended: bool,
}

/// What the store at `place` says of its volume's last owner; `None` if it has no volume.
///
/// # Errors
/// The store can't be read, or holds something else.
pub fn last_session(place: &Path) -> Result<Option<LastSession>> {
    let root = object::root(&*store(place)?)?;
    Ok(root.map(|root| LastSession {
        session: object::session_name(&root.session),
        owner: root.owner,
        ended: root.ended,
    }))
}

/// Shows whether the store at `place` keeps what a volume needs of it, by racing writers.
///
/// # Errors
/// It does not, or holds something else.
pub fn probe_store(place: &Path) -> Result<()> {
    object::probe(&*store(place)?)
}

/// Refuses a log inside the directory of its own store.
///
/// # Errors
/// It is there.
pub(super) fn refuse_inside(store: &Path, log: &Path) -> Result<()> {
    let Some(dir) = store.to_str().and_then(|place| place.strip_prefix(FILE)) else {
        return Ok(());
    };
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    if !real(log).starts_with(real(Path::new(dir))) {
        return Ok(());
    }
    let (log, store) = (log.display(), store.display());
    Err(Error::usage(format!("the log {log} is inside its store {store}"))
        .hint("give a file or drive elsewhere, on a fast local disk"))
}

/// The volume in the store at `place`, not looked at closely; `None` if it has no volume yet.
pub(super) fn volume_at(place: &Path) -> Result<Option<VolumeFound>> {
    let root = object::root(&*store(place)?)?;
    Ok(root.map(|root| VolumeFound { volume: root.volume, size: root.size, newest: None }))
}

/// Takes the volume over if `approve` does not fail. `progress` hears the number of objects that
/// were read.
pub(super) fn open(
    options: &StoreOptions,
    approve: &dyn Fn(&VolumeFound) -> Result<()>,
    progress: &dyn Fn(u64),
) -> Result<Arc<ObjectDrive>> {
    let StoreOptions { place, size, owner, force, .. } = options;
    let store = Arc::new(Counted::new(store(place)?));
    let after = options.after.as_deref();
    let wanted = object::Wanted { owner, size: Some(*size), force: *force, after };
    let opened = object::open(&*store, &wanted, approve, progress)?;
    ObjectDrive::over(store, opened, owner, (options.algorithm, options.waiting_max))
}
