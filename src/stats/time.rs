//! Moments in words: RFC 3339, in UTC. A time before 2001 counts as none: the clock was not set.

/// Seconds since 1970 as `2026-11-21T14:03:05Z`; the calendar is Howard Hinnant's
/// `civil_from_days`.
pub fn rfc3339(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    // The calendar begins in March.
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{of_month:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// An earlier time, in seconds since 1970, means that the clock was not set.
const CLOCK_SET: u64 = 978_307_200;

/// The time after a word like ` at` or ` since`; empty if the clock was not set.
pub fn with(word: &str, unix_s: u64) -> String {
    if unix_s < CLOCK_SET { String::new() } else { format!("{word} {}", rfc3339(unix_s)) }
}

/// Now, in seconds since 1970.
pub fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::{rfc3339, with};

    #[test]
    fn a_machine_without_a_clock_tells_no_time() {
        assert_eq!(with(" since", 1_709_251_199), " since 2024-02-29T23:59:59Z");
        assert_eq!((with(" since", 0), with(" at", 12)), (String::new(), String::new()));
    }

    #[test]
    fn moments_of_leap_years_and_others() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(unix_s), text);
        }
    }
}
