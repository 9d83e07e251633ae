//! `ztier top`: all volumes as they are at this moment, on a terminal or in lines.
//!
//! Invariant: the one thread waits in one place alone ([`Survey::wait`]), for answers, keys,
//! signals and the next look. No daemon can hold it up.

mod details;
#[cfg(test)]
mod golden;
mod help;
mod keys;
mod look;
mod paint;
mod render;
mod slow;
mod state;
mod terminal;

use super::output;
use crate::config::Paths;
use crate::daemon::survey::Survey;
use crate::error::{Context, Result};
use crate::stats::time;
use clap::Args;
use jiff::tz::TimeZone;
use keys::{Key, Keys};
use look::Look;
use render::Size;
use state::State;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use terminal::{Asked, Signals, Terminal};

/// How long a look waits for a daemon's answer before it is shown without it.
const PATIENCE: Duration = Duration::from_millis(500);
/// The shortest and the longest interval, in seconds.
const INTERVALS: (f64, f64) = (0.1, 3600.0);

/// Watch all volumes: requests, latency, memory, where blocks are
#[derive(Args)]
#[command(
    after_help = "Keys: q ends, arrows or j and k choose the volume whose details are below, \
                        s changes the order, + and - the interval, ? shows \
                        all keys and columns."
)]
pub struct Top {
    /// Seconds between two samples
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// End after N samples
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one sample, over one interval; the default when the output is not a terminal
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print JSON with all counters
    #[arg(long, requires = "once")]
    json: bool,
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if !(INTERVALS.0..=INTERVALS.1).contains(&seconds) {
        return Err(format!("{text} is not from {} to {}", INTERVALS.0, INTERVALS.1));
    }
    Ok(Duration::from_secs_f64(seconds))
}

impl Top {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let survey = Survey::new(Paths::of_this_user()?);
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = variable("TERM").is_none_or(|term| term == "dumb");
        if self.once || dumb || !std::io::stdout().is_terminal() {
            return self.print(survey);
        }
        self.watch(survey, &Look::of_environment(variable("NO_COLOR").is_none()))
    }

    /// Prints looks one after the other.
    fn print(&self, mut survey: Survey) -> Result<()> {
        let mut state = State::in_zone(TimeZone::system());
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let size = Size { columns: columns.unwrap_or(80), rows: None };
        let look = Look::of_environment(false);
        survey.look_around(PATIENCE)?;
        state.update(survey.known(), Instant::now(), time::now());
        for n in 0..self.count.unwrap_or(1) {
            std::thread::sleep(self.interval);
            survey.look_around(PATIENCE)?;
            state.update(survey.known(), Instant::now(), time::now());
            if self.json {
                return output::json(&state.rows());
            }
            let lines = render::render(&state, size, &look);
            let text: String = lines.iter().map(|line| paint::plain(line) + "\n").collect();
            output::print(&if n > 0 { format!("\n{text}") } else { text })?;
        }
        Ok(())
    }

    /// Shows looks on the terminal until the user ends it, or `--count` is reached.
    fn watch(&self, survey: Survey, look: &Look) -> Result<()> {
        let signals = Signals::catch()?;
        let terminal = Terminal::enter()?;
        let mut watch = Watch {
            survey,
            signals,
            terminal,
            look,
            state: State::in_zone(TimeZone::system()),
            keys: Keys::default(),
            interval: self.interval,
            looks: 0,
        };
        let ended = watch.run(self.count);
        drop(watch); // gives the terminal back before an error is printed
        ended
    }
}

/// A terminal that shows volumes.
struct Watch<'a> {
    survey: Survey,
    signals: Signals,
    terminal: Terminal,
    look: &'a Look,
    state: State,
    keys: Keys,
    interval: Duration,
    looks: u64,
}

impl Watch<'_> {
    fn run(&mut self, count: Option<u64>) -> Result<()> {
        let mut next = Instant::now();
        let mut asking = false;
        loop {
            let now = Instant::now();
            if now >= next {
                self.survey.take();
                self.survey.ask()?;
                // Looks that were missed, for example while this process was stopped, are not made
                // up for.
                next = (next + self.interval).max(now + self.interval / 2);
                asking = true;
            }
            if asking && self.survey.waits(PATIENCE).is_none() {
                asking = false;
                self.survey.give_up(PATIENCE);
                self.state.update(self.survey.known(), Instant::now(), time::now());
                self.looks += 1;
                if !self.draw() || count.is_some_and(|count| self.looks >= count) {
                    return Ok(());
                }
            }
            let answers = self.survey.waits(PATIENCE).filter(|_| asking);
            if self.wait(answers.unwrap_or(next).min(next))? {
                return Ok(());
            }
            // It may be shorter now.
            next = next.min(Instant::now() + self.interval);
        }
    }

    /// Draws the screen; `false` when the terminal is gone.
    fn draw(&mut self) -> bool {
        let (columns, rows) = self.terminal.size();
        let size = Size { columns, rows: Some(rows) };
        self.state.interval = Some(self.interval);
        let lines = render::render(&self.state, size, self.look);
        let lines = lines.iter().map(|line| paint::paint(line, columns, self.look.colours));
        self.terminal.draw(lines.collect()).is_ok()
    }

    /// Waits until `until` or an event, and handles the event. Returns whether the user has ended
    /// the program.
    fn wait(&mut self, until: Instant) -> Result<bool> {
        let keys = self.terminal.keys();
        let others: Vec<_> = std::iter::once(self.signals.as_fd()).chain(keys).collect();
        let woken = self.survey.wait(&others, until)?;
        self.survey.take();
        if woken[0] {
            while let Some(asked) = self.signals.asked() {
                match asked {
                    Asked::End => return Ok(true),
                    Asked::Pause => self.terminal.pause().context("cannot use the terminal")?,
                    Asked::Redraw => self.terminal.redraw().context("cannot use the terminal")?,
                }
            }
            return Ok(!self.draw());
        }
        if woken.get(1) == Some(&true) {
            let typed = self.terminal.typed();
            for key in self.keys.take(&typed) {
                if key == Key::Quit {
                    return Ok(true);
                }
                self.press(key)?;
            }
            return Ok(!self.draw());
        }
        Ok(false)
    }

    /// Does what a key asks for. Any key leaves the help.
    fn press(&mut self, key: Key) -> Result<()> {
        if std::mem::take(&mut self.state.help) {
            return Ok(());
        }
        let seconds = self.interval.as_secs_f64();
        let every = |seconds: f64| Duration::from_secs_f64(seconds.clamp(INTERVALS.0, INTERVALS.1));
        match key {
            Key::Quit => {}
            Key::Up => self.state.go(-1),
            Key::Down => self.state.go(1),
            Key::First => self.state.go(isize::MIN),
            Key::Last => self.state.go(isize::MAX),
            Key::Sort => self.state.sort(),
            Key::Slower => self.interval = every(seconds * 2.0),
            Key::Faster => self.interval = every(seconds / 2.0),
            Key::Help => self.state.help = true,
            Key::Redraw => self.terminal.redraw().context("cannot use the terminal")?,
        }
        Ok(())
    }
}
