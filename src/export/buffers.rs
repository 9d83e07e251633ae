//! How much memory front-ends take for requests under way, so that a limit on all memory of a
//! volume can be checked before there is one.
//!
//! Invariant: what a front-end then counts ([`crate::device::Channel::count_buffers`]) is no more,
//! as long as requests are not larger than a block device gets them.

use crate::BLOCK_SIZE;

/// The most bytes that one FUSE request may carry: what the kernel allows unless the administrator
/// raised `fs.fuse.max_pages_limit`. Each serving thread keeps this much for its reads.
pub(super) const FUSE_REQUEST: usize = 1 << 20;
/// Requests of one ublk queue that may be under way.
pub(super) const UBLK_DEPTH: u16 = 128;
/// The most bytes of a ublk request where each that may be under way has a buffer of its own, which
/// the kernel copies to.
pub(super) const UBLK_BUFFERED: usize = 256 << 10;

/// What one thread that serves FUSE requests has: a request of the largest size that it receives,
/// and one that it answers, each with a page to align it.
const FUSE_THREAD: u64 = 2 * (FUSE_REQUEST + BLOCK_SIZE) as u64;
/// What a ublk queue has where requests are copied piece by piece: what is moved at once, and what
/// others help with.
const UBLK_QUEUE: u64 = 256 << 10;
/// The same where the kernel copies.
const UBLK_QUEUE_BUFFERED: u64 = UBLK_DEPTH as u64 * UBLK_BUFFERED as u64;

/// By FUSE, served by so many threads.
pub fn fuse(threads: u64) -> u64 {
    threads * FUSE_THREAD
}

/// By ublk, served by so many threads, on this kernel.
pub fn ublk(threads: u64) -> u64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    of_queues(threads.clamp(1, cpus), copies(&rustix::system::uname().release().to_string_lossy()))
}

fn of_queues(queues: u64, copies: bool) -> u64 {
    // A queue alone shares with no other queue: what it moves at once is a whole request.
    let alone = if queues == 1 { 4 } else { 1 };
    queues * if copies { UBLK_QUEUE * alone } else { UBLK_QUEUE_BUFFERED }
}

/// Whether a kernel of that release has the daemon copy: from Linux 6.5 on.
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
