//! Sizes as people write them: `4096`, `64KiB`, `512M`, `3G`, `1.5T`, `10%`.
//!
//! K, M, G, T are powers of 1024, with or without `B`, `i` or `iB` behind them, in either case.
//! `GB` is one, too, as to docker (to zramctl it is 10^9): it always was here, and a file of
//! settings must not come to mean another size.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Bytes, or a share of the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// Percent of the memory that this process may use, above 0 and at most [`MOST_PERCENT`].
    Percent(f64),
}

impl Amount {
    /// The amount in bytes; percentages are of `whole`.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (whole as f64 / 100.0 * percent) as u64,
        }
    }
}

/// The largest share: a device may be larger than memory, which holds it compressed.
const MOST_PERCENT: f64 = 1000.0;
const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];
/// How to write a size, for the help of commands.
pub const HELP: &str = "\
Sizes (BYTES) are bytes, or K, M, G, T, powers of 1024: 3G, 3Gi, 3GiB, 3GB and 3g are the same, \
and 1.5G is understood; GB is 2^30 bytes. 10% is a share of the machine's memory.";
const EXAMPLES: &str = "write it like 4096, 64KiB, 512M or 3G";

/// Parses a number of bytes.
///
/// # Errors
/// One line that names the text, what is wrong with it, and how to write it.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim_start());
    if number.is_empty() {
        return Err(format!("`{text}` is not a size; {EXAMPLES}"));
    }
    let shift = shift_of(unit).ok_or_else(|| match unit {
        "%" => format!("`{text}` is a percentage where bytes are wanted; {EXAMPLES}"),
        _ => format!("unknown unit `{unit}` in `{text}`; use K, M, G or T (powers of 1024)"),
    })?;
    let too_large = || format!("`{text}` is too large; the most is 16T");
    if number.contains('.') {
        let value: f64 =
            number.parse().map_err(|_| format!("`{text}` is not a size; {EXAMPLES}"))?;
        let bytes = value * (1u64 << shift) as f64;
        if bytes >= u64::MAX as f64 {
            return Err(too_large());
        }
        if bytes.fract() != 0.0 {
            return Err(format!("`{text}` is not a whole number of bytes; {EXAMPLES}"));
        }
        return Ok(bytes as u64);
    }
    let value: u64 = number.parse().map_err(|_| too_large())?;
    value.checked_mul(1 << shift).ok_or_else(too_large)
}

fn shift_of(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(0);
    }
    let (letter, shift) = UNITS.into_iter().find(|(letter, _)| unit.starts_with(*letter))?;
    matches!(unit.strip_prefix(letter), Some("" | "b" | "i" | "ib")).then_some(shift)
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.trim().strip_suffix('%') else {
            return parse_bytes(text).map(Self::Bytes);
        };
        match number.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= MOST_PERCENT => Ok(Self::Percent(percent)),
            Ok(_) => Err(format!("`{text}` is outside 0 to {MOST_PERCENT} %; write it like 10%")),
            Err(_) => Err(format!("`{text}` is not a percentage; write it like 10%")),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => f.write_str(&exact(*bytes)),
        }
    }
}

/// `bytes` in the largest unit that loses nothing: `3G`, `1536M`, `4097`.
pub fn exact(bytes: u64) -> String {
    for (letter, shift) in UNITS.into_iter().rev() {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{}", bytes >> shift, letter.to_ascii_uppercase());
        }
    }
    bytes.to_string()
}

/// `value` in the first of the `units` in which it has at most three digits before the point, or in
/// the last one. Each unit is `step` of the one before.
pub fn scaled<'a>(mut value: f64, step: f64, units: &[&'a str]) -> (f64, &'a str) {
    let mut n = 0;
    while value >= 999.5 && n + 1 < units.len() {
        value /= step;
        n += 1;
    }
    (value, units[n])
}

/// `bytes` for people: three digits and a unit, `2.71 GiB`, `640 KiB`, `17 B`.
pub fn human(bytes: u64) -> String {
    let (value, unit) = scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]);
    let digits = match value {
        _ if value.fract() == 0.0 || value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// A ratio for people, of data to the memory that it takes and the like: `2.61x`, `12.3x`.
pub fn ratio(value: f64) -> String {
    let digits = match value {
        _ if value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}x")
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Amount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"3G\" or \"10%\", or a number of bytes")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Amount, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E>(self, bytes: u64) -> Result<Amount, E> {
                Ok(Amount::Bytes(bytes))
            }
            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Amount, E> {
                let bytes = u64::try_from(bytes);
                bytes.map(Amount::Bytes).map_err(|_| E::custom("a size can't be negative"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// What the user says about the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// It adapts to what the machine and the volume need.
    Auto,
    /// A fixed limit.
    At(Amount),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.trim() == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::At) }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::At(amount) => amount.fmt(f),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Limit;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`auto`, a size such as \"3G\" or \"10%\", or a number of bytes")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Limit, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E>(self, bytes: u64) -> std::result::Result<Limit, E> {
                Ok(Limit::At(Amount::Bytes(bytes)))
            }
            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> std::result::Result<Limit, E> {
                let bytes = u64::try_from(bytes);
                let at = bytes.map(|bytes| Limit::At(Amount::Bytes(bytes)));
                at.map_err(|_| E::custom("a size can't be negative"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_people_write() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0", 0),
            ("64KiB", 64 << 10),
            ("64k", 64 << 10),
            ("512M", 512 << 20),
            ("512 MB", 512 << 20),
            ("3G", 3 << 30),
            (" 3gib ", 3 << 30),
            ("3Gi", 3 << 30),
            ("3gi", 3 << 30),
            ("3GB", 3 << 30),
            ("3g", 3 << 30),
            ("3GIB", 3 << 30),
            ("1.5G", 3 << 29),
            ("16T", 16 << 40),
            ("17b", 17),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_refused_names_the_text_and_the_mend() {
        for (text, part) in [
            ("", "write it like"),
            ("G", "write it like"),
            ("-3G", "write it like"),
            ("3X", "unknown unit `X`"),
            ("3GG", "unknown unit `GG`"),
            ("3Gib ps", "unknown unit `Gib ps`"),
            ("3Bi", "unknown unit `Bi`"),
            ("1.2.3G", "not a size"),
            (".", "not a size"),
            ("0.3", "not a whole number"),
            ("10%", "percentage where bytes"),
            ("99999999999999999999", "too large"),
            ("99999999T", "too large"),
            ("99999999999.5T", "too large"),
            ("3 G x", "unknown unit"),
            ("3é", "unknown unit"),
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!("10%".parse(), Ok(Amount::Percent(10.0)));
        assert_eq!(Amount::Percent(10.0).of(1000), 100);
        assert_eq!(Amount::Bytes(7).of(1000), 7);
        for text in ["0%", "1001%", "-1%", "%", "x%", "NaN%"] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
    }

    #[test]
    fn for_the_eye() {
        for (bytes, text) in [
            (0, "0 B"),
            (17, "17 B"),
            (1023, "1.00 KiB"),
            (4096, "4 KiB"),
            (3 << 30, "3 GiB"),
            (2_911_690_752, "2.71 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
        assert_eq!(exact(3 << 29), "1536M");
        assert_eq!(exact(4097), "4097");
        assert_eq!(exact(0), "0");
    }

    proptest! {
        #[test]
        fn printed_sizes_parse_to_themselves(bytes in any::<u64>(), shift in 0u32..50) {
            let bytes = bytes >> shift << (shift / 2);
            prop_assert_eq!(parse_bytes(&exact(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            let _ = text.parse::<Amount>();
        }
    }
}
