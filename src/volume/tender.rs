//! The volume's own thread: cleans when nobody writes, and returns what is not needed.

use super::Volume;
use crate::error::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread looks.
const TICK: Duration = Duration::from_millis(100);
/// A volume that opened no segment for this long is quiet.
const QUIET: Duration = Duration::from_millis(500);
/// After this long without a new segment all cleaning is done, and the thread looks less often.
const IDLE: Duration = Duration::from_secs(20);
/// How often the thread looks at an idle volume: a machine at rest should stay at rest.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// The thread; dropping it ends it.
pub(super) struct Tender {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tender {
    pub(super) fn start(volume: &Arc<Volume>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (volume, stopping) = (Arc::downgrade(volume), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("ztier-tender".into())
            .spawn(move || tend(&volume, &stopping))
            .context("cannot start the cleaning thread")?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

fn tend(volume: &Weak<Volume>, stop: &AtomicBool) {
    let mut opened = 0;
    let mut since = Instant::now();
    while !stop.load(Ordering::Acquire) {
        std::thread::park_timeout(if since.elapsed() < IDLE { TICK } else { IDLE_TICK });
        let Some(volume) = volume.upgrade() else { return };
        let now = volume.ram().opened();
        if now != opened {
            (opened, since) = (now, Instant::now());
        }
        volume.ram().tend(since.elapsed() >= QUIET, &|| {
            stop.load(Ordering::Acquire) || volume.ram().opened() != opened
        });
    }
}

impl Drop for Tender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // The last owner of the volume may be the thread itself, which cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}
