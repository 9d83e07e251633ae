//! Makes a daemon's files in the run directory anew if they were removed, for example by a cleaner
//! of temporary files.

use super::log;
use super::presence::Presence;
use super::running::Running;
use crate::control::{Handler, Server};
use crate::error::{Context, Result};
use crate::private;
use std::sync::Arc;

impl Running {
    /// Makes removed files anew. Failures are logged, and the next signal tries again.
    pub(super) fn restore(self: &Arc<Self>, presence: &mut Presence) {
        let state = || match self.served.files.state.exists() {
            true => Ok(()),
            false => self.served.state.lock().write(&self.served.files),
        };
        let run = &self.served.files.run;
        let done = private::make_directory(run)
            .context(format_args!("cannot make {}", run.display()))
            .and_then(|()| presence.lock.restore())
            .and_then(|()| state())
            .and_then(|()| self.restore_control(presence));
        self.threads.renew_memory_holder();
        log::line(&done.map_or_else(
            |e| format!("files in the run directory were removed, and {e}"),
            |()| "files in the run directory were removed and are made anew".to_owned(),
        ));
    }

    fn restore_control(self: &Arc<Self>, presence: &mut Presence) -> Result<()> {
        if self.served.files.control.exists() {
            return Ok(());
        }
        let handler = Arc::clone(self) as Arc<dyn Handler>;
        let new = Server::start(&self.served.files.control, handler)?;
        std::mem::replace(&mut presence.control, new).stop();
        Ok(())
    }
}
