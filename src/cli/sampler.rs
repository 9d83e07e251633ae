//! Samples blocks evenly from files, directories and block devices.
//!
//! Invariants: the same files, looked at completely, give the same sample. Work ends at the time
//! that is given, and what was read by then is even, too. Nothing is opened that is no file or
//! block device, so that no pipe, device or dead server below a directory holds the sampler.

use crate::BLOCK_SIZE;
use crate::error::{Context, Error, Result};
use crate::media::mounts::mounts;
use rustix::fs::{Advice, OFlags, SeekFrom as Find, fadvise, seek};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most stretches of data that are told apart in a file with holes; the last one takes the
/// rest.
const MOST_STRETCHES: usize = 1024;
/// Entries of a directory between two looks at the clock.
const ENTRIES: usize = 256;

/// Blocks of a file or device that hold data.
struct Source {
    /// Its directory's place in the list.
    directory: usize,
    name: OsString,
    /// The first block, in the file.
    first: u64,
    blocks: u64,
}

/// All that could be sampled.
#[derive(Default)]
pub struct Sources {
    directories: Vec<PathBuf>,
    sources: Vec<Source>,
    /// Device and inode of what must count once: directories, and files with several names.
    seen: HashSet<(u64, u64)>,
    /// Mount points of file systems that are passed over.
    foreign: HashSet<PathBuf>,
    /// The number of files and devices.
    pub files: u64,
    /// Blocks with data in all of them.
    pub blocks: u64,
    /// Files, directories and blocks that could not be read.
    pub skipped: u64,
    /// The first of those, and why.
    pub first_skipped: Option<String>,
    /// Mounted file systems below the paths that were passed over.
    pub left_out: Vec<PathBuf>,
    /// Whether time was over before everything was found.
    pub cut: bool,
}

impl Sources {
    /// Finds every regular file below `paths`, and the block devices among them, until `until`.
    /// Symbolic links below a directory are not followed, and file systems that are mounted there
    /// are passed over unless they are local. `told` gets the number of files, now and then.
    ///
    /// # Errors
    /// When one of `paths` itself can't be read, or is neither file, directory nor block device.
    pub fn find(
        paths: &[PathBuf],
        until: Option<Instant>,
        told: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        // Of several mounts at one point, only the last one is visible.
        let points: HashMap<PathBuf, bool> =
            mounts().into_iter().map(|mount| (mount.point.clone(), mount.is_local())).collect();
        let foreign = points.into_iter().filter(|(_, is_local)| !is_local).map(|(point, _)| point);
        let mut found = Self { foreign: foreign.collect(), ..Self::default() };
        let mut todo = Vec::new();
        for path in paths {
            found.begin(path, &mut todo)?;
        }
        let mut steps = 0;
        while !todo.is_empty() {
            if is_over(until) {
                found.cut = true;
                break;
            }
            // Any directory next: if time is over, what was seen is from everywhere.
            steps += 1;
            let next = todo.swap_remove((scatter(steps) % todo.len() as u64) as usize);
            found.walk(next, &mut todo, until);
            told(found.files);
        }
        found.order();
        Ok(found)
    }

    /// Takes a path that was named.
    fn begin(&mut self, named: &Path, todo: &mut Vec<PathBuf>) -> Result<()> {
        let what = || format!("cannot look at {}", named.display());
        let path = fs::canonicalize(named).context(what())?;
        let meta = fs::metadata(&path).context(what())?;
        let kind = meta.file_type();
        if kind.is_dir() {
            fs::read_dir(&path).context(what())?;
            todo.push(path);
            return Ok(());
        }
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        let directory = path.parent().unwrap_or(&path).to_owned();
        if kind.is_file() {
            File::open(&path).context(what())?;
            self.directories.push(directory);
            if self.seen.insert((meta.dev(), meta.ino())) {
                self.add_file(name, &meta);
            }
        } else if kind.is_block_device() {
            let mut device = File::open(&path).context(what())?;
            let size = device.seek(SeekFrom::End(0)).context(what())?;
            self.directories.push(directory);
            if self.seen.insert((meta.dev(), meta.ino())) {
                self.files += 1;
                self.add(name, 0, size);
            }
        } else {
            let text = format!("{} is neither file, directory nor block device", named.display());
            return Err(Error::usage(text).hint("name one of those"));
        }
        Ok(())
    }

