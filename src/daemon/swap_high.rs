//! `memory.swap.high` of the cgroup of `ztier run`, so that the kernel frees the slot of each page
//! of the program that is read back (cgroups of version 2).
//!
//! The kernel does so once a cgroup's use of swap is half of that limit (`mem_cgroup_swap_full`,
//! `mm/memcontrol.c`). Unlike ballast this needs no memory, and other swap does not matter. Beyond
//! the limit it makes the program wait, for seconds at once: so the limit is always a multiple of
//! the use, and there is none while use grows.
//!
//! Invariants: use that grows by less than [`FASTEST`] never reaches the limit; without this
//! process, use that grows beyond the last limit is slow, but goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The rate at which pages are swapped out at most, in bytes a second.
const FASTEST: u64 = 2 << 30;
/// With less use, in bytes, there is no limit: what could be freed is little.
const LEAST_USE: u64 = 8 << 20;
/// Use grows if it is larger than at the last look by one part in this many.
const GROWTH_PART: u64 = 16;
/// Interval between looks without a limit, and the longest with one.
const PACE: Duration = Duration::from_millis(100);

/// Fits the limit to the use.
pub(super) struct SwapHigh {
    group: PathBuf,
    /// Use at the last look, in bytes.
    used: u64,
    /// The limit that is set; `None`: none.
    set: Option<u64>,
    /// An earlier daemon may have left a limit.
    inherited: bool,
}

impl SwapHigh {
    /// For the cgroup `group`, which may be made later; `None` if it is not of version 2.
    pub(super) fn of(group: &Path) -> Option<Self> {
        let above = group.parent()?;
        let is_unified = above.join("cgroup.controllers").exists();
        is_unified.then(|| Self { group: group.to_owned(), used: 0, set: None, inherited: true })
    }

    /// Fits the limit to the present use. Returns the time until the next look.
    pub(super) fn step(&mut self) -> Duration {
        let text = fs::read_to_string(self.group.join(CURRENT)).unwrap_or_default();
        // Without the file the program has not begun, or has ended.
        let Ok(used) = text.trim().parse::<u64>() else { return PACE };
        let high = wanted(used, std::mem::replace(&mut self.used, used));
        if self.inherited || high != self.set && (high.is_none() || !fits(self.set, used)) {
            self.set(high);
        }
        pace(self.set, used)
    }

    fn set(&mut self, high: Option<u64>) {
        let text = high.map_or("max".to_owned(), |high| high.to_string());
        if fs::write(self.group.join(HIGH), text).is_ok() {
            (self.set, self.inherited) = (high, false);
        }
    }
}

impl Drop for SwapHigh {
    /// No limit stays that nothing follows.
    fn drop(&mut self) {
        if self.set.is_some() {
            self.set(None);
        }
    }
}

const HIGH: &str = "memory.swap.high";
const CURRENT: &str = "memory.swap.current";

/// The limit for a use of `used` bytes that was `before` at the last look: a little less than twice
/// the use.
fn wanted(used: u64, before: u64) -> Option<u64> {
    let grows = used > before + before / GROWTH_PART;
    (used >= LEAST_USE && !grows).then(|| used / 8 * 15)
}

/// Whether the limit `set` still does for a use of `used` bytes: the kernel frees slots, and there
/// is room for half as much again.
fn fits(set: Option<u64>, used: u64) -> bool {
    set.is_some_and(|set| used * 2 >= set && used + used / 2 <= set)
}

/// The time in which use can't grow to the limit.
fn pace(set: Option<u64>, used: u64) -> Duration {
    let room = set.map_or(u64::MAX, |set| set.saturating_sub(used) / 2);
    Duration::from_millis((room / (FASTEST / 1000)).min(PACE.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_is_near_twice_a_use_that_does_not_grow() {
        for used in [8, 100, 5000].map(|mib| mib * MIB) {
            let high = wanted(used, used).unwrap();
            assert!(used * 2 >= high && high >= used + used / 4 * 3, "{used} {high}");
            assert!(fits(Some(high), used));
            assert_eq!(wanted(used, used - used / 8), None);
            // It does until use has grown by a quarter, or shrunk by a sixteenth.
            assert!(fits(Some(high), used / 100 * 124) && !fits(Some(high), used / 100 * 126));
            assert!(fits(Some(high), used / 100 * 94) && !fits(Some(high), used / 100 * 92));
        }
        assert_eq!(wanted(LEAST_USE - 1, LEAST_USE), None);
    }

    #[test]
    fn use_does_not_reach_the_limit_between_two_looks() {
        for used in [8, 30, 100, 5000].map(|mib| mib * MIB) {
            let set = wanted(used, used);
            let grown = FASTEST / 1000 * pace(set, used).as_millis() as u64;
            assert!(used + grown < set.unwrap(), "{used}");
            assert!(pace(set, used) > Duration::ZERO);
        }
        assert_eq!(pace(None, 0), PACE);
    }

    #[test]
    fn the_group_s_files_are_followed() {
        let top = tempfile::tempdir().unwrap();
        let group = top.path().join("ztier-x");
        assert!(SwapHigh::of(&group).is_none());
        fs::write(top.path().join("cgroup.controllers"), "memory\n").unwrap();
        let mut following = SwapHigh::of(&group).unwrap();
        following.step();
        fs::create_dir(&group).unwrap();
        let put = |file: &str, text: &str| fs::write(group.join(file), text).unwrap();
        put(HIGH, "1000000\n");
        let high = || fs::read_to_string(group.join(HIGH)).unwrap();
        let mut at = |used: u64| {
            put(CURRENT, &format!("{used}\n"));
            following.step();
            high()
        };
        assert_eq!(at(100 * MIB), "max", "whatever was set before");
        let first = (100 * MIB / 8 * 15).to_string();
        assert_eq!(at(100 * MIB), first);
        assert_eq!(at(104 * MIB), first);
        assert_eq!(at(120 * MIB), "max");
        assert_eq!(at(120 * MIB), (120 * MIB / 8 * 15).to_string());
        assert_eq!(at(60 * MIB), (60 * MIB / 8 * 15).to_string());
        assert_eq!(at(MIB), "max");
        at(60 * MIB);
        assert_ne!(at(60 * MIB), "max");
        drop(following);
        assert_eq!(high(), "max");
    }
}
