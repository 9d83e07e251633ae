//! This machine's record of a backing store and its logs.
//!
//! Each backing store has a small file in the state directory, named by the drive's own id. It
//! holds the log, the log's last known generation, whether the log holds data, and the age of the
//! backing store's own state. Durability does not depend on the file: without it, a log is judged
//! by its superblock alone.
//!
//! Invariants: the record is written before a volume comes up, before a window changes the backing
//! store, and after the volume has gone down. It stays when the log is drained, because an older
//! copy of the log may come back. **Its generation is never ahead of the log's durable
//! superblock**: otherwise a log would be refused after a crash. It is the generation of a
//! superblock of which both copies were flushed: at the opening (before anything else is written)
//! or at a close in order. So it may lag behind; an old copy of a log is recognised once the log
//! was opened, or closed in order, after the copy was made.

use crate::error::{Context, Error, Result};
use crate::log::Standing;
use crate::log::disk::format::{IDENTITY, Superblock};
use crate::media::{FileDrive, Place, StableId};
use crate::private;
use crate::remedy;
use crate::stats::time::{now, rfc3339};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The most earlier logs that a record keeps.
const EARLIER: usize = 64;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Path of the backing store when it was last open.
    pub backing: PathBuf,
    /// The bytes of the disk or file that the backing store covers, if known.
    #[serde(default)]
    pub place: Option<Place>,
    /// Path of its log when that was last open.
    pub log: PathBuf,
    /// UUID of the log.
    pub uuid: [u8; 16],
    /// Generation of a superblock of the log. This one or a newer one is durable.
    #[serde(default)]
    pub generation: u64,
    /// When that superblock was written, in seconds since 1970.
    #[serde(default)]
    pub at_unix_s: u64,
    /// The log holds, or may hold, what the backing store lacks; or only the log knows which blocks
    /// are lost.
    pub dirty: bool,
    /// See [`crate::stats::LogStats::past_unix_s`].
    pub past_unix_s: u64,
    /// See [`crate::stats::LogStats::mixture_since_unix_s`].
    pub mixture_since_unix_s: u64,
    /// The backing store's identity, if a failed log could not store it in its superblock before
    /// the volume itself changed the backing store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmarked: Vec<u8>,
    /// Lost blocks that the user has noted, as first block and count, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noted: Vec<(u64, u64)>,
    /// A log with an unknown UUID was given up.
    pub gave_up: bool,
    /// Logs that the backing store had before.
    #[serde(default)]
    pub earlier: Vec<Seen>,
}

/// A log at its last known generation: see [`Record`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub uuid: [u8; 16],
    pub generation: u64,
    pub at_unix_s: u64,
    /// The log was given up: its data is older than the backing store.
    pub gave_up: bool,
}

impl Seen {
    /// The state of a log whose durable superblock is `sb`.
    pub fn of(sb: &Superblock) -> Self {
        Self { uuid: sb.uuid, generation: sb.generation, at_unix_s: sb.at_s, gave_up: false }
    }

    /// The state of that log once it is open: opening writes the next generation.
    pub fn once_open(sb: &Superblock) -> Self {
        Self { generation: sb.generation + 1, at_unix_s: now(), ..Self::of(sb) }
    }

    /// Whether `sb` is an older superblock of this log.
    pub fn is_after(&self, sb: &Superblock) -> bool {
        self.uuid == sb.uuid && (self.gave_up || self.generation > sb.generation)
    }
}

impl Record {
    /// The record after the log of a running volume changed. Lost blocks keep it dirty: only the
    /// log knows which they are.
    pub(super) fn after(&self, standing: &Standing) -> Self {
        let Standing { stats, lost, unmarked } = standing;
        Self {
            dirty: !stats.through || !lost.is_empty(),
            past_unix_s: stats.past_unix_s,
            mixture_since_unix_s: stats.mixture_since_unix_s,
            unmarked: unmarked.map(Vec::from).unwrap_or_default(),
            ..self.clone()
        }
    }

    /// The identity that the log of `sb` could not store: see [`Self::unmarked`].
    pub(super) fn unmarked(&self, sb: &Superblock) -> Option<[u8; IDENTITY]> {
        let stored = (self.uuid == sb.uuid).then_some(&self.unmarked)?;
        stored.as_slice().try_into().ok()
    }

