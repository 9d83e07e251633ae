//! LZ4's compression of a block: used to make data and to state its ratio.

use std::ffi::c_int;
use ztier::BLOCK_SIZE;

/// More than `LZ4_compressBound(4096)`, which is 4096 + 4096/255 + 16.
const BOUND: usize = BLOCK_SIZE + 64;

/// The length of `block` (at most 4096 bytes) after LZ4; its own length if it does not shrink.
pub fn compressed_len(block: &[u8]) -> usize {
    assert!(block.len() <= BLOCK_SIZE, "a block at a time");
    let mut out = [0u8; BOUND];
    let (Ok(from), Ok(to)) = (c_int::try_from(block.len()), c_int::try_from(out.len())) else {
        return block.len();
    };
    // SAFETY: both pointers are valid for the lengths that go with them.
    let len = unsafe {
        lz4_sys::LZ4_compress_default(block.as_ptr().cast(), out.as_mut_ptr().cast(), from, to)
    };
    match usize::try_from(len) {
        Ok(len) if len > 0 => len.min(block.len()),
        _ => block.len(),
    }
}
