//! The phase of a volume that a daemon serves, and all its transitions:
//!
//! | from | by | to |
//! |---|---|---|
//! | up | [`Phase::begin`]: a request, or a signal, changes the device's use | changing |
//! | changing | the [`Turn`] ends | up |
//! | changing | [`Phase::end`]: its export is stopped | changing, to its end |
//! | changing, to its end | the [`Turn`] ends | ended |
//! | up | [`Phase::end`]: its export is stopped without a turn | ended |
//! | any | [`Phase::force`]: the daemon ends whatever a request does | ended |
//!
//! Invariants: one thread at a time has the turn; the phase is one towards the end exactly if there
//! is no export; no phase follows the end.

use super::ranked;
use crate::config::Plan;
use crate::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::time::{Duration, Instant};

/// How long a request waits while another one, or a signal, changes the volume.
pub(super) const BUSY: Duration = Duration::from_secs(2);

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The volume is down, and nothing of it is left.
    Down,
    /// The volume waits for its next daemon.
    Left,
    /// The volume waits for its next daemon, which this process becomes.
    Again,
}

/// What changes the device's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Swapon,
    Swapoff,
    Restart,
    Down,
    Signal,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Swapon => "swapon",
            Self::Swapoff => "swapoff",
            Self::Restart => "restart",
            Self::Down => "down",
            Self::Signal => "a signal",
        })
    }
}

/// The end of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub how: End,
    /// The plan of the next daemon, if another one.
    pub next: Option<Plan>,
}

enum Now {
    Up,
    /// `ended` once the export is stopped.
    Changing {
        change: Change,
        since: Instant,
        ended: Option<Ended>,
    },
    Ended(Ended),
}

/// See the module.
pub(super) struct Phase {
    volume: String,
    now: Mutex<Now>,
    changed: Condvar,
}

impl Phase {
    /// That of a volume that is up.
    pub fn up(volume: String) -> Self {
        Self { volume, now: Mutex::new(Now::Up), changed: Condvar::new() }
    }

    /// Begins a change. Waits for [`BUSY`] while another one goes on.
    ///
    /// # Errors
    /// Another one goes on longer than that, or the volume ends.
    pub fn begin(&self, change: Change) -> Result<Turn<'_>> {
        ranked::none_held();
        let until = Instant::now() + BUSY;
        let mut now = self.now.lock();
        loop {
            let (other, since) = match &*now {
                Now::Up => {
                    *now = Now::Changing { change, since: Instant::now(), ended: None };
                    return Ok(Turn(self));
                }
                Now::Changing { change, since, ended: None } => (*change, *since),
                Now::Changing { .. } | Now::Ended(_) => return Err(taken_down(&self.volume)),
            };
            if self.changed.wait_until(&mut now, until).timed_out() {
                let (volume, s) = (&self.volume, since.elapsed().as_secs());
                return Err(Error::busy(format!(
                    "volume `{volume}` is being changed by {other}, for {s} s now"
                ))
                .hint("try again soon"));
            }
        }
    }

    /// The export was stopped, and the daemon ends in this way, after the change that goes on.
    pub fn end(&self, how: End) {
        let done = Ended { how, next: None };
        let mut now = self.now.lock();
        match &mut *now {
            Now::Up => *now = Now::Ended(done),
            Now::Changing { ended, .. } => *ended = Some(done),
            Now::Ended(_) => {}
        }
    }

    /// The daemon ends in this way, also while a change goes on.
    pub fn force(&self, how: End) {
        *self.now.lock() = Now::Ended(Ended { how, next: None });
    }

    /// How the daemon ends. From now on it does: as forced, if nothing has ended it.
    pub fn finish(&self) -> Ended {
        let mut now = self.now.lock();
        let ended = match &mut *now {
            Now::Ended(ended) | Now::Changing { ended: Some(ended), .. } => ended.clone(),
            Now::Up | Now::Changing { .. } => Ended { how: End::Down, next: None },
        };
        *now = Now::Ended(ended.clone());
        ended
    }
}

/// The right to change the device's use; dropping this ends the change.
pub(super) struct Turn<'a>(&'a Phase);

impl Turn<'_> {
    /// Whether the change has stopped the export.
    pub fn ends(&self) -> bool {
        !matches!(&*self.0.now.lock(), Now::Up | Now::Changing { ended: None, .. })
    }

    /// Sets the plan of the next daemon. For a change that has stopped the export.
    pub fn go_on_with(&self, plan: Plan) {
        if let Now::Changing { ended: Some(ended), .. } = &mut *self.0.now.lock() {
            ended.next = Some(plan);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut now = self.0.now.lock();
        if let Now::Changing { ended, .. } = &mut *now {
            *now = ended.take().map_or(Now::Up, Now::Ended);
        }
        drop(now);
        self.0.changed.notify_all();
    }
}

pub(super) fn taken_down(volume: &str) -> Error {
    Error::busy(format!("volume `{volume}` is being taken down"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::export::Kind;
    use crate::config::{Amount, Paths, Settings};

    fn phase() -> Phase {
        Phase::up("v".into())
    }

    fn refusal(phase: &Phase, change: Change) -> String {
        phase.begin(change).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn one_change_at_a_time_has_the_turn() {
        let phase = phase();
        let turn = phase.begin(Change::Swapoff).unwrap();
        let refused = refusal(&phase, Change::Down);
        assert!(refused.starts_with("volume `v` is being changed by swapoff, for "), "{refused}");
        assert!(!turn.ends());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| phase.begin(Change::Down).map(|turn| turn.ends()));
            drop(turn);
            assert!(!next.join().unwrap().unwrap());
        });
        assert!(!phase.begin(Change::Signal).unwrap().ends());
    }

    #[test]
    fn a_change_that_stops_the_export_ends_the_daemon_after_itself() {
        let phase = phase();
        let turn = phase.begin(Change::Restart).unwrap();
        phase.end(End::Left);
        assert!(turn.ends());
        // It may still have to write back a log.
        assert_eq!(refusal(&phase, Change::Signal), "volume `v` is being taken down");
        let [run, config, state] = ["/r", "/c", "/s"].map(Into::into);
        let paths = Paths { run, config, state };
        let size = Some(Amount::Bytes(1 << 20));
        let settings = Settings { size, ..Settings::default() };
        let plan = Plan::resolve("v", &settings, Kind::Fuse, &paths).unwrap();
        turn.go_on_with(plan.clone());
        drop(turn);
        assert_eq!(phase.finish(), Ended { how: End::Left, next: Some(plan) });
        assert_eq!(refusal(&phase, Change::Down), "volume `v` is being taken down");
    }

    #[test]
    fn a_forced_end_is_final() {
        let phase = phase();
        let turn = phase.begin(Change::Swapoff).unwrap();
        phase.force(End::Down);
        phase.end(End::Left);
        drop(turn);
        assert_eq!(phase.finish().how, End::Down);
    }

    #[test]
    fn without_a_turn_the_end_is_at_once() {
        let phase = phase();
        phase.end(End::Down);
        assert_eq!(phase.finish(), Ended { how: End::Down, next: None });
    }
}
