//! Answers callers that wait for events.

use super::running::Running;
use super::signals::Event;
use crate::control::{Asking, Events, Since};
use crate::error::{Error, Result};
use std::time::{Duration, Instant};

/// The longest wait for an event.
const LONGEST: Duration = Duration::from_secs(60);
/// Interval between looks whether the caller still waits.
const LOOK: Duration = Duration::from_secs(1);

impl Running {
    /// The events after those that the caller has seen; waits for one as long as the caller asks.
    pub(super) fn events(&self, since: &Since, asking: &mut Asking<'_>) -> Result<Events> {
        let history = &self.served.history;
        if !history.is_read() {
            // The main thread looks at the volume more often from now on. If its queue is full, it
            // is about to look.
            let _ = self.served.events.try_send(Event::Trouble);
        }
        let reader = history.reader();
        let mut since = since.clone();
        let until = Instant::now() + Duration::from_millis(since.wait_ms).min(LONGEST);
        loop {
            let events = history.after(&since);
            let now = Instant::now();
            if !events.events.is_empty() || now >= until {
                asking.afterwards(move || drop(reader));
                return Ok(events);
            }
            if asking.is_gone() {
                return Err(Error::failure("the caller has hung up"));
            }
            (since.session, since.after) = (Some(events.session.clone()), events.last);
            if !history.wait(events.last, until.min(now + LOOK)) && history.ends(events.last) {
                asking.afterwards(move || drop(reader));
                return Ok(events);
            }
        }
    }
}
