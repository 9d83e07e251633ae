//! How full swap is, and whether memory has room for what is in it.

use super::holders::is_same_device;
use super::mounts::swap_areas;
use std::fs;
use std::path::Path;

/// How full a swap device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swapped {
    /// Bytes that the kernel may swap out to it.
    pub size: u64,
    /// Bytes that are swapped out to it.
    pub used: u64,
    /// Its priority.
    pub priority: i64,
}

/// How full the swap device `device` is; `None` when it is none.
pub fn swapped(device: &Path) -> Option<Swapped> {
    swap_areas().into_iter().find(|(path, _)| is_same_device(path, device)).map(|(_, area)| area)
}

/// Where what comes back from a swap device could go, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Memory that programs can have without others being swapped out (`MemAvailable`).
    pub memory: u64,
    /// What is free in other swap.
    pub swap: u64,
}

/// The room for what is swapped out to `device`; `None` when the kernel does not say.
pub fn room(device: &Path) -> Option<Room> {
    let areas = swap_areas();
    let others = areas.iter().filter(|(path, _)| !is_same_device(path, device));
    let swap = others.map(|(_, area)| area.size.saturating_sub(area.used)).sum();
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    Some(Room { memory: available(&info)?, swap })
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn available_memory() {
        assert_eq!(
            available("MemFree: 1 kB\nMemAvailable:   21813248 kB\n"),
            Some(21_813_248 << 10)
        );
        assert_eq!(available("MemFree: 1 kB\n"), None);
        assert!(room(Path::new("/dev/none")).unwrap().memory > 0);
        assert_eq!(swapped(Path::new("/dev/none")), None);
    }
}
