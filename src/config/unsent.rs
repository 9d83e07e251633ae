//! How much of a volume in a store may wait in its log: `BYTES,SECONDS`, and `,wait`.

use super::size::{self, exact};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Least bytes, so that windows are not too small.
const BYTES_MIN: u64 = 8 << 20;
/// Most seconds: a day.
const SECONDS_MAX: u64 = 86_400;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Unsent {
    /// Bytes of the log.
    pub bytes: u64,
    /// Age of the oldest change, in seconds.
    pub seconds: u64,
    /// Beyond that, writers wait.
    pub waits: bool,
}

impl Default for Unsent {
    fn default() -> Self {
        Self { bytes: 256 << 20, seconds: 30, waits: false }
    }
}

impl FromStr for Unsent {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{text}` is not how much may be unsent"))
                .hint("write it like 256M,30s or, for writers to wait beyond it, 256M,30s,wait")
        };
        let mut words = text.split(',');
        let (bytes, seconds) = (words.next(), words.next());
        let waits = match (words.next(), words.next()) {
            (None, _) => false,
            (Some("wait"), None) => true,
            _ => return Err(wrong()),
        };
        let bytes = size::parse_bytes(bytes.ok_or_else(wrong)?).map_err(|_| wrong())?;
        let seconds = seconds.ok_or_else(wrong)?;
        let seconds: u64 = seconds.trim_end_matches('s').parse().map_err(|_| wrong())?;
        if bytes < BYTES_MIN || seconds == 0 || seconds > SECONDS_MAX {
            return Err(Error::usage(format!("max-unsent {text} is out of bounds"))
                .hint("give at least 8M and 1s, and at most a day"));
        }
        Ok(Self { bytes, seconds, waits })
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = if self.waits { ",wait" } else { "" };
        write!(f, "{},{}s{wait}", exact(self.bytes), self.seconds)
    }
}

impl TryFrom<String> for Unsent {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Unsent> for String {
    fn from(unsent: Unsent) -> Self {
        unsent.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, bytes, seconds, waits) in
            [("256M,30s", 256 << 20, 30, false), ("1G,3600s,wait", 1 << 30, 3600, true)]
        {
            let found: Unsent = text.parse().unwrap();
            assert_eq!(found, Unsent { bytes, seconds, waits });
            assert_eq!(found.to_string(), text);
        }
        assert_eq!("256M,30".parse::<Unsent>().unwrap(), Unsent::default());
        for wrong in
            ["", "256M", "30s", "256M,x", "256M,30s,go", "256M,30s,wait,wait", "1M,30s", "8M,0s"]
        {
            assert!(wrong.parse::<Unsent>().is_err(), "{wrong}");
        }
    }
}
