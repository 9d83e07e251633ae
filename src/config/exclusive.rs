//! Whether a read cache holds what the page cache above it drops, and not what that has.

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
