//! Opens a log together with its backing store, and refuses what would destroy or mix data.
//!
//! Invariant: nothing is written before every check has passed. A log is made only on a drive that
//! holds nothing known, or whose content its owner gave up. A log serves only the backing store
//! that it was made for, in the state in which the log left it. Of a log, only the newest state
//! that this machine has seen is accepted. Each exception that may lose data has a flag of its own.

use super::backing::Backing;
use super::claimed::{Claimed, holds_data};
use super::drives::{failed, random};
use super::fitting::cannot_use;
use super::logged::{LogOptions, LogVolume};
use super::object_setup::{self, StoreOptions};
use super::pair::{Granted, Pair};
use super::record::{Book, Record, Seen};
use super::spill_setup;
use crate::BLOCK_SIZE;
use crate::error::{Error, Result};
use crate::log::disk::format::Superblock;
use crate::log::{self, Inspection, Kept, OpenError, Step};
use crate::media::{
    Access, ChangeCounter, Drive, FileDrive, Identity, Match, Memory, Ring, StableId, common_layer,
};
use crate::object::{ObjectDrive, VolumeFound};
use crate::remedy;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Requests to the log's drive that are in flight at once.
const DEPTH: u32 = 32;

/// The log to open.
struct Settled {
    found: Inspection,
    /// `Some` if opening gave a log up; the inner `None` if its UUID is unknown.
    given_up: Option<Option<Seen>>,
    /// Notes for the user.
    notes: Vec<String>,
}

/// A volume that was opened.
pub struct Opened {
    /// The volume.
    pub volume: Arc<LogVolume>,
    /// Notes for the user: data that was given up or put at risk.
    pub notes: Vec<String>,
}

impl Pair {
    fn refuse_same(&self) -> Result<()> {
        if object_setup::is_store(&self.backing) {
            return object_setup::refuse_inside(&self.backing, &self.log);
        }
        let Some(layer) = common_layer(&self.log, &self.backing) else { return Ok(()) };
        let (log, backing, layer) = (self.log.display(), self.backing.display(), layer.display());
        Err(Error::usage(format!(
            "{log} and {backing} can't be log and backing store at once: both have bytes of {layer}"
        ))
        .hint("give two drives"))
    }

    /// Claims both drives. If `another`, a process may have held them until it died.
    fn claim(&self, another: bool) -> Result<(Claimed, Arc<FileDrive>)> {
        self.refuse_same()?;
        let backing = Arc::new(FileDrive::take(&self.backing, another)?);
        let book = Book::of(&self.state, &backing);
        let record = book.load()?;
        book.refuse_beside(&self.backing)?;
        let log = self.claim_log(another, record.as_ref())?;
        let drive = Arc::clone(&backing);
        Ok((Claimed { log, backing, book, record }, drive))
    }

    fn claim_log(&self, another: bool, record: Option<&Record>) -> Result<Arc<FileDrive>> {
        let log = FileDrive::take(&self.log, another).map_err(|e| match record {
            Some(record) if record.dirty && std::fs::File::open(&self.log).is_err() => {
                self.lacks(record, &e.to_string())
            }
            _ => e,
        });
        Ok(Arc::new(log?))
    }

    /// If the backing store is a volume in a store: what is known of it without taking it over.
    ///
    /// # Errors
    /// It has no volume yet.
    fn stored_volume(&self) -> Result<Option<VolumeFound>> {
        if !object_setup::is_store(&self.backing) {
            return Ok(None);
        }
        object_setup::volume_at(&self.backing)?.map(Some).ok_or_else(|| {
            Error::failure(format!("{} has no volume yet", self.backing.display()))
                .hint("make it with `ztier up NAME --size SIZE`, with these drives")
        })
    }

