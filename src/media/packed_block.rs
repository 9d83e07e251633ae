//! A block as it is stored: compressed.

use crate::codec::Coding;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedBlock {
    /// How it is coded: as a block of its own.
    pub coding: Coding,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}
