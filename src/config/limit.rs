//! The limit on memory: a fixed one, or one that adapts within bounds.

use super::machine;
use super::settings::Settings;
use super::size::{Amount, Limit, exact, human};
use crate::device;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The default limit on memory for copies of a backing store's blocks, and the default bounds of
/// one that adapts.
const COPIES: Amount = Amount::Percent(10.0);
const COPIES_MIN: Amount = Amount::Percent(1.0);
const COPIES_MAX: Amount = Amount::Percent(50.0);

/// The bounds of a limit that adapts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// The lowest.
    pub min_bytes: u64,
    /// The highest.
    pub max_bytes: u64,
}

impl Bounds {
    /// The limit inside the bounds that is nearest to `bytes`.
    pub fn clamp(&self, bytes: u64) -> u64 {
        bytes.min(self.max_bytes).max(self.min_bytes)
    }
}

/// The limits that a kind of volume can have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The lowest with which the volume works.
    pub least: u64,
    /// The default.
    pub default: u64,
    /// What a limit that adapts begins with, as far as its bounds allow.
    pub start: u64,
    /// The default bounds of a limit that adapts.
    pub bounds: Bounds,
}

impl Range {
    /// For a volume in memory of `size` bytes in segments of `segment` bytes, which may spill, and
    /// whose front-end has `buffers` bytes of buffers.
    pub fn in_memory(size: u64, segment: u32, spills: bool, buffers: u64) -> Self {
        let least = match spills {
            true => device::min_ram_limit_above(size, segment),
            false => device::min_ram_limit(size, segment),
        };
        let least = least + buffers;
        let full = (least + device::ram_in_full(size)).next_multiple_of(1 << 20);
        let default = full.min(machine::memory_bytes() / 2).max(least);
        // Memory is allocated when it is needed, so a high limit costs nothing at the start.
        let (start, bounds) = (u64::MAX, Bounds { min_bytes: least, max_bytes: default });
        Self { least, default, start, bounds }
    }

    /// For copies of a backing store's blocks.
    pub fn of_copies() -> Self {
        let memory = machine::memory_bytes();
        let least = device::CACHE_LIMIT_MIN;
        let share = |share: Amount| share.of(memory).max(least);
        let bounds = Bounds { min_bytes: share(COPIES_MIN), max_bytes: share(COPIES_MAX) };
        let default = COPIES.of(memory);
        Self { least, default, start: default, bounds }
    }
}

/// A limit and its bounds, as given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Given {
    /// The limit.
    pub limit: Option<Limit>,
    /// Lower bound of a limit that adapts.
    pub min: Option<Amount>,
    /// Upper bound of a limit that adapts.
    pub max: Option<Amount>,
}

impl Given {
    /// The limit and the bounds in `settings`.
    pub fn of(settings: &Settings) -> Self {
        Self { limit: settings.ram_limit, min: settings.ram_min, max: settings.ram_max }
    }

    /// The initial limit in bytes, and the bounds of one that adapts. The caller, which knows the
    /// volume, checks a fixed limit.
    ///
    /// # Errors
    /// Bounds of a limit that does not adapt, or bounds that contradict each other, the volume or
    /// the machine.
    pub fn resolve(&self, range: &Range) -> Result<(u64, Option<Bounds>)> {
        let memory = machine::memory_bytes();
        if self.limit != Some(Limit::Auto) {
            self.refuse_bounds()?;
            let limit = match self.limit {
                Some(Limit::At(amount)) => amount.of(memory),
                _ => range.default,
            };
            return Ok((limit, None));
        }
        let bounds = self.bounds(range.bounds, range.least, memory)?;
        Ok((bounds.clamp(range.start), Some(bounds)))
    }

    fn refuse_bounds(&self) -> Result<()> {
        let given = [("ram-min", self.min), ("ram-max", self.max)];
        match given.iter().find(|(_, amount)| amount.is_some()) {
            None => Ok(()),
            Some((key, _)) => Err(Error::usage(format!("{key} is for a ram-limit that adapts"))
                .hint(format!("leave out {key}, or give ram-limit auto"))),
        }
    }

