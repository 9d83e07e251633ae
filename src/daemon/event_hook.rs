//! Runs a program of the administrator's for each event of the volume: the setting `on-event`.
//!
//! Invariants: one at a time, each for [`hook::LONGEST`] at most; while it runs, [`WAITING`] events
//! wait, and earlier ones are dropped and counted. It delays no request, and no other thread but
//! the end of the process, by [`END`] at most, when the volume is released already.

use super::history::History;
use super::{hook, log};
use crate::control::VolumeEvent;
use crate::error::{Context, Result};
use crate::escape::escape;
use crate::patience::eventually;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most events that wait for the program.
const WAITING: usize = 16;
/// How long a daemon that has ended runs the program for the last events.
const END: Duration = Duration::from_secs(10);

/// The thread that runs the program.
pub(super) struct EventHook {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl EventHook {
    /// Runs `program` for each event of `history` from now on, and those it has.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(program: PathBuf, history: &Arc<History>) -> Result<Self> {
        let stops = Arc::new(AtomicBool::new(false));
        let (theirs, read, history) = (Arc::clone(&stops), history, Arc::clone(history));
        let work = move || {
            let stops = || theirs.load(Ordering::Acquire);
            let mut seen = 0;
            while let Some(event) = history.next(seen, WAITING).filter(|_| !stops()) {
                seen = event.seq.unwrap_or(seen + 1);
                if let Err(e) = tell(&program, &event, &stops) {
                    log::line(&format!("the program on-event, {}, {e}", program.display()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("ztier-on-event".into()).spawn(work);
        let thread = thread.context("cannot start a thread")?;
        read.read_always();
        Ok(Self { stops, thread })
    }

    /// Runs the program for the events until the end, which the history has. It is killed if that
    /// takes longer than [`END`], or at once if this process must not wait.
    pub fn end(self, waits: bool) {
        let most = if waits { END } else { Duration::ZERO };
        eventually(most, hook::LOOK, || self.thread.is_finished());
        self.stops.store(true, Ordering::Release);
        let _ = self.thread.join(); // the thread returns nothing
    }
}

/// Runs the program once.
fn tell(program: &Path, event: &VolumeEvent, stops: &dyn Fn() -> bool) -> Result<()> {
    let mut line = serde_json::to_vec(event).context("cannot be told")?;
    line.push(b'\n');
    hook::run(command(program, event), Some(&line), stops)
}

fn command(program: &Path, event: &VolumeEvent) -> Command {
    let mut command = hook::command(program);
    command
        .env("ZTIER_VOLUME", &event.volume)
        .env("ZTIER_EVENT", event.kind.name())
        .env("ZTIER_ABOUT", event.about.as_deref().unwrap_or_default())
        // A variable has no zero bytes.
        .env("ZTIER_TEXT", &*escape(&event.text))
        .env("ZTIER_TIME", &event.time)
        .env("ZTIER_DROPPED", event.dropped.to_string());
    command
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::control::EventKind;
    use std::ffi::OsStr;

    #[test]
    fn the_program_gets_the_event_and_no_secrets() {
        let event = VolumeEvent::now("v", EventKind::Degraded, Some("drive"), "a\0b");
        let command = command(Path::new("/bin/true"), &event);
        let of = |key: &str| {
            let found = command.get_envs().find(|(name, _)| *name == OsStr::new(key));
            found.and_then(|(_, value)| Some(value?.to_str()?.to_owned()))
        };
        assert_eq!(of("ZTIER_EVENT").as_deref(), Some("degraded"));
        assert_eq!(of("ZTIER_TEXT").as_deref(), Some("a\\u{0}b"));
        assert_eq!(of("ZTIER_DROPPED").as_deref(), Some("0"));
        assert_eq!(of("AWS_SECRET_ACCESS_KEY"), None);
    }
}
