//! Asks all volumes at once, so that no single one delays the rest.
//!
//! Invariants: only [`Survey::wait`] blocks, until the given time at most. A daemon that does not
//! answer has at most one open question of this survey; so repeated surveys do not fill its queue,
//! and a later answer still counts.

use super::memory_holder::Kept;
use super::process::{Condition, Process};
use super::state::{self, Found, Lock};
use super::{itself, opening};
use crate::config::paths::VolumeFiles;
use crate::config::{Paths, Plan};
use crate::control::{Question, Request, Sample};
use crate::error::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Descriptors reserved for other uses than questions.
const SPARE: usize = 64;

/// The state of a volume.
#[derive(Debug)]
pub enum Seen {
    /// Its daemon answered.
    Up {
        /// Its answer.
        sample: Box<Sample>,
        /// When the answer arrived.
        at: Instant,
    },
    /// Its daemon is coming up.
    Starting {
        /// Its progress, if it reports any.
        step: Option<String>,
    },
    /// Its daemon lives and does not answer.
    Silent {
        /// Since when it has not answered.
        since: Instant,
        /// The error in place of an answer, if there is one.
        why: Option<String>,
        /// The plan in its state file, if readable.
        plan: Option<Box<Plan>>,
    },
    /// Its daemon died.
    Dead {
        /// Whether a memory holder keeps its memory for the next daemon.
        kept: bool,
        /// The plan of the dead daemon.
        plan: Box<Plan>,
    },
    /// Its daemon died, and its state file can't be read.
    Broken {
        /// Why.
        why: String,
    },
}

impl Seen {
    /// The state in one word: `up`, `starting`, `busy` or `dead`.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Up { .. } => "up",
            Self::Starting { .. } => "starting",
            Self::Silent { .. } => "busy",
            Self::Dead { .. } | Self::Broken { .. } => "dead",
        }
    }

    /// The daemon's answer, if it is up.
    pub fn sample(&self) -> Option<&Sample> {
        match self {
            Self::Up { sample, .. } => Some(sample),
            _ => None,
        }
    }

    /// The volume's plan, if known.
    pub fn plan(&self) -> Option<&Plan> {
        match self {
            Self::Up { sample, .. } => Some(&sample.plan),
            Self::Silent { plan, .. } => plan.as_deref(),
            Self::Dead { plan, .. } => Some(plan),
            Self::Starting { .. } | Self::Broken { .. } => None,
        }
    }
}

/// The state of all volumes, by name.
pub type Volumes = BTreeMap<String, Seen>;

/// Surveys the volumes of this user repeatedly.
pub struct Survey {
    paths: Paths,
    /// Questions without an answer, at most `room`: each takes a descriptor.
    asked: BTreeMap<String, Question>,
    room: usize,
    /// Volumes that are asked once there is room.
    unasked: BTreeSet<String>,
    known: Volumes,
}

impl Survey {
    /// A survey that has asked nothing yet.
    pub fn new(paths: Paths) -> Self {
        let room = itself::descriptors().saturating_sub(SPARE).max(1);
        let (asked, unasked, known) = (BTreeMap::new(), BTreeSet::new(), Volumes::new());
        Self { paths, asked, room, unasked, known }
    }

    /// The state of all volumes, as last seen.
    pub fn known(&self) -> &Volumes {
        &self.known
    }

    /// Asks every volume that has no open question.
    ///
    /// # Errors
    /// The run directory is accessible to other users.
    pub fn ask(&mut self) -> Result<()> {
        let exists = self.paths.exists()?;
        let names: BTreeSet<String> = if exists { self.names() } else { BTreeSet::new() };
        // The socket of a volume that went away meanwhile reports its end by itself.
        self.known.retain(|name, _| names.contains(name) || self.asked.contains_key(name));
        self.unasked = names.into_iter().filter(|name| !self.asked.contains_key(name)).collect();
        self.ask_more();
        Ok(())
    }

    /// Asks volumes until `room` is used up.
    fn ask_more(&mut self) {
        while self.asked.len() < self.room {
            let Some(name) = self.unasked.pop_first() else { return };
            match Question::ask(&self.paths.volume(&name).control, &Request::Sample) {
                Ok(question) => drop(self.asked.insert(name, question)),
                Err(e) => self.look(name, Some(e.to_string())),
            }
        }
    }

