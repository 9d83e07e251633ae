//! Reports a volume's troubles in the daemon's log, and as events: when found, at intervals while
//! they last, and when they are over.
//!
//! Invariant: only the daemon's main thread writes the log, so a thread that finds trouble, such as
//! a drive's, never waits for it.

use super::history::{History, record};
use super::signals::Event;
use crate::control::EventKind;
use crate::device::Alarm;
use crate::stats::{About, Health, Stats, Trouble};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// Least interval between two reports of a trouble that lasts and changes.
const AGAIN: Duration = Duration::from_secs(60);

/// Least interval between two checks, however many requests fail.
const PAUSE: Duration = Duration::from_secs(1);

/// A reported trouble.
struct Reported {
    health: Health,
    text: String,
    at: Instant,
}

/// What is to be reported.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    kind: EventKind,
    about: &'static str,
    text: String,
}

/// Whether writes are refused for lack of room.
#[derive(Default)]
struct Refusing {
    /// Those that were by the last check, if there was one.
    count: Option<u64>,
    /// When the last was noticed, until that is over.
    last: Option<Instant>,
}

impl Refusing {
    /// What is to be reported, if `count` writes were refused by `now`.
    fn look(&mut self, count: u64, now: Instant) -> Option<Report> {
        let before = self.count.replace(count).unwrap_or(count);
        let report = |kind, text: String| Some(Report { kind, about: About::Room.name(), text });
        match (count > before, self.last) {
            (true, None) => {
                self.last = Some(now);
                let n = count - before;
                report(EventKind::Full, format!("memory is full: {n} writes were refused"))
            }
            (true, Some(_)) => {
                self.last = Some(now);
                None
            }
            (false, Some(last)) if now >= last + AGAIN => {
                self.last = None;
                let text = "over: memory is full: no write was refused for a minute";
                report(EventKind::Recovered, text.into())
            }
            (false, _) => None,
        }
    }
}

/// The reported troubles.
pub(super) struct Troubles {
    /// Whether the main thread was asked to check, and has not yet.
    called: Arc<AtomicBool>,
    reported: BTreeMap<About, Reported>,
    refusing: Refusing,
    /// The last check.
    last: Option<Instant>,
    /// The next check, if one is due.
    next: Option<Instant>,
}

impl Troubles {
    /// A new volume's troubles, with none reported.
    pub fn new() -> Self {
        // The first check reports troubles from the start of the volume.
        let next = Some(Instant::now());
        let (reported, refusing) = (BTreeMap::new(), Refusing::default());
        Self { called: Arc::default(), reported, refusing, last: None, next }
    }

    /// The alarm that makes the main thread check. It neither waits nor allocates.
    pub fn alarm(&self, events: SyncSender<Event>) -> Alarm {
        let called = Arc::clone(&self.called);
        Arc::new(move || {
            // If the queue is full, another event soon wakes the main thread.
            if !called.swap(true, Ordering::AcqRel) && events.try_send(Event::Trouble).is_err() {
                called.store(false, Ordering::Release);
            }
        })
    }

    /// Schedules a check after the alarm.
    pub fn hear(&mut self) {
        let now = Instant::now();
        let soon = self.last.map_or(now, |last| now.max(last + PAUSE));
        self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
    }

