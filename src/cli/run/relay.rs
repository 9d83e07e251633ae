//! Passes signals to a program, and waits for its end.
//!
//! Invariants: while the relay exists, this process blocks the signals and reads them from a
//! descriptor, so that none is lost; a signal from the terminal reaches the program anyway, and is
//! not passed on a second time.

use super::Stage;
use super::report::Sampler;
use crate::error::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// The signals that are passed on.
const SIGNALS: [Signal; 8] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::CONT,
    Signal::TSTP,
];

/// How often the volume's counters are sampled.
const SAMPLE: Duration = Duration::from_millis(200);

/// A signal mask, to be restored in another process.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

impl Mask {
    /// Sets the signal mask of this process. A single system call: allowed between fork and exec.
    pub fn restore(&self) -> io::Result<()> {
        // SAFETY: the set was filled in by the kernel, and nothing is written.
        match unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The blocked signals of this process.
pub struct Relay {
    signals: OwnedFd,
    before: Mask,
}

impl Relay {
    /// Blocks the signals, and opens a descriptor that delivers them.
    ///
    /// # Errors
    /// The kernel does not allow it.
    pub fn new() -> Result<Self> {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: the set is initialised by sigemptyset before anything else looks at it, the
        // signals are valid, and sigprocmask fills in the old mask when it succeeds, which is
        // checked before that is used. signalfd returns a new descriptor, which has no other owner,
        // or -1, which is not taken.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in SIGNALS {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            let set = set.assume_init();
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error()).context("cannot block signals");
            }
            let before = Mask(before.assume_init());
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()).context("cannot read signals"),
                fd => Ok(Self { signals: OwnedFd::from_raw_fd(fd), before }),
            }
        }
    }

    /// The mask that this process had before.
    pub fn before(&self) -> Mask {
        self.before
    }

    /// Passes signals on until the program ends; returns its exit status, 128 + the signal that
    /// ended it if one did.
    ///
    /// # Errors
    /// The program can't be waited for.
    pub fn wait(
        &self,
        child: &mut Child,
        stage: &mut Stage<'_>,
        sampler: &mut Sampler,
    ) -> Result<u8> {
        let program = handle(Pid::from_child(child))?;
        let mut daemon = daemon_of(stage);
        let pause = Timespec { tv_sec: 0, tv_nsec: SAMPLE.as_nanos() as i64 };
        loop {
            let none = PollFlags::empty();
            let mut fds = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&program, PollFlags::IN),
                match &daemon {
                    Some(daemon) => PollFd::new(daemon, PollFlags::IN),
                    None => PollFd::new(&program, none),
                },
            ];
            match poll(&mut fds, Some(&pause)) {
                Err(rustix::io::Errno::INTR) => continue,
                done => done.context("cannot wait for the program")?,
            };
            let [signals, ended, died] = fds.map(|fd| !fd.revents().is_empty());
            if signals {
                self.pass_on(child);
            }
            if ended {
                return Ok(code(child.wait().context("cannot wait for the program")?));
            }
            if died && daemon.is_some() {
                stage.daemon_died();
                daemon = daemon_of(stage);
            }
            sampler.sample(SAMPLE);
        }
    }

    /// Passes on the signals that have arrived.
    fn pass_on(&self, child: &Child) {
        while let Some((signal, origin)) = self.next() {
            let Some(signal) = SIGNALS.into_iter().find(|s| s.as_raw() == signal) else { continue };
            // The child has not been waited for, so its process id is still its own.
            if origin != libc::SI_KERNEL {
                let _ = kill_process(Pid::from_child(child), signal);
            }
            if signal == Signal::TSTP {
                // The parent, such as a shell, must see that the program is stopped.
                let _ = kill_process(rustix::process::getpid(), Signal::STOP);
            }
        }
    }

    /// The next signal and its origin (`si_code`).
    fn next(&self) -> Option<(i32, i32)> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes whole structures of that size or nothing, into memory that is
        // ours, and only a whole one is looked at.
        unsafe {
            let got = libc::read(self.signals.as_raw_fd(), info.as_mut_ptr().cast(), size);
            (got == size as isize).then(|| {
                let info = info.assume_init();
                (info.ssi_signo as i32, info.ssi_code)
            })
        }
    }
}

fn handle(pid: Pid) -> Result<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a process")
}

/// A process handle of the volume's daemon; `None` if it is gone already, which the volume shows.
fn daemon_of(stage: &Stage<'_>) -> Option<OwnedFd> {
    handle(Pid::from_raw(i32::try_from(stage.ready.pid).ok()?)?).ok()
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    code as u8 // an exit status is one byte, and signals are below 65
}
