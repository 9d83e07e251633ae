//! A store in a directory: `file:///dir`, local or on a network file system.
//!
//! An object is a file that is made under another name, synced, and linked to its own; of several
//! links to one name the file system lets one succeed. A swap holds a lock on the file `lock`.
//!
//! Invariants: a file below `chain` never changes; before a method returns, its file and the name
//! of it are synced.

use super::store::{Failure, ROOT, Store, Tag, Trouble};
use crate::error::{Context, Error, Result as Checked};
use crate::private::{self, sync_directory};
use bytes::Bytes;
use rapidhash::v3::{DEFAULT_RAPID_SECRETS, rapidhash_v3_micro_inline};
use rustix::fs::{FlockOperation, flock};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another process may hold the lock.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Interval between tries to get the lock.
const RETRY: Duration = Duration::from_millis(20);
/// The age of a draft that no process works on any more.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
/// Bytes of an object that are written at once.
const WRITTEN: usize = 256 << 10;
/// The files that a directory has.
const FILES: [&str; 3] = ["root", "beat", "lock"];
/// The directories that it has.
const DIRECTORIES: [&str; 4] = ["chain", "index", "tmp", "probe"];

/// See the module.
#[derive(Debug)]
pub struct Directory {
    dir: PathBuf,
}

impl Directory {
    /// The store in `dir`, which may be missing: [`Store::prepare`] makes it.
    ///
    /// # Errors
    /// The directory above is missing, or it has something else.
    pub fn open(dir: &Path) -> Checked<Self> {
        let what = || format!("cannot use {}", dir.display());
        match fs::read_dir(dir) {
            Ok(found) => {
                let names = found.flatten().map(|entry| entry.file_name());
                let is_ours = |name: &std::ffi::OsString| {
                    FILES.iter().chain(&DIRECTORIES).any(|ours| *name == **ours)
                };
                let foreign = names.filter(|name| !is_ours(name));
                if let Some(name) = foreign.min() {
                    return Err(Error::would_lose(format!(
                        "{} holds something else ({})",
                        dir.display(),
                        name.display()
                    ))
                    .hint("give an empty directory, or that of a volume"));
                }
            }
            // The directory above is there, or is not mounted.
            Err(e) if e.kind() == ErrorKind::NotFound && dir.parent().is_some_and(Path::is_dir) => {
            }
            Err(e) => return Err(e).context(what()),
        }
        Ok(Self { dir: dir.to_owned() })
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(key)
    }

    /// A synced file with this content, and a name that no other process has.
    fn draft(&self, pieces: &[Bytes]) -> io::Result<PathBuf> {
        let mut unique = [0; 12];
        getrandom(&mut unique, GetRandomFlags::empty())?;
        let name: String = unique.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = self.dir.join("tmp").join(name);
        let written = private::create_new(&path).and_then(|file| {
            let mut writer = BufWriter::with_capacity(WRITTEN, file);
            pieces.iter().try_for_each(|piece| writer.write_all(piece))?;
            writer.into_inner()?.sync_all()
        });
        written.inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok(path)
    }