    /// The bounds that were given, with those of `base` for the others.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn bounds(&self, base: Bounds, least: u64, memory: u64) -> Result<Bounds> {
        let min = self.min.map(|min| min.of(memory));
        let max = self.max.map(|max| max.of(memory));
        for (key, bytes) in [("ram-min", min), ("ram-max", max)] {
            let Some(bytes) = bytes else { continue };
            if bytes < least {
                return Err(Error::usage(format!(
                    "{key} {} is below the least that this volume works with",
                    exact(bytes)
                ))
                .hint(format!("give at least {}", exact(least))));
            }
            if bytes > memory.max(base.max_bytes) {
                return Err(Error::usage(format!(
                    "{key} {} is more than the {} of memory that there are",
                    exact(bytes),
                    human(memory)
                ))
                .hint("give less, like 25%"));
            }
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            return Err(Error::usage(format!(
                "ram-min {} is above ram-max {}",
                exact(min),
                exact(max)
            ))
            .hint("give a lower ram-min, or a higher ram-max"));
        }
        // A default bound gives way to a given one that contradicts it.
        Ok(Bounds {
            min_bytes: min.unwrap_or(base.min_bytes.min(max.unwrap_or(u64::MAX))),
            max_bytes: max.unwrap_or(base.max_bytes.max(min.unwrap_or(0))),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MIB: u64 = 1 << 20;

    fn range() -> Range {
        let bounds = Bounds { min_bytes: 10 * MIB, max_bytes: 50 * MIB };
        Range { least: 2 * MIB, default: 20 * MIB, start: 20 * MIB, bounds }
    }

    fn given(limit: Option<Limit>, min: Option<u64>, max: Option<u64>) -> Given {
        Given { limit, min: min.map(Amount::Bytes), max: max.map(Amount::Bytes) }
    }

    #[test]
    fn a_bound_that_is_not_given_gives_way() {
        let auto = Some(Limit::Auto);
        let resolve = |min, max| {
            let (limit, bounds) = given(auto, min, max).resolve(&range()).unwrap();
            let bounds = bounds.unwrap();
            (limit / MIB, bounds.min_bytes / MIB, bounds.max_bytes / MIB)
        };
        assert_eq!(resolve(None, None), (20, 10, 50));
        assert_eq!(resolve(Some(60 * MIB), None), (60, 60, 60));
        assert_eq!(resolve(None, Some(5 * MIB)), (5, 5, 5));
        assert_eq!(resolve(Some(2 * MIB), Some(30 * MIB)), (20, 2, 30));
        let fixed = given(Some(Limit::At(Amount::Bytes(7))), None, None);
        assert_eq!(fixed.resolve(&range()).unwrap(), (7, None));
        assert_eq!(given(None, None, None).resolve(&range()).unwrap(), (20 * MIB, None));
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_the_mend() {
        let auto = Some(Limit::Auto);
        for (given, error) in [
            (
                given(None, Some(MIB), None),
                "ram-min is for a ram-limit that adapts; leave out ram-min, or give ram-limit auto",
            ),
            (
                given(Some(Limit::At(Amount::Bytes(MIB))), None, Some(MIB)),
                "ram-max is for a ram-limit that adapts; leave out ram-max, or give ram-limit auto",
            ),
            (
                given(auto, Some(30 * MIB), Some(20 * MIB)),
                "ram-min 30M is above ram-max 20M; give a lower ram-min, or a higher ram-max",
            ),
            (
                given(auto, Some(MIB), None),
                "ram-min 1M is below the least that this volume works with; give at least 2M",
            ),
            (
                given(auto, None, Some(MIB)),
                "ram-max 1M is below the least that this volume works with; give at least 2M",
            ),
        ] {
            let found = given.resolve(&range()).unwrap_err();
            assert_eq!(found.to_string(), error);
            assert_eq!(found.exit_status(), 2);
        }
        let much = given(auto, None, Some(1 << 60)).resolve(&range()).unwrap_err().to_string();
        assert!(much.starts_with("ram-max 1048576T is more than the "), "{much}");
    }

    #[test]
    fn the_default_holds_the_size_in_full() {
        let size = 64 * MIB;
        let range = Range::in_memory(size, 1 << 20, false, 3 * MIB);
        let held = device::held_in_full(range.default - range.least);
        assert!((size..size + MIB).contains(&held), "{held}");
        let huge = Range::in_memory(1 << 44, 1 << 20, false, 0);
        assert_eq!(huge.default, (machine::memory_bytes() / 2).max(huge.least));
    }

    #[test]
    fn as_people_and_files_write_it() {
        for (text, limit) in [
            ("auto", Limit::Auto),
            ("25%", Limit::At(Amount::Percent(25.0))),
            ("512M", Limit::At(Amount::Bytes(512 * MIB))),
        ] {
            assert_eq!(text.parse(), Ok(limit));
            assert_eq!(limit.to_string(), text);
            let json = serde_json::to_value(limit).unwrap();
            assert_eq!(serde_json::from_value::<Limit>(json).unwrap(), limit);
        }
        assert_eq!(serde_json::from_str::<Limit>("4096").unwrap(), Limit::At(Amount::Bytes(4096)));
        assert!("automatic".parse::<Limit>().is_err());
        assert!(serde_json::from_str::<Limit>("-1").is_err());
    }
}
