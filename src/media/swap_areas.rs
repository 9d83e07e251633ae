//! The kernel's table of swap areas: `/proc/swaps`.

use super::mounts::unescape;
use crate::kernel_text::kernel_text;
use std::path::PathBuf;

/// How full a swap device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swapped {
    /// Bytes that the kernel may swap out to the device.
    pub size: u64,
    /// Bytes that are swapped out to the device.
    pub used: u64,
    /// Its priority; the kernel uses higher ones first.
    pub priority: i64,
}

/// The devices and files that the kernel swaps to.
pub fn swaps() -> Vec<PathBuf> {
    swap_areas().into_iter().map(|(path, _)| path).collect()
}

/// As [`swaps`], with how full each is.
pub fn swap_areas() -> Vec<(PathBuf, Swapped)> {
    parse_swaps(&kernel_text("/proc/swaps").unwrap_or_default())
}

/// The areas in a text like that of `/proc/swaps`.
pub fn parse_swaps(text: &str) -> Vec<(PathBuf, Swapped)> {
    text.lines().skip(1).filter_map(parse_swap).collect()
}

/// `NAME TYPE SIZE USED PRIORITY`, sizes in KiB.
fn parse_swap(line: &str) -> Option<(PathBuf, Swapped)> {
    let mut words = line.split_whitespace();
    let path = unescape(words.next()?);
    let kib = |word: Option<&str>| Some(word?.parse::<u64>().ok()? << 10);
    let (size, used) = (kib(words.nth(1))?, kib(words.next())?);
    Some((path, Swapped { size, used, priority: words.next()?.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;

    #[test]
    fn a_line_of_swap_is_taken_apart() {
        let line = "/dev/two\\040words                 partition\t4194300\t\t1024\t\t-2";
        let (path, area) = parse_swap(line).unwrap();
        assert_eq!(path, Path::new("/dev/two words"));
        assert_eq!(area, Swapped { size: 4_194_300 << 10, used: 1 << 20, priority: -2 });
        assert_eq!(parse_swap("/dev/x partition 1"), None);
    }
}
