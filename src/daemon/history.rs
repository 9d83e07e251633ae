//! The last events of a volume, for readers at their own pace: `ztier events`, and the program of
//! `on-event`.
//!
//! Invariants: a thread that adds an event waits for no reader; the memory is bounded ([`KEPT`]);
//! a reader that comes too late for some events gets the number of them.

use super::log;
use crate::control::{EventKind, Events, Since, VolumeEvent};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most events that are kept.
const KEPT: usize = 256;
/// The most events of an answer.
const MOST: usize = 64;
/// A reader asks again within this time.
const AGAIN: Duration = Duration::from_secs(15);
/// How long the end of the daemon waits for readers to get the last event.
const LAST: Duration = Duration::from_millis(300);

/// See the module.
pub(super) struct History {
    volume: String,
    session: String,
    kept: Mutex<Kept>,
    changed: Condvar,
}

#[derive(Default)]
struct Kept {
    /// The last events; their numbers are consecutive.
    events: VecDeque<VolumeEvent>,
    /// The number of the last event, from 1.
    last: u64,
    closed: bool,
    /// Readers whose answer is not sent yet.
    readers: usize,
    /// Whether a thread reads all the time.
    always: bool,
    /// When the last reader had its answer.
    read: Option<Instant>,
}

/// A reader at work.
pub(super) struct Reader(Arc<History>);

impl Drop for Reader {
    fn drop(&mut self) {
        let mut kept = self.0.kept.lock();
        kept.readers -= 1;
        kept.read = Some(Instant::now());
        drop(kept);
        self.0.changed.notify_all();
    }
}

impl History {
    /// That of a new daemon of `volume`.
    pub fn new(volume: &str) -> Arc<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let session = format!("{}-{}", now.as_millis(), std::process::id());
        let volume = volume.to_owned();
        Arc::new(Self { volume, session, kept: Mutex::default(), changed: Condvar::new() })
    }

    /// Adds an event. `about` is the part of the volume that it is about.
    pub fn add(&self, kind: EventKind, about: Option<&str>, text: &str) {
        let event = VolumeEvent::now(&self.volume, kind, about, text);
        let mut kept = self.kept.lock();
        kept.last += 1;
        let (session, seq) = (Some(self.session.clone()), Some(kept.last));
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        kept.events.push_back(VolumeEvent { session, seq, ..event });
        drop(kept);
        self.changed.notify_all();
    }

    /// Adds the last event. Waits a moment until readers have it.
    pub fn close(&self, text: &str) {
        self.add(EventKind::Ended, None, text);
        let until = Instant::now() + LAST;
        let mut kept = self.kept.lock();
        kept.closed = true;
        self.changed.notify_all();
        while kept.readers > 0 && !self.changed.wait_until(&mut kept, until).timed_out() {}
    }

    /// Counts a reader until the result is dropped.
    pub fn reader(self: &Arc<Self>) -> Reader {
        self.kept.lock().readers += 1;
        Reader(Arc::clone(self))
    }

    /// From now on a thread reads all the time.
    pub fn read_always(&self) {
        self.kept.lock().always = true;
    }

    /// Whether events are read, so that it pays to look for them.
    pub fn is_read(&self) -> bool {
        let kept = self.kept.lock();
        kept.always || kept.readers > 0 || kept.read.is_some_and(|read| read.elapsed() < AGAIN)
    }

    /// The events after those that the caller has seen, at most [`MOST`] of them.
    pub fn after(&self, since: &Since) -> Events {
        let kept = self.kept.lock();
        let same = since.session.as_ref() == Some(&self.session);
        let seen = if same { since.after.min(kept.last) } else { 0 };
        let before = kept.last - kept.events.len() as u64;
        // A reader that comes for the first time has not been slow.
        let dropped = if same { before.saturating_sub(seen) } else { 0 };
        let skip = usize::try_from(seen.saturating_sub(before)).unwrap_or(usize::MAX);
        let events: Vec<_> = kept.events.iter().skip(skip).take(MOST).cloned().collect();
        let last = events.last().and_then(|event| event.seq).unwrap_or(kept.last);
        Events { session: self.session.clone(), events, dropped, last }
    }

    /// Waits until `until` for an event after the one numbered `seen`, or the end. Returns whether
    /// there is any reason to wait on.
    pub fn wait(&self, seen: u64, until: Instant) -> bool {
        let mut kept = self.kept.lock();
        while kept.last <= seen && !kept.closed {
            if self.changed.wait_until(&mut kept, until).timed_out() {
                return true;
            }
        }
        false
    }

    /// Whether no event will follow the one numbered `seen`.
    pub fn ends(&self, seen: u64) -> bool {
        let kept = self.kept.lock();
        kept.closed && kept.last <= seen
    }

    /// The next event after `seen`, for a thread that reads one by one; earlier ones are dropped
    /// if more than `most` wait. Waits for it; `None`: the daemon ends, and there is none.
    pub fn next(&self, seen: u64, most: usize) -> Option<VolumeEvent> {
        let mut kept = self.kept.lock();
        while kept.last <= seen {
            if kept.closed {
                return None;
            }
            self.changed.wait(&mut kept);
        }
        let waiting = usize::try_from(kept.last - seen).unwrap_or(usize::MAX);
        let at = kept.events.len() - waiting.min(most).min(kept.events.len());
        let event = kept.events.get(at)?.clone();
        let dropped = event.seq.unwrap_or(0).saturating_sub(seen + 1);
        Some(VolumeEvent { dropped, ..event })
    }
}