    /// The current log at its last known generation.
    pub(super) fn seen(&self) -> Seen {
        let Self { uuid, generation, at_unix_s, .. } = *self;
        Seen { uuid, generation, at_unix_s, gave_up: false }
    }

    /// The record with another current log.
    pub(super) fn with_log(mut self, log: PathBuf, seen: Seen) -> Self {
        let before = self.seen();
        if before.uuid != [0; 16] {
            self.remember(before);
        }
        self.earlier.retain(|one| one.uuid != seen.uuid);
        if before.uuid != seen.uuid {
            self.noted.clear();
        }
        let Seen { uuid, generation, at_unix_s, .. } = seen;
        Self { log, uuid, generation, at_unix_s, ..self }
    }

    /// The record after a log was given up.
    pub(super) fn without(mut self, log: Seen) -> Self {
        self.remember(Seen { gave_up: true, ..log });
        self
    }

    /// Adds an earlier log. A log that was given up stays given up.
    fn remember(&mut self, log: Seen) {
        let known = self.earlier.iter().any(|one| one.uuid == log.uuid && one.gave_up);
        self.earlier.retain(|one| one.uuid != log.uuid);
        self.earlier.push(Seen { gave_up: log.gave_up || known, ..log });
        self.earlier.drain(..self.earlier.len().saturating_sub(EARLIER));
    }

    /// The current log, if it holds data and its UUID is not `next`.
    pub(super) fn lacked(&self, next: [u8; 16]) -> Option<Seen> {
        (self.dirty && self.uuid != next).then(|| self.seen())
    }

    /// The state of the backing store without its log, in words.
    pub(super) fn state(&self) -> String {
        state(self.past_unix_s, self.mixture_since_unix_s)
    }
}

/// The blocks in both lists of ranges. A range is first block and count; lists are in order and
/// joined.
pub(super) fn common(some: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut some, mut others) = (some.iter().peekable(), others.iter().peekable());
    let mut both = Vec::new();
    while let (Some(&&(a, n)), Some(&&(b, m))) = (some.peek(), others.peek()) {
        let (from, to) = (a.max(b), (a + n).min(b + m));
        if from < to {
            both.push((from, to - from));
        }
        if a + n < b + m {
            some.next()
        } else {
            others.next()
        };
    }
    both
}

/// The state of a backing store without its log, in words.
pub(super) fn state(past_s: u64, mixture_s: u64) -> String {
    match (past_s, mixture_s) {
        (0, 0) => "of its state nothing is known".into(),
        (past, 0) => format!("its state is that of {} at the latest", rfc3339(past)),
        (0 | 1, _) => "it may be a mixture of states".into(),
        (past, mixture) => format!(
            "since {} it may be a mixture of states, and was that of {} at the latest before",
            rfc3339(mixture),
            rfc3339(past)
        ),
    }
}

/// A time in words, if it is known.
pub(super) fn moment(unix_s: u64) -> String {
    if unix_s == 0 { "of unknown time".into() } else { format!("of {}", rfc3339(unix_s)) }
}

/// The file of a backing store.
#[derive(Clone, Debug)]
pub(super) struct Book {
    path: PathBuf,
    place: Option<Place>,
}

impl Book {
    /// The file of a backing store in the directory `dir`.
    pub(super) fn of(dir: &Path, backing: &FileDrive) -> Self {
        let id = StableId::of(backing);
        let number = match id.number() {
            // A drive without an id is identified by the path of its node.
            0 => {
                let path = std::fs::canonicalize(backing.path());
                let path = path.unwrap_or_else(|_| backing.path().into());
                crc_fast::crc64_nvme(path.as_os_str().as_encoded_bytes())
            }
            number => number,
        };
        let path = dir.join(format!("backing-{}-{number:016x}.json", id.kind() as u8));
        Self { path, place: Place::of(backing) }
    }

    /// The file of a volume in a store of objects, in the directory `dir`.
    pub(super) fn of_volume(dir: &Path, volume: [u8; 16]) -> Self {
        let path = dir.join(format!("backing-store-{:032x}.json", u128::from_be_bytes(volume)));
        Self { path, place: None }
    }

    /// The bytes of the disk or file that the backing store covers.
    pub(super) fn place(&self) -> Option<Place> {
        self.place
    }

