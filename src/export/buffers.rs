//! Memory that front-ends take for requests in flight. It is computed before a front-end exists, so
//! that the limit on all memory of a volume can be checked.
//!
//! Invariant: a front-end then counts no more ([`crate::device::Channel::count_buffers`]), as long
//! as requests are not larger than those that a block device gets.

use crate::BLOCK_SIZE;

/// The most bytes that one FUSE request may carry: what the kernel allows unless the administrator
/// raised `fs.fuse.max_pages_limit`. Each serving thread keeps this much for its reads.
pub(super) const FUSE_REQUEST: usize = 1 << 20;
/// Most requests in flight of one ublk queue.
pub(super) const UBLK_DEPTH: u16 = 128;
/// Most bytes of a ublk request where the kernel copies the data: each request in flight then has a
/// buffer of its own.
pub(super) const UBLK_BUFFERED: usize = 256 << 10;

/// Bytes of one thread that serves FUSE requests: the largest request that it receives, and the
/// largest that it answers, each with a page for alignment.
const FUSE_THREAD: u64 = 2 * (FUSE_REQUEST + BLOCK_SIZE) as u64;
/// Bytes of a ublk queue where the daemon copies the data piece by piece: what is moved at once,
/// and what other threads help with.
const UBLK_QUEUE: u64 = 256 << 10;
/// Bytes of a ublk queue where the kernel copies the data.
const UBLK_QUEUE_BUFFERED: u64 = UBLK_DEPTH as u64 * UBLK_BUFFERED as u64;

/// Bytes of a FUSE export with `threads` threads.
pub fn fuse(threads: u64) -> u64 {
    threads * FUSE_THREAD
}

/// Bytes of a ublk export with `threads` threads, on this kernel.
pub fn ublk(threads: u64) -> u64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    of_queues(threads.clamp(1, cpus), copies(&rustix::system::uname().release().to_string_lossy()))
}

fn of_queues(queues: u64, copies: bool) -> u64 {
    // A single queue shares with no other queue: it moves a whole request at once.
    let alone = if queues == 1 { 4 } else { 1 };
    queues * if copies { UBLK_QUEUE * alone } else { UBLK_QUEUE_BUFFERED }
}

/// Whether the daemon copies the data on a kernel of this release: from Linux 6.5 on.
fn copies(release: &str) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 5),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_copy_themselves_take_much() {
        assert!(!copies("6.1.0-13-amd64") && !copies("5.15.0") && !copies("6.4"));
        assert!(copies("6.5.0") && copies("6.18.44-fc") && copies("7.0") && copies("strange"));
        assert_eq!(of_queues(2, false), 64 << 20);
        assert_eq!([1, 2, 16].map(|queues| of_queues(queues, true) >> 10), [1024, 512, 4096]);
    }
}
