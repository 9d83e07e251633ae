//! The memory files of one volume: made here, or taken over from a process that had them before.
//!
//! A volume keeps what must outlive its process in files of this set, each under a name of its own.
//! A process that has the descriptors of all of them has the volume's memory, whatever becomes of
//! the process that made it.
//!
//! Invariants:
//! - a name stands for one file for as long as the volume lives;
//! - a set that was taken over makes no files: if one is missing, or has not the size that is asked
//!   for, the set is another version's.

#[cfg(miri)]
use super::interpreted::{ftruncate, memfd_create};
use super::spares::{Home, Spares};
use super::{Arena, PAGE};
use crate::error::{Context, Error, Result};
use crate::remedy;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, Mode, OFlags, fstat};
#[cfg(not(miri))]
use rustix::fs::{ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A named set of memory files.
#[derive(Debug, Default)]
pub struct Memory {
    files: Mutex<Vec<(String, Arc<OwnedFd>)>>,
    origin: Origin,
}

/// Where files come from.
#[derive(Debug, Default)]
enum Origin {
    /// Each is a `memfd`.
    #[default]
    Plain,
    /// A file system in memory that is never swapped out, and mounted nowhere.
    Resident(OwnedFd),
    /// Another process made all of them.
    Inherited,
    /// Files of earlier sets, emptied; where there is none, a `memfd`. The flag says that
    /// [`Memory::files`] has given the files of this set out.
    Spare(Arc<Spares>, Arc<AtomicBool>),
}

impl Memory {
    /// An empty set of files that never leave RAM, even while no process maps them, where the
    /// machine has such files (`tmpfs` with `noswap`: Linux 6.4, `CAP_SYS_ADMIN`); otherwise of
    /// plain ones.
    pub fn resident() -> Self {
        let origin = resident_tmpfs().map_or(Origin::Plain, Origin::Resident);
        Self { origin, ..Self::default() }
    }

    /// The files that another process had.
    pub fn inherited(files: Vec<(String, OwnedFd)>) -> Self {
        let files = files.into_iter().map(|(name, file)| (name, Arc::new(file))).collect();
        Self { files: Mutex::new(files), origin: Origin::Inherited }
    }

    /// An empty set whose files may be those of earlier sets with these spares. They are empty, as
    /// new ones are. When this set and its arenas are gone, the files are spare again, unless
    /// [`Self::files`] has given them out.
    pub fn of_spares(spares: &Arc<Spares>) -> Self {
        let origin = Origin::Spare(spares.clone(), Arc::default());
        Self { origin, ..Self::default() }
    }

    /// Whether another process had these files before.
    pub fn is_inherited(&self) -> bool {
        matches!(self.origin, Origin::Inherited)
    }

    /// Whether files stay in RAM even while no process maps them.
    pub fn is_resident(&self) -> bool {
        matches!(self.origin, Origin::Resident(_))
    }

    /// The file `name` of `len` bytes (rounded up to pages), mapped. A new set makes the file,
    /// which takes address space, but no memory yet.
    ///
    /// # Errors
    /// The system's, or a set that was taken over has no such file.
    ///
    /// # Panics
    /// When a set that is new is asked for the same name twice.
    pub fn arena(&self, name: &str, len: usize) -> Result<Arena> {
        let len = len.max(1).next_multiple_of(PAGE);
        let mut files = self.files.lock();
        let known = files.iter().find(|(known, _)| known == name).map(|(_, file)| file.clone());
        let file = match (known, &self.origin) {
            (Some(file), Origin::Inherited) => fit(file, name, len)?,
            (None, Origin::Inherited) => return Err(strange(format!("has no file `{name}`"))),
            (Some(_), _) => unreachable!("memory file {name} is made twice"),
            (None, Origin::Spare(spares, given)) => {
                let home = Home::new(spares.clone(), name, given.clone());
                let arena = match spares.take(name, len) {
                    Some(arena) => arena,
                    None => Arena::over(Arc::new(self.make(name, len)?), name, len)?,
                };
                files.push((name.to_owned(), arena.file().clone()));
                return Ok(arena.with_home(home));
            }
            (None, _) => {
                let file = Arc::new(self.make(name, len)?);
                files.push((name.to_owned(), file.clone()));
                file
            }
        };
        Arena::over(file, name, len)
    }

    /// All files of the set, by name.
    pub fn files(&self) -> Vec<(String, Arc<OwnedFd>)> {
        if let Origin::Spare(_, given) = &self.origin {
            given.store(true, Ordering::Relaxed);
        }
        self.files.lock().clone()
    }

    /// Bytes of the file `name`, if it was taken over.
    ///
    /// # Errors
    /// The system's.
    pub fn len_of(&self, name: &str) -> Result<Option<u64>> {
        let files = self.files.lock();
        let known = files.iter().find(|(known, _)| known == name && self.is_inherited());
        known.map(|(name, file)| len_of(file, name)).transpose()
    }

    /// Bytes of memory behind all files.
    ///
    /// # Errors
    /// The system's.
    pub fn resident_bytes(&self) -> Result<u64> {
        let what = |name: &str| format!("cannot look at memory file {name}");
        let bytes = |(name, file): &(String, Arc<OwnedFd>)| {
            fstat(file).context(what(name)).map(|stat| stat.st_blocks as u64 * 512)
        };
        self.files.lock().iter().map(bytes).sum()
    }

    fn make(&self, name: &str, len: usize) -> Result<OwnedFd> {
        let what = || format!("cannot reserve {len} bytes of address space for {name}");
        let file = match &self.origin {
            Origin::Resident(root) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                rustix::fs::openat(root, ".", flags, Mode::RUSR | Mode::WUSR)
            }
            _ => memfd_create(format!("ztier:{name}"), MemfdFlags::CLOEXEC),
        }
        .context(what())?;
        let sized = ftruncate(&file, len as u64);
        let is_limit = sized == Err(Errno::FBIG);
        sized.context(what()).map_err(|e| match is_limit {
            true => e.hint("memory counts as a file: raise `ulimit -f`"),
            false => e,
        })?;
        Ok(file)
    }
}

