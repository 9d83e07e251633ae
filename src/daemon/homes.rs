//! The room for pages that are swapped out to a volume.

use crate::config::Plan;
use crate::config::size::{human, ratio};
use crate::stats::Stats;

/// The assumed compression ratio before any page was swapped out, in percent.
const ASSUMED: u64 = 300;
/// Fewer bytes than this do not predict a compression ratio.
const TELLING: u64 = 16 << 20;

/// The compression ratio of swapped-out data, in percent; `None` while there is too little.
pub(super) fn measured(stats: &Stats) -> Option<u64> {
    let taken = stats.compr_data_bytes + stats.record_headers_bytes;
    (stats.orig_data_bytes >= TELLING).then(|| stats.orig_data_bytes * 100 / taken.max(1))
}

/// The room for pages that are swapped out.
pub(super) struct Homes {
    /// Size of the device in bytes.
    size: u64,
    /// The memory limit, or the highest one that adapting may reach, in bytes.
    memory: u64,
    /// Size of the spill device's slots, in bytes.
    below: u64,
    /// The measured compression ratio of pages, in percent, if known.
    measured: Option<u64>,
}

impl Homes {
    /// Those of a device of `size` bytes. `measured`: the compression ratio of pages, in percent.
    pub(super) fn of(plan: &Plan, size: u64, stats: &Stats, measured: Option<u64>) -> Self {
        let below = stats.spill_slots * u64::from(plan.segment_bytes);
        let most = plan.ram_auto.map(|bounds| bounds.max_bytes);
        Self { size, memory: most.unwrap_or(stats.ram_limit_bytes), below, measured }
    }

    /// The expected capacity as swap space, in bytes. A kernel that is told of more finds out only
    /// when it is too late.
    pub(super) fn announced(&self) -> u64 {
        let hold = (self.memory + self.below) / 100 * self.measured.unwrap_or(ASSUMED).max(100);
        self.size.min(hold.next_multiple_of(1 << 20))
    }

    /// A note if the capacity is less than the device.
    pub(super) fn about(&self) -> Option<String> {
        let announced = self.announced();
        let percent = self.measured.unwrap_or(ASSUMED) as f64;
        let known = match self.measured {
            Some(_) => "as measured",
            None => "which is assumed until it is known",
        };
        (announced < self.size).then(|| {
            format!(
                "swap is {} of its {}: what {} of memory{} hold at {}, {known}",
                human(announced),
                human(self.size),
                human(self.memory),
                match self.below {
                    0 => String::new(),
                    below => format!(" and {} of the spill device", human(below)),
                },
                ratio(percent / 100.0),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn swap_is_no_larger_than_what_its_homes_hold() {
        let homes = Homes { size: 4 << 30, memory: 256 << 20, below: 0, measured: None };
        assert_eq!(homes.announced(), 768 << 20);
        assert_eq!(
            homes.about().unwrap(),
            "swap is 768 MiB of its 4 GiB: what 256 MiB of memory hold at 3.00x, which is assumed \
             until it is known"
        );
        let homes = Homes { below: 1 << 30, measured: Some(200), ..homes };
        assert_eq!(homes.announced(), 2560 << 20);
        let said = homes.about().unwrap();
        let text = "256 MiB of memory and 1 GiB of the spill device hold at 2.00x, as measured";
        assert!(said.ends_with(text), "{said}");
        let homes = Homes { size: 1 << 30, ..homes };
        assert_eq!((homes.announced(), homes.about()), (1 << 30, None));
        // Compressed data may take more than its size, but a page never counts as more than a page.
        let homes = Homes { size: 1 << 30, memory: 64 << 20, below: 0, measured: Some(90) };
        assert_eq!(homes.announced(), 64 << 20);
    }
}