    fn walk(&mut self, directory: PathBuf, todo: &mut Vec<PathBuf>, until: Option<Instant>) {
        let entries = match fs::metadata(&directory).and_then(|meta| {
            let is_new = self.seen.insert((meta.dev(), meta.ino()));
            if is_new { fs::read_dir(&directory).map(Some) } else { Ok(None) }
        }) {
            Ok(Some(entries)) => entries,
            Ok(None) => return,
            Err(e) => return self.skip(&directory, &e),
        };
        self.directories.push(directory);
        for (n, entry) in entries.enumerate() {
            if n % ENTRIES == ENTRIES - 1 && is_over(until) {
                self.cut = true;
                return;
            }
            // What has gone meanwhile is no failure.
            let Ok(entry) = entry else { continue };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => {
                    let path = entry.path();
                    if self.foreign.contains(&path) {
                        self.left_out.push(path);
                    } else {
                        todo.push(path);
                    }
                }
                Ok(kind) if kind.is_file() => match entry.metadata() {
                    Ok(meta) if self.is_again(&meta) => {}
                    Ok(meta) => self.add_file(entry.file_name(), &meta),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => self.skip(&entry.path(), &e),
                },
                _ => {}
            }
        }
    }

    /// Whether a file has been found by another name.
    fn is_again(&mut self, meta: &Metadata) -> bool {
        let id = (meta.dev(), meta.ino());
        if meta.nlink() > 1 { !self.seen.insert(id) } else { self.seen.contains(&id) }
    }

    fn skip(&mut self, path: &Path, why: &io::Error) {
        self.skipped += 1;
        self.first_skipped.get_or_insert_with(|| format!("{}: {why}", path.display()));
    }

    /// Adds a file of the last directory; of one with holes, what is not holes.
    fn add_file(&mut self, name: OsString, meta: &Metadata) {
        self.files += u64::from(meta.len() > 0);
        let has_holes = meta.blocks().saturating_mul(512) < meta.len();
        let path = self.directories.last().map(|directory| directory.join(&name));
        let file = path.filter(|_| has_holes).and_then(|path| open(&path).ok());
        let stretches = file.map_or_else(
            || vec![(0, meta.len())],
            |file| stretches(&file, meta.len(), MOST_STRETCHES),
        );
        for (from, to) in stretches {
            self.add(name.clone(), from / BLOCK, to - from / BLOCK * BLOCK);
        }
    }

    fn add(&mut self, name: OsString, first: u64, bytes: u64) {
        let blocks = bytes.div_ceil(BLOCK);
        if blocks > 0 {
            self.blocks += blocks;
            let directory = self.directories.len() - 1;
            self.sources.push(Source { directory, name, first, blocks });
        }
    }

    /// The order in which a directory lists its files is not the same everywhere.
    fn order(&mut self) {
        let directories = &self.directories;
        self.sources.sort_by(|a, b| {
            let directory = directories[a.directory].cmp(&directories[b.directory]);
            directory.then_with(|| a.name.cmp(&b.name)).then(a.first.cmp(&b.first))
        });
        self.left_out.sort();
    }

    /// Calls `each` with `count` blocks (all if there are fewer), or those that were read until
    /// `until`: one from each of `count` equal stretches, at a place that depends only on the
    /// stretch's number. The stretches are visited in an order of which each beginning is even.
    /// Zeros fill up the last block of a file, as in a file system.
    pub fn sample(
        &mut self,
        count: u64,
        until: Option<Instant>,
        each: &mut dyn FnMut(&[u8; BLOCK_SIZE]),
    ) {
        let count = count.min(self.blocks);
        let is_all = count == self.blocks;
        let ends: Vec<u64> = self
            .sources
            .iter()
            .scan(0, |end, source| {
                *end += source.blocks;
                Some(*end)
            })
            .collect();
        let stride = if is_all { 1 } else { stride(count) };
        let mut block = [0; BLOCK_SIZE];
        let mut opened: Option<(usize, io::Result<File>)> = None;
        for step in 0..count {
            if step > 0 && is_over(until) {
                return;
            }
            let stretch = (u128::from(step) * u128::from(stride) % u128::from(count)) as u64;
            let edge =
                |n: u64| (u128::from(self.blocks) * u128::from(n) / u128::from(count)) as u64;
            let (from, to) = (edge(stretch), edge(stretch + 1));
            let number = from + scatter(stretch) % (to - from);
            let at = ends.partition_point(|end| *end <= number);
            let source = &self.sources[at];
            let path = || self.directories[source.directory].join(&source.name);
            let file = match &mut opened {
                Some((which, file)) if *which == at => file,
                _ => &mut opened.insert((at, open_for(&path(), is_all))).1,
            };
            let offset = (number + source.blocks - ends[at] + source.first) * BLOCK;
            let done = match file {
                Ok(file) => read(file, offset, &mut block),
                Err(e) => Err(io::Error::from(e.kind())),
            };
            match done {
                Ok(()) => each(&block),
                Err(e) => {
                    let path = path();
                    self.skip(&path, &e);
                }
            }
        }
    }
}

fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

/// A step that visits each of `count` places once, at any time those so far spread evenly: near the
/// golden section, without a common divisor.
fn stride(count: u64) -> u64 {
    let divides = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    let near = (count as f64 * 0.618_033_988_75) as u64;
    (near.max(1)..).find(|step| divides(*step, count)).unwrap_or(1)
}

/// Opens a file or device, and nothing that has taken its name meanwhile.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    let is_it = kind.is_file() || kind.is_block_device();
    if is_it { Ok(file) } else { Err(io::Error::other("it is no file any more")) }
}

/// Opens a source, to be read in order or here and there.
fn open_for(path: &Path, in_order: bool) -> io::Result<File> {
    let file = open(path)?;
    let advice = if in_order { Advice::Sequential } else { Advice::Random };
    // Only a hint: without it more is read than needed.
    let _ = fadvise(&file, 0, None, advice);
    Ok(file)
}

/// The stretches of `file` that are no holes, at most `most`, the last one with all that follows;
/// the whole file where the file system does not tell.
fn stretches(file: &File, len: u64, most: usize) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < len {
        let from = match seek(file, Find::Data(at)) {
            Ok(from) => from,
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => return vec![(0, len)],
        };
        let to = match seek(file, Find::Hole(from)) {
            Ok(to) if found.len() + 1 < most => to.min(len),
            _ => len,
        };
        // A file that changes meanwhile may tell anything.
        if from >= to {
            break;
        }
        found.push((from, to));
        at = to;
    }
    found
}