    fn names(&self) -> BTreeSet<String> {
        let opening = Paths::names_in(&self.paths.run, &["step"]);
        state::names(&self.paths).into_iter().chain(opening).collect()
    }

    /// Takes all answers that have arrived.
    pub fn take(&mut self) {
        for (name, mut question) in self.ready() {
            match question.answer::<Sample>() {
                Ok(None) => drop(self.asked.insert(name, question)),
                Ok(Some(sample)) => {
                    let seen = Seen::Up { sample: Box::new(sample), at: Instant::now() };
                    self.known.insert(name, seen);
                }
                Err(e) => self.look(name, Some(e.to_string())),
            }
        }
        self.ask_more();
    }

    /// Takes out the questions whose sockets are readable, with one poll: of many volumes, few
    /// answer at the same moment.
    fn ready(&mut self) -> Vec<(String, Question)> {
        let mut fds: Vec<PollFd<'_>> =
            self.asked.values().map(|q| PollFd::new(q, PollFlags::IN)).collect();
        // If this poll fails, the next call tries again.
        if poll(&mut fds, Some(&rustix::event::Timespec::default())).is_err() {
            return Vec::new();
        }
        let come: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut come = come.into_iter();
        self.asked.extract_if(.., |_, _| come.next() == Some(true)).collect()
    }

    /// When to stop waiting for answers: `patience` after the last open question was asked; `None`
    /// if that is over.
    pub fn waits(&self, patience: Duration) -> Option<Instant> {
        let until = self.asked.values().map(|question| question.asked() + patience).max()?;
        (until > Instant::now()).then_some(until)
    }

    /// Marks volumes as silent that were asked at least `patience` ago and have not answered.
    pub fn give_up(&mut self, patience: Duration) {
        let late: Vec<String> = self
            .asked
            .iter()
            .filter(|(_, question)| question.asked().elapsed() >= patience)
            .map(|(name, _)| name.clone())
            .collect();
        for name in late {
            self.look(name, None);
        }
        for name in std::mem::take(&mut self.unasked) {
            self.look(name, Some("too many others do not answer".to_owned()));
        }
    }

    /// Asks all daemons, and waits at most `patience` for all answers together. Does not wait for
    /// daemons that have left an earlier question unanswered.
    ///
    /// # Errors
    /// As [`Survey::ask`]; or `poll` fails.
    pub fn look_around(&mut self, patience: Duration) -> Result<()> {
        // Discard old answers, so that these daemons are asked again.
        self.take();
        self.ask()?;
        while let Some(until) = self.waits(patience) {
            self.wait(&[], until)?;
            self.take();
        }
        self.give_up(patience);
        Ok(())
    }

