//! `ztier events`: what happens to volumes, as it happens.
//!
//! Invariants: the one thread waits in one place alone, [`Watch::wait`], for at most [`LOOK`]; each
//! daemon is asked for what it has told since its last answer, so a slow reader of the output holds
//! no daemon up, and gets the number of events that it missed.

use super::local_time::{moment, now_ms};
use super::{PATIENCE, output, unknown};
use crate::config::{Paths, name};
use crate::control::{EventKind, Events as Batch, Question, Request, Since, VolumeEvent};
use crate::daemon::{self, Found};
use crate::error::{Context, Error, Result, Status};
use crate::escape::{escape_json, escape_lines};
use crate::remedy;
use clap::Args;
use jiff::tz::TimeZone;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a daemon waits for an event before it answers without one.
const WAIT: Duration = Duration::from_secs(5);
/// A daemon that takes longer than this in addition does not answer.
const LATE: Duration = Duration::from_secs(10);
/// Interval between looks for volumes that have come or gone.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Follow what happens to volumes: degraded, full, lost, recovered, ended, …
///
/// Prints a line for each event until interrupted. The daemon of a volume remembers its last 256
/// events.
#[derive(Args)]
pub struct Events {
    /// Names of volumes; without one, all
    name: Vec<String>,
    /// Print the events that daemons remember, and exit
    #[arg(long)]
    once: bool,
    /// Begin with events that are not older, like 90s, 10m, 2h or 7d
    #[arg(long, value_name = "AGE", value_parser = age)]
    since: Option<Duration>,
    /// Print a line of JSON for each event
    #[arg(long)]
    json: bool,
}

fn age(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || format!("`{text}` is no age: write it like 90s, 10m, 2h or 7d");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

impl Events {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        for volume in &self.name {
            name::check(volume).map_err(Error::usage)?;
        }
        let paths = Paths::of_this_user()?;
        let there = if paths.exists()? { daemon::names(&paths) } else { Vec::new() };
        if let Some(missing) = self.name.iter().find(|name| !there.contains(name)) {
            return Err(unknown(&paths, missing));
        }
        let age = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let from_ms = match (self.since, self.once) {
            (Some(since), _) => now_ms().saturating_sub(age(since)),
            (None, true) => 0,
            (None, false) => now_ms(),
        };
        let printer = Printer { json: self.json, tz: TimeZone::system() };
        let mut watch = Watch { paths, from_ms, printer, volumes: BTreeMap::new() };
        if self.once { watch.once(&self.name) } else { watch.follow(&self.name) }
    }
}

/// Prints events.
struct Printer {
    json: bool,
    tz: TimeZone,
}

impl Printer {
    /// Prints an event. Returns whether there is a reader.
    fn print(&self, event: &VolumeEvent) -> Result<bool> {
        let line = match self.json {
            true => {
                let text = serde_json::to_string(event).context("cannot encode the event")?;
                format!("{}\n", escape_json(&text))
            }
            false => {
                let VolumeEvent { volume, kind, text, .. } = event;
                let (time, kind) = (moment(&self.tz, event.unix_ms), kind.name());
                let text = text.replace(['\n', '\t'], " ");
                escape_lines(&format!("{time}  {volume}  {kind}  {text}\n")).into_owned()
            }
        };
        let mut out = std::io::stdout().lock();
        match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
            done => done.context("cannot write the event").map(|()| true),
        }
    }
}

/// What is known of a volume.
#[derive(Default)]
struct Watched {
    since: Since,
    asked: Option<Question>,
    /// The state that its last event leaves it in.
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It answers, or has not been asked.
    #[default]
    Up,
    Silent,
    Ended,
    Dead,
}

/// The volumes that are watched.
struct Watch {
    paths: Paths,
    /// Earlier events are not shown.
    from_ms: u64,
    printer: Printer,
    volumes: BTreeMap<String, Watched>,
}