fn read(file: &File, offset: u64, block: &mut [u8; BLOCK_SIZE]) -> io::Result<()> {
    let mut filled = 0;
    while filled < BLOCK_SIZE {
        match file.read_at(&mut block[filled..], offset + filled as u64) {
            Ok(0) if filled == 0 => return Err(io::Error::other("it was cut meanwhile")),
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    block[filled..].fill(0);
    Ok(())
}

/// A number that looks random, from one that does not (the finalizer of splitmix64).
pub(super) fn scatter(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn find(path: &Path) -> Sources {
        Sources::find(&[path.to_owned()], None, &mut |_| {}).unwrap()
    }

    /// Ten files of 100 blocks, each block with its file's number and its own.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in 0..10u8 {
            let path = dir.path().join(format!("d{}/f{file}", file % 3));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut data = Vec::new();
            for block in 0..100u8 {
                data.extend_from_slice(&[file, block].repeat(BLOCK_SIZE / 2));
            }
            data.pop();
            fs::write(path, data).unwrap();
        }
        dir
    }

    fn drawn(sources: &mut Sources, count: u64) -> Vec<(u8, u8)> {
        let mut seen = Vec::new();
        sources.sample(count, None, &mut |block| seen.push((block[0], block[1])));
        seen
    }

    #[test]
    fn a_sample_is_even_bounded_and_the_same_each_time() {
        let dir = tree();
        std::os::unix::fs::symlink("/dev", dir.path().join("link")).unwrap();
        let draw = |count| {
            let mut sources = find(dir.path());
            assert_eq!((sources.files, sources.blocks, sources.cut), (10, 1000, false));
            let seen = drawn(&mut sources, count);
            assert_eq!(sources.skipped, 0);
            seen
        };
        let seen = draw(100);
        assert_eq!(seen.len(), 100);
        assert_eq!(seen, draw(100));
        for file in 0..10 {
            assert_eq!(seen.iter().filter(|(f, _)| *f == file).count(), 10);
            // Also of what was read when time is over.
            let first = seen[..50].iter().filter(|(f, _)| *f == file).count();
            assert!((4..=6).contains(&first), "{first} of file {file}");
        }
        let all: HashSet<_> = draw(5000).into_iter().collect();
        assert_eq!(all.len(), 1000);
    }

    #[test]
    fn each_stretch_is_visited_once() {
        for count in [1, 2, 3, 4, 6, 100, 1000, 32_768, 65_537] {
            let step = stride(count);
            let visited: HashSet<u64> = (0..count).map(|n| n * step % count).collect();
            assert_eq!(visited.len() as u64, count, "{step}");
        }
    }

    /// Pipes, sockets, links in circles, hard links and holes.
    #[test]
    fn odd_files_neither_hold_nor_mislead() {
        let dir = tree();
        let path = |name: &str| dir.path().join(name);
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink(".", path("again")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        fs::hard_link(path("d0/f0"), path("other-name")).unwrap();
        fs::write(path("empty"), "").unwrap();
        let image = File::create(path("sparse")).unwrap();
        image.set_len(1 << 40).unwrap();
        image.write_all_at(&[200; BLOCK_SIZE], 1 << 30).unwrap();
        image.sync_all().unwrap();
        drop(image);
        let mut sources = find(dir.path());
        // A file system may store more than was written.
        assert!(sources.blocks > 1000 && sources.blocks <= 1000 + 256, "{}", sources.blocks);
        assert_eq!((sources.files, sources.skipped), (11, 0));
        let all = drawn(&mut sources, 5000);
        assert_eq!(all.iter().filter(|block| **block == (200, 200)).count(), 1);
        // The same directory by two names counts once.
        let twice = [dir.path().to_owned(), dir.path().join("d0/..")];
        let twice = Sources::find(&twice, None, &mut |_| {}).unwrap();
        assert_eq!((twice.files, twice.blocks), (11, sources.blocks));
    }

    #[test]
    fn what_changes_meanwhile_is_left_out() {
        let dir = tree();
        let mut sources = find(dir.path());
        let path = |name: &str| dir.path().join(name);
        File::options().write(true).open(path("d0/f0")).unwrap().set_len(10 * BLOCK).unwrap();
        fs::remove_file(path("d1/f1")).unwrap();
        fs::remove_file(path("d2/f2")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("d2/f2")).unwrap();
        let seen = drawn(&mut sources, 5000);
        assert_eq!((seen.len(), sources.skipped), (710, 290));
        assert!(sources.first_skipped.unwrap().contains("d0/f0: it was cut"));
    }

    #[test]
    fn time_ends_the_work() {
        let dir = tree();
        let now = Some(Instant::now());
        let sources = Sources::find(&[dir.path().to_owned()], now, &mut |_| {}).unwrap();
        assert!(sources.cut && sources.blocks == 0);
        let mut seen = 0;
        find(dir.path()).sample(500, now, &mut |_| seen += 1);
        assert_eq!(seen, 1);
    }

    /// The file systems of the kernel are passed over, unless they are named.
    #[test]
    fn kernel_file_systems_are_left_out() {
        let seconds = std::time::Duration::from_millis(300);
        let until = Some(Instant::now() + seconds);
        let sources = Sources::find(&["/".into()], until, &mut |_| {}).unwrap();
        assert!(sources.left_out.contains(&"/proc".into()), "{:?}", sources.left_out);
        assert!(sources.directories.iter().all(|path| !path.starts_with("/proc")));
    }
}
