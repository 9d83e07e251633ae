//! Drops the page cache once a second, as the source does during IOzone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use ztier::error::{Context, Result};

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Drops the page cache of the whole machine every second until it is dropped itself.
pub struct CacheDropper {
    stop: Arc<AtomicBool>,
    drops: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl CacheDropper {
    /// Prints a warning (the effect is machine-wide) and begins.
    pub fn start() -> Result<Self> {
        drop_now().context(format!("cannot write {DROP_CACHES}"))?;
        crate::report::say(
            "dropping the page cache of this machine every second (echo 1 > drop_caches)",
        );
        let (stop, drops) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = std::thread::spawn({
            let (stop, drops) = (Arc::clone(&stop), Arc::clone(&drops));
            move || {
                let mut next = Instant::now() + Duration::from_secs(1);
                while !stop.load(Ordering::Relaxed) {
                    std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
                    if Instant::now() >= next {
                        next += Duration::from_secs(1);
                        if drop_now().is_ok() {
                            drops.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }
        });
        Ok(Self { stop, drops, thread: Some(thread) })
    }

    /// Number of drops so far.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::Relaxed)
    }
}

impl Drop for CacheDropper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn drop_now() -> std::io::Result<()> {
    std::fs::write(DROP_CACHES, "1")
}
