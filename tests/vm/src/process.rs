//! A QEMU process: its console and its end.
//!
//! A thread that lives as long as QEMU starts it, because for the kernel's «kill me when my parent
//! dies» the parent is that thread. So QEMU ends when this process ends, in whichever way.

use crate::command::find;
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// Limit on the kept bytes of the console: the last ones.
const CONSOLE_MAX: usize = 4 << 20;

/// QEMU; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pidfd: OwnedFd,
    pid: u32,
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    end: Mutex<Option<ExitStatus>>,
    news: Condvar,
    /// Console output of the kernel and of QEMU.
    console: Mutex<Vec<u8>>,
}

impl Process {
    /// Starts QEMU, with its first serial port on the standard output.
    pub fn start(args: &[String]) -> Result<Self> {
        let setpriv = find("setpriv").ok_or_else(|| Error::failure("there is no setpriv"))?;
        let mut command = Command::new(setpriv);
        command
            .args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let shared = Arc::new(Shared::default());
        let (sender, started) = channel();
        let watch = {
            let shared = Arc::clone(&shared);
            move || watch(command, &sender, &shared)
        };
        let watcher = Builder::new().name("vm-watch".into()).spawn(watch);
        let watcher = watcher.context("cannot start a thread")?;
        let (pid, pidfd) = started.recv().context("the thread for QEMU died")??;
        Ok(Self { pidfd, pid, shared, watcher: Some(watcher) })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The console output so far.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&self.shared.console.lock()).into_owned()
    }

    /// Whether the process runs.
    pub fn alive(&self) -> bool {
        self.shared.end.lock().is_none()
    }

    /// Waits for the end of the process; returns whether it ended in time.
    pub fn wait(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut end = self.shared.end.lock();
        while end.is_none() {
            if self.shared.news.wait_until(&mut end, deadline).timed_out() {
                return end.is_some();
            }
        }
        true
    }

    /// Stops the process with SIGSTOP.
    pub fn stop(&self) {
        // The process may have ended on its own.
        let _ = pidfd_send_signal(self.pidfd.as_fd(), Signal::STOP);
    }

    /// Kills the process and waits for its end.
    pub fn kill(&mut self) {
        // By descriptor: never a process that reused the pid. QEMU may have ended on its own.
        let _ = pidfd_send_signal(self.pidfd.as_fd(), Signal::KILL);
        if let Some(watcher) = self.watcher.take() {
            // A panic in that thread was reported when it happened.
            let _ = watcher.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

type Started = Result<(u32, OwnedFd)>;

fn watch(mut command: Command, started: &Sender<Started>, shared: &Arc<Shared>) {
    let child = command.spawn().context("cannot start QEMU");
    let begun = child.and_then(|mut child| {
        // Not reaped yet, so the pid still belongs to the child.
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok((child, pidfd)),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Error::failure(format!("cannot watch QEMU: {e}")))
            }
        }
    });
    let mut child: Child = match begun {
        Ok((child, pidfd)) => {
            let _ = started.send(Ok((child.id(), pidfd)));
            child
        }
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let readers = [
        child.stdout.take().map(|pipe| record(Box::new(pipe), shared)),
        child.stderr.take().map(|pipe| record(Box::new(pipe), shared)),
    ];
    for reader in readers.into_iter().flatten() {
        let _ = reader.join();
    }
    let status = child.wait().unwrap_or_default();
    *shared.end.lock() = Some(status);
    shared.news.notify_all();
}

fn record(mut pipe: Box<dyn Read + Send>, shared: &Arc<Shared>) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut piece) {
            let mut console = shared.console.lock();
            console.extend(&piece[..n]);
            if console.len() > CONSOLE_MAX {
                let half = console.len() / 2;
                console.drain(..half);
            }
        }
    })
}
