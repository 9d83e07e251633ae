//! Reports the progress of the opening of a log, store or device: to the process that waits for the
//! daemon, to the service manager, and to other commands.

use super::notify;
use crate::config::paths::VolumeFiles;
use crate::log::Step;
use crate::private;
use std::cell::Cell;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

/// Least interval between reports to the waiting process.
const TELL: Duration = Duration::from_millis(100);
/// Least interval between reports to the service manager.
const NOTIFY: Duration = Duration::from_secs(1);

/// Writes a daemon's progress to the file that other commands read.
pub(super) fn note(files: &VolumeFiles, what: &str) {
    // The progress is only shown: a failed write is no error.
    let _ = private::create(&files.step).and_then(|mut file| file.write_all(what.as_bytes()));
}

/// Removes the progress file.
pub(super) fn forget(files: &VolumeFiles) {
    let _ = fs::remove_file(&files.step); // in most cases there is no such file
}

/// The progress that a starting daemon has written, if any.
pub(super) fn noted(files: &VolumeFiles) -> Option<String> {
    let text = fs::read_to_string(&files.step).ok()?;
    // The daemon may be writing it at this moment.
    text.lines().next().map(str::to_owned)
}

/// The progress reports of an opening.
pub(super) struct Opening<'a> {
    progress: &'a dyn Fn(&str),
    last: Cell<Option<Instant>>,
    notified: Cell<Option<Instant>>,
}

impl<'a> Opening<'a> {
    pub fn new(progress: &'a dyn Fn(&str)) -> Self {
        Self { progress, last: Cell::new(None), notified: Cell::new(None) }
    }

    /// Reports a step, unless the last report was too recent.
    pub fn at(&self, step: Step) {
        self.tell(&step.to_string());
    }

    /// Reports how many objects of a store were read, unless the last report was too recent.
    pub fn objects(&self, read: u64) {
        self.tell(&format!("{read} objects of the store were read"));
    }

    /// Reports what takes time, unless the last report was too recent.
    pub fn tell(&self, what: &str) {
        let now = Instant::now();
        if due(&self.last, TELL, now) {
            (self.progress)(what);
        }
        if due(&self.notified, NOTIFY, now) {
            notify::extend(what);
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
