//! Bringing a log and a backing store together, and refusing what would destroy or mix data.
//!
//! Invariant: nothing is written before every check has passed. A log is only ever made on a drive
//! that holds nothing known, or that its owner gave up; it serves only the backing store that it
//! was made for, in the state in which it was left.

use super::below;
use super::logged::{LogOptions, LogVolume};
use super::record::{Book, Record, state};
use crate::BLOCK_SIZE;
use crate::durable::format::Superblock;
use crate::durable::{self, Accepted, Inspection, Kept, OpenError, Step};
use crate::error::{Context, Error, Result};
use crate::media::{Access, Drive, FileDrive, Identity, Match, Memory, Ring, StableId, witness};
use crate::remedy;
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
    /// Go on without what the backing store's log holds, if that cannot be used: it is made anew.
    pub abandon: bool,
    /// What is known to be gone of the log, without which it may be opened.
    pub accepted: Accepted,
    /// Where this machine keeps what it knows of backing stores.
    pub state: PathBuf,
}

/// Drives that are ours, and what is on them.
struct Claimed {
    log: FileDrive,
    backing: FileDrive,
    identity: Identity,
    book: Book,
    record: Option<Record>,
}

impl Claimed {
    /// Looks at the log, of which no more may be gone than was `accepted`, unless all is.
    fn look(
        &self,
        options: &LogOptions,
        accepted: &Accepted,
        told: &dyn Fn(Step),
    ) -> std::result::Result<Inspection, OpenError> {
        let found = self.read(options, options.accept_loss || !accepted.is_empty(), told)?;
        if options.accept_loss || found.lacks_only(accepted) {
            return Ok(found);
        }
        // Says what is gone.
        self.read(options, false, told)
    }

    /// Reads the log. What it says of blocks that the backing store has counts only where it is
    /// certain that nobody has written to that since the log was closed.
    fn read(
        &self,
        options: &LogOptions,
        accept_loss: bool,
        told: &dyn Fn(Step),
    ) -> std::result::Result<Inspection, OpenError> {
        if options.log.keep_percent > 0 && self.is_untouched() {
            return durable::inspect_warm(&self.log, accept_loss, told);
        }
        durable::inspect_telling(&self.log, accept_loss, false, told)
    }

    fn is_untouched(&self) -> bool {
        let Ok((sb, ..)) = durable::read_superblock(&self.log) else { return false };
        let stored = Identity::decode(&sb.identity);
        let same = stored.is_some_and(|stored| stored.compare(&self.identity) == Match::Same);
        // What somebody still has in the page cache is not counted before it is written.
        let known = sb.witness != 0 && !sb.open && same && self.backing.flush().is_ok();
        known && witness(&self.backing) == Some(sb.witness)
    }
}

/// A volume that came up.
pub struct Opened {
    /// The volume.
    pub volume: Arc<LogVolume>,
    /// What somebody should know who has given a log up.
    pub abandoned: Option<String>,
}