    /// Inspects the log. Fails if it has losses that are not accepted.
    fn look(
        &self,
        claimed: &Claimed,
        options: &LogOptions,
        progress: &dyn Fn(Step),
    ) -> std::result::Result<Inspection, OpenError> {
        let read = |accept_loss| {
            // The log's copies of blocks count only if nothing was certainly written to the backing
            // store since the log was closed.
            if options.log.keep_percent > 0 && claimed.is_untouched() {
                return log::inspect_warm(&*claimed.log, accept_loss, progress);
            }
            let sb = log::read_superblock(&*claimed.log).ok();
            match sb.and_then(|(sb, ..)| claimed.backing.committed(&sb)) {
                Some(commit) => {
                    log::inspect_committed(&*claimed.log, accept_loss, &commit, progress)
                }
                None => log::inspect_telling(&*claimed.log, accept_loss, false, progress),
            }
        };
        let found = read(options.accept_loss || !self.accepted.is_empty())?;
        if options.accept_loss || found.lacks_only(&self.accepted) {
            return Ok(found);
        }
        // This inspection fails, and its error names what is missing.
        read(false)
    }

    /// Size of the volume in bytes: the size of the backing store.
    ///
    /// # Errors
    /// The backing store can't be read.
    pub fn size(&self) -> Result<u64> {
        Ok(FileDrive::open(&self.backing, Access::ReadOnly)?.size())
    }

    /// Checks whether the backing store, which may be in use, can get this log after its present
    /// log was drained. Changes nothing.
    ///
    /// # Errors
    /// The log's drive can't be used, is too small, holds something that may not be overwritten, or
    /// is the log of another drive.
    pub fn check_log(&self) -> Result<()> {
        self.refuse_same()?;
        let log = Arc::new(FileDrive::open(&self.log, Access::Exclusive)?);
        self.may_overwrite(&log)?;
        let (backing, book): (Arc<dyn Backing>, Book) = match self.stored_volume()? {
            Some(volume) => (Arc::new(volume), Book::of_volume(&self.state, volume.volume)),
            None => {
                let backing = FileDrive::open(&self.backing, Access::ReadOnly)?;
                let book = Book::of(&self.state, &backing);
                (Arc::new(backing), book)
            }
        };
        match log::inspect(&*log, true, false) {
            Ok(found) => {
                let claimed = Claimed { log, backing, book, record: None };
                self.belongs(&claimed, &found.superblock, false).map(|_| ())
            }
            Err(_) => self.takes_log(&log),
        }
    }

    /// Checks that a drive is large enough for a log.
    fn takes_log(&self, log: &FileDrive) -> Result<()> {
        let (least, has) = (log::least_size(self.segment), log.size());
        if has >= least {
            return Ok(());
        }
        let log = self.log.display();
        Err(Error::failure(format!("{log} has {has} bytes, and a log takes {least}"))
            .hint("give a larger drive"))
    }

    /// Makes an empty log for the backing store.
    ///
    /// # Errors
    /// A drive can't be used, or holds something that may not be overwritten, or the size of the
    /// backing store is no multiple of 4096.
    pub fn format(&self) -> Result<()> {
        let claimed = match self.stored_volume()? {
            Some(volume) => {
                self.refuse_same()?;
                let book = Book::of_volume(&self.state, volume.volume);
                let record = book.load()?;
                let log = self.claim_log(false, record.as_ref())?;
                Claimed { log, backing: Arc::new(volume), book, record }
            }
            None => self.claim(false)?.0,
        };
        self.may_overwrite(&claimed.log)?;
        if let Some(record) = claimed.record.as_ref().filter(|r| r.dirty && !self.force) {
            let (backing, log) = (self.backing.display(), record.log.display());
            let text = format!("{backing} lacks what its log on {log} may hold");
            return Err(Error::would_lose(text).hint(remedy::LOG_HOLDS));
        }
        let given_up = self.overwritten(&claimed);
        let made = self.make(&claimed)?;
        let record = self.next_record(&claimed, made, given_up);
        claimed.book.save(&Record { dirty: false, ..record })
    }

    /// The log that `make` overwrites, if it holds data.
    fn overwritten(&self, claimed: &Claimed) -> Option<Seen> {
        let found = log::inspect(&*claimed.log, true, false).ok()?;
        holds_data(&found).then(|| Seen::of(&found.superblock))
    }

