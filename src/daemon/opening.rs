//! Reports how far a log's opening is: to the process that waits for the daemon, to the service
//! manager, and to commands that look.

use super::notify;
use crate::config::paths::VolumeFiles;
use crate::log::Step;
use crate::private;
use std::cell::Cell;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

/// How often the waiting process is told.
const TELL: Duration = Duration::from_millis(100);
/// How often the service manager is told.
const NOTIFY: Duration = Duration::from_secs(1);

/// Writes a daemon's progress to the file where other commands look for it.
pub(super) fn note(files: &VolumeFiles, what: &str) {
    // The progress is only shown: a failed write is not worth an error.
    let _ = private::create(&files.step).and_then(|mut file| file.write_all(what.as_bytes()));
}

/// Removes that file.
pub(super) fn forget(files: &VolumeFiles) {
    let _ = fs::remove_file(&files.step); // mostly there was nothing to tell
}

/// The progress of a daemon that is coming up, if it has written any.
pub(super) fn noted(files: &VolumeFiles) -> Option<String> {
    let text = fs::read_to_string(&files.step).ok()?;
    // It may be written just now.
    text.lines().next().map(str::to_owned)
}

/// The opening of a log.
pub(super) struct Opening<'a> {
    progress: &'a dyn Fn(&str),
    last: Cell<Option<Instant>>,
    notified: Cell<Option<Instant>>,
}

impl<'a> Opening<'a> {
    pub fn new(progress: &'a dyn Fn(&str)) -> Self {
        Self { progress, last: Cell::new(None), notified: Cell::new(None) }
    }

    /// Tells of a step, unless the last one was told just now.
    pub fn at(&self, step: Step) {
        let now = Instant::now();
        if due(&self.last, TELL, now) {
            (self.progress)(&step.to_string());
        }
        if due(&self.notified, NOTIFY, now) {
            notify::extend(&step.to_string());
        }
    }
}

fn due(last: &Cell<Option<Instant>>, pause: Duration, now: Instant) -> bool {
    let due = last.get().is_none_or(|last| now.duration_since(last) >= pause);
    if due {
        last.set(Some(now));
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_at_once_and_then_now_and_then() {
        let count = Cell::new(0);
        let tell = |_: &str| count.set(count.get() + 1);
        let opening = Opening::new(&tell);
        let began = Instant::now();
        let mut steps = 0;
        opening.at(Step::Index { changes: 1 });
        assert_eq!(count.get(), 1);
        while count.get() < 4 && began.elapsed() < TELL * 300 {
            opening.at(Step::Index { changes: 1 });
            steps += 1;
        }
        assert!(steps > 100 && count.get() == 4, "{} of {steps}", count.get());
        assert!(began.elapsed() >= TELL * 3, "more often than it should be");
    }
}