impl Pair {
    fn refuse_same(&self) -> Result<()> {
        let same = |a: &Path, b: &Path| match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        };
        if same(&self.log, &self.backing) {
            let text = format!("{} can't be log and backing store at once", self.log.display());
            return Err(Error::usage(text).mend("give two drives"));
        }
        Ok(())
    }

    /// Takes the drives; `another` process may have had them until it died.
    fn claim(&self, another: bool) -> Result<Claimed> {
        self.refuse_same()?;
        let backing = FileDrive::take(&self.backing, another)?;
        let book = Book::of(&self.state, &backing);
        let record = book.load()?;
        let log = FileDrive::take(&self.log, another).map_err(|e| match &record {
            Some(record) if record.dirty && std::fs::File::open(&self.log).is_err() => {
                self.lacks(record, &e.to_string())
            }
            _ => e,
        })?;
        let identity = identify(&backing)?;
        Ok(Claimed { log, backing, identity, book, record })
    }

    /// The log that holds what the backing store lacks is not there.
    fn lacks(&self, record: &Record, why: &str) -> Error {
        let (backing, log) = (self.backing.display(), record.log.display());
        Error::would_lose(format!("{backing} lacks what its log on {log} holds: {why}"))
            .mend(format!("{} ({})", remedy::LOG_MISSED, record.state()))
    }

    /// Size of the volume in bytes: that of the backing store.
    ///
    /// # Errors
    /// The backing store can't be read.
    pub fn size(&self) -> Result<u64> {
        Ok(FileDrive::open(&self.backing, Access::ReadOnly)?.size())
    }

    /// Whether the backing store, which may be in use, can have this log after another one that was
    /// drained. Nothing is changed.
    ///
    /// # Errors
    /// The log's drive can't be used, is too small, holds something that may not be overwritten, or
    /// is the log of another drive.
    pub fn check_log(&self) -> Result<()> {
        self.refuse_same()?;
        let backing = FileDrive::open(&self.backing, Access::ReadOnly)?;
        let log = FileDrive::open(&self.log, Access::Exclusive)?;
        self.may_overwrite(&log)?;
        let (identity, book) = (identify(&backing)?, Book::of(&self.state, &backing));
        match durable::inspect(&log, true, false) {
            Ok(found) => {
                let claimed = Claimed { log, backing, identity, book, record: None };
                self.check(&claimed, &found.superblock, false)
            }
            Err(_) if log.size() < durable::least_size(self.segment) => {
                let least = durable::least_size(self.segment);
                let (log, has) = (self.log.display(), log.size());
                Err(Error::failure(format!("{log} has {has} bytes, and a log takes {least}"))
                    .mend("give a larger drive"))
            }
            Err(_) => Ok(()),
        }
    }

    /// Makes an empty log for the backing store.
    ///
    /// # Errors
    /// A drive can't be used, or holds something that may not be overwritten.
    pub fn format(&self) -> Result<()> {
        let claimed = self.claim(false)?;
        self.may_overwrite(&claimed.log)?;
        if let Some(record) = claimed.record.as_ref().filter(|r| r.dirty && !self.force) {
            let (backing, log) = (self.backing.display(), record.log.display());
            let text = format!("{backing} lacks what its log on {log} may hold");
            return Err(Error::would_lose(text).mend(remedy::LOG_HOLDS));
        }
        let uuid = self.make(&claimed)?;
        match &claimed.record {
            Some(old) => {
                // What was given up must not come back, also when this log is drained one day.
                let gave_up = old.gave_up || old.dirty;
                let log = absolute(&self.log);
                let noted = Vec::new();
                claimed.book.settle(&Record { uuid, log, gave_up, noted, ..old.clone() })
            }
            None => Ok(()),
        }
    }

    fn may_overwrite(&self, log: &FileDrive) -> Result<()> {
        match durable::inspect(log, true, false) {
            Ok(found) if holds_data(&found) && !self.force => {
                return Err(Error::would_lose(format!(
                    "{} is a log that holds data of its volume",
                    self.log.display()
                ))
                .mend(remedy::LOG_HOLDS));
            }
            // A log of ours without data is nothing to lose.
            Ok(_) => return Ok(()),
            Err(OpenError::Drive(e)) => return Err(failed(&self.log, &e)),
            Err(e @ (OpenError::Version(_) | OpenError::Shrunk { .. })) if !self.force => {
                let text = format!("{} holds a log: {e}", self.log.display());
                return Err(Error::would_lose(text).mend(remedy::LOG_HOLDS_ELSEWHERE));
            }
            Err(_) => {}
        }
        match below::found_on(log)? {
            Some(found) if !self.wipe => {
                Err(Error::would_lose(format!("{} holds {found}", self.log.display()))
                    .mend(remedy::DRIVE_HOLDS))
            }
            _ => Ok(()),
        }
    }

    fn make(&self, claimed: &Claimed) -> Result<[u8; 16]> {
        let blocks = claimed.backing.size() / BLOCK_SIZE as u64;
        let uuid = random()?;
        durable::format(&claimed.log, uuid, claimed.identity.encode(), blocks, self.segment)
            .map_err(|e| cannot_use(&self.log, &e))?;
        Ok(uuid)
    }

    /// Opens the log, making it first if there is none, and starts the volume. What is not durable
    /// is in `memory`, and is taken from there if another process left it. `told` hears again and
    /// again how far it is.
    ///
    /// # Errors
    /// One line: what does not fit, on what, and what to do. Then `memory` is as it was, unless a
    /// log was given up.
    pub fn open(
        &self,
        options: LogOptions,
        memory: &Memory,
        told: &dyn Fn(Step),
    ) -> Result<Opened> {
        let kept = Kept::new(memory)?;
        let (keeps, claimed) = (!kept.is_empty(), self.claim(memory.is_inherited()));
        claimed.and_then(|claimed| self.open_kept(claimed, options, kept, told)).map_err(|e| {
            match keeps {
                true => e.after("what was not durable stays in memory, but "),
                false => e,
            }
        })
    }

    fn open_kept(
        &self,
        claimed: Claimed,
        options: LogOptions,
        mut kept: Kept,
        told: &dyn Fn(Step),
    ) -> Result<Opened> {
        let look = || claimed.look(&options, &self.accepted, told);
        let (mut found, abandoned) = self.settle(&claimed, &kept, &look)?;
        if abandoned.is_some() {
            kept.give_up();
        }
        let gave_up = abandoned.is_some() || claimed.record.as_ref().is_some_and(|r| r.gave_up);
        let same = claimed.record.filter(|r| r.uuid == found.superblock.uuid);
        let noted = same.map(|r| r.noted).unwrap_or_default();
        let Claimed { log, backing, identity, book, .. } = claimed;
        found.superblock.identity = identity.encode();
        let record = Record {
            backing: absolute(&self.backing),
            log: absolute(&self.log),
            uuid: found.superblock.uuid,
            gave_up,
            noted,
            ..Record::default()
        };
        let (log, id, backing) = (Arc::new(log), StableId::of(&backing), Arc::new(backing));
        let ring = Ring::new(Arc::clone(&log), DEPTH)?;
        let epoch = u64::from_le_bytes(random()?);
        let drives = (log as Arc<dyn Drive>, Arc::clone(&backing) as Arc<dyn Drive>);
        let opened = LogVolume::open_found(found, drives, options, epoch, kept)
            .map_err(|e| cannot_use(&self.log, &e))?;
        opened.witnessed(Box::new(move || witness(&backing).unwrap_or(0)));
        opened.watch(identity, id);
        opened.keep(book, record)?;
        opened.start(Some(ring))?;
        Ok(Opened { volume: opened, abandoned })
    }

    /// Finds the log to open; makes it if there is none, or if the one that is there is given up.
    /// Then also says what that means.
    fn settle(
        &self,
        claimed: &Claimed,
        kept: &Kept,
        look: &dyn Fn() -> std::result::Result<Inspection, OpenError>,
    ) -> Result<(Inspection, Option<String>)> {
        let made = || {
            self.make(claimed)?;
            look().map_err(|e| cannot_use(&self.log, &e))
        };
        let record = claimed.record.as_ref();
        let lacking = record.filter(|r| r.dirty);
        let found = match look() {
            Err(OpenError::NoLog) => None,
            found => Some(found),
        };
        let usable = match &found {
            None => match lacking {
                Some(record) => {
                    Err(self.lacks(record, "there is no log on the drive that was given"))
                }
                None => Ok(()),
            },
            Some(Err(e)) => Err(self.unusable(e, lacking)),
            Some(Ok(found)) => self.suits(claimed, kept, found),
        };
        let fits = match &found {
            // Whoever gives a log up gives up what is in memory of it.
            _ if self.abandon || kept.is_empty() => Ok(()),
            Some(Ok(found)) => found.fits(kept),
            _ => Err(OpenError::OtherMemory),
        };
        let usable = usable.and_then(|()| fits.map_err(|e| cannot_use(&self.log, &e)));
        match (usable, self.abandon) {
            (Ok(()), true) => {
                let text = match found {
                    Some(_) => format!("the log on {} can be used", self.log.display()),
                    None => format!("{} lacks nothing that a log holds", self.backing.display()),
                };
                Err(Error::usage(text).mend("leave out --abandon-log"))
            }
            (Ok(()), false) => match found {
                Some(Ok(found)) => Ok((found, None)),
                _ => {
                    self.may_overwrite(&claimed.log)?;
                    Ok((made()?, None))
                }
            },
            (Err(e), false) => Err(e),
            (Err(e), true) => {
                let own = self.given_up(claimed, found, e)?;
                let said = self.abandoned(lacking, own.as_ref());
                Ok((made()?, Some(said)))
            }
        }
    }

    /// What is known of a log that is given up, for which there is a reason; an error if it is not
    /// the backing store's own.
    fn given_up(
        &self,
        claimed: &Claimed,
        found: Option<std::result::Result<Inspection, OpenError>>,
        reason: Error,
    ) -> Result<Option<Superblock>> {
        match found {
            None => self.may_overwrite(&claimed.log).map(|()| None),
            Some(Ok(found)) if self.is_foreign(claimed, &found.superblock) => Err(reason),
            Some(Ok(found)) => Ok(Some(found.superblock)),
            Some(Err(OpenError::Version(_))) => Err(reason),
            Some(Err(_)) => match durable::read_superblock(&claimed.log) {
                // Its own drive may yet have what is left of it.
                Ok((sb, ..)) if self.is_foreign(claimed, &sb) => {
                    self.check(claimed, &sb, false).and(Err(reason))
                }
                Ok((sb, ..)) => Ok(Some(sb)),
                // Whatever it is, it could not be looked at.
                Err(OpenError::Drive(_)) => Err(reason),
                Err(_) => Ok(None),
            },
        }
    }

    /// Whether a log is that of the backing store, as it is.
    fn suits(&self, claimed: &Claimed, kept: &Kept, found: &Inspection) -> Result<()> {
        let dirty = found.holds_changes() || !kept.is_empty();
        self.check(claimed, &found.superblock, dirty)?;
        match claimed.record.as_ref().filter(|r| r.uuid != found.superblock.uuid) {
            Some(record) if record.dirty => Err(self.lacks(record, "another log was given")),
            Some(record) if holds_data(found) => Err(self.stale(record)),
            _ => Ok(()),
        }
    }

    /// A log that cannot be opened; the way on without it.
    fn unusable(&self, e: &OpenError, lacking: Option<&Record>) -> Error {
        let error = cannot_use(&self.log, e);
        let state = lacking.map(|record| format!("what it held: {}", record.state()));
        match (e, state) {
            (OpenError::Damaged | OpenError::Shrunk { .. }, Some(state)) => error.and(state),
            _ => error,
        }
    }

    /// A log with data that this backing store has gone on without.
    fn stale(&self, record: &Record) -> Error {
        let (log, backing) = (self.log.display(), self.backing.display());
        Error::would_lose(format!(
            "{log} holds data that {backing} has gone on without (its log is that on {})",
            record.log.display()
        ))
        .mend(remedy::LOG_STALE)
    }

    /// Whether a log has data of another backing store than this.
    fn is_foreign(&self, claimed: &Claimed, sb: &Superblock) -> bool {
        let stored = Identity::decode(&sb.identity);
        let compared = stored.map(|stored| stored.compare(&claimed.identity));
        !matches!(compared, Some(Match::Same | Match::Changed { .. }))
    }

    /// What the backing store is without the log that is given up.
    fn abandoned(&self, lacking: Option<&Record>, own: Option<&Superblock>) -> String {
        let state = match (lacking, own) {
            (Some(record), _) => record.state(),
            (None, Some(sb)) if sb.open => state(sb.past_s, sb.mixture_s.max(sb.past_s).max(1)),
            (None, Some(sb)) => state(sb.past_s, sb.mixture_s),
            (None, None) => state(0, 0),
        };
        let log = lacking.map_or(&self.log, |record| &record.log);
        format!(
            "{} goes on without what its log on {} held: {state}",
            self.backing.display(),
            log.display()
        )
    }

    fn check(&self, claimed: &Claimed, sb: &Superblock, dirty: bool) -> Result<()> {
        let (log, backing) = (self.log.display(), self.backing.display());
        let blocks = claimed.backing.size() / BLOCK_SIZE as u64;
        let stored = Identity::decode(&sb.identity).ok_or_else(|| {
            Error::failure(format!("{log} does not say which backing store it has"))
                .mend(remedy::LOG_NAMELESS)
        })?;
        let refuse = |text: String| {
            let mend = match dirty {
                true => String::from(remedy::LOG_OF_ANOTHER),
                false => "the log is empty: make it anew with `ztier log format`".to_owned(),
            };
            let error = if dirty { Error::would_lose(text) } else { Error::failure(text) };
            Err(error.mend(mend))
        };
        match stored.compare(&claimed.identity) {
            Match::Other { what } => refuse(format!(
                "{log} is the log of another drive than {backing} (it differs in {what})"
            )),
            Match::Moved if dirty && !self.moved => Err(Error::would_lose(format!(
                "{log} holds data of another drive than {backing}, though of the same content"
            ))
            .mend(remedy::LOG_MOVED)),
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

fn holds_data(found: &Inspection) -> bool {
    let report = &found.report;
    let whole = report.missing.is_empty() && report.unread == 0;
    found.holds_changes() || !found.superblock.lost.is_empty() || !whole
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// The identity of a drive, as it is now.
pub(super) fn identify(drive: &FileDrive) -> Result<Identity> {
    Identity::of(drive, &StableId::of(drive)).map_err(|e| failed(drive.path(), &e))
}

/// A drive that failed, named.
pub(super) fn failed(path: &Path, e: &crate::media::DriveError) -> Error {
    Error::failure(format!("{}: {e}", path.display())).mend("look into the kernel's log")
}

/// A log that can't be made or opened, with what to do about it.
pub fn cannot_use(path: &Path, e: &OpenError) -> Error {
    let text = format!("{} can't be used as log: {e}", path.display());
    let error = match e {
        OpenError::Unread(_)
        | OpenError::Damaged
        | OpenError::Shrunk { .. }
        | OpenError::Version(_)
        | OpenError::Lost { .. }
        | OpenError::OtherMemory
        | OpenError::GoneOn
        | OpenError::Forgotten { .. } => Error::would_lose(text),
        _ => Error::failure(text),
    };
    match e {
        OpenError::Drive(_) => error.mend(remedy::DRIVE_FAILS),
        OpenError::NoLog => error.mend("make one with `ztier log format`"),
        OpenError::Damaged => error.mend(remedy::LOG_BROKEN),
        OpenError::Shrunk { .. } => error.mend(remedy::LOG_SHRUNK),
        OpenError::Version(_) => error.mend("use the ztier that made it"),
        OpenError::Segment(_) | OpenError::Memory(_) => error,
        OpenError::OtherMemory => error.mend(remedy::MEMORY_OF_ANOTHER_LOG),
        OpenError::GoneOn | OpenError::Forgotten { .. } => error.mend(remedy::MEMORY_OUTDATED),
        OpenError::Segments(_) => error.mend("give a larger drive, or another --segment"),
        OpenError::Unread(_) => error.mend(remedy::LOG_UNREAD),
        OpenError::Lost { .. } => error.mend(remedy::LOG_DAMAGED),
    }
}

/// Random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        at += rustix::rand::getrandom(&mut bytes[at..], flags).context("no random numbers")?;
    }
    Ok(bytes)
}