    /// The record with `log`, which was made or opened, as its current log. It keeps a log that was
    /// given up, so that the log is refused later.
    fn next_record(&self, claimed: &Claimed, log: Seen, given_up: Option<Seen>) -> Record {
        let mut record = claimed.record.clone().unwrap_or_default();
        for gone in given_up.into_iter().chain(record.lacked(log.uuid)) {
            record = record.without(gone);
        }
        Record {
            backing: absolute(&self.backing),
            place: claimed.book.place(),
            ..record.with_log(absolute(&self.log), log)
        }
    }

    fn may_overwrite(&self, log: &FileDrive) -> Result<()> {
        match log::inspect(log, true, false) {
            Ok(found) if holds_data(&found) && !self.force => {
                return Err(Error::would_lose(format!(
                    "{} is a log that holds data of its volume",
                    self.log.display()
                ))
                .hint(remedy::LOG_HOLDS));
            }
            // A log of ztier without data is nothing to lose.
            Ok(_) => return Ok(()),
            Err(OpenError::Drive(e)) => return Err(failed(&self.log, &e)),
            Err(e @ (OpenError::Version(_) | OpenError::Shrunk { .. })) if !self.force => {
                let text = format!("{} holds a log: {e}", self.log.display());
                return Err(Error::would_lose(text).hint(remedy::LOG_HOLDS_ELSEWHERE));
            }
            Err(_) => {}
        }
        match spill_setup::found_on(log)? {
            Some(found) if !self.wipe => {
                Err(Error::would_lose(format!("{} holds {found}", self.log.display()))
                    .hint(remedy::DRIVE_HOLDS))
            }
            _ => Ok(()),
        }
    }

    fn make(&self, claimed: &Claimed) -> Result<Seen> {
        claimed.backing.require_whole()?;
        let blocks = claimed.backing.bytes() / BLOCK_SIZE as u64;
        let (uuid, identity) = (random()?, claimed.backing.identity()?);
        log::format(&*claimed.log, uuid, identity, blocks, self.segment)
            .and_then(|()| log::read_superblock(&*claimed.log))
            .map(|(sb, ..)| Seen::of(&sb))
            .map_err(|e| cannot_use(&self.log, &e))
    }

    /// Opens the log, makes it first if there is none, and starts the volume. `memory` is for what
    /// is not durable; what another process left in it is taken over. `progress` is called
    /// repeatedly.
    ///
    /// # Errors
    /// One line: what does not fit, on which drive, and what to do. Then `memory` is unchanged,
    /// unless a log was given up.
    pub fn open(
        &self,
        options: LogOptions,
        memory: &Memory,
        progress: &dyn Fn(Step),
    ) -> Result<Opened> {
        let kept = Kept::new(memory)?;
        let keeps = !kept.is_empty();
        let open = || {
            let (claimed, drive) = self.claim(memory.is_inherited())?;
            let look = || self.look(&claimed, &options, progress);
            let settled = self.settle(&claimed, &kept, &look)?;
            self.begin(claimed, settled, options, kept, Below::Drive(drive))
        };
        open().map_err(|e| stays(keeps, e))
    }