    /// Removes drafts of processes that died. Best effort: they only take space.
    fn remove_drafts(&self) {
        let Ok(now) = self.now() else { return };
        for draft in fs::read_dir(self.dir.join("tmp")).into_iter().flatten().flatten() {
            let made = draft.metadata().and_then(|meta| meta.modified());
            if made.is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age > ABANDONED)) {
                let _ = fs::remove_file(draft.path());
            }
        }
    }

    /// Puts a draft in its place.
    fn place(&self, key: &str, content: &[u8]) -> io::Result<()> {
        let (draft, path) = (self.draft(&[Bytes::copy_from_slice(content)])?, self.path(key));
        fs::rename(&draft, &path).inspect_err(|_| drop(fs::remove_file(&draft)))?;
        sync_directory(path.parent().unwrap_or(&self.dir))
    }

    /// The lock for swaps; it ends with the file.
    fn lock(&self) -> io::Result<File> {
        let file = private::append(&self.dir.join("lock"))?;
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
                    if Instant::now() < until =>
                {
                    std::thread::sleep(RETRY);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The time of the file system's clock, which may be another machine's.
    fn now(&self) -> io::Result<std::time::SystemTime> {
        let draft = self.draft(&[])?;
        let now = fs::metadata(&draft).and_then(|meta| meta.modified());
        fs::remove_file(&draft)?;
        now
    }

    fn failed(&self, what: &str, key: &str, e: &io::Error) -> Failure {
        let errno = e.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
        let text = format!("cannot {what} {}: {e}", self.path(key).display());
        Failure::Other(Trouble { errno, text })
    }

    fn read_failed(&self, key: &str, e: &io::Error) -> Failure {
        // Of a directory that is gone nothing can be said. One that is empty has no root.
        let is_known = key == ROOT || self.dir.join("chain").is_dir();
        match e.kind() {
            ErrorKind::NotFound if is_known => Failure::Missing,
            _ => self.failed("read", key, e),
        }
    }
}

fn tag(content: &[u8]) -> Tag {
    let hash = rapidhash_v3_micro_inline::<true, false>(content, &DEFAULT_RAPID_SECRETS);
    Tag(format!("{hash:016x}{:08x}", crc_fast::crc32_iscsi(content)))
}

impl Store for Directory {
    fn place(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    fn prepare(&self) -> Checked<()> {
        let what = || format!("cannot use {}", self.dir.display());
        let below = DIRECTORIES.map(|name| self.path(name));
        for dir in std::iter::once(&self.dir).chain(&below) {
            private::make_directory(dir).context(what())?;
            sync_directory(dir.parent().unwrap_or(dir)).context(what())?;
        }
        self.remove_drafts();
        Ok(())
    }

    fn create(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        self.create_large(key, &[Bytes::copy_from_slice(content)])
    }

    fn create_large(&self, key: &str, content: &[Bytes]) -> Result<(), Failure> {
        let failed = |e: &io::Error| self.failed("write", key, e);
        let (draft, path) = (self.draft(content).map_err(|e| failed(&e))?, self.path(key));
        let linked = fs::hard_link(&draft, &path);
        let _ = fs::remove_file(&draft); // an unused name
        match linked {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(Failure::Exists),
            linked => linked
                .and_then(|()| sync_directory(path.parent().unwrap_or(&self.dir)))
                .map_err(|e| failed(&e)),
        }
    }

    fn get(&self, key: &str) -> Result<(Vec<u8>, Tag), Failure> {
        let content = fs::read(self.path(key)).map_err(|e| self.read_failed(key, &e))?;
        let tag = tag(&content);
        Ok((content, tag))
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        let mut content = vec![0; (range.end - range.start) as usize];
        let read = File::open(self.path(key)).and_then(|file| {
            let mut len = 0;
            while len < content.len() {
                match file.read_at(&mut content[len..], range.start + len as u64) {
                    Ok(0) => break,
                    Ok(n) => len += n,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(len)
        });
        content.truncate(read.map_err(|e| self.read_failed(key, &e))?);
        Ok(content)
    }

    fn swap(&self, key: &str, content: &[u8], before: &Tag) -> Result<Tag, Failure> {
        let failed = |e: io::Error| self.failed("write", key, &e);
        let _lock = self.lock().map_err(failed)?;
        if self.get(key)?.1 != *before {
            return Err(Failure::Changed);
        }
        self.place(key, content).map_err(failed)?;
        Ok(tag(content))
    }

    fn put(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        self.place(key, content).map_err(|e| self.failed("write", key, &e))
    }

    fn remove(&self, key: &str) -> Result<(), Failure> {
        fs::remove_file(self.path(key)).map_err(|e| match e.kind() {
            ErrorKind::NotFound => self.read_failed(key, &e),
            _ => self.failed("remove", key, &e),
        })
    }

    fn age(&self, key: &str) -> Result<Duration, Failure> {
        let read_failed = |e: io::Error| self.read_failed(key, &e);
        let then = fs::metadata(self.path(key)).and_then(|meta| meta.modified());
        let then = then.map_err(read_failed)?;
        let now = self.now().map_err(|e| self.failed("write below", key, &e))?;
        Ok(now.duration_since(then).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn made(dir: &Path) -> Directory {
        let store = Directory::open(dir).unwrap();
        store.prepare().unwrap();
        store
    }

    #[test]
    fn of_many_that_create_one_key_one_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let store = made(&dir.path().join("v"));
        for slot in 0..20 {
            let key = format!("chain/{slot}");
            let made = std::thread::scope(|scope| {
                let create = |n: u8| {
                    let (store, key) = (&store, &key);
                    scope.spawn(move || store.create(key, &[n; 100]).map(|()| n))
                };
                let racing: Vec<_> = (0..8).map(create).collect();
                racing.into_iter().map(|racer| racer.join().unwrap()).collect::<Vec<_>>()
            });
            let won: Vec<u8> = made.iter().flatten().copied().collect();
            let lost = made.iter().filter(|made| **made == Err(Failure::Exists)).count();
            assert_eq!((won.len(), lost), (1, 7), "{made:?}");
            assert_eq!(store.get(&key).unwrap().0, [won[0]; 100]);
        }
        assert_eq!(fs::read_dir(dir.path().join("v/tmp")).unwrap().count(), 0);
    }

    #[test]
    fn of_many_that_swap_one_tag_one_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let store = made(dir.path());
        store.create("root", b"0").unwrap();
        for round in 1..20_u8 {
            let (_, before) = store.get("root").unwrap();
            let swapped = std::thread::scope(|scope| {
                let swap = |n: u8| {
                    let (store, before) = (&store, &before);
                    scope.spawn(move || store.swap("root", &[round, n], before))
                };
                let racing: Vec<_> = (0..8).map(swap).collect();
                racing.into_iter().map(|racer| racer.join().unwrap()).collect::<Vec<_>>()
            });
            let won: Vec<&Tag> = swapped.iter().flatten().collect();
            assert_eq!(won.len(), 1, "{swapped:?}");
            assert_eq!(store.get("root").unwrap().1, *won[0]);
        }
        assert_eq!(store.swap("other", b"1", &Tag::default()), Err(Failure::Missing));
    }

    #[test]
    fn a_part_of_an_object_ends_where_the_object_does() {
        let dir = tempfile::tempdir().unwrap();
        let store = made(dir.path());
        store.put("beat", b"abcdef").unwrap();
        assert_eq!(store.get_range("beat", 2..4).unwrap(), b"cd");
        assert_eq!(store.get_range("beat", 4..9).unwrap(), b"ef");
        assert_eq!(store.get_range("root", 0..1), Err(Failure::Missing));
        assert!(store.age("beat").unwrap() < Duration::from_secs(60));
    }

    #[test]
    fn what_is_not_ours_is_refused_and_a_missing_directory_frees_no_slot() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("v");
        let store = made(&at);
        fs::rename(&at, dir.path().join("away")).unwrap();
        assert!(matches!(store.get("chain/1"), Err(Failure::Other(_))));
        assert_eq!(store.get(ROOT), Err(Failure::Missing));
        fs::create_dir(&at).unwrap();
        fs::write(at.join("letter.txt"), "dear").unwrap();
        let refused = Directory::open(&at).unwrap_err().to_string();
        assert!(refused.contains("holds something else (letter.txt)"), "{refused}");
        assert!(Directory::open(&dir.path().join("no/such")).is_err());
    }

    #[test]
    fn drafts_of_the_dead_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = made(dir.path());
        let drafts = [0, 2].map(|days| {
            let draft = store.draft(&[Bytes::from_static(&[7; 10])]).unwrap();
            let old = std::time::SystemTime::now() - days * ABANDONED;
            File::options().write(true).open(&draft).unwrap().set_modified(old).unwrap();
            draft
        });
        store.prepare().unwrap();
        assert_eq!(drafts.map(|draft| draft.exists()), [true, false]);
    }
}
