//! Samples pages of running programs: how well does compress what swap would hold?
//!
//! Invariants: only pages that are in memory and belong to no file are read, so that nothing is
//! swapped in; no content leaves this module.

use super::figures::{Compression, From};
use crate::BLOCK_SIZE;
use crate::cli::sampler::scatter;
use crate::cli::trial::Trial;
use crate::device::Algorithm;
use crate::kernel_text::kernel_text;
use crate::system::footprint::{Mapped, field};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Pages to sample.
const PAGES: u64 = 4096;
/// Places that are tried until one has a page in memory.
const TRIES: u64 = 256;
/// The part of programs' memory that must be readable, so that a sample of it speaks for all.
const READABLE: f64 = 0.5;
/// The fewest pages that say anything.
const FEWEST: u64 = 100;
const PAGE: u64 = BLOCK_SIZE as u64;
/// Bits of `/proc/PID/pagemap`: in memory, swapped out, of a file or shared.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// A process with memory of its own.
struct Program {
    dir: PathBuf,
    pages: u64,
}

/// A program whose pages can be read.
struct Opened {
    memory: File,
    map: File,
    ranges: Vec<Range<u64>>,
    /// Pages in all ranges.
    pages: u64,
}

/// How pages of programs below `proc`, such as `/proc`, compress, as far as this process may read
/// them; `None` if that is too little to speak for all.
pub fn sample(proc: &Path, until: Instant) -> Option<Compression> {
    let programs = programs(proc);
    let all: u64 = programs.iter().map(|program| program.pages).sum();
    let mut trial = Trial::new(Algorithm::Lz4);
    let (mut readable, mut draws) = (0, 0);
    for program in &programs {
        if Instant::now() >= until {
            return None;
        }
        let Some(opened) = Opened::new(program) else { continue };
        readable += program.pages;
        let share = (u128::from(program.pages) * u128::from(PAGES)).div_ceil(u128::from(all));
        for _ in 0..share {
            draws += 1;
            if let Some(page) = opened.page(draws) {
                trial.show(&page);
            }
        }
    }
    if (readable as f64) < all as f64 * READABLE || trial.blocks < FEWEST {
        return None;
    }
    let ratio = trial.ratio(all);
    Some(Compression {
        from: From::Programs,
        ratio: ratio.measured,
        low: ratio.low,
        high: ratio.high,
    })
}

/// All processes with memory of their own, but this one.
fn programs(proc: &Path) -> Vec<Program> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|c| c.is_ascii_digit()) && name != own;
    let dirs = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_process));
    dirs.filter_map(|entry| {
        let dir = entry.path();
        // A process may have ended meanwhile.
        let pages = field(&kernel_text(dir.join("status")).ok()?, "RssAnon")? / PAGE;
        (pages > 0).then_some(Program { dir, pages })
    })
    .collect()
}

/// The range of a line of `/proc/PID/maps`, if its pages are the process's own and no file's.
fn own_range(line: &str) -> Option<Range<u64>> {
    let Mapped { start, end, access, is_file } = Mapped::parse(line)?;
    (access == "rw-p" && !is_file && end > start).then_some(start as u64..end as u64)
}

impl Opened {
    fn new(program: &Program) -> Option<Self> {
        let maps = kernel_text(program.dir.join("maps")).ok()?;
        let ranges: Vec<_> = maps.lines().filter_map(own_range).collect();
        let pages: u64 = ranges.iter().map(|range| (range.end - range.start) / PAGE).sum();
        let open = |name: &str| File::open(program.dir.join(name)).ok();
        let opened = Self { memory: open("mem")?, map: open("pagemap")?, ranges, pages };
        (pages > 0).then_some(opened)
    }

    /// A page of the program that is in memory, chosen by a number.
    fn page(&self, draw: u64) -> Option<[u8; BLOCK_SIZE]> {
        (0..TRIES).find_map(|attempt| {
            let mut number = scatter(draw * TRIES + attempt) % self.pages;
            let range = self.ranges.iter().find(|range| {
                let pages = (range.end - range.start) / PAGE;
                let is_here = number < pages;
                number -= if is_here { 0 } else { pages };
                is_here
            })?;
            let page = range.start / PAGE + number;
            let mut entry = [0; 8];
            self.map.read_exact_at(&mut entry, page * 8).ok()?;
            let bits = u64::from_ne_bytes(entry) & (PRESENT | SWAPPED | OF_FILE);
            let mut content = [0; BLOCK_SIZE];
            (bits == PRESENT)
                .then(|| self.memory.read_exact_at(&mut content, page * PAGE).ok())??;
            Some(content)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn own_pages_are_told_from_those_of_files() {
        let heap = "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0   [heap]";
        assert_eq!(own_range(heap), Some(0x55d0_c000_0000..0x55d0_c002_1000));
        for line in [
            "7f00-8f00 r--p 00000000 fe:00 12  /lib/x.so",
            "7f00-8f00 rw-p 00000000 fe:00 12  /lib/x.so",
            "7f00-8f00 rw-s 00000000 00:01 0  /memfd",
            "7f00-8f00 ---p 00000000 00:00 0",
            "8f00-7f00 rw-p 00000000 00:00 0",
            "x",
            "",
        ] {
            assert_eq!(own_range(line), None, "{line}");
        }
    }

    /// Pages of a program that this test started: content that is known.
    #[test]
    fn pages_of_a_program_are_read() {
        // The shell keeps 8 MiB of one letter.
        let script = "x=$(head -c 8M /dev/zero | tr '\\0' a); echo ready; read y";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let dir = Path::new("/proc").join(child.id().to_string());
        let status = fs::read_to_string(dir.join("status")).unwrap();
        let pages = field(&status, "RssAnon").unwrap() / PAGE;
        let seen: Vec<_> = Opened::new(&Program { dir, pages })
            .map(|opened| (0..200).filter_map(|draw| opened.page(draw)).collect())
            .unwrap_or_default();
        child.kill().unwrap();
        child.wait().unwrap();
        let letters = seen.iter().filter(|page| page.iter().all(|byte| *byte == b'a')).count();
        assert!(letters > 100, "{letters} of {}", seen.len());
    }

    #[test]
    fn too_little_speaks_for_nothing() {
        let until = Instant::now() + std::time::Duration::from_secs(5);
        let dir = tempfile::tempdir().unwrap();
        assert!(sample(dir.path(), until).is_none());
        assert!(sample(Path::new("/proc"), Instant::now()).is_none());
    }
}
