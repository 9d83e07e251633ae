//! The memory that processes take, read from `/proc` without stopping them, and figures in the
//! kernel's texts about memory.
//!
//! Invariant: a figure that a text does not have is absent, an unknown line is skipped.

use crate::error::{Context, Result};
use crate::kernel_text::kernel_text;
use std::fs;

/// Bytes that the kernel's tables take for a slot of swap: 8 in the table of its cluster (Linux
/// 6.18), a count, and 2 for its control group.
const SLOT_TABLES: u64 = 11;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// Bytes of memory that the process `pid` and its children take: their own and that of memory files
/// that they use, with page tables and the kernel's tables for what of them is swapped out; without
/// the pages of programs and other files.
///
/// # Errors
/// There is no such process.
pub fn of_family(pid: u32) -> Result<u64> {
    let own = of(pid)?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    // Kernels without this file do not tell the children of a process.
    let children = threads.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let bytes = |list: String| {
        let pids = list.split_whitespace().filter_map(|word| word.parse().ok());
        // A child may have ended meanwhile.
        pids.filter_map(|child| of(child).ok()).sum::<u64>()
    };
    Ok(own + children.map(bytes).sum::<u64>())
}

fn of(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = kernel_text(&path).context(format!("cannot read {path}"))?;
    let bytes = |key: &str| field(&status, key).unwrap_or(0);
    let slots = bytes("VmSwap") / PAGE;
    Ok(bytes("RssAnon") + bytes("RssShmem") + bytes("VmPTE") + slots * SLOT_TABLES)
}

/// The bytes after the word `key` of a file in `/proc`, which has a colon there and counts in KiB.
pub fn field(text: &str, key: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?.strip_prefix(':')?;
        rest.split_ascii_whitespace().next()?.parse::<u64>().ok()
    })?;
    kib.checked_mul(1024)
}

/// The number after the word `key` at the beginning of a line, as in `vmstat` and `memory.stat`.
pub fn number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == key).then(|| words.next()?.parse().ok())?
    })
}

/// Microseconds in which some task waited, from a text such as `/proc/pressure/memory`.
pub fn stalled_us(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
}

/// A line of `/proc/PID/maps`.
pub(crate) struct Mapped<'a> {
    /// The first address, and the first one behind it.
    pub start: usize,
    pub end: usize,
    /// The rights, such as `rw-p`.
    pub access: &'a str,
    pub is_file: bool,
}

impl<'a> Mapped<'a> {
    /// Takes a line apart.
    pub fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |hex| usize::from_str_radix(hex, 16).ok();
        let access = words.next()?;
        let is_file = words.nth(2)? != "0";
        Some(Self { start: number(start)?, end: number(end)?, access, is_file })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_are_in_bytes() {
        let text = "MemTotal:       24684092 kB\nMemAvailable:   23879924 kB\n";
        assert_eq!(field(text, "MemTotal"), Some(24_684_092 * 1024));
        assert_eq!(field(text, "MemAvailable"), Some(23_879_924 * 1024));
        assert_eq!(field("MemAvailableX: 1 kB", "MemAvailable"), None);
        assert_eq!(field("X: 18446744073709551615 kB", "X"), None);
    }

    #[test]
    fn what_tasks_waited_is_the_total_of_some() {
        let psi = "some avg10=0.23 avg60=0.29 avg300=0.66 total=16659249\nfull avg10=0.00 total=9";
        assert_eq!(stalled_us(psi), Some(16_659_249));
    }

    #[test]
    fn children_count() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (family, alone, of_child) = (of_family(own), of(own), of(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        let of_child = of_child.unwrap();
        assert!(of_child > 0 && alone.unwrap() > of_child);
        // Other tests of this process use memory and have children, too.
        assert!(family.unwrap() > of_child);
        of_family(u32::MAX).unwrap_err();
    }
}
