//! What the allocator of a daemon keeps for later.
//!
//! A daemon is there for as long as its machine, locked in memory, and takes and gives back buffers
//! of up to 1 MiB on dozens of threads. By itself the C library gives each thread an arena, and
//! keeps what was given back there.

/// Arenas: few threads allocate at the same time.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;
/// From so many bytes on, memory comes from the kernel and goes back to it; as much is kept at the
/// end of an arena. What the C library begins with, before it raises it by what is given back.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Has the allocator give back what is not used. Call it before the first thread is made.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (what, value) in [
        (libc::M_ARENA_MAX, ARENAS),
        (libc::M_MMAP_THRESHOLD, LARGE),
        (libc::M_TRIM_THRESHOLD, LARGE),
    ] {
        // SAFETY: changes numbers of the C library's allocator, under its own lock. If it takes
        // none, it goes on as it is.
        unsafe { libc::mallopt(what, value) };
    }
}
