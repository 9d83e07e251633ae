//! Samples blocks evenly from files, directories and block devices, and measures how they compress.
//!
//! Invariant: the same files give the same sample, and the work is bounded by the number of blocks
//! asked for (and, for directories, by the number of files that are looked at).

use crate::BLOCK_SIZE;
use crate::codec::{Codec, Encoded};
use crate::device::Algorithm;
use crate::error::{Context, Error, Result};
use crate::ram::store::format::HEADER;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// The most files that are looked at.
const MOST_FILES: usize = 2_000_000;
/// Bytes of index that every block takes.
const INDEX_ENTRY: u64 = 8;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// A file or device, and how many blocks it would fill.
struct Source {
    path: PathBuf,
    blocks: u64,
}

/// All that could be sampled.
#[derive(Default)]
pub struct Sources {
    sources: Vec<Source>,
    /// Blocks in all of them.
    pub blocks: u64,
    /// What could not be looked at.
    pub skipped: u64,
}

impl Sources {
    /// Finds every regular file below `paths`, and the block devices among them. Symbolic links
    /// below a directory are not followed.
    ///
    /// # Errors
    /// When one of `paths` itself can't be read, or is neither file, directory nor block device.
    pub fn find(paths: &[PathBuf]) -> Result<Self> {
        let mut found = Self::default();
        let mut directories = Vec::new();
        for path in paths {
            let what = || format!("cannot look at {}", path.display());
            let meta = fs::metadata(path).context(what())?;
            let kind = meta.file_type();
            if kind.is_dir() {
                fs::read_dir(path).context(what())?;
                directories.push(path.clone());
            } else if kind.is_file() {
                File::open(path).context(what())?;
                found.add(path.clone(), meta.len());
            } else if kind.is_block_device() {
                let mut device = File::open(path).context(what())?;
                let size = device.seek(SeekFrom::End(0)).context(what())?;
                found.add(path.clone(), size);
            } else {
                return Err(Error::usage(format!(
                    "{} is neither file, directory nor block device",
                    path.display()
                ))
                .hint("name one of those"));
            }
        }
        while let Some(directory) = directories.pop() {
            found.walk(&directory, &mut directories);
        }
        // The order in which a directory lists its files is not the same everywhere.
        found.sources.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    fn walk(&mut self, directory: &Path, directories: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(directory) else {
            self.skipped += 1;
            return;
        };
        for entry in entries.flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => directories.push(entry.path()),
                Ok(meta) if meta.is_file() && self.sources.len() < MOST_FILES => {
                    self.add(entry.path(), meta.len());
                }
                Ok(meta) if meta.is_file() => self.skipped += 1,
                Ok(_) => {}
                Err(_) => self.skipped += 1,
            }
        }
    }

    fn add(&mut self, path: PathBuf, bytes: u64) {
        let blocks = bytes.div_ceil(BLOCK);
        if blocks > 0 {
            self.blocks += blocks;
            self.sources.push(Source { path, blocks });
        }
    }

    /// The number of files and devices.
    pub fn files(&self) -> usize {
        self.sources.len()
    }

    /// Calls `each` with `count` blocks (all if there are fewer): one from each of `count` equal
    /// stretches, at a place that depends only on the stretch's number. Zeros fill up the last
    /// block of a file, as in a file system.
    pub fn sample(&mut self, count: u64, mut each: impl FnMut(&[u8; BLOCK_SIZE])) {
        let count = count.min(self.blocks);
        let mut block = [0; BLOCK_SIZE];
        let mut open: Option<(usize, File)> = None;
        let (mut at, mut first) = (0, 0);
        for stretch in 0..count {
            let edge =
                |n: u64| (u128::from(self.blocks) * u128::from(n) / u128::from(count)) as u64;
            let (from, to) = (edge(stretch), edge(stretch + 1));
            let number = from + scatter(stretch) % (to - from);
            while number >= first + self.sources[at].blocks {
                first += self.sources[at].blocks;
                at += 1;
            }
            if open.as_ref().is_none_or(|(which, _)| *which != at) {
                open = File::open(&self.sources[at].path).ok().map(|file| (at, file));
            }
            let read =
                open.as_ref().map(|(_, file)| read(file, (number - first) * BLOCK, &mut block));
            match read {
                Some(Ok(())) => each(&block),
                _ => self.skipped += 1,
            }
        }
    }
}

fn read(file: &File, offset: u64, block: &mut [u8; BLOCK_SIZE]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < BLOCK_SIZE {
        match file.read_at(&mut block[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    block[filled..].fill(0);
    Ok(())
}

/// A number that looks random, from one that does not (the finalizer of splitmix64).
fn scatter(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// How one algorithm compresses the blocks that it is shown.
pub struct Trial {
    codec: Codec,
    out: Box<[u8; BLOCK_SIZE]>,
    /// Blocks shown.
    pub blocks: u64,
    /// Same-filled blocks, which need no record.
    pub same: u64,
    /// Blocks stored uncompressed.
    pub raw: u64,
    /// Bytes of memory: records with their headers, and index entries.
    pub memory: u64,
}

impl Trial {
    /// A trial of `algorithm`.
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            codec: Codec::new(algorithm),
            out: Box::new([0; BLOCK_SIZE]),
            blocks: 0,
            same: 0,
            raw: 0,
            memory: 0,
        }
    }

    /// Compresses a block, and counts the result.
    pub fn show(&mut self, block: &[u8; BLOCK_SIZE]) {
        self.blocks += 1;
        self.memory += INDEX_ENTRY;
        match self.codec.encode(block, &mut self.out[..]) {
            Encoded::Same(_) => self.same += 1,
            Encoded::Payload(bytes, _) => {
                self.raw += u64::from(bytes == BLOCK_SIZE);
                self.memory += (HEADER + bytes) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_sample_is_even_bounded_and_the_same_each_time() {
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
        std::os::unix::fs::symlink("/dev", dir.path().join("link")).unwrap();
        let draw = |count| {
            let mut sources = Sources::find(&[dir.path().to_owned()]).unwrap();
            assert_eq!((sources.files(), sources.blocks), (10, 1000));
            let mut seen = Vec::new();
            sources.sample(count, |block| seen.push((block[0], block[1])));
            assert_eq!(sources.skipped, 0);
            seen
        };
        let seen = draw(100);
        assert_eq!(seen.len(), 100);
        assert_eq!(seen, draw(100));
        for file in 0..10 {
            assert_eq!(seen.iter().filter(|(f, _)| *f == file).count(), 10);
        }
        let all: HashSet<_> = draw(5000).into_iter().collect();
        assert_eq!(all.len(), 1000);
    }

    #[test]
    fn what_blocks_become() {
        let mut noise = [0u8; BLOCK_SIZE];
        for (n, word) in noise.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&scatter(n as u64).to_le_bytes());
        }
        let mut half = noise;
        half[BLOCK_SIZE / 2..].fill(7);
        let mut trial = Trial::new(Algorithm::Lz4);
        for block in [&[0; BLOCK_SIZE], &[9; BLOCK_SIZE], &noise, &half] {
            trial.show(block);
        }
        assert_eq!((trial.blocks, trial.same, trial.raw), (4, 2, 1));
        let least = 4 * 8 + 2 * 6 + 4096 + 2048;
        assert!((least..least + 100).contains(&trial.memory), "{}", trial.memory);
    }
}
