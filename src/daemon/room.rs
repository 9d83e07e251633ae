//! Estimates the remaining capacity of a volume in memory.

use crate::config::Plan;
use crate::stats::Stats;

/// The part of the memory limit that must be used before the estimate is worth reporting.
const TELLING: u64 = 8;
/// Percent of the payload that memory takes after cleaning.
const CLEANED_PERCENT: u64 = 106;

/// Bytes of data that still fit in memory, up to the highest limit, and on the spill device as far
/// as that takes them now, if they compress like the stored data. `None` for other volumes, and
/// while too little is stored to tell.
pub(super) fn room(stats: &Stats, plan: &Plan) -> Option<u64> {
    if plan.log.is_some() || plan.backing.is_some() {
        return None;
    }
    let limit = plan.ram_auto.map_or(stats.ram_limit_bytes, |bounds| bounds.max_bytes);
    let here = stats.compr_data_bytes.saturating_sub(stats.spilled_bytes);
    let needed = here / 100 * CLEANED_PERCENT + stats.metadata_bytes + stats.buffers_bytes;
    let free = limit.saturating_sub(needed.min(stats.mem_used_bytes))
        + room_below(stats, plan.segment_bytes.into());
    let (data, packed) = (stats.orig_data_bytes, stats.compr_data_bytes);
    if packed < limit / TELLING {
        return None;
    }
    let packed = u128::from(packed) * u128::from(CLEANED_PERCENT) / 100;
    let room = (u128::from(free) * u128::from(data)).checked_div(packed)?;
    Some(u64::try_from(room).unwrap_or(u64::MAX))
}

/// Bytes that may be spilled now. Free slots of a device that fails, or whose writes of the day are
/// used up, are no room: writes find only memory.
fn room_below(stats: &Stats, segment: u64) -> u64 {
    if stats.spill_failed {
        return 0;
    }
    let slots = stats.spill_slots.saturating_sub(stats.spill_slots_used);
    (slots * segment).min(stats.spill_allowed_bytes.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::export::Kind;
    use crate::config::{Amount, Paths, Settings};

    const MIB: u64 = 1 << 20;

    fn plan() -> Plan {
        let [run, config, state] = ["/r", "/c", "/s"].map(Into::into);
        let paths = Paths { run, config, state };
        let settings = Settings { size: Some(Amount::Bytes(MIB)), ..Settings::default() };
        let plan = Plan::resolve("v", &settings, Kind::Nbd, &paths).unwrap();
        Plan { segment_bytes: MIB as u32, ram_auto: None, ..plan }
    }

    /// 50 MiB of 100 MiB are in use, by data that compresses to the half; 20 of 30 slots are free.
    fn half_full() -> Stats {
        Stats {
            ram_limit_bytes: 100 * MIB,
            mem_used_bytes: 50 * MIB,
            orig_data_bytes: 100 * MIB,
            compr_data_bytes: 60 * MIB,
            spilled_bytes: 10 * MIB,
            buffers_bytes: 50 * MIB,
            spill_slots: 30,
            spill_slots_used: 10,
            ..Stats::default()
        }
    }

    /// Bytes on drives and in memory that `stats` have room for.
    fn free(stats: Stats) -> u64 {
        let room = room(&stats, &plan()).unwrap();
        let packed = stats.compr_data_bytes * CLEANED_PERCENT / 100;
        // Rounded, as both divisions cut something off.
        (room * packed / stats.orig_data_bytes + MIB / 2) / MIB
    }

    #[test]
    fn free_slots_are_room_while_the_device_takes_something() {
        assert_eq!(free(half_full()), 70);
        assert_eq!(free(Stats { spill_failed: true, ..half_full() }), 50);
        for (allowed, expected) in [(0, 50), (5 * MIB, 55), (20 * MIB, 70), (1 << 40, 70)] {
            let spill_allowed_bytes = Some(allowed);
            assert_eq!(free(Stats { spill_allowed_bytes, ..half_full() }), expected, "{allowed}");
        }
        let none = Stats { spill_slots: 0, spill_slots_used: 0, ..half_full() };
        assert_eq!(free(none), 50);
    }

    #[test]
    fn nothing_is_told_of_little_data_and_of_other_volumes() {
        let little = Stats { compr_data_bytes: 100 * MIB / TELLING - 1, ..half_full() };
        assert_eq!(room(&little, &plan()), None);
        let backing = Some("/dev/null".into());
        assert_eq!(room(&half_full(), &Plan { backing, ..plan() }), None);
    }
}
