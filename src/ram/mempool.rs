//! The state of the mempool besides its frames; what it is for: [`super::refill`].

use crate::sync::atomic::AtomicBool;
use std::sync::OnceLock;
use std::thread::Thread;

/// State of the mempool besides its frames.
#[derive(Debug, Default)]
pub(super) struct Mempool {
    /// The thread that refills it, and whether no other thread is served before it.
    pub(super) refiller: OnceLock<(Thread, bool)>,
    /// The machine has plenty of memory.
    pub(super) plenty: AtomicBool,
    /// The machine does not swap to the volume now, although it may again.
    pub(super) rests: AtomicBool,
    /// A write waited in vain since a frame was last added: other writes need not find that out
    /// again.
    pub(super) dry: AtomicBool,
}
