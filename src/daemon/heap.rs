//! Limits the memory that a daemon's allocator keeps.
//!
//! A daemon lives as long as its machine, locked in memory, and allocates and frees buffers of up
//! to 1 MiB on dozens of threads. By default the C library gives each thread an arena, and keeps
//! freed memory there.

/// The most arenas: few threads allocate at the same time.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;
/// Bytes from which on an allocation comes from the kernel and returns to it, and the most free
/// bytes at the end of an arena. This is the C library's first value, which it otherwise raises as
/// larger blocks are freed.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Makes the allocator return unused memory. Call it before the process has a second thread.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (what, value) in [
        (libc::M_ARENA_MAX, ARENAS),
        (libc::M_MMAP_THRESHOLD, LARGE),
        (libc::M_TRIM_THRESHOLD, LARGE),
    ] {
        // SAFETY: changes numbers of the C library's allocator, under its own lock. A refused
        // number leaves the allocator as it is.
        unsafe { libc::mallopt(what, value) };
    }
}
