//! Bringing a log and a backing store together, and refusing what would destroy or mix data.
//!
//! Invariant: nothing is written before every check has passed. A log is only ever made on a drive
//! that holds nothing known, or that its owner gave up; it serves only the backing store that it
//! was made for, in the state in which it was left.

use super::logged::{LogOptions, LogVolume};
use crate::BLOCK_SIZE;
use crate::durable::format::Superblock;
use crate::durable::{self, OpenError, Report};
use crate::error::{Context, Error, Result};
use crate::media::{Access, Drive, FileDrive, Identity, Match, Ring, Signature, StableId};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Requests to the log's drive that are in flight at once.
const DEPTH: u32 = 32;

/// Which drives, and what may be done to them.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The log's drive.
    pub log: PathBuf,
    /// The backing store.
    pub backing: PathBuf,
    /// Bytes in a segment of a log that is made.
    pub segment: u32,
    /// Whatever is on the log's drive may be overwritten, unless it is a log with data.
    pub wipe: bool,
    /// A copy of the backing store may take its place.
    pub moved: bool,
    /// A log with data may be overwritten, too.
    pub force: bool,
}

/// Drives that are ours, and what is on them.
struct Claimed {
    log: FileDrive,
    backing: FileDrive,
    identity: Identity,
}

impl Pair {
    fn claim(&self) -> Result<Claimed> {
        let same = |a: &Path, b: &Path| match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        };
        if same(&self.log, &self.backing) {
            let text = format!("{} can't be log and backing store at once", self.log.display());
            return Err(Error::usage(text).mend("give two drives"));
        }
        let backing = FileDrive::open(&self.backing, Access::Exclusive)?;
        let log = FileDrive::open(&self.log, Access::Exclusive)?;
        let identity = identify(&backing)?;
        Ok(Claimed { log, backing, identity })
    }

    /// Size of the volume in bytes: that of the backing store.
    ///
    /// # Errors
    /// The backing store can't be read.
    pub fn size(&self) -> Result<u64> {
        Ok(FileDrive::open(&self.backing, Access::ReadOnly)?.size())
    }

    /// Makes an empty log for the backing store.
    ///
    /// # Errors
    /// A drive can't be used, or holds something that may not be overwritten.
    pub fn format(&self) -> Result<()> {
        let claimed = self.claim()?;
        self.may_overwrite(&claimed.log)?;
        self.make(&claimed)
    }

    fn may_overwrite(&self, log: &FileDrive) -> Result<()> {
        match durable::inspect(log, true, false) {
            Ok(found) if found.report.entries > 0 && !self.force => {
                return Err(Error::failure(format!(
                    "{} is a log that holds data of its volume",
                    self.log.display()
                ))
                .mend("bring it to the backing store with `ztier up` and `ztier down --drain`, or give it up with --force"));
            }
            // A log of ours without data is nothing to lose.
            Ok(_) => return Ok(()),
            Err(OpenError::Drive(e)) => return Err(failed(&self.log, &e)),
            Err(_) => {}
        }
        match Signature::of(log)? {
            Some(found) if !self.wipe => {
                Err(Error::failure(format!("{} holds {found}", self.log.display()))
                    .mend("give another drive, or overwrite this one with --wipe"))
            }
            _ => Ok(()),
        }
    }

    fn make(&self, claimed: &Claimed) -> Result<()> {
        let blocks = claimed.backing.size() / BLOCK_SIZE as u64;
        let uuid = random()?;
        durable::format(&claimed.log, uuid, claimed.identity.encode(), blocks, self.segment)
            .map_err(|e| cannot_use(&self.log, &e))
    }

    /// Opens the log, making it first if there is none, and starts the volume.
    ///
    /// # Errors
    /// One line: what does not fit, on what, and what to do.
    pub fn open(&self, options: LogOptions) -> Result<Arc<LogVolume>> {
        let claimed = self.claim()?;
        let look = || durable::inspect(&claimed.log, options.accept_loss, false);
        let found = match look() {
            Err(OpenError::NoLog) => {
                self.may_overwrite(&claimed.log)?;
                self.make(&claimed)?;
                look()
            }
            found => found,
        };
        let mut found = found.map_err(|e| cannot_use(&self.log, &e))?;
        self.check(&claimed, &found.superblock, &found.report)?;
        let Claimed { log, backing, identity } = claimed;
        found.superblock.identity = identity.encode();
        let (log, id) = (Arc::new(log), StableId::of(&backing));
        let ring = Ring::new(Arc::clone(&log), DEPTH)?;
        let epoch = u64::from_le_bytes(random()?);
        let opened = LogVolume::open_found(found, log, Arc::new(backing), options, epoch)
            .map_err(|e| cannot_use(&self.log, &e))?;
        opened.watch(identity, id);
        opened.start(Some(ring))?;
        Ok(opened)
    }

    fn check(&self, claimed: &Claimed, sb: &Superblock, report: &Report) -> Result<()> {
        let (log, backing) = (self.log.display(), self.backing.display());
        let blocks = claimed.backing.size() / BLOCK_SIZE as u64;
        let stored = Identity::decode(&sb.identity).ok_or_else(|| {
            Error::failure(format!("{log} does not say which backing store it has"))
        })?;
        let dirty = report.entries > 0;
        let refuse = |text: String| {
            let mend = if dirty {
                "give the backing store of that log; `ztier log check` says what it holds"
            } else {
                "the log is empty: make it anew with `ztier log format`"
            };
            Err(Error::failure(text).mend(mend))
        };
        match stored.compare(&claimed.identity) {
            Match::Other { what } => refuse(format!(
                "{log} is the log of another drive than {backing} (it differs in {what})"
            )),
            Match::Moved if dirty && !self.moved => Err(Error::failure(format!(
                "{log} holds data of another drive than {backing}, though of the same content"
            ))
            .mend("give the right drive, or add --moved if this is a copy of it")),
            Match::Changed { what } if dirty => refuse(format!(
                "{backing} was changed while {log} held newer data of it (it differs in {what})"
            )),
            _ if sb.blocks != blocks => refuse(format!(
                "{log} is the log of a drive with {} bytes, and {backing} has {}",
                sb.blocks * BLOCK_SIZE as u64,
                claimed.backing.size()
            )),
            Match::Same | Match::Moved | Match::Changed { .. } => Ok(()),
        }
    }
}

