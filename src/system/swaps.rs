//! How full swap is, and whether memory has room for its content.

use super::footprint::field;
use super::holders::is_same_device;
use crate::media::swap_areas::{Swapped, swap_areas};
use std::fs;
use std::path::Path;

/// How full the swap device `device` is; `None` if the kernel does not swap to it.
pub fn swapped(device: &Path) -> Option<Swapped> {
    swap_areas().into_iter().find(|(path, _)| is_same_device(path, device)).map(|(_, area)| area)
}

/// All swap of the machine, of which a device is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapWith {
    /// Whether the device is all of it.
    pub alone: bool,
    /// Bytes of all swap areas.
    pub size: u64,
    /// Bytes of these that are in use.
    pub used: u64,
}

/// All swap of the machine; `None` if the kernel does not swap to `device`.
pub fn swap_with(device: &Path) -> Option<SwapWith> {
    let areas = swap_areas();
    areas.iter().find(|(path, _)| is_same_device(path, device))?;
    let sum = |of: fn(&Swapped) -> u64| areas.iter().map(|(_, area)| of(area)).sum();
    Some(SwapWith {
        alone: areas.len() == 1,
        size: sum(|area| area.size),
        used: sum(|area| area.used),
    })
}

/// Room for pages that come back from a swap device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Memory available to programs without swapping out others (`MemAvailable`).
    pub memory: u64,
    /// Free space of other swap devices.
    pub swap: u64,
}

/// The room for what is swapped out to `device`; `None` if the kernel does not report it.
pub fn room(device: &Path) -> Option<Room> {
    let areas = swap_areas();
    let others = areas.iter().filter(|(path, _)| !is_same_device(path, device));
    let swap = others.map(|(_, area)| area.size.saturating_sub(area.used)).sum();
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    Some(Room { memory: field(&info, "MemAvailable")?, swap })
}

/// Bytes of swapped-out pages that are in memory, too, on all swap of the machine.
pub fn kept_twice() -> Option<u64> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, "SwapCached")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_the_kernel_says_of_swap() {
        assert!(kept_twice().is_some());
        assert!(room(Path::new("/dev/none")).unwrap().memory > 0);
        assert_eq!(swapped(Path::new("/dev/none")), None);
        assert_eq!(swap_with(Path::new("/dev/none")), None);
    }
}