    /// How long until the next check; `None`: until the alarm.
    pub fn patience(&self) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Checks if that is due, and reports what is new. While events are read, the next check is
    /// soon: not all that happens raises an alarm.
    pub fn look(&mut self, stats: impl FnOnce() -> Stats, history: &History) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.called.store(false, Ordering::Release);
        let stats = stats();
        let mut reports = self.news(&stats.troubles(crate::stats::time::now()), now);
        reports.extend(self.refusing.look(stats.no_space, now));
        for Report { kind, about, text } in reports {
            record(history, kind, Some(about), &text);
        }
        self.last = Some(now);
        let lasts = !self.reported.is_empty() || self.refusing.last.is_some();
        self.next = match (history.is_read(), lasts) {
            (true, _) => Some(now + PAUSE),
            (false, true) => Some(now + AGAIN),
            (false, false) => None,
        };
    }

    /// The reports that are due.
    fn news(&mut self, troubles: &[Trouble], now: Instant) -> Vec<Report> {
        let mut reports = Vec::new();
        for Trouble { health, about, text } in troubles {
            let known = self.reported.get(about);
            let is_new = known.is_none_or(|reported| {
                reported.health != *health || reported.text != *text && now >= reported.at + AGAIN
            });
            if is_new {
                let reported = Reported { health: *health, text: text.clone(), at: now };
                self.reported.insert(*about, reported);
                let (kind, about) = (EventKind::of(*health), about.name());
                reports.push(Report { kind, about, text: text.clone() });
            }
        }
        self.reported.retain(|about, Reported { text, .. }| {
            let goes_on = troubles.iter().any(|trouble| trouble.about == *about);
            if !goes_on {
                let text = format!("over: {text}");
                reports.push(Report { kind: EventKind::Recovered, about: about.name(), text });
            }
            goes_on
        });
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::drives::{Operation, Role};

    #[test]
    fn troubles_are_told_once_a_minute_and_when_they_are_over() {
        let trouble =
            |about, text: &str| Trouble { health: Health::Degraded, about, text: text.into() };
        let drive = About::Drive(Role::Log, Operation::Write, 5);
        let (mut troubles, begun) = (Troubles::new(), Instant::now());
        let at = |s| begun + Duration::from_secs(s);
        let mut news = |all: &[Trouble], now| -> Vec<String> {
            troubles.news(all, now).into_iter().map(|report| report.text).collect()
        };
        let one = [trouble(About::Spill, "full"), trouble(drive, "1 failed")];
        assert_eq!(news(&one, at(0)), ["full", "1 failed"]);
        let two = [trouble(About::Spill, "full"), trouble(drive, "2 failed")];
        assert_eq!(news(&two, at(1)), [""; 0]);
        assert_eq!(news(&two, at(60)), ["2 failed"]);
        assert_eq!(news(&two, at(200)), [""; 0], "nothing is new");
        assert_eq!(news(&two[..1], at(201)), ["over: 2 failed"]);
        assert_eq!(news(&[], at(202)), ["over: full"]);
        assert_eq!(news(&one, at(203)), ["full", "1 failed"]);
    }

    #[test]
    fn a_trouble_that_becomes_worse_is_told_at_once() {
        let log = |health| [Trouble { health, about: About::Log, text: "bad".into() }];
        let (mut troubles, now) = (Troubles::new(), Instant::now());
        let mut kinds = |all: &[Trouble]| -> Vec<EventKind> {
            troubles.news(all, now).into_iter().map(|report| report.kind).collect()
        };
        assert_eq!(kinds(&log(Health::Degraded)), [EventKind::Degraded]);
        assert_eq!(kinds(&log(Health::Degraded)), []);
        assert_eq!(kinds(&log(Health::Failed)), [EventKind::Failed]);
        assert_eq!(kinds(&[]), [EventKind::Recovered]);
    }

    #[test]
    fn refused_writes_are_one_event_until_none_was_for_a_minute() {
        let (mut refusing, begun) = (Refusing::default(), Instant::now());
        let mut look = |count, s| {
            let report = refusing.look(count, begun + Duration::from_secs(s));
            report.map(|report| report.kind)
        };
        assert_eq!(look(0, 0), None);
        assert_eq!(look(3, 1), Some(EventKind::Full));
        assert_eq!([look(9, 50), look(9, 70), look(9, 109)], [None; 3]);
        assert_eq!(look(9, 110), Some(EventKind::Recovered));
        assert_eq!(look(9, 300), None);
        assert_eq!(look(10, 301), Some(EventKind::Full));
    }
}