impl Watch {
    /// Prints what daemons remember.
    fn once(&mut self, names: &[String]) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        self.look(names, Duration::ZERO);
        let mut events = self.lost();
        let mut wrong = Vec::new();
        while self.volumes.values().any(|watched| watched.asked.is_some()) {
            if Instant::now() >= until {
                break;
            }
            self.wait()?;
            for (name, answer) in self.answers() {
                match answer {
                    Ok(batch) => {
                        let more = batch.events.last().is_some();
                        events.extend(self.take(&name, batch));
                        if more {
                            self.ask(&name, Duration::ZERO);
                        }
                    }
                    Err(e) => wrong.push(e),
                }
            }
        }
        let silent = self.volumes.iter().filter(|(_, watched)| watched.asked.is_some());
        wrong.extend(silent.map(|(name, _)| {
            Error::degraded(format!("volume `{name}`: its daemon does not answer"))
                .hint(remedy::SILENT.of(name))
        }));
        events.extend(self.lost());
        events.sort_by_key(|event| event.unix_ms);
        for event in events {
            if !self.printer.print(&event)? {
                return Ok(());
            }
        }
        super::print_all_but_last(wrong)
    }

    /// Prints events as they come, until the reader is gone.
    fn follow(&mut self, names: &[String]) -> Result<()> {
        let mut refused = BTreeSet::new();
        loop {
            self.look(names, WAIT);
            let mut events = self.lost();
            for (name, answer) in self.answers() {
                match answer {
                    Ok(batch) => {
                        events.extend(self.back(&name));
                        events.extend(self.take(&name, batch));
                        self.ask(&name, WAIT);
                    }
                    Err(e) => {
                        if refused.insert(name) {
                            output::remark(&format!("ztier: {e}"));
                        }
                    }
                }
            }
            for event in events {
                if !self.printer.print(&event)? {
                    return Ok(());
                }
            }
            if !self.wait()? {
                return Ok(());
            }
        }
    }

    /// Asks the volumes that have no open question.
    fn look(&mut self, names: &[String], wait: Duration) {
        let exists = self.paths.exists().unwrap_or(false);
        let mut there = if exists { daemon::names(&self.paths) } else { Vec::new() };
        there.retain(|name| names.is_empty() || names.contains(name));
        for name in there {
            let watched = self.volumes.entry(name.clone()).or_default();
            if watched.asked.is_none() {
                self.ask(&name, wait);
            }
        }
    }

    fn ask(&mut self, name: &str, wait: Duration) {
        let Some(watched) = self.volumes.get_mut(name) else { return };
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let since = Since { wait_ms, ..watched.since.clone() };
        let socket = self.paths.volume(name).control;
        // `lost` finds out why it can't be asked.
        watched.asked = Question::ask(&socket, &Request::Events(since)).ok();
    }

    /// The answers that have come, and refusals. `lost` finds out why others hang up.
    fn answers(&mut self) -> Vec<(String, Result<Batch>)> {
        let mut answers = Vec::new();
        for (name, watched) in &mut self.volumes {
            let Some(question) = &mut watched.asked else { continue };
            match question.answer::<Batch>() {
                Ok(None) => continue,
                Ok(Some(batch)) => answers.push((name.clone(), Ok(batch))),
                Err(e) => answers.extend(refusal(name, e).map(|e| (name.clone(), Err(e)))),
            }
            watched.asked = None;
        }
        answers
    }

    /// The events of an answer that are to be shown.
    fn take(&mut self, name: &str, batch: Batch) -> Vec<VolumeEvent> {
        let Some(watched) = self.volumes.get_mut(name) else { return Vec::new() };
        let Batch { session, mut events, dropped, last } = batch;
        watched.since = Since { session: Some(session), after: last, wait_ms: 0 };
        if let Some(event) = events.last() {
            let ended = event.kind == EventKind::Ended;
            watched.state = if ended { State::Ended } else { State::Up };
        }
        events.retain(|event| event.unix_ms >= self.from_ms);
        if dropped > 0 {
            events.insert(0, VolumeEvent::dropped(name, dropped));
        }
        events
    }

    /// That a daemon answers again, if it did not.
    fn back(&mut self, name: &str) -> Option<VolumeEvent> {
        let watched = self.volumes.get_mut(name)?;
        let silent = std::mem::take(&mut watched.state) == State::Silent;
        let text = "over: its daemon does not answer";
        silent.then(|| VolumeEvent::now(name, EventKind::Recovered, Some("daemon"), text))
    }

    /// Events of volumes whose daemon cannot tell them.
    fn lost(&mut self) -> Vec<VolumeEvent> {
        let mut events = Vec::new();
        let paths = &self.paths;
        self.volumes.retain(|name, watched| {
            let now = |kind, text: &str| VolumeEvent::now(name, kind, Some("daemon"), text);
            if let Some(question) = &watched.asked {
                if question.asked().elapsed() > WAIT + LATE && watched.state == State::Up {
                    watched.state = State::Silent;
                    let text = format!("its daemon does not answer; {}", remedy::SILENT.of(name));
                    events.push(now(EventKind::Silent, &text));
                }
                return true;
            }
            match daemon::find(paths, name) {
                Found::Up(_) => {}
                Found::Nothing => {
                    if !matches!(watched.state, State::Ended | State::Dead) {
                        events.push(now(EventKind::Ended, "the volume is down"));
                    }
                    return false;
                }
                Found::Dead(_) | Found::Broken(_) => {
                    if !matches!(watched.state, State::Ended | State::Dead) {
                        watched.state = State::Dead;
                        let text = format!("its daemon is gone; {}", remedy::DEAD.of(name));
                        events.push(now(EventKind::Dead, &text));
                    }
                }
            }
            true
        });
        events
    }

    /// Waits for an answer, at most for [`LOOK`]. Returns whether there is a reader.
    fn wait(&self) -> Result<bool> {
        let stdout = std::io::stdout();
        // Of a pipe without a reader the kernel says so unasked.
        let mut fds = vec![PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty())];
        let asked = self.volumes.values().filter_map(|watched| watched.asked.as_ref());
        fds.extend(asked.map(|question| PollFd::new(question, PollFlags::IN)));
        match poll(&mut fds, Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot wait for events"),
        }
        Ok(!fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
    }
}

/// The error of a daemon that has too many readers, or does not know the request.
fn refusal(name: &str, e: Error) -> Option<Error> {
    match e.status() {
        Status::Busy => Some(e.after(format_args!("volume `{name}`: "))),
        Status::Failed if e.to_string().contains("not understood") => {
            let text = format!("the daemon of volume `{name}` is of an older ztier without events");
            let next = format!("`ztier restart {name}` makes it one of this ztier");
            Some(Error::failure(text).hint(next))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_that_refuse_are_told_from_those_that_hang_up() {
        // What daemons before these events answer.
        let old = Error::failure("a control message is not understood: unknown variant `events`");
        let told = refusal("v", old).map(|e| e.to_string()).unwrap_or_default();
        assert!(told.contains("an older ztier without events; `ztier restart v`"), "{told}");
        assert!(refusal("v", Error::busy("4 requests like this one")).is_some());
        assert!(refusal("v", Error::failure("the daemon hung up")).is_none());
    }

    #[test]
    fn ages() {
        assert_eq!(age("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(age("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "s", "10", "x5m", "5µ", "99999999999999999999d"] {
            assert!(age(wrong).is_err_and(|e| e.contains("like 90s, 10m, 2h or 7d")), "{wrong}");
        }
    }
}
