//! Small programs in the kernel, which tell what it does: bpf(2).
//!
//! Invariant: programs and maps end with their descriptors, which no other process inherits.

pub mod btf;
pub mod code;
pub mod ring;

use crate::error::{Context, Result};
use code::Code;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands of bpf(2) and their constants, see `include/uapi/linux/bpf.h`.
const MAP_CREATE: i64 = 0;
const PROG_LOAD: i64 = 5;
const RAW_TRACEPOINT_OPEN: i64 = 17;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RINGBUF: u32 = 27;
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_TRACING: u32 = 26;
const LICENSE: &CStr = c"Dual MIT/GPL";

/// What a program is entered with, by the number of its type.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// A tracepoint.
    Tracepoint(u32),
    /// A function, before its first instruction.
    Function(u32),
}

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
///
/// # Errors
/// The kernel refuses it.
pub fn array(bytes: u32) -> Result<OwnedFd> {
    let flags = MAP_MMAPABLE;
    map(MapCreate { kind: MAP_TYPE_ARRAY, key_bytes: 4, value_bytes: bytes, entries: 1, flags })
}

/// A ring of `bytes` bytes, a power of two of pages.
fn ring(bytes: u32) -> Result<OwnedFd> {
    let kind = MAP_TYPE_RINGBUF;
    map(MapCreate { kind, key_bytes: 0, value_bytes: 0, entries: bytes, flags: 0 })
}

fn map(mut how: MapCreate) -> Result<OwnedFd> {
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

/// A program in the kernel.
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program.
    ///
    /// # Errors
    /// The kernel refuses it: a right is missing, or it lacks what the program needs.
    pub fn load(entry: Entry, code: &Code, name: &CStr) -> Result<Self> {
        let code = code.words();
        let (expected_attach_type, function) = match entry {
            Entry::Tracepoint(number) => (23, number),
            Entry::Function(number) => (24, number),
        };
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
            expected_attach_type,
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
        // SAFETY: `how` is what PROG_LOAD expects. Its pointers are to the instructions, of the
        // number that it says, and to a C string; both live until the call is over, and are only
        // read.
        let program = unsafe { bpf(PROG_LOAD, &mut how) };
        program.context("the kernel refuses a program").map(Self)
    }

    /// Has it entered, until the descriptor is closed.
    ///
    /// # Errors
    /// The kernel refuses that.
    pub fn attach(&self) -> Result<OwnedFd> {
        let mut how = RawTracepointOpen { name: 0, program: self.0.as_raw_fd() as u32, pad: 0 };
        // SAFETY: `how` is what RAW_TRACEPOINT_OPEN expects; without a name it has no pointers.
        let link = unsafe { bpf(RAW_TRACEPOINT_OPEN, &mut how) };
        link.context("the kernel attaches no program")
    }
}

/// `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    program: u32,
    pad: u32,
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