fn len_of(file: &OwnedFd, name: &str) -> Result<u64> {
    Ok(fstat(file).context(format!("cannot look at memory file {name}"))?.st_size as u64)
}

fn fit(file: Arc<OwnedFd>, name: &str, len: usize) -> Result<Arc<OwnedFd>> {
    let there = len_of(&file, name)?;
    if there != len as u64 {
        return Err(strange(format!("has {there} bytes in file `{name}`, not {len}")));
    }
    Ok(file)
}

fn strange(why: String) -> Error {
    Error::would_lose(format!("the memory that was kept {why}: it is of another version or volume"))
        .hint(remedy::KEPT_ELSEWHERE)
}

/// The root of a file system in memory to which only this descriptor refers, and whose pages are
/// never swapped out. It has no limits of its own: callers keep budgets.
fn resident_tmpfs() -> rustix::io::Result<OwnedFd> {
    let config = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&config, "noswap")?;
    fsconfig_set_string(&config, "size", "0")?;
    fsconfig_set_string(&config, "nr_inodes", "0")?;
    fsconfig_create(&config)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&config, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::fd::AsFd;

    fn taken_over(memory: &Memory) -> Memory {
        let files = memory.files();
        let dup = |fd: &OwnedFd| fd.as_fd().try_clone_to_owned().unwrap();
        Memory::inherited(files.iter().map(|(name, fd)| (name.clone(), dup(fd))).collect())
    }

    fn written(memory: &Memory) {
        let arena = memory.arena("a", 5000).unwrap();
        assert_eq!(arena.len(), 8192);
        arena.populate(4096, 4096).unwrap();
        // SAFETY: populated, ours alone.
        unsafe { arena.at(4097).write(7) };
    }

    #[test]
    fn what_one_wrote_the_next_reads() {
        for memory in [Memory::default(), Memory::resident()] {
            written(&memory);
            let next = taken_over(&memory);
            drop(memory);
            let arena = next.arena("a", 5000).unwrap();
            // SAFETY: inside, and no thread writes.
            assert_eq!(unsafe { arena.at(4097).read() }, 7);
            arena.remove(4096, 4096);
            // SAFETY: as above.
            assert_eq!(unsafe { arena.at(4097).read() }, 0);
        }
    }

    #[test]
    fn another_versions_memory_is_refused() {
        let memory = Memory::default();
        written(&memory);
        let next = taken_over(&memory);
        for (name, len, why) in [("b", 5000, "no file `b`"), ("a", 9000, "8192 bytes")] {
            let text = next.arena(name, len).unwrap_err().to_string();
            assert!(text.contains(why) && text.contains("another version"), "{text}");
        }
    }

    #[test]
    fn resident_files_are_of_a_file_system_that_is_never_swapped() {
        let memory = Memory::resident();
        if !memory.is_resident() {
            eprintln!("skipped: no tmpfs with noswap here");
            return;
        }
        written(&memory);
        let (_, file) = &memory.files()[0];
        let kind = rustix::fs::fstatfs(file).unwrap().f_type;
        assert_eq!(kind as u64, 0x0102_1994, "tmpfs");
    }
}
