//! Times of events and screens in the user's time zone: that of `TZ`, else of `/etc/localtime`,
//! else UTC.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 as `2026-11-29 10:54:02`.
pub fn moment(tz: &TimeZone, unix_ms: u64) -> String {
    format(tz, unix_ms, "%Y-%m-%d %H:%M:%S")
}

/// Seconds since 1970 as `10:54:02`.
pub fn of_day(tz: &TimeZone, unix_s: u64) -> String {
    format(tz, unix_s.saturating_mul(1000), "%H:%M:%S")
}

fn format(tz: &TimeZone, unix_ms: u64, how: &str) -> String {
    let moment = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    moment
        .map_or("-".into(), |moment| moment.to_zoned_datetime(tz.clone()).strftime(how).to_string())
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_are_those_of_the_zone() {
        // 2026-11-29T10:54:02Z
        let ms = 1_795_949_642_000;
        assert_eq!(moment(&TimeZone::UTC, ms), "2026-11-29 10:54:02");
        let east = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(moment(&east, ms), "2026-11-29 12:54:02");
        assert_eq!(of_day(&east, ms / 1000), "12:54:02");
        assert_eq!(moment(&east, u64::MAX), "-");
    }
}
