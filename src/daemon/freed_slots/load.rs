//! The programs in the kernel that tell which slots of a swap area it frees.
//!
//! One is entered with `zswap_invalidate(entry)`, which the kernel calls for each slot that it
//! frees before the slot can be used again, with or without zswap. It sets the slot's bit if the
//! entry is of the watched area. The other is entered with `zswap_swapoff(area)`: it ends the
//! watch, because the number of an area is given to another one later.

use crate::error::{Error, Result};
use crate::media::Words;
use crate::ram::store::FreedBits;
use crate::system::bpf::btf::{Btf, Kind};
use crate::system::bpf::code::Code;
use crate::system::bpf::{Entry, Program, array};
use crate::system::page_size;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// In the word of the watched area: none.
const NO_AREA: u64 = u64::MAX;
/// An entry has the number of the slot in this many bits, and that of the area above them
/// (`SWP_TYPE_SHIFT`).
const SLOT_BITS: i32 = 58;

/// News of the slots of one swap area. Dropping this ends them.
pub(super) struct News {
    bits: FreedBits,
    area: Words,
    _programs: [OwnedFd; 2],
}

impl News {
    /// Loads the programs for an area of `slots` slots. They set no bits before [`Self::watch`].
    ///
    /// # Errors
    /// The kernel lacks what they need, or refuses them.
    pub fn load(slots: u64) -> Result<Self> {
        let functions = functions()?;
        let words = slots.div_ceil(64);
        let (Ok(bytes), Ok(limit)) = (u32::try_from(words * 8), i32::try_from(words)) else {
            return Err(Error::failure(format!("{slots} slots are too many")));
        };
        let maps = [array(bytes.next_multiple_of(4096))?, array(8)?];
        let fds = [maps[0].as_raw_fd(), maps[1].as_raw_fd()];
        let loaded = [
            Program::load(functions[0], &freed(fds, limit), c"ztier_freed")?,
            Program::load(functions[1], &swapoff(fds[1]), c"ztier_swapoff")?,
        ];
        let [bits, area] = maps;
        let area = Words::over(area, "the number of a swap area", 1)?;
        area.get(0).store(NO_AREA, Ordering::Release);
        let bits = Arc::new(Words::over(bits, "freed swap slots", words as usize)?);
        // The end of an area must be seen before the first slot of one is.
        let last = loaded[1].attach()?;
        Ok(Self { bits, area, _programs: [loaded[0].attach()?, last] })
    }

    /// The bits of freed slots.
    pub fn bits(&self) -> &FreedBits {
        &self.bits
    }

    /// Sets the bits of the slots that are freed in area number `area`, from now until it ends.
    pub fn watch(&self, area: u64) {
        self.area.get(0).store(area, Ordering::Release);
    }

    /// Whether an area is watched that has not ended.
    pub fn watches(&self) -> bool {
        self.area.get(0).load(Ordering::Acquire) != NO_AREA
    }
}

/// What the programs are entered with.
///
/// # Errors
/// This kernel has none of it.
pub(super) fn functions() -> Result<[Entry; 2]> {
    page_size::usual()?;
    let btf = Btf::of_kernel()?;
    let function = |name| btf.number(Kind::Function, name).map(Entry::Function);
    Ok([function("zswap_invalidate")?, function("zswap_swapoff")?])
}

/// Sets the bit of a slot of the watched area. The maps have the bits, in `words` words, and the
/// number of the area.
fn freed([bits, area]: [i32; 2], words: i32) -> Code {
    let mut code = Code::default();
    code.add([
        (0x79, 6, 1, 0, 0),         // r6 = entry
        (0xbf, 2, 6, 0, 0),         // r2 = r6
        (0x77, 2, 0, 0, SLOT_BITS), // r2 >>= SLOT_BITS
    ]);
    code.address(3, area).add([(0x79, 4, 3, 0, 0)]); // r4 = *r3
    code.jump((0x5d, 2, 4, 0, 0), "end"); // if r2 != r4
    code.add([
        (0x67, 6, 0, 0, 64 - SLOT_BITS), // r6 <<= 64 - SLOT_BITS
        (0x77, 6, 0, 0, 64 - SLOT_BITS), // r6 >>= 64 - SLOT_BITS
        (0xbf, 5, 6, 0, 0),              // r5 = r6
        (0x77, 5, 0, 0, 6),              // r5 >>= 6
    ]);
    code.jump((0x35, 5, 0, 0, words), "end"); // if r5 >= words
    code.add([(0x67, 5, 0, 0, 3)]); // r5 <<= 3
    code.address(7, bits).add([
        (0x0f, 7, 5, 0, 0),    // r7 += r5
        (0x57, 6, 0, 0, 63),   // r6 &= 63
        (0xb7, 8, 0, 0, 1),    // r8 = 1
        (0x6f, 8, 6, 0, 0),    // r8 <<= r6
        (0xdb, 7, 8, 0, 0x40), // atomically: *r7 |= r8
    ]);
    code.label("end").end();
    code
}

/// Ends the watch of an area.
fn swapoff(area: i32) -> Code {
    let mut code = Code::default();
    code.add([
        (0x79, 2, 1, 0, 0),  // r2 = area
        (0x67, 2, 0, 0, 32), // r2 <<= 32
        (0x77, 2, 0, 0, 32), // r2 >>= 32
    ]);
    code.address(3, area).add([(0x79, 4, 3, 0, 0)]); // r4 = *r3
    code.jump((0x5d, 2, 4, 0, 0), "end"); // if r2 != r4
    code.add([
        (0xb7, 2, 0, 0, -1), // r2 = NO_AREA
        (0x7b, 3, 2, 0, 0),  // *r3 = r2
    ]);
    code.label("end").end();
    code
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_programs_are_loaded_or_refused_in_one_line() {
        match News::load(1000) {
            Ok(news) => {
                assert!(!news.watches());
                news.watch(3);
                assert!(news.watches() && news.bits().len() >= 16);
            }
            Err(e) => {
                let text = e.to_string();
                assert!(!text.contains('\n'), "{text}");
                eprintln!("skipped: {text}");
            }
        }
    }
}