    /// Reads the record; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read or understood.
    pub(super) fn load(&self) -> Result<Option<Record>> {
        let what = || format!("cannot read {}", self.path.display());
        match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).context(what()).map_err(|e| {
                Error::failure(e.to_string())
                    .hint("remove it, then give the log that the drive had, if it had one")
            }),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).context(what()),
        }
    }

    /// The file.
    pub(super) fn file(&self) -> &Path {
        &self.path
    }

    /// All records in the directory `dir`, with their files. A damaged one is left out.
    pub(super) fn all(dir: &Path) -> impl Iterator<Item = (PathBuf, Record)> {
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let files = files.map(|entry| entry.path()).filter(|path| is_record(path));
        files.filter_map(|path| {
            let record = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
            Some((path, record))
        })
    }

    /// The records of other backing stores. A damaged one fails with its own volume, not here.
    fn others(&self) -> impl Iterator<Item = Record> {
        let all = self.path.parent().map(Self::all).into_iter().flatten();
        all.filter(|(path, _)| *path != self.path).map(|(_, record)| record)
    }

    /// Refuses a drive that overlaps with another backing store whose log holds data: a disk and a
    /// partition of it, for example.
    ///
    /// # Errors
    /// There is an overlap.
    pub(super) fn refuse_beside(&self, drive: &Path) -> Result<()> {
        let Some(own) = self.place else { return Ok(()) };
        let overlaps = |other: &Record| other.place.is_some_and(|place| place.overlaps(&own));
        let Some(other) = self.others().find(|other| other.dirty && overlaps(other)) else {
            return Ok(());
        };
        let (backing, log) = (other.backing.display(), other.log.display());
        Err(Error::would_lose(format!(
            "{} has bytes of {backing}, which lacks what its log on {log} holds",
            drive.display()
        ))
        .hint(remedy::OVERLAP_LACKS_LOG))
    }

    /// The last known generation of the log `uuid`: from `own`, the record of this backing store,
    /// or else from the records of others. A pair of drives and its copy develop apart, so the own
    /// record comes first.
    pub(super) fn seen(&self, own: Option<&Record>, uuid: [u8; 16]) -> Option<Seen> {
        let newest = |records: &mut dyn Iterator<Item = Record>| {
            let logs = records.flat_map(|r| r.earlier.clone().into_iter().chain([r.seen()]));
            let same = logs.filter(|seen| seen.uuid == uuid);
            same.max_by_key(|seen| (seen.gave_up, seen.generation))
        };
        newest(&mut own.cloned().into_iter()).or_else(|| newest(&mut self.others()))
    }

    /// Writes the record, durably.
    ///
    /// # Errors
    /// The system call fails.
    pub(super) fn save(&self, record: &Record) -> Result<()> {
        let what = || format!("cannot write {}", self.path.display());
        let bytes = serde_json::to_vec(record).context(what())?;
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let fresh = self.path.with_extension("new");
        let write = || {
            private::make_directory(dir)?;
            // The mode of a directory of other programs stays; the file itself is private.
            private::narrow(dir, |name| name.starts_with("backing-"))?;
            private::replace(&self.path, &fresh, &bytes, true)
        };
        write().context(what()).map_err(|e| {
            Error::failure(e.to_string())
                .hint("set ZTIER_STATE_DIR to a directory that can be written")
        })
    }
}

