//! Blocks of real files: programs and libraries, and documentation, in equal parts.

use super::Rng;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use ztier::BLOCK_SIZE;
use ztier::error::{Error, Result};

/// Directories with data of each kind on any Linux machine.
const SOURCES: [&[&str]; 2] = [&["/usr/bin", "/usr/lib"], &["/usr/share/doc", "/usr/share"]];
/// Limit on the bytes of one file, so that no file dominates.
const FILE_MAX: usize = 1 << 20;
/// Limit on the names to choose from.
const NAMES_MAX: usize = 20_000;

/// Fills whole blocks with contents of files in a random order that the seed fixes. Leaves out
/// blocks of one repeated word, as they would measure the special case for them.
pub fn fill(bytes: &mut [u8], seed: u64) -> Result<()> {
    let half = bytes.len() / BLOCK_SIZE / 2 * BLOCK_SIZE;
    let (first, second) = bytes.split_at_mut(half);
    for (part, sources) in [first, second].into_iter().zip(SOURCES) {
        fill_from(part, sources, seed)?;
    }
    Ok(())
}

fn fill_from(bytes: &mut [u8], sources: &[&str], seed: u64) -> Result<()> {
    let mut names = names(sources);
    names.sort();
    Rng::new(seed).shuffle(&mut names);
    let mut filled = 0;
    for name in &names {
        filled += append(&mut bytes[filled..], name);
        if filled == bytes.len() {
            return Ok(());
        }
    }
    if filled == 0 {
        return Err(Error::failure(format!("no readable files in {}", sources.join(", ")))
            .hint("use --data 2:1"));
    }
    // On a small machine the contents repeat.
    for at in (filled..bytes.len()).step_by(BLOCK_SIZE) {
        bytes.copy_within(at - filled..at - filled + BLOCK_SIZE, at);
    }
    Ok(())
}

/// Regular files below some directories, in the order of these.
pub fn names(sources: &[&str]) -> Vec<PathBuf> {
    let mut names = Vec::new();
    sources.iter().for_each(|source| list(Path::new(source), &mut names));
    names
}

/// Regular files below a directory; links are not followed.
fn list(dir: &Path, names: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if names.len() >= NAMES_MAX {
            return;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => list(&entry.path(), names),
            Ok(kind) if kind.is_file() => names.push(entry.path()),
            _ => {}
        }
    }
}

/// Copies whole blocks of a file to the front of `bytes`; returns the number of bytes.
fn append(bytes: &mut [u8], name: &Path) -> usize {
    let mut content = Vec::new();
    let Ok(file) = File::open(name) else { return 0 };
    if file.take(FILE_MAX as u64).read_to_end(&mut content).is_err() {
        return 0;
    }
    let mut at = 0;
    for block in content.chunks_exact(BLOCK_SIZE) {
        if at == bytes.len() {
            break;
        }
        let varied = block[8..].chunks_exact(8).any(|word| word != &block[8..16]);
        if varied {
            bytes[at..at + BLOCK_SIZE].copy_from_slice(block);
            at += BLOCK_SIZE;
        }
    }
    at
}