    /// As [`Self::open`], for a volume in a store of objects, which this takes over once the log is
    /// known to fit.
    ///
    /// # Errors
    /// As [`Self::open`]; or the store fails, or the volume in it is in use, damaged, or another
    /// one.
    pub fn open_in_store(
        &self,
        store: &StoreOptions,
        options: LogOptions,
        memory: &Memory,
        (steps, objects): (&dyn Fn(Step), &dyn Fn(u64)),
    ) -> Result<Opened> {
        let options = LogOptions { log: log::Options { atomic: true, ..options.log }, ..options };
        let kept = Kept::new(memory)?;
        let keeps = !kept.is_empty();
        let open = || {
            self.refuse_same()?;
            let known = object_setup::volume_at(&self.backing)?;
            let record = match known {
                Some(volume) => Book::of_volume(&self.state, volume.volume).load()?,
                None => None,
            };
            let log = self.claim_log(memory.is_inherited(), record.as_ref())?;
            // No log is of a volume that is only made now. What can't become one is refused before.
            let fresh = Cell::new(known.is_none());
            if fresh.get() {
                self.may_overwrite(&log)?;
                self.takes_log(&log)?;
            }
            let approved = Cell::new(None);
            let approve = |volume: &VolumeFound| {
                let book = Book::of_volume(&self.state, volume.volume);
                let (log, backing, record) = (Arc::clone(&log), Arc::new(*volume), book.load()?);
                let claimed = Claimed { log, backing, book, record };
                let look = || match fresh.replace(false) {
                    true => Err(OpenError::NoLog),
                    false => self.look(&claimed, &options, steps),
                };
                let settled = self.settle(&claimed, &kept, &look)?;
                approved.set(Some((claimed, settled)));
                Ok(())
            };
            let drive = object_setup::open(store, &approve, objects)?;
            let (claimed, settled) = approved.take().ok_or_else(|| {
                Error::failure("the volume was taken over unseen").hint("this is a fault of ztier")
            })?;
            self.begin(claimed, settled, options, kept, Below::Store(drive))
        };
        open().map_err(|e| stays(keeps, e))
    }

    /// Opens the log that was settled, and starts the volume.
    fn begin(
        &self,
        claimed: Claimed,
        Settled { mut found, given_up, notes }: Settled,
        options: LogOptions,
        mut kept: Kept,
        below: Below,
    ) -> Result<Opened> {
        if given_up.is_some() {
            kept.give_up();
        }
        let sb = &mut found.superblock;
        sb.identity = claimed.backing.identity()?;
        if let Below::Store(object) = &below {
            sb.blocks = one_size(object, sb.blocks)?;
        }
        // An accepted older log becomes the newest.
        let newer = claimed.newer(sb).map_or(0, |seen| seen.generation);
        sb.generation = sb.generation.max(newer);
        let log = Seen::once_open(sb);
        let unknown = matches!(given_up, Some(None));
        let record = self.next_record(&claimed, log, given_up.flatten());
        let record = Record { gave_up: record.gave_up || unknown, ..record };
        let volume = self.start(claimed, found, (options, kept, record), below)?;
        Ok(Opened { volume, notes })
    }

    fn start(
        &self,
        claimed: Claimed,
        found: Inspection,
        (options, kept, record): (LogOptions, Kept, Record),
        below: Below,
    ) -> Result<Arc<LogVolume>> {
        let Claimed { log, book, .. } = claimed;
        let identity = Identity::decode(&found.superblock.identity);
        let ring = Ring::new(Arc::clone(&log), DEPTH)?;
        let epoch = u64::from_le_bytes(random()?);
        let drives = (log as Arc<dyn Drive>, below.drive());
        let opened = LogVolume::open_found(found, drives, options, epoch, kept)
            .map_err(|e| cannot_use(&self.log, &e))?;
        match below {
            Below::Drive(backing) => {
                if let Some(identity) = identity {
                    let id = StableId::of(&backing);
                    opened.watch(identity, id, Arc::clone(&backing) as Arc<dyn Drive>);
                }
                opened.set_change_counter(Box::new(move || ChangeCounter::of(&backing)));
            }
            Below::Store(object) => opened.set_object(object),
        }
        opened.keep(book, record)?;
        opened.start(Some(ring))?;
        Ok(opened)
    }

