//! How a volume is offered: what the user says, and what a plan has.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// What the user says about the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The best that this machine has.
    #[default]
    Auto,
    /// A real block device of the kernel's ublk driver; needs root.
    Ublk,
    /// A real block device through FUSE and a loop device; needs root.
    Fuse,
    /// The network block device protocol, on a Unix socket unless asked otherwise.
    Nbd,
}

/// A TCP address; a port alone means loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let port = text.strip_prefix("localhost:").or(text.strip_prefix(':')).unwrap_or(text);
        if let Ok(port) = port.parse::<u16>() {
            return Ok(Self((Ipv4Addr::LOCALHOST, port).into()));
        }
        text.parse().map(Self).map_err(|_| {
            format!(
                "`{text}` is not an address; write it like 10809, 127.0.0.1:10809 or [::1]:10809"
            )
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The export of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Export {
    /// A real block device of the kernel's ublk driver.
    Ublk,
    /// A real block device through FUSE and a loop device.
    Fuse,
    /// NBD.
    Nbd {
        /// The Unix socket, unless only inherited sockets are served.
        socket: Option<PathBuf>,
        /// TCP addresses beside it.
        tcp: Vec<SocketAddr>,
        /// Serve the sockets that a service manager handed over (`LISTEN_FDS`).
        inherited: bool,
    },
}

impl Export {
    /// `ublk`, `fuse` or `nbd`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ublk => Kind::Ublk.name(),
            Self::Fuse => Kind::Fuse.name(),
            Self::Nbd { .. } => Kind::Nbd.name(),
        }
    }

    /// Whether it is a block device of this machine, which may be given to swapon.
    pub fn is_block_device(&self) -> bool {
        matches!(self, Self::Ublk | Self::Fuse)
    }
}

/// The kinds of export, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel's ublk driver.
    Ublk,
    /// FUSE and a loop device.
    Fuse,
    /// NBD.
    Nbd,
}

impl Kind {
    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ublk => "ublk",
            Self::Fuse => "fuse",
            Self::Nbd => "nbd",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_port_alone_is_loopback() {
        for (text, address) in [
            ("10809", "127.0.0.1:10809"),
            (":10809", "127.0.0.1:10809"),
            ("localhost:1", "127.0.0.1:1"),
            ("0.0.0.0:10809", "0.0.0.0:10809"),
            ("[::1]:10809", "[::1]:10809"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), address);
        }
        assert!("10809x".parse::<Address>().unwrap_err().contains("write it like"));
        assert!("70000".parse::<Address>().is_err());
    }
}
