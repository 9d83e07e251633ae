//! A pseudo terminal pair, and the screen of a terminal emulator on it.
#![allow(clippy::unwrap_used)]

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

fn size(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).unwrap()
}

/// The two sides of a new pseudo terminal: the keyboard side, and the line side for programs.
fn pair() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let path = std::ffi::OsStr::from_bytes(name.to_bytes());
    let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
    let line = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap();
    (File::from(master), line)
}

/// Starts a command as the leader of a session whose controlling terminal is `line`.
fn spawn_on(line: &File, command: &Command) -> Child {
    let mut leader = Command::new("setsid");
    leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => leader.env(key, value),
            None => leader.env_remove(key),
        };
    }
    let line = || OwnedFd::from(line.try_clone().unwrap());
    leader.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8");
    leader.stdin(line()).stdout(line()).stderr(line()).spawn().unwrap()
}

/// A terminal that can be closed under a program; its output is not read.
pub struct Window {
    keyboard: File,
    line: File,
}

impl Window {
    pub fn new() -> Self {
        let (keyboard, line) = pair();
        Self { keyboard, line }
    }

    /// Starts a command as the leader of a session with this controlling terminal.
    pub fn spawn(&self, command: &Command) -> Child {
        spawn_on(&self.line, command)
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Closes the terminal: the kernel sends a hangup, and all later writes to the terminal fail.
    pub fn close(self) {
        drop(self.keyboard);
    }
}

pub struct Pty {
    keyboard: File,
    /// Kept open: the output stays readable when no other process has the line.
    line: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Pty {
    pub fn new(rows: u16, columns: u16) -> Self {
        let (keyboard, line) = pair();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(rows), size(columns), 0)));
        let (mut shown, parser) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends when no process has the line open any more.
            while let Ok(n) = shown.read(&mut bytes)
                && n > 0
            {
                parser.lock().unwrap().process(&bytes[..n]);
            }
        });
        let pty = Self { keyboard, line, screen };
        pty.resize(rows, columns);
        pty
    }

    /// Starts a command as the leader of a session with this controlling terminal.
    pub fn spawn(&self, command: &Command) -> Child {
        spawn_on(&self.line, command)
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Resizes the terminal; the kernel signals the foreground processes.
    pub fn resize(&self, rows: u16, columns: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(size(rows), size(columns));
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.line, size).unwrap();
    }

    /// The terminal modes that programs change.
    pub fn modes(&self) -> String {
        let Termios { input_modes, output_modes, control_modes, local_modes, .. } =
            tcgetattr(&self.line).unwrap();
        format!("{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?}")
    }

    pub fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// The first line in reverse video.
    pub fn chosen(&self) -> Option<String> {
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        let (rows, columns) = (screen.size().0.get(), screen.size().1.get());
        let row = (0..rows).find(|row| screen.cell(*row, 0).is_some_and(vt100::Cell::inverse))?;
        screen.rows(0, columns).nth(row.into())
    }

    /// Whether anything on the screen has a colour.
    pub fn has_colours(&self) -> bool {
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        let (rows, columns) = (screen.size().0.get(), screen.size().1.get());
        let coloured = |row, column| {
            screen.cell(row, column).is_some_and(|cell| cell.fgcolor() != vt100::Color::Default)
        };
        (0..rows).any(|row| (0..columns).any(|column| coloured(row, column)))
    }

    /// Whether the alternate screen is shown, or the cursor hidden.
    pub fn is_taken(&self) -> bool {
        let parser = self.screen.lock().unwrap();
        parser.screen().alternate_screen() || parser.screen().hide_cursor()
    }
}
