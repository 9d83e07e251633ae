//! What is wrong with a volume, in the daemon's log: said when it is found, now and then while it
//! goes on, and when it is over.
//!
//! Invariant: only the daemon's main thread writes, so whatever finds trouble, a drive's thread
//! for one, waits for no log.

use super::log;
use super::signals::Event;
use crate::device::Alarm;
use crate::stats::{About, Stats, Trouble};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// How often a trouble is told of that goes on and changes.
const AGAIN: Duration = Duration::from_secs(60);

/// How soon it is looked again, however many requests fail.
const PAUSE: Duration = Duration::from_secs(1);

/// What was told.
pub(super) struct Troubles {
    /// Whether the main thread has been told to look, and has not yet.
    called: Arc<AtomicBool>,
    told: BTreeMap<About, (String, Instant)>,
    /// When it looked last.
    last: Option<Instant>,
    /// When it is to look next.
    next: Option<Instant>,
}

impl Troubles {
    /// Of a volume of which nothing was told yet.
    pub fn new() -> Self {
        // What was wrong when it came up is told as well.
        let next = Some(Instant::now());
        Self { called: Arc::default(), told: BTreeMap::new(), last: None, next }
    }

    /// What has the main thread look. It neither waits nor allocates.
    pub fn alarm(&self, events: SyncSender<Event>) -> Alarm {
        let called = Arc::clone(&self.called);
        Arc::new(move || {
            // If there is no room, it looks soon for another reason.
            if !called.swap(true, Ordering::AcqRel) && events.try_send(Event::Trouble).is_err() {
                called.store(false, Ordering::Release);
            }
        })
    }

    /// There is something to look at.
    pub fn hear(&mut self) {
        let now = Instant::now();
        let soon = self.last.map_or(now, |last| now.max(last + PAUSE));
        self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
    }

    /// How long there is nothing to look at; `None`: until something is heard.
    pub fn patience(&self) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Looks if it is time to, and says what is new.
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