/// Adds an event whose text is a line in the daemon's log, too.
pub(super) fn record(history: &History, kind: EventKind, about: Option<&str>, text: &str) {
    log::line(text);
    history.add(kind, about, text);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn texts(events: &Events) -> Vec<&str> {
        events.events.iter().map(|event| event.text.as_str()).collect()
    }

    #[test]
    fn each_reader_gets_each_event_once_and_the_number_of_those_it_missed() {
        let history = History::new("v");
        history.add(EventKind::Up, None, "one");
        let first = history.after(&Since::default());
        assert_eq!((texts(&first), first.dropped, first.last), (vec!["one"], 0, 1));
        let mut since = Since { session: Some(first.session), after: 1, wait_ms: 0 };
        assert_eq!(history.after(&since).events, []);
        for n in 0..KEPT + 10 {
            history.add(EventKind::Full, Some("memory"), &n.to_string());
        }
        let late = history.after(&since);
        assert_eq!((late.events.len(), late.dropped), (MOST, 10));
        assert_eq!((texts(&late)[0], late.events[0].seq), ("10", Some(12)));
        since.after = late.last;
        assert_eq!(texts(&history.after(&since))[0], "74");
        // Another daemon's number means nothing.
        since.session = Some("other".into());
        let all = history.after(&since);
        assert_eq!((texts(&all)[0], all.dropped), ("10", 0));
        // Nor does a number that was never given.
        since = Since { session: Some(all.session), after: u64::MAX, wait_ms: 0 };
        assert_eq!(history.after(&since).last, KEPT as u64 + 11);
    }

    #[test]
    fn a_thread_that_is_slow_goes_on_with_the_last() {
        let history = History::new("v");
        for n in 1..=20 {
            history.add(EventKind::Full, None, &n.to_string());
        }
        let next = |seen| history.next(seen, 4).map(|event| (event.text, event.dropped));
        assert_eq!(next(0), Some(("17".into(), 16)));
        assert_eq!(next(17), Some(("18".into(), 0)));
        history.close("end");
        assert_eq!(next(20), Some(("end".into(), 0)));
        assert_eq!(next(21), None);
    }

    #[test]
    fn a_reader_waits_for_an_event_or_the_end_and_the_end_for_the_reader() {
        let history = History::new("v");
        assert!(!history.is_read());
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(history.wait(0, soon()));
        let reader = history.reader();
        assert!(history.is_read());
        std::thread::scope(|scope| {
            let theirs = &history;
            scope.spawn(move || {
                assert!(!theirs.wait(0, Instant::now() + Duration::from_secs(60)));
                drop(reader);
            });
            let begun = Instant::now();
            history.close("end");
            assert!(begun.elapsed() < LAST + Duration::from_secs(10));
        });
        assert!(!history.wait(1, soon()), "nothing follows the end");
        assert_eq!(texts(&history.after(&Since::default())), ["end"]);
        let other = History::new("v");
        other.read_always();
        assert!(other.is_read());
        // A reader that never takes its answer does not hold the end up.
        let _stays = history.reader();
        history.close("end");
    }
}