/// The identity of a drive, as it is now.
pub(super) fn identify(drive: &FileDrive) -> Result<Identity> {
    Identity::of(drive, &StableId::of(drive)).map_err(|e| failed(drive.path(), &e))
}

fn failed(path: &Path, e: &crate::media::DriveError) -> Error {
    Error::failure(format!("{}: {e}", path.display())).mend("look into the kernel's log")
}

/// A log that can't be made or opened, with what to do about it.
pub fn cannot_use(path: &Path, e: &OpenError) -> Error {
    let error = Error::failure(format!("{} can't be used as log: {e}", path.display()));
    match e {
        OpenError::Drive(_) => error.mend("look into the kernel's log"),
        OpenError::NoLog => error.mend("make one with `ztier log format`"),
        OpenError::Damaged | OpenError::Shrunk { .. } => {
            error.mend("look at it with `ztier log check`, or make it anew with `ztier log format`")
        }
        OpenError::Version(_) => error.mend("use the ztier that made it"),
        OpenError::Segment(_) => error,
        OpenError::Segments(_) => error.mend("give a larger drive, or another --segment"),
        OpenError::Lost { .. } => error.mend(
            "look at it with `ztier log check`; --accept-loss goes on without what is damaged",
        ),
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        at += rustix::rand::getrandom(&mut bytes[at..], flags).context("no random numbers")?;
    }
    Ok(bytes)
}
