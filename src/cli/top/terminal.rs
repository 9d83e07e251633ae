//! The terminal: taken over, drawn on, and given back whatever happens.
//!
//! Invariants: the terminal is given back when the [`Terminal`] is dropped, when this process
//! panics, and before a signal stops or ends it. Nothing that is drawn depends on where the cursor
//! was: every line has its place, and is as wide as the terminal.

use crate::error::{Context, Result};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize,
    tcsetattr,
};
use rustix::{io::Errno, termios::InputModes};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::low_level;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

/// The alternate screen, no cursor, no wrapping at the right.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
/// All of that undone.
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal's settings from before it was taken over, while it is; the inner `None`: there are
/// no keys.
static BEFORE: Mutex<Option<Option<Termios>>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// The terminal of this process, taken over.
pub struct Terminal {
    /// The lines on the terminal now.
    shown: Vec<String>,
    size: (usize, usize),
    keys: bool,
}

impl Terminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// There is no terminal.
    pub fn enter() -> Result<Self> {
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                // Otherwise the message would vanish with the alternate screen.
                leave();
                next(info);
            }));
        });
        let keys = isatty(io::stdin());
        enter(keys).context("cannot use the terminal")?;
        Ok(Self { shown: Vec::new(), size: size(), keys })
    }

    /// The descriptor that keys come from, until its input ends.
    pub fn keys(&self) -> Option<BorrowedFd<'static>> {
        self.keys.then(rustix::stdio::stdin)
    }

    /// The bytes that were typed. The descriptor of [`Terminal::keys`] must be readable.
    pub fn typed(&mut self) -> Vec<u8> {
        let mut bytes = [0; 256];
        match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
            Ok(n) if n > 0 => bytes[..n].to_vec(),
            Err(Errno::INTR) => Vec::new(),
            _ => {
                self.keys = false; // the input has ended
                Vec::new()
            }
        }
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Asks for the terminal's size again, and forgets its content, which another program may have
    /// changed.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn redraw(&mut self) -> io::Result<()> {
        self.size = size();
        self.shown.clear();
        enter(self.keys)
    }

    /// Draws lines, each with its colours, as wide as the terminal.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn draw(&mut self, lines: Vec<String>) -> io::Result<()> {
        let mut out = String::new();
        if self.shown.is_empty() {
            out.push_str("\x1b[0m\x1b[2J");
        }
        for (at, line) in lines.iter().enumerate() {
            if self.shown.get(at) != Some(line) {
                // Writing to a string can't fail.
                let _ = write!(out, "\x1b[{};1H{line}", at + 1);
            }
        }
        if lines.len() < self.shown.len() {
            let _ = write!(out, "\x1b[{};1H\x1b[J", lines.len() + 1);
        }
        self.shown = lines;
        put(&out)
    }

    /// Gives the terminal back, stops the process, and takes the terminal over again when the
    /// process continues.
    ///
    /// # Errors
    /// When the terminal is gone meanwhile.
    pub fn pause(&mut self) -> io::Result<()> {
        leave();
        low_level::emulate_default_handler(SIGTSTP)?;
        self.redraw()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

/// Takes the terminal over, or takes it again after another program has changed it.
fn enter(keys: bool) -> io::Result<()> {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    let stdin = rustix::stdio::stdin();
    let now = if keys { Some(tcgetattr(stdin)?) } else { None };
    let mut raw = before.get_or_insert_with(|| now.clone()).clone();
    if let Some(raw) = &mut raw {
        // Keys still send signals; XON and XOFF do not work: a stopped terminal would stop us.
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
        raw.input_modes &= !InputModes::IXON;
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin, OptionalActions::Now, raw)?;
    }
    put(ENTER)
}

/// Gives the terminal back, if it was taken over.
fn leave() {
    // The thread that holds the lock panics while it enters or leaves: then it is done there.
    let Ok(mut before) = BEFORE.try_lock() else { return };
    let Some(before) = before.take() else { return };
    // A terminal that is gone needs nothing.
    let _ = put(LEAVE);
    let _ = before.map(|before| tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &before));
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Columns and rows of the terminal; 80 and 24 if it does not tell.
fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Caught signals, for a loop that waits for other events, too.
pub struct Signals {
    /// Readable after a signal.
    woken: UnixStream,
    ended: Arc<AtomicBool>,
    paused: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To end.
    End,
    /// To stop until told to go on.
    Pause,
    /// To ask for the terminal's size and draw again.
    Redraw,
}

impl Signals {
    /// Catches the signals that matter to a program that has taken over a terminal.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn catch() -> Result<Self> {
        catch().context("cannot catch signals")
    }

    /// A request that signals have made since the last call.
    pub fn asked(&mut self) -> Option<Asked> {
        let mut bytes = [0; 64];
        while self.woken.read(&mut bytes).is_ok_and(|n| n > 0) {}
        [(&self.ended, Asked::End), (&self.paused, Asked::Pause), (&self.resized, Asked::Redraw)]
            .into_iter()
            .find(|(came, _)| came.swap(false, Ordering::AcqRel))
            .map(|(_, asked)| asked)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

fn catch() -> io::Result<Signals> {
    let (woken, wake) = UnixStream::pair()?;
    woken.set_nonblocking(true)?;
    let flag = || Arc::new(AtomicBool::new(false));
    let (ended, paused, resized) = (flag(), flag(), flag());
    for (signals, flag) in [
        (&[SIGTERM, SIGINT, SIGHUP, SIGQUIT][..], &ended),
        (&[SIGTSTP], &paused),
        (&[SIGWINCH, SIGCONT], &resized),
    ] {
        for signal in signals {
            // Set the flag first, then wake the loop.
            signal_hook::flag::register(*signal, Arc::clone(flag))?;
            low_level::pipe::register(*signal, wake.try_clone()?)?;
        }
    }
    Ok(Signals { woken, ended, paused, resized })
}

#[cfg(test)]
#[path = "../../../tests/support/pty.rs"]
#[allow(dead_code)]
mod pty;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Terminal;
    use super::pty::Pty;
    use std::process::Command;
    use std::time::{Duration, Instant};

    const CHILD: &str = "ZTIER_TEST_PANIC_ON_TERMINAL";
    const NAME: &str = "a_panic_gives_the_terminal_back_before_it_speaks";

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_speaks() {
        if std::env::var_os(CHILD).is_some() {
            let _terminal = Terminal::enter().unwrap();
            panic!("on purpose");
        }
        let pty = Pty::new(24, 80);
        let before = pty.modes();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = format!("cli::top::terminal::tests::{NAME}");
        command.args(["--exact", &test, "--nocapture"]).env(CHILD, "1").env("RUST_BACKTRACE", "0");
        let mut child = pty.spawn(&command);
        let deadline = Instant::now() + Duration::from_secs(30);
        while pty.is_taken() || !pty.text().contains("on purpose") {
            assert!(Instant::now() < deadline, "{}", pty.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!child.wait().unwrap().success());
        assert_eq!(pty.modes(), before);
    }
}
