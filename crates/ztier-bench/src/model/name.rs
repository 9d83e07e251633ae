//! Names of modelled drives: `sim:hdd-7200`, `sim:ssd-840pro:16G`.
//!
//! Invariant: the size of a [`Name`] fits its drive, and is a multiple of [`ALIGN`].

use super::params;
use std::fmt;
use std::str::FromStr;
use ztier::config::{name, size};
use ztier::error::{Error, Result};
use ztier::media::ALIGN;

/// Prefix of all names.
const PREFIX: &str = "sim:";

/// A kind of drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A 2.5-inch disk of 7200 rpm, the source's HDD.
    Hdd7200,
    /// A Samsung 840 Pro of 256 GB, the source's SSD.
    Ssd840Pro,
    /// An eMMC 5.1 of 64 GB, as in cheap laptops and on boards.
    Emmc51,
    /// An SD card of 64 GB that just has application performance class A1.
    SdA1,
    /// A drive without any cost, the source's imagined "MaxSSD".
    SsdNull,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Hdd7200, Self::Ssd840Pro, Self::Emmc51, Self::SdA1, Self::SsdNull];

    fn word(self) -> &'static str {
        match self {
            Self::Hdd7200 => "sim:hdd-7200",
            Self::Ssd840Pro => "sim:ssd-840pro",
            Self::Emmc51 => "sim:emmc-5.1",
            Self::SdA1 => "sim:sd-a1",
            Self::SsdNull => "sim:ssd-null",
        }
    }

    /// Bytes of such a drive, unless its name says less.
    fn capacity(self) -> u64 {
        match self {
            Self::Hdd7200 => params::HDD_7200.capacity,
            Self::Ssd840Pro => params::SSD_840PRO.capacity,
            Self::Emmc51 => params::EMMC_5_1.capacity,
            Self::SdA1 => params::SD_A1.capacity,
            Self::SsdNull => 1 << 40,
        }
    }
}

/// A drive as users name it: a kind, and the size of the part used, from the beginning on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its kind.
    pub kind: Kind,
    /// Bytes in use.
    pub size: u64,
}

impl From<Kind> for Name {
    /// The whole drive.
    fn from(kind: Kind) -> Self {
        Self { kind, size: kind.capacity() }
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let rest = text.strip_prefix(PREFIX).unwrap_or(text);
        let (word, wanted) = match rest.split_once(':') {
            Some((word, wanted)) => (word, Some(wanted)),
            None => (rest, None),
        };
        let full = format!("{PREFIX}{word}");
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == full).filter(|_| rest != text);
        let kind = kind.ok_or_else(|| {
            let known = Kind::ALL.map(Kind::word);
            // A path is no misspelt model, however much `/dev/sda` is like `sd-a1`.
            let near = if text.contains('/') { text } else { &full };
            Error::usage(format!("unknown drive model `{text}`")).hint(name::suggest(near, &known))
        })?;
        let Some(wanted) = wanted else { return Ok(kind.into()) };
        let size = size::parse_bytes(wanted).map_err(Error::usage)?;
        let refuse = |text: String, hint: String| Err(Error::usage(text).hint(hint));
        if size == 0 || !size.is_multiple_of(ALIGN as u64) {
            let hint = format!("give a positive multiple of {ALIGN}, such as 16G");
            return refuse(format!("size {wanted} of {full} is no whole number of blocks"), hint);
        }
        if size > kind.capacity() {
            let most = size::exact(kind.capacity());
            return refuse(
                format!("{full} can't have {wanted}"),
                format!("the whole drive has {most} bytes"),
            );
        }
        Ok(Self { kind, size })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.word())?;
        if self.size == self.kind.capacity() {
            return Ok(());
        }
        write!(f, ":{}", size::exact(self.size))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_parse_to_what_they_print() {
        for text in [
            "sim:hdd-7200",
            "sim:ssd-840pro:16G",
            "sim:emmc-5.1",
            "sim:emmc-5.1:1G",
            "sim:sd-a1:32G",
            "sim:ssd-null:3G",
            "sim:hdd-7200:4K",
        ] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
        let name: Name = "sim:hdd-7200:16G".parse().unwrap();
        assert_eq!(name, Name { kind: Kind::Hdd7200, size: 16 << 30 });
        assert_eq!("sim:ssd-null".parse::<Name>().unwrap(), Kind::SsdNull.into());
    }

    #[test]
    fn what_is_refused_names_the_mend() {
        for (text, part) in [
            ("sim:hdd-72000", "did you mean `sim:hdd-7200`?"),
            ("sim:emmc-5", "did you mean `sim:emmc-5.1`?"),
            ("sim:sd-a2", "did you mean `sim:sd-a1`?"),
            ("sim:ssd-840", "did you mean `sim:ssd-840pro`?"),
            ("ssd-null", "did you mean `sim:ssd-null`?"),
            ("/dev/sda", "known are sim:hdd-7200, sim:ssd-840pro, sim:emmc-5.1, sim:sd-a1"),
            ("", "unknown drive model"),
            ("sim:", "unknown drive model"),
            ("sim:hdd-7200:", "write it like"),
            ("sim:hdd-7200:5X", "unknown unit"),
            ("sim:hdd-7200:4G:1", "unknown unit"),
            ("sim:hdd-7200:0", "positive multiple"),
            ("sim:hdd-7200:4097", "positive multiple"),
            ("sim:hdd-7200:600G", "the whole drive has"),
            ("sim:sd-a1:64G", "the whole drive has"),
            ("sim:ssd-840pro:256G", "the whole drive has"),
        ] {
            let e = text.parse::<Name>().unwrap_err();
            assert!(e.to_string().contains(part) && e.exit_status() == 2, "{text}: {e}");
        }
    }
}
