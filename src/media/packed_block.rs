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

/// For each of some blocks, the block as it is packed already, if it is. Shorter than the blocks:
/// the others are not.
pub type Packs<'a> = &'a [Option<PackedBlock>];
