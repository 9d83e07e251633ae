//! A setting of the kernel's memory management while a volume is swap: a number, or what it is.
//!
//! Invariant: a number that [`Tunable::check`] let through is one that the kernel takes.

use crate::error::{Error, Result};
pub use crate::system::usage::{PAGE_CLUSTER, SWAPPINESS};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The word for a setting that stays as it is.
const KEEP: &str = "keep";

/// What a setting is meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunable {
    /// What it was.
    Keep,
    /// This number.
    To(u64),
}

/// A setting that goes with swap.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The kernel's name of it.
    pub name: &'static str,
    /// The best value, measured (docs/swap.md).
    pub best: u64,
    /// The highest that the kernel takes.
    most: u64,
}

/// Pages that are read from swap at once, as a power of two.
pub const OF_PAGE_CLUSTER: Kind = Kind { name: PAGE_CLUSTER, best: 5, most: 31 };
/// How readily the kernel swaps out instead of dropping files.
pub const OF_SWAPPINESS: Kind = Kind { name: SWAPPINESS, best: 100, most: 200 };

impl Kind {
    /// The number to set: the best if `asked` is none; `None` keeps the present one.
    ///
    /// # Errors
    /// The kernel takes no such number.
    pub fn resolve(self, asked: Option<Tunable>) -> Result<Option<u64>> {
        match asked {
            None => Ok(Some(self.best)),
            Some(Tunable::Keep) => Ok(None),
            Some(Tunable::To(value)) if value <= self.most => Ok(Some(value)),
            Some(Tunable::To(value)) => {
                Err(Error::usage(format!("{} can't be {value}", self.name))
                    .hint(format!("give 0 to {}, or `{KEEP}`", self.most)))
            }
        }
    }
}

impl FromStr for Tunable {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            KEEP => Ok(Self::Keep),
            _ => match text.parse() {
                Ok(value) => Ok(Self::To(value)),
                Err(_) => Err(format!("`{text}` is neither `{KEEP}` nor a number")),
            },
        }
    }
}

impl fmt::Display for Tunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str(KEEP),
            Self::To(value) => value.fmt(f),
        }
    }
}

impl Serialize for Tunable {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Keep => serializer.serialize_str(KEEP),
            Self::To(value) => serializer.serialize_u64(*value),
        }
    }
}

impl<'de> Deserialize<'de> for Tunable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Tunable;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "`{KEEP}` or a number")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Tunable, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E>(self, value: u64) -> Result<Tunable, E> {
                Ok(Tunable::To(value))
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Tunable, E> {
                let value = u64::try_from(value).map(Tunable::To);
                value.map_err(|_| E::custom("a number below 0"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn settings_are_numbers_or_stay() {
        let resolve = |text: &str| OF_SWAPPINESS.resolve(Some(text.parse().unwrap()));
        assert_eq!(resolve("keep").unwrap(), None);
        assert_eq!(resolve("0").unwrap(), Some(0));
        assert_eq!(resolve("200").unwrap(), Some(200));
        let error = resolve("201").unwrap_err().to_string();
        assert_eq!(error, "vm.swappiness can't be 201; give 0 to 200, or `keep`");
        assert_eq!(OF_PAGE_CLUSTER.resolve(None).unwrap(), Some(5));
        assert!(OF_PAGE_CLUSTER.resolve(Some(Tunable::To(32))).is_err());
        for wrong in ["-1", "", "Keep"] {
            assert!(wrong.parse::<Tunable>().unwrap_err().contains("neither"), "{wrong}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for tunable in [Tunable::Keep, Tunable::To(0), Tunable::To(31)] {
            let text = serde_json::to_string(&tunable).unwrap();
            assert_eq!(serde_json::from_str::<Tunable>(&text).unwrap(), tunable);
            assert_eq!(tunable.to_string().parse::<Tunable>().unwrap(), tunable);
        }
        assert!(serde_json::from_str::<Tunable>("-1").is_err());
    }
}
