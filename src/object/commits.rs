//! The windows of a log in front of an object drive.
//!
//! What is written between begin and commit is one window. It is not sealed by its size or age, and
//! no writer waits for room in it: the log bounds it. Its parts are uploaded when it settles, all
//! but the last, which the commit completes with the log's mark and with what is lost.
//!
//! Invariant: a window that is dropped leaves no object that commits it; so do its parts that are
//! under way then.

use super::drive::ObjectDrive;
use super::mark::Mark;
use super::uploads::{Sealed, State};
use super::window::{Draft, Window, ending};
use crate::media::{Action, Commit, DriveError};
use std::time::{Duration, Instant};

/// How far the window of a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    #[default]
    None,
    /// It is written to.
    Open,
    /// All of its parts but the last are issued.
    Settled,
    /// Its commit is under way.
    Committing,
}

impl State {
    /// Drops the window of a log that was not committed.
    fn drop_window(&mut self) {
        match self.stage {
            Stage::None | Stage::Committing => return,
            Stage::Open => {}
            Stage::Settled => _ = self.sealed.pop_back(),
        }
        (self.open, self.last) = (Window::default(), None);
        self.stage = Stage::None;
    }

    /// Issues the parts of a log's window, all but the last.
    fn settle_window(&mut self) {
        let window = std::mem::take(&mut self.open);
        let mut parts = window.parts();
        self.last = parts.pop();
        let mut sealed = Sealed::new(window, self.next_window(), parts);
        sealed.is_whole = false;
        self.sealed.push_back(sealed);
        self.stage = Stage::Settled;
    }

    /// Issues the rest of a log's window.
    fn commit_window(&mut self, commit: &Commit) {
        let last: Draft = self.last.take().unwrap_or_default();
        if let Some(sealed) = self.sealed.back_mut() {
            sealed.todo.extend(ending(last, &commit.lost, &Mark::of(commit)));
            sealed.is_whole = true;
        }
        self.stage = Stage::Committing;
    }
}

impl ObjectDrive {
    /// A window of a log begins.
    pub(super) fn begin_window(&self) {
        let mut state = self.shared.state.lock();
        state.drop_window();
        // What was written without a log, if it was, is a window of its own.
        self.shared.seal(&mut state);
        if state.stage == Stage::None {
            state.stage = Stage::Open;
        }
    }

    /// Uploads the window of a log but for its last part; see [`crate::media::Drive::settle`].
    pub(super) fn settle_window(&self, most: Duration) -> Result<bool, DriveError> {
        let mut state = self.shared.state.lock();
        if state.stage == Stage::Open {
            state.settle_window();
            self.shared.changed.notify_all();
        }
        drop(state);
        self.wait_some(most, |state| {
            let own = state.sealed.back().filter(|_| state.stage == Stage::Settled);
            own.is_none_or(Sealed::is_sent)
        })
    }

    /// Commits the window of a log; see [`crate::media::Drive::commit`].
    pub(super) fn commit_window(
        &self,
        commit: &Commit,
        most: Duration,
    ) -> Result<bool, DriveError> {
        let mut state = self.shared.state.lock();
        if state.stage == Stage::Open {
            state.settle_window();
        }
        if state.stage == Stage::Settled {
            state.commit_window(commit);
            self.shared.changed.notify_all();
        }
        drop(state);
        let done = self.wait_some(most, |state| state.sealed.is_empty())?;
        if done {
            self.shared.state.lock().stage = Stage::None;
        }
        Ok(done)
    }

    /// Waits until `ready`, at most for the time `most`; returns whether it is. Fails with the
    /// store's trouble when that has lasted too long.
    fn wait_some(
        &self,
        most: Duration,
        ready: impl Fn(&State) -> bool,
    ) -> Result<bool, DriveError> {
        let until = Instant::now() + most;
        let mut state = self.shared.state.lock();
        loop {
            if self.shared.is_over() {
                drop(state);
                return Err(self.over_error((Action::Flush, 0, 0)));
            }
            if ready(&state) {
                return Ok(true);
            }
            if let Some(errno) = state.trouble_since(None) {
                drop(state);
                return Err(self.error(Action::Flush, 0, 0, errno));
            }
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                return Ok(ready(&state));
            }
        }
    }
}
