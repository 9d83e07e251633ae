//! What was written to a volume in a store, without a log, and the store has not got: the daemon
//! alone has it.
//!
//! Invariant: a flush is awaited for [`PATIENCE`] at most, and no longer than the store works: the
//! main thread, which ends the daemon by a signal, has to hear the next one.

use crate::config::size::human;
use crate::device::{Device, IoError, Request, Serving};
use crate::error::{Context, Error, Result};
use crate::remedy;
use crate::stats::ObjectStats;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long to wait for a flush, which goes on after that.
const PATIENCE: Duration = Duration::from_millis(500);
/// Interval between looks at it.
const GLANCE: Duration = Duration::from_millis(5);

/// A flush under way.
type Flush = JoinHandle<Result<(), IoError>>;

/// See the module.
#[derive(Default)]
pub(super) struct Unsent {
    under_way: Mutex<Option<Flush>>,
}

impl Unsent {
    /// Refuses as long as the store of `volume` lacks something that was written. Of a device that
    /// `goes_on` being written to, until a flush has shown that the store works: the caller flushes
    /// the rest.
    ///
    /// # Errors
    /// It does.
    pub fn refuse(&self, volume: &Arc<dyn Serving>, goes_on: bool) -> Result<()> {
        let Some(place) = store(&**volume).map(|store| store.place) else { return Ok(()) };
        let until = Instant::now() + PATIENCE;
        let (mut earlier, mut works) = (self.under_way.lock().take(), false);
        loop {
            let covers_all = earlier.is_none();
            let flush = match earlier.take() {
                Some(flush) => flush,
                None => begin(volume)?,
            };
            if let Err(e) = wait(&**volume, &place, &flush, until) {
                *self.under_way.lock() = Some(flush);
                let fails = lacking(&**volume).is_some_and(|store| store.trouble.is_some());
                return if goes_on && works && !fails { Ok(()) } else { Err(e) };
            }
            let done = flush.join().map_err(|_| Error::failure("a flush has panicked"))?;
            done.context(format!("{place} does not take what was written"))
                .map_err(|e| e.hint(remedy::NOT_SENT))?;
            if covers_all {
                return Ok(());
            }
            works = true;
        }
    }
}

/// The counters of the store of a volume without a log. `None` if another owner has taken the
/// volume over, too: then nothing can be sent any more, whatever this daemon does.
pub(super) fn store(volume: &dyn Serving) -> Option<ObjectStats> {
    let stats = volume.stats();
    let has_log = stats.log.is_some();
    stats.object.filter(|store| !has_log && store.successor.is_none())
}

/// The same if the store lacks something that was written, as far as that is known without a flush.
pub(super) fn lacking(volume: &dyn Serving) -> Option<ObjectStats> {
    store(volume).filter(|store| store.waiting_bytes > 0)
}

fn begin(volume: &Arc<dyn Serving>) -> Result<Flush> {
    let volume = Arc::clone(volume) as Arc<dyn Device>;
    let flush = move || volume.channel().submit(Request::Flush, Instant::now());
    let thread = thread::Builder::new().name("ztier-flush".into()).spawn(flush);
    thread.context("cannot start a thread")
}

/// Waits for a flush. Fails when the store in `place` fails meanwhile, or at `until`.
fn wait(volume: &dyn Serving, place: &str, flush: &Flush, until: Instant) -> Result<()> {
    while !flush.is_finished() {
        let lacking = lacking(volume);
        let trouble = lacking.as_ref().and_then(|store| store.trouble.as_ref());
        if trouble.is_some() || Instant::now() >= until {
            let bytes = human(lacking.as_ref().map_or(0, |store| store.waiting_bytes));
            let why = trouble.map_or(String::new(), |trouble| format!(": {trouble}"));
            return Err(Error::would_lose(format!(
                "{place} has not got {bytes} of what was written{why}"
            ))
            .hint(remedy::NOT_SENT));
        }
        thread::sleep(GLANCE);
    }
    Ok(())
}
