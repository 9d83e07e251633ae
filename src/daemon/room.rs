//! Estimates the remaining capacity of a volume in memory.

use crate::config::Plan;
use crate::stats::Stats;

/// The part of the memory limit that must be used before the estimate is worth reporting.
const TELLING: u64 = 8;
/// Percent of the payload that memory takes after cleaning.
const CLEANED_PERCENT: u64 = 106;

/// Bytes of data that still fit in memory, up to the highest limit, and on the spill device, if
/// they compress like the stored data. `None` for other volumes, and while too little is stored to
/// tell.
pub(super) fn room(stats: &Stats, plan: &Plan) -> Option<u64> {
    if plan.log.is_some() || plan.backing.is_some() {
        return None;
    }
    let limit = plan.ram_auto.map_or(stats.ram_limit_bytes, |bounds| bounds.max_bytes);
    let here = stats.compr_data_bytes.saturating_sub(stats.spilled_bytes);
    let needed = here / 100 * CLEANED_PERCENT + stats.metadata_bytes + stats.buffers_bytes;
    let slots = stats.spill_slots.saturating_sub(stats.spill_slots_used);
    let free = limit.saturating_sub(needed.min(stats.mem_used_bytes))
        + slots * u64::from(plan.segment_bytes);
    let (data, packed) = (stats.orig_data_bytes, stats.compr_data_bytes);
    if packed < limit / TELLING {
        return None;
    }
    let packed = u128::from(packed) * u128::from(CLEANED_PERCENT) / 100;
    let room = (u128::from(free) * u128::from(data)).checked_div(packed)?;
    Some(u64::try_from(room).unwrap_or(u64::MAX))
}
