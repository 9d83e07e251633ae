//! The agent inside a machine: runs scripts and transfers files on request over a port.
//!
//! The agent must not disturb the test: it needs little memory, is exempt from the OOM killer, and
//! keeps nothing open of a script that has ended.

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::system::{RebootCommand, reboot};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::Duration;
use ztier_vm::wire::{Kind, PAYLOAD_MAX, receive, send};

/// The name of the port.
const PORT: &str = "ztier-vm";
/// Interval between checks whether a silent script has ended.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

fn main() -> ExitCode {
    // Scripts get their own score back. A system may forbid this; then the score stays.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ztier-vm-agent: {e}");
            ExitCode::FAILURE
        }
    }
}

/// State shared by the threads of tasks.
struct Agent {
    port: Mutex<File>,
    /// Process groups of running scripts, by task.
    running: Mutex<HashMap<u32, Pid>>,
}

fn serve() -> io::Result<()> {
    let mut port = open_port()?;
    let agent = Arc::new(Agent { port: Mutex::new(port.try_clone()?), running: Mutex::default() });
    agent.say(Kind::Ready, 0, &[]);
    let mut incoming: HashMap<u32, io::Result<File>> = HashMap::new();
    loop {
        let frame = receive(&mut port)?;
        let text = || String::from_utf8_lossy(&frame.payload).into_owned();
        match frame.kind {
            Kind::Run => {
                let (agent, script) = (Arc::clone(&agent), text());
                spawn(move || agent.run(frame.id, &script));
            }
            Kind::Get => {
                let (agent, path) = (Arc::clone(&agent), text());
                spawn(move || agent.get(frame.id, &path));
            }
            Kind::Kill => agent.kill(frame.id),
            Kind::Put => {
                incoming.insert(frame.id, create(&text()));
            }
            Kind::Data => {
                if let Some(Ok(file)) = incoming.get_mut(&frame.id)
                    && let Err(e) = file.write_all(&frame.payload)
                {
                    incoming.insert(frame.id, Err(e));
                }
            }
            Kind::End => match incoming.remove(&frame.id) {
                Some(Err(e)) => agent.end(frame.id, 1, &e.to_string()),
                _ => agent.end(frame.id, 0, ""),
            },
            // The agent may be the first process: all data is already saved.
            Kind::Off => return Ok(reboot(RebootCommand::PowerOff)?),
            Kind::Ready => {}
        }
    }
}

/// Waits for the port.
fn open_port() -> io::Result<File> {
    for _ in 0..500 {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            let device = std::path::Path::new("/dev").join(entry.file_name());
            if name.trim() == PORT && device.exists() {
                return OpenOptions::new().read(true).write(true).open(device);
            }
        }
        sleep(Duration::from_millis(20));
    }
    Err(io::Error::other(format!("there is no port {PORT}")))
}

fn create(path: &str) -> io::Result<File> {
    let file = File::create(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    Ok(file)
}

impl Agent {
    fn say(&self, kind: Kind, id: u32, payload: &[u8]) {
        // Without its port the agent cannot report an error.
        let _ = send(&mut *self.port.lock(), kind, id, payload);
    }

    fn end(&self, id: u32, status: i32, why: &str) {
        self.say(Kind::End, id, &[&status.to_le_bytes(), why.as_bytes()].concat());
    }

    fn kill(&self, id: u32) {
        if let Some(group) = self.running.lock().get(&id) {
            // The group may have ended meanwhile.
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }

    fn get(&self, id: u32, path: &str) {
        let sent = File::open(path).and_then(|mut file| {
            let mut piece = vec![0; PAYLOAD_MAX / 4];
            loop {
                match file.read(&mut piece)? {
                    0 => return Ok(()),
                    n => self.say(Kind::Data, id, &piece[..n]),
                }
            }
        });
        match sent {
            Ok(()) => self.end(id, 0, ""),
            Err(e) => self.end(id, 1, &e.to_string()),
        }
    }

    fn run(&self, id: u32, script: &str) {
        match self.start(id, script) {
            Err(e) => self.end(id, 127, &e.to_string()),
            Ok((child, output)) => {
                let group = Pid::from_child(&child);
                let status = self.follow(id, child, output);
                self.running.lock().retain(|_, running| *running != group);
                match status {
                    Ok(status) => self.end(id, status, ""),
                    Err(e) => self.end(id, 127, &e.to_string()),
                }
            }
        }
    }

    fn start(&self, id: u32, script: &str) -> io::Result<(Child, io::PipeReader)> {
        let (output, end) = io::pipe()?;
        let script = format!("echo 0 >/proc/$$/oom_score_adj\n{script}");
        let mut running = self.running.lock();
        let child = Command::new("sh")
            .args(["-c", &script])
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(end.try_clone()?)
            .stderr(end)
            .spawn()?;
        running.insert(id, Pid::from_child(&child));
        Ok((child, output))
    }

    /// Forwards a script's output, and returns its exit status. Output of processes that the script
    /// leaves running is discarded.
    fn follow(&self, id: u32, mut child: Child, mut output: io::PipeReader) -> io::Result<i32> {
        let mut piece = vec![0; 32 << 10];
        let (mut open, mut status) = (true, None);
        loop {
            let ready = {
                let mut fds = [PollFd::new(&output, PollFlags::IN)];
                open && matches!(poll(&mut fds, Some(&TICK)), Ok(n) if n > 0)
            };
            if ready {
                match output.read(&mut piece)? {
                    0 => open = false,
                    n => self.say(Kind::Data, id, &piece[..n]),
                }
                continue;
            }
            // All output from before the script's end has been read.
            if let Some(status) = status {
                if open {
                    spawn(move || io::copy(&mut output, &mut io::sink()));
                }
                return Ok(status);
            }
            if !open {
                sleep(Duration::from_millis(5));
            }
            let ended = child.try_wait()?;
            status = ended.map(|s| s.code().unwrap_or_else(|| 128 + s.signal().unwrap_or(0)));
        }
    }
}
