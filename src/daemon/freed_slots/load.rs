//! The programs in the kernel that tell which slots of a swap area it frees.
//!
//! One is entered with `zswap_invalidate(entry)`, which the kernel calls for each slot that it
//! frees before the slot can be used again, with or without zswap. It sets the slot's bit if the
//! entry is of the watched area. The other is entered with `zswap_swapoff(area)`: it ends the
//! watch, because the number of an area is given to another one later.
//!
//! They are so short that they are written here as instructions: a library that compiles or loads
//! programs would take more memory than all else of a daemon. Encoding: the kernel's
//! `Documentation/bpf/standardization/instruction-set.rst`.

use super::btf;
use crate::error::{Context, Error, Result};
use crate::media::Words;
use crate::ram::store::FreedBits;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// In the word of the watched area: none.
const NO_AREA: u64 = u64::MAX;
/// An entry has the number of the slot in this many bits, and that of the area above them
/// (`SWP_TYPE_SHIFT`).
const SLOT_BITS: i32 = 58;

/// Commands of bpf(2) and their constants, see `include/uapi/linux/bpf.h`.
const MAP_CREATE: i64 = 0;
const PROG_LOAD: i64 = 5;
const RAW_TRACEPOINT_OPEN: i64 = 17;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_TRACING: u32 = 26;
const TRACE_FENTRY: u32 = 24;
const LICENSE: &CStr = c"Dual MIT/GPL";

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
        let maps = [map(bytes.next_multiple_of(4096))?, map(8)?];
        let fds = [maps[0].as_raw_fd(), maps[1].as_raw_fd()];
        let loaded = [
            program(functions[0], &freed(fds, limit), c"ztier_freed")?,
            program(functions[1], &swapoff(fds[1]), c"ztier_swapoff")?,
        ];
        let [bits, area] = maps;
        let area = Words::over(area, "the number of a swap area", 1)?;
        area.get(0).store(NO_AREA, Ordering::Release);
        let bits = Arc::new(Words::over(bits, "freed swap slots", words as usize)?);
        // The end of an area must be seen before the first slot of one is.
        let last = attach(&loaded[1])?;
        Ok(Self { bits, area, _programs: [attach(&loaded[0])?, last] })
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

/// The numbers of the functions that the programs are entered with.
///
/// # Errors
/// This kernel has none.
pub(super) fn functions() -> Result<[u32; 2]> {
    let file = File::open(btf::FILE).context(format!("no type information ({})", btf::FILE))?;
    btf::functions(file, ["zswap_invalidate", "zswap_swapoff"])
}

/// An instruction: opcode, the registers of destination and source, offset, immediate value.
type Instruction = (u8, u8, u8, i16, i32);

/// The two instructions that load the address of a map's value into `register`.
fn address(register: u8, map: i32) -> [Instruction; 2] {
    [(0x18, register, 2, 0, map), (0, 0, 0, 0, 0)]
}

/// Sets the bit of a slot of the watched area. The maps have the bits, in `words` words, and the
/// number of the area.
fn freed([bits, area]: [i32; 2], words: i32) -> Vec<Instruction> {
    let mut all = vec![
        (0x79, 6, 1, 0, 0),         // r6 = entry
        (0xbf, 2, 6, 0, 0),         // r2 = r6
        (0x77, 2, 0, 0, SLOT_BITS), // r2 >>= SLOT_BITS
    ];
    all.extend(address(3, area));
    all.extend([
        (0x79, 4, 3, 0, 0),              // r4 = *r3
        (0x5d, 2, 4, 13, 0),             // if r2 != r4, end
        (0x67, 6, 0, 0, 64 - SLOT_BITS), // r6 <<= 64 - SLOT_BITS
        (0x77, 6, 0, 0, 64 - SLOT_BITS), // r6 >>= 64 - SLOT_BITS
        (0xbf, 5, 6, 0, 0),              // r5 = r6
        (0x77, 5, 0, 0, 6),              // r5 >>= 6
        (0x35, 5, 0, 8, words),          // if r5 >= words, end
        (0x67, 5, 0, 0, 3),              // r5 <<= 3
    ]);
    all.extend(address(7, bits));
    all.extend([
        (0x0f, 7, 5, 0, 0),    // r7 += r5
        (0x57, 6, 0, 0, 63),   // r6 &= 63
        (0xb7, 8, 0, 0, 1),    // r8 = 1
        (0x6f, 8, 6, 0, 0),    // r8 <<= r6
        (0xdb, 7, 8, 0, 0x40), // atomically: *r7 |= r8
    ]);
    all.extend(END);
    all
}

