//! Helpers of the tests of the bench's command line: the program itself, with a time limit.
#![allow(clippy::unwrap_used, dead_code, reason = "each test uses a part")]

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Number for unique names of the outputs of programs in one directory.
static STARTED: AtomicU32 = AtomicU32::new(0);
/// Limit on the time of a program.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Starts the bench with arguments; its outputs go to files in `dir`.
pub fn bench(dir: &Path, args: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ztier-bench"));
    command.args(args).current_dir(dir);
    Running::start(command, dir)
}

/// A program that is killed if it takes too long.
pub struct Running {
    child: Child,
    outputs: [File; 2],
}

/// Exit status and output.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Running {
    /// Starts the command. Tests run concurrently: only those with the same `dir` have to wait.
    pub fn start(mut command: Command, dir: &Path) -> Self {
        command.env("ZTIER_BENCH_LOCK", dir.join("lock"));
        let n = STARTED.fetch_add(1, Ordering::Relaxed);
        let outputs = ["stdout", "stderr"].map(|name| dir.join(format!("{name}{n}")));
        let [out, err] = [0, 1].map(|n: usize| File::create(&outputs[n]).unwrap());
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
        Self { child, outputs: outputs.map(|path| File::open(path).unwrap()) }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the program's end.
    pub fn end(mut self) -> Ended {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > LIMIT {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!("it did not end: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = |file: &mut File| {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            text
        };
        let [stdout, stderr] = &mut self.outputs;
        Ended { status, stdout: text(stdout), stderr: text(stderr) }
    }

    /// Kills the program with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// New output on standard error since the last call.
    pub fn said(&mut self) -> String {
        let mut text = String::new();
        let _ = self.outputs[1].read_to_string(&mut text);
        text
    }
}

/// Waits until `holds` returns `true`.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "it took too long until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
