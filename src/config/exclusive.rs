//! Whether a read cache holds what the page cache above it drops, and not what that has.

use super::export::Kind;
use super::settings::Settings;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exclusive {
    /// Where this machine's page cache is above, and the kernel can tell.
    Auto,
    /// As [`Self::Auto`]; a volume that cannot have it is refused.
    On,
    /// Never: the default.
    #[default]
    Off,
}

impl Exclusive {
    /// What the settings ask for, for an export of that kind.
    ///
    /// # Errors
    /// NBD, whose clients have page caches elsewhere.
    pub(super) fn of(settings: &Settings, kind: Kind) -> Result<Self> {
        let wanted = settings.exclusive.unwrap_or_default();
        match (kind, wanted) {
            (Kind::Nbd, Self::On) => {
                Err(Error::usage("exclusive needs a block device of this machine, not NBD")
                    .hint("leave out exclusive, or give --export ublk or fuse"))
            }
            (Kind::Nbd, _) => Ok(Self::Off),
            _ => Ok(wanted),
        }
    }
}