/// Ends the watch of an area.
fn swapoff(area: i32) -> Vec<Instruction> {
    let mut all = vec![
        (0x79, 2, 1, 0, 0),  // r2 = area
        (0x67, 2, 0, 0, 32), // r2 <<= 32
        (0x77, 2, 0, 0, 32), // r2 >>= 32
    ];
    all.extend(address(3, area));
    all.extend([
        (0x79, 4, 3, 0, 0),  // r4 = *r3
        (0x5d, 2, 4, 2, 0),  // if r2 != r4, end
        (0xb7, 2, 0, 0, -1), // r2 = NO_AREA
        (0x7b, 3, 2, 0, 0),  // *r3 = r2
    ]);
    all.extend(END);
    all
}

/// Returns 0.
const END: [Instruction; 2] = [(0xb7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)];

/// `BPF_MAP_CREATE`.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// An array of one value of `bytes` bytes, which can be mapped.
fn map(bytes: u32) -> Result<OwnedFd> {
    let flags = MAP_MMAPABLE;
    let mut how =
        MapCreate { kind: MAP_TYPE_ARRAY, key_bytes: 4, value_bytes: bytes, entries: 1, flags };
    // SAFETY: `how` is what MAP_CREATE expects, and has no pointers.
    unsafe { bpf(MAP_CREATE, &mut how) }.context("the kernel makes no map for a program")
}

/// `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgLoad {
    kind: u32,
    instructions_len: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
    btf: u32,
    function_info_bytes: u32,
    function_info: u64,
    function_infos: u32,
    line_info_bytes: u32,
    line_info: u64,
    line_infos: u32,
    function: u32,
}

fn program(function: u32, instructions: &[Instruction], name: &CStr) -> Result<OwnedFd> {
    let code: Vec<u8> = instructions.iter().flat_map(|instruction| encode(*instruction)).collect();
    // Of 8-byte words, because the kernel may ask for their alignment.
    let code: Vec<u64> =
        code.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    let mut how = ProgLoad {
        kind: PROG_TYPE_TRACING,
        instructions_len: code.len() as u32,
        instructions: code.as_ptr().addr() as u64,
        license: LICENSE.as_ptr().addr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: [0; 16],
        interface: 0,
        expected_attach_type: TRACE_FENTRY,
        btf: 0,
        function_info_bytes: 0,
        function_info: 0,
        function_infos: 0,
        line_info_bytes: 0,
        line_info: 0,
        line_infos: 0,
        function,
    };
    let text = name.to_bytes();
    how.name[..text.len()].copy_from_slice(text);
    // SAFETY: `how` is what PROG_LOAD expects. Its pointers are to the instructions, of the number
    // that it says, and to a C string; both live until the call is over, and are only read.
    unsafe { bpf(PROG_LOAD, &mut how) }.context("the kernel refuses a program")
}

/// The 8 bytes of an instruction.
fn encode((code, to, from, offset, value): Instruction) -> [u8; 8] {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    let ([o0, o1], [v0, v1, v2, v3]) = (offset.to_ne_bytes(), value.to_ne_bytes());
    [code, registers, o0, o1, v0, v1, v2, v3]
}

/// `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    program: u32,
    pad: u32,
}

/// Has a program entered with its function, until the descriptor is closed.
fn attach(program: &OwnedFd) -> Result<OwnedFd> {
    let mut how = RawTracepointOpen { name: 0, program: program.as_raw_fd() as u32, pad: 0 };
    // SAFETY: `how` is what RAW_TRACEPOINT_OPEN expects; without a name it has no pointers.
    let link = unsafe { bpf(RAW_TRACEPOINT_OPEN, &mut how) };
    link.context("the kernel attaches no program to its functions")
}

/// Calls bpf(2).
///
/// # Safety
/// `how` begins as the attributes of `command` do, without bytes that are not initialized, and its
/// pointers are valid for what `command` does with them. The command returns a descriptor.
unsafe fn bpf<T>(command: i64, how: &mut T) -> std::io::Result<OwnedFd> {
    // SAFETY: as the caller says; the kernel takes attributes of any length as zeros beyond it.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(how), size_of::<T>()) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the call has just made, and that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Where each jump leads, from the instruction after it on.
    #[test]
    fn jumps_lead_to_the_end() {
        for program in [freed([3, 4], 7), swapoff(4)] {
            let end = program.len() - END.len();
            let jumps = program.iter().enumerate().filter(|(_, i)| matches!(i.0, 0x5d | 0x35));
            assert!(jumps.map(|(n, i)| n + 1 + i.3 as usize).all(|to| to == end), "{program:?}");
        }
    }

    #[test]
    fn an_instruction_has_its_registers_and_values() {
        assert_eq!(encode((0x79, 6, 1, -1, 258)), [0x79, 0x16, 0xff, 0xff, 2, 1, 0, 0]);
    }

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
