//! The commit of a window by an atomic backing store, between the judging of the window and the
//! move of the tail.
//!
//! Invariants: a window is committed only when all that judging appended is durable, and the tail
//! moves only when the window is committed. A commit names the tail behind it: when power fails
//! between the two, the log is opened from there ([`super::super::recovery`]), because a window
//! taken again may be smaller, and would put older data over newer. What is lost at the window's
//! end is in the commit: the store's older content of it is not served.

use super::state::Core;
use super::window_state::{Judged, Step};
use crate::log::planted::{self, Bug, mark};
use crate::media::Commit;

impl Core {
    /// Goes on with a judged window whose records are durable.
    pub(super) fn settled(&mut self, judged: Judged) {
        if self.options.atomic && !planted::on(Bug::TailBeforeCommit) {
            mark("commit.due");
            self.window.step = Step::Committing(judged);
        } else {
            self.take_on(judged);
        }
    }

    /// The commit that the backing store is to make now, if it is atomic; [`Core::committed`] says
    /// that it has. Until then nothing else may change it.
    pub fn commit_due(&self) -> Option<Commit> {
        let Step::Committing(judged) = &self.window.step else { return None };
        let mut lost = judged.lost.clone();
        if planted::on(Bug::CommitWithoutLost) {
            lost.clear();
        }
        Some(Commit {
            log: self.sb.uuid,
            tail: match (judged.rescues, self.rescues_memory()) {
                (false, _) => self.tail_at(judged.end),
                // The superblock says that all is in the backing store.
                (true, true) => self.sb.written,
                // The rest of a segment that is durable in part may be in memory alone.
                (true, false) => self.tail_at(judged.end.min(self.durable_end().0)),
            },
            at_s: self.past_at(judged.end),
            mixture_s: if judged.end < self.window.reached { self.sb.mixture_s } else { 0 },
            lost,
        })
    }

    /// The backing store has made the commit that was due.
    pub fn committed(&mut self) {
        match std::mem::take(&mut self.window.step) {
            Step::Committing(judged) => {
                mark("commit.done");
                if !judged.rescues {
                    self.mixed(judged.end);
                    self.window.brought = judged.end;
                }
                self.take_on(judged);
            }
            step => self.window.step = step,
        }
    }

    /// Segments before this one are in the backing store.
    pub fn brought(&self) -> u64 {
        self.window.brought.max(self.written)
    }

    /// Gives the commit that is due up because the process ends. It may have been made.
    pub fn leave_commit(&mut self) {
        if matches!(self.window.step, Step::Committing(_)) {
            self.window.step = Step::Idle;
        }
    }

    /// The backing store durably has a window.
    fn take_on(&mut self, judged: Judged) {
        let Judged { end, rescues, blocks, .. } = judged;
        if rescues {
            self.end_rescue(end);
        } else if self.is_failed() {
            mark("commit.of_failed_log");
            self.rescued(end);
        } else {
            self.forget_window(end, blocks);
        }
    }
}