    /// Finds the log to open. Makes it if there is none, or if the log on the drive is given up.
    fn settle(
        &self,
        claimed: &Claimed,
        kept: &Kept,
        look: &dyn Fn() -> std::result::Result<Inspection, OpenError>,
    ) -> Result<Settled> {
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
                None => Ok(Granted::default()),
            },
            Some(Err(e)) => Err(self.unusable(e, lacking)),
            Some(Ok(found)) => self.suits(claimed, kept, found),
        };
        let fits = match &found {
            // Giving up a log gives up its part in memory, too.
            _ if self.abandon || kept.is_empty() => Ok(()),
            Some(Ok(found)) => found.fits(kept),
            _ => Err(OpenError::OtherMemory),
        };
        let usable = usable.and_then(|granted| {
            fits.map_err(|e| cannot_use(&self.log, &e))?;
            self.refuse_vain(&granted).map(|()| granted)
        });
        match (usable, self.abandon) {
            (Ok(_), true) => {
                let text = match found {
                    Some(_) => format!("the log on {} can be used", self.log.display()),
                    None => format!("{} lacks nothing that a log holds", self.backing.display()),
                };
                Err(Error::usage(text).hint("leave out --discard-log"))
            }
            (Ok(granted), false) => match found {
                Some(Ok(found)) => Ok(Settled { found, given_up: None, notes: granted.notes }),
                _ => {
                    self.may_overwrite(&claimed.log)?;
                    Ok(Settled { found: made()?, given_up: None, notes: granted.notes })
                }
            },
            (Err(e), false) => Err(e),
            (Err(e), true) => {
                let own = self.given_up(claimed, found, e)?;
                let said = self.abandoned(lacking, own.as_ref());
                let known = own.as_ref().map(Seen::of).or(lacking.map(Record::seen));
                Ok(Settled { found: made()?, given_up: Some(known), notes: vec![said] })
            }
        }
    }

    /// The superblock, if known, of a log that is given up because of `reason`. Fails if the log is
    /// not the backing store's own.
    fn given_up(
        &self,
        claimed: &Claimed,
        found: Option<std::result::Result<Inspection, OpenError>>,
        reason: Error,
    ) -> Result<Option<Superblock>> {
        match found {
            None => self.may_overwrite(&claimed.log).map(|()| None),
            Some(Ok(found)) if claimed.is_foreign(&found.superblock) => Err(reason),
            Some(Ok(found)) => Ok(Some(found.superblock)),
            Some(Err(OpenError::Version(_))) => Err(reason),
            Some(Err(_)) => match log::newest_superblock(&*claimed.log) {
                // The log's own drive may still have its data.
                Ok((sb, ..)) if claimed.is_foreign(&sb) => {
                    match self.belongs(claimed, &sb, true)? {
                        Match::Moved { .. } if self.moved => Ok(Some(sb)),
                        Match::Moved { compared } => Err(self.moved(compared)),
                        _ => Err(reason),
                    }
                }
                Ok((sb, ..)) => Ok(Some(sb)),
                // The drive could not be read, so its content is unknown.
                Err(OpenError::Drive(_)) => Err(reason),
                Err(_) => Ok(None),
            },
        }
    }
}

/// The error of an opening with memory that another process left, if it is not empty.
fn stays(keeps: bool, e: Error) -> Error {
    if keeps { e.after("what was not durable stays in memory, but ") } else { e }
}

/// The backing store that a log is opened for.
enum Below {
    Drive(Arc<FileDrive>),
    Store(Arc<ObjectDrive>),
}

impl Below {
    fn drive(&self) -> Arc<dyn Drive> {
        match self {
            Self::Drive(drive) => Arc::clone(drive) as Arc<dyn Drive>,
            Self::Store(drive) => Arc::clone(drive) as Arc<dyn Drive>,
        }
    }
}

/// The blocks of a volume in a store whose log has `blocks`: it may have grown without its log, and
/// a store that went back, which the user accepted, gets the size that it had.
fn one_size(object: &ObjectDrive, blocks: u64) -> Result<u64> {
    let bytes = blocks * BLOCK_SIZE as u64;
    if object.size() < bytes {
        object.grow(bytes)?;
    }
    Ok(object.size() / BLOCK_SIZE as u64)
}

fn absolute(path: &Path) -> PathBuf {
    if object_setup::is_store(path) {
        return path.into();
    }
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}