fn is_record(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("backing-") && name.ends_with(".json")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::contract::{Device, Request};
    use super::super::logged::{LogOptions, LogVolume};
    use super::*;
    use crate::BLOCK_SIZE;
    use crate::log::disk::format::{SUPER, SUPER_AT};
    use crate::log::{self, Kept};
    use crate::media::{Action, Drive, DriveError, Memory};
    use crate::sync::Mutex;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    const BLOCK: u64 = BLOCK_SIZE as u64;
    const BLOCKS: u64 = 256;

    /// A log's drive that loses unflushed writes at a power cut. At each operation the test
    /// compares the record with the state after a cut.
    struct Log {
        now: Mutex<Vec<u8>>,
        durable: Mutex<Vec<u8>>,
        book: Book,
        /// The number of next superblock writes that fail.
        fails: AtomicU64,
        looked: AtomicU64,
    }

    impl Log {
        /// The generation after a power cut.
        fn generation(&self) -> u64 {
            let durable = self.durable.lock();
            let copies = SUPER_AT.map(|at| {
                Superblock::decode(&durable[at as usize..at as usize + SUPER]).map(|s| s.generation)
            });
            copies.into_iter().flatten().max().unwrap_or(0)
        }

        #[track_caller]
        fn look(&self) {
            let Some(record) = self.book.load().unwrap() else { return };
            let (known, there) = (record.generation, self.generation());
            assert!(known <= there, "generation {known} is known, and only {there} is durable");
            self.looked.fetch_add(1, Ordering::Relaxed);
        }

        fn cut(&self) {
            self.look();
            let durable = self.durable.lock().clone();
            *self.now.lock() = durable;
        }
    }

    impl Drive for Log {
        fn size(&self) -> u64 {
            self.now.lock().len() as u64
        }

        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
            buf.copy_from_slice(&self.now.lock()[at as usize..][..buf.len()]);
            Ok(())
        }

        fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
            self.look();
            let fails = SUPER_AT.contains(&at) && self.fails.load(Ordering::Relaxed) > 0;
            if fails {
                self.fails.fetch_sub(1, Ordering::Relaxed);
                let len = data.len() as u64;
                return Err(DriveError { action: Action::Write, at, len, errno: 5 });
            }
            self.now.lock()[at as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }

        fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
            self.now.lock()[at as usize..][..len as usize].fill(0);
            Ok(())
        }

        fn flush(&self) -> Result<(), DriveError> {
            self.look();
            let now = self.now.lock().clone();
            *self.durable.lock() = now;
            self.look();
            Ok(())
        }
    }

    /// A backing store in memory.
    struct Backing(Mutex<Vec<u8>>);

    impl Drive for Backing {
        fn size(&self) -> u64 {
            self.0.lock().len() as u64
        }

        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
            buf.copy_from_slice(&self.0.lock()[at as usize..][..buf.len()]);
            Ok(())
        }

        fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
            self.0.lock()[at as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }

        fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
            self.write(at, &vec![0; len as usize])
        }

        fn flush(&self) -> Result<(), DriveError> {
            Ok(())
        }
    }

    fn open(log: &Arc<Log>, backing: &Arc<Backing>) -> Arc<LogVolume> {
        let found = log::inspect(&**log, false, false).unwrap();
        let own = log.book.load().unwrap();
        let seen = log.book.seen(own.as_ref(), found.superblock.uuid);
        let newer = seen.filter(|seen| seen.is_after(&found.superblock));
        assert_eq!(newer, None, "a log that would be refused");
        let record = own.unwrap_or_default();
        let record = record.with_log("log".into(), Seen::once_open(&found.superblock));
        let kept = Kept::new(&Memory::default()).unwrap();
        let drives = (Arc::clone(log) as Arc<dyn Drive>, Arc::clone(backing) as Arc<dyn Drive>);
        let volume = LogVolume::open_found(found, drives, LogOptions::default(), 7, kept).unwrap();
        volume.keep(log.book.clone(), record).unwrap();
        log.look();
        volume.start(None).unwrap();
        volume
    }

    /// Checked at every operation on the log's drive, with failing superblocks, kills and power
    /// cuts.
    #[test]
    fn a_record_is_never_ahead_of_what_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let book = Book { path: dir.path().join("backing-1-2.json"), place: None };
        let bytes = || Mutex::new(vec![0; 1 << 20]);
        let (fails, looked) = (AtomicU64::new(0), AtomicU64::new(0));
        let log = Arc::new(Log { now: bytes(), durable: bytes(), book, fails, looked });
        let backing = Arc::new(Backing(bytes()));
        log::format(&*log, [5; 16], [0; IDENTITY], BLOCKS, 32 << 10).unwrap();
        for round in 0..40u64 {
            let volume = open(&log, &backing);
            let mut channel = Arc::clone(&volume).channel();
            for block in 0..20 {
                let data = [(round + block) as u8; BLOCK_SIZE];
                let offset = (round * 7 + block) % BLOCKS * BLOCK;
                let write = Request::Write { offset, data: &data, fua: block % 5 == 0 };
                channel.submit(write, Instant::now()).unwrap();
            }
            channel.submit(Request::Flush, Instant::now()).unwrap();
            drop(channel);
            if round % 3 == 0 {
                volume.drain(true);
                while !volume.stats().log.unwrap().clean {
                    std::thread::yield_now();
                }
            }
            // A few failures are retried, many are not.
            log.fails.store([0, 0, 1, 2, 100][(round % 5) as usize], Ordering::Relaxed);
            if round % 4 < 2 {
                let closed = volume.close();
                assert_eq!(closed.is_ok(), round % 5 != 4, "{round}: {closed:?}");
            }
            drop(volume);
            log.fails.store(0, Ordering::Relaxed);
            match round % 2 {
                0 => log.cut(),
                _ => log.look(),
            }
        }
        assert!(log.looked.load(Ordering::Relaxed) > 1000);
    }

    fn seen(uuid: u8, generation: u64) -> Seen {
        Seen { uuid: [uuid; 16], generation, at_unix_s: 9, gave_up: false }
    }

    #[test]
    fn logs_of_a_backing_store_are_remembered_in_turn() {
        let dir = tempfile::tempdir().unwrap();
        let book = Book { path: dir.path().join("backing-1-2.json"), place: None };
        let record = Record::default().with_log("a".into(), seen(1, 5));
        assert!(record.earlier.is_empty());
        let record = record.with_log("a".into(), seen(1, 6)).with_log("b".into(), seen(2, 1));
        assert_eq!(record.earlier, [seen(1, 6)]);
        let known = |record: &Record, uuid| book.seen(Some(record), [uuid; 16]);
        assert_eq!(known(&record, 1), Some(seen(1, 6)));
        assert_eq!((known(&record, 2), known(&record, 3)), (Some(seen(2, 1)), None));
        // A log stays given up until it is opened again.
        let gone = record.clone().without(seen(1, 6)).with_log("c".into(), seen(3, 1));
        let gone = gone.with_log("b".into(), seen(2, 4));
        assert!(known(&gone, 1).is_some_and(|seen| seen.gave_up));
        let back = gone.with_log("a".into(), seen(1, 7));
        assert_eq!(known(&back, 1), Some(seen(1, 7)));
        // The newest logs are kept.
        let many = (0..200u8).fold(back, |record, n| record.with_log("x".into(), seen(n, 1)));
        assert_eq!(many.earlier.len(), EARLIER);
        assert!(known(&many, 198).is_some() && known(&many, 3).is_none());
        book.save(&many).unwrap();
        assert_eq!(book.load().unwrap(), Some(many));
    }

    #[test]
    fn other_backing_stores_know_a_log_only_where_its_own_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let book =
            |n: u64| Book { path: dir.path().join(format!("backing-1-{n}.json")), place: None };
        let record = |generation| Record::default().with_log("a".into(), seen(1, generation));
        book(1).save(&record(5)).unwrap();
        book(2).save(&record(9)).unwrap();
        std::fs::write(dir.path().join("backing-1-3.json"), "{").unwrap();
        std::fs::write(dir.path().join("backing-1-4.new"), "{}").unwrap();
        let own = book(1).load().unwrap();
        assert_eq!(book(1).seen(own.as_ref(), [1; 16]), Some(seen(1, 5)));
        assert_eq!(book(9).seen(None, [1; 16]), Some(seen(1, 9)));
        assert_eq!(book(9).seen(None, [2; 16]), None);
    }

    /// As an earlier version wrote it, without generations.
    #[test]
    fn records_of_before_are_read() {
        let old = r#"{"backing":"/dev/sdb","log":"/dev/sda3","uuid":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],
            "dirty":true,"past_unix_s":1,"mixture_since_unix_s":0,"gave_up":false}"#;
        let record: Record = serde_json::from_str(old).unwrap();
        assert!(record.dirty && record.seen() == Seen { at_unix_s: 0, ..seen(1, 0) });
    }

    #[test]
    fn what_two_lists_of_ranges_have_in_common() {
        let known = [(0, 4), (10, 10), (30, 1)];
        for (ranges, both) in [
            (&[][..], &[][..]),
            (&[(0, 4)], &[(0, 4)]),
            (&[(1, 2), (10, 1), (12, 8), (30, 1)], &[(1, 2), (10, 1), (12, 8), (30, 1)]),
            (&[(3, 2)], &[(3, 1)]),
            (&[(4, 6), (31, 1)], &[]),
            (&[(2, 50)], &[(2, 2), (10, 10), (30, 1)]),
        ] {
            assert_eq!(common(&known, ranges), both, "{ranges:?}");
            assert_eq!(common(ranges, &known), both, "{ranges:?}");
        }
    }
}
