//! Reports a volume's troubles in the daemon's log: when found, at intervals while they last, and
//! when they are over.
//!
//! Invariant: only the daemon's main thread writes the log, so a thread that finds trouble, such as
//! a drive's, never waits for it.

use super::log;
use super::signals::Event;
use crate::device::Alarm;
use crate::stats::{About, Stats, Trouble};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// Least interval between two reports of a trouble that lasts and changes.
const AGAIN: Duration = Duration::from_secs(60);

/// Least interval between two checks, however many requests fail.
const PAUSE: Duration = Duration::from_secs(1);

/// The reported troubles.
pub(super) struct Troubles {
    /// Whether the main thread was told to check, and has not yet.
    called: Arc<AtomicBool>,
    told: BTreeMap<About, (String, Instant)>,
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
        Self { called: Arc::default(), told: BTreeMap::new(), last: None, next }
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

    /// Checks if that is due, and logs what is new.
    pub fn look(&mut self, stats: impl FnOnce() -> Stats) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.called.store(false, Ordering::Release);
        for line in self.news(&stats().troubles(crate::stats::time::now()), now) {
            log::line(&line);
        }
        self.last = Some(now);
        self.next = (!self.told.is_empty()).then_some(now + AGAIN);
    }

    /// The lines that are due.
    fn news(&mut self, troubles: &[Trouble], now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        for Trouble { about, text, .. } in troubles {
            match self.told.get_mut(about) {
                Some((last, at)) if last == text || now < *at + AGAIN => {}
                known => {
                    let told = (text.clone(), now);
                    match known {
                        Some(known) => *known = told,
                        None => drop(self.told.insert(*about, told)),
                    }
                    lines.push(text.clone());
                }
            }
        }
        self.told.retain(|about, (last, _)| {
            let goes_on = troubles.iter().any(|trouble| trouble.about == *about);
            if !goes_on {
                lines.push(format!("over: {last}"));
            }
            goes_on
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Health;
    use crate::stats::drives::{Operation, Role};

    #[test]
    fn troubles_are_told_once_a_minute_and_when_they_are_over() {
        let trouble =
            |about, text: &str| Trouble { health: Health::Degraded, about, text: text.into() };
        let drive = About::Drive(Role::Log, Operation::Write, 5);
        let (mut troubles, begun) = (Troubles::new(), Instant::now());
        let at = |s| begun + Duration::from_secs(s);
        let one = [trouble(About::Spill, "full"), trouble(drive, "1 failed")];
        assert_eq!(troubles.news(&one, at(0)), ["full", "1 failed"]);
        let two = [trouble(About::Spill, "full"), trouble(drive, "2 failed")];
        assert_eq!(troubles.news(&two, at(1)), [""; 0]);
        assert_eq!(troubles.news(&two, at(60)), ["2 failed"]);
        assert_eq!(troubles.news(&two, at(200)), [""; 0], "nothing is new");
        assert_eq!(troubles.news(&two[..1], at(201)), ["over: 2 failed"]);
        assert_eq!(troubles.news(&[], at(202)), ["over: full"]);
        assert_eq!(troubles.news(&one, at(203)), ["full", "1 failed"]);
    }
}