    /// Waits until an answer may have arrived, a descriptor of `others` is readable, or `until` has
    /// passed. Returns which of `others` are readable.
    ///
    /// # Errors
    /// `poll` fails.
    pub fn wait(&self, others: &[BorrowedFd<'_>], until: Instant) -> Result<Vec<bool>> {
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up: otherwise the loop would spin for the rest of a millisecond.
        let left = Duration::from_millis(left.as_micros().div_ceil(1000) as u64);
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let questions = self.asked.values().map(AsFd::as_fd);
        let all = others.iter().copied().chain(questions);
        let mut fds: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot wait for answers"),
        }
        Ok(fds[..others.len()].iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Finds the state of a volume whose daemon does not answer.
    fn look(&mut self, name: String, why: Option<String>) {
        let files = self.paths.volume(&name);
        let since = match (self.known.get(&name), self.asked.get(&name)) {
            (Some(Seen::Silent { since, .. }), _) => *since,
            (_, Some(question)) => question.asked(),
            _ => Instant::now(),
        };
        let step = || opening::noted(&files);
        let seen = match state::find(&self.paths, &name) {
            // A killed daemon holds its lock until the kernel has freed all of its memory.
            Found::Up(Some(state)) if is_dying(&files) => {
                Seen::Dead { kept: Kept::is_there(&files.keep), plan: Box::new(state.plan) }
            }
            Found::Up(state) => match step() {
                Some(step) => Seen::Starting { step: Some(step) },
                None if !files.control.exists() => Seen::Starting { step: None },
                None => Seen::Silent { since, why, plan: state.map(|s| Box::new(s.plan)) },
            },
            Found::Dead(state) => {
                Seen::Dead { kept: Kept::is_there(&files.keep), plan: Box::new(state.plan) }
            }
            Found::Broken(e) => Seen::Broken { why: e.to_string() },
            // A new volume has only a progress file at first.
            Found::Nothing => match step().filter(|_| Lock::is_held(&files)) {
                Some(step) => Seen::Starting { step: Some(step) },
                None => return drop(self.known.remove(&name)),
            },
        };
        self.known.insert(name, seen);
    }
}

/// Whether the daemon, which held its lock a moment ago, was killed and may be gone by now.
fn is_dying(files: &VolumeFiles) -> bool {
    Process::of(files)
        .map_or_else(|| !Lock::is_held(files), |process| process.condition() == Condition::Dying)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn as_many_are_asked_at_once_as_there_is_room_for() {
        let dir = tempfile::tempdir().unwrap();
        let paths =
            Paths { run: dir.path().into(), config: dir.path().into(), state: dir.path().into() };
        let names: Vec<String> = (0..5).map(|n| format!("v{n}")).collect();
        let locks: Vec<_> = names
            .iter()
            .map(|name| Lock::acquire(&paths.volume(name), Duration::ZERO).unwrap().unwrap())
            .collect();
        let listeners: Vec<_> = names
            .iter()
            .map(|name| UnixListener::bind(paths.volume(name).control).unwrap())
            .collect();
        let mut survey = Survey { room: 2, ..Survey::new(paths) };
        survey.ask().unwrap();
        assert_eq!((survey.asked.len(), survey.unasked.len()), (2, 3));
        // Each accepts one question and hangs up.
        let hear = |listener: UnixListener| drop(listener.accept().unwrap());
        let hearers: Vec<_> =
            listeners.into_iter().map(|l| std::thread::spawn(move || hear(l))).collect();
        survey.look_around(Duration::from_secs(60)).unwrap();
        hearers.into_iter().for_each(|hearer| hearer.join().unwrap());
        assert_eq!(survey.known().keys().cloned().collect::<Vec<_>>(), names);
        drop(locks);
    }

    #[test]
    fn a_volume_on_its_way_is_seen_before_it_answers() {
        let dir = tempfile::tempdir().unwrap();
        let paths =
            Paths { run: dir.path().into(), config: dir.path().into(), state: dir.path().into() };
        let files = paths.volume("x");
        let mut survey = Survey::new(paths);
        let mut state = || {
            survey.look_around(Duration::from_millis(20)).unwrap();
            survey.known().get("x").map(|seen| match seen {
                Seen::Starting { step: Some(step) } => step.clone(),
                seen => seen.state().to_owned(),
            })
        };
        assert_eq!(state(), None);
        let lock = Lock::acquire(&files, Duration::ZERO).unwrap().unwrap();
        assert_eq!(state(), None);
        opening::note(&files, "reading the log, segment 3 of at most 9");
        assert_eq!(state().as_deref(), Some("reading the log, segment 3 of at most 9"));
        opening::forget(&files);
        assert_eq!(state(), None);
        opening::note(&files, "reading");
        // The survey no longer shows a daemon that was killed meanwhile.
        drop(lock);
        assert_eq!(state(), None);

        // A daemon that never answers gets one question. After it hangs up, the next survey asks
        // again.
        let _lock = Lock::acquire(&files, Duration::ZERO).unwrap().unwrap();
        opening::forget(&files);
        std::fs::write(&files.state, "").unwrap();
        let listener = UnixListener::bind(&files.control).unwrap();
        listener.set_nonblocking(true).unwrap();
        for _ in 0..3 {
            assert_eq!(state().as_deref(), Some("busy"));
        }
        let first = listener.accept().unwrap();
        assert!(listener.accept().is_err());
        drop(first);
        assert_eq!(state().as_deref(), Some("busy"));
        assert!(listener.accept().is_ok());
    }
}
