//! A running machine.

use crate::drive::Drive;
use crate::line::{Done, Line, Task};
use crate::process::Process;
use crate::setup::{Behind, Setup};
use crate::wire::Kind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use ztier::device::Device;
use ztier::error::{Context, Error, Result};
use ztier::export::nbd::{Listen, Options, Server};

/// Limit on the time that a machine takes to switch itself off.
const OFF: Duration = Duration::from_secs(60);
/// Limit on the time that QEMU takes to connect to its port.
const CONNECT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// Limit on the time that QEMU takes to end after it closed its port.
const END: Duration = Duration::from_secs(5);
/// The CPU that is emulated. QEMU 7.2 gets the flags wrong after an emulated `cmpxchg16b` that is
/// interrupted: then the kernel's allocator of small objects takes a failure for a success, and
/// most boots die; without that instruction the kernel does the same under a lock. Carry-less
/// multiplication takes the emulator as long as hundreds of other instructions (a checksum of 4 KiB
/// would cost 80 µs instead of 0.2), and what clears or copies memory by bytes goes byte by byte:
/// programs and kernels have other ways. A CPU with instructions for AES is taken to have
/// carry-less multiplication, too, and the kernel's code for it dies where it has not.
const CPU: &str = "max,-cx16,-pclmulqdq,-vpclmulqdq,-aes,-vaes,-erms,-fsrm";
/// Console lines in an error.
const LAST_LINES: usize = 6;

/// A machine; dropping it cuts its power.
#[derive(Debug)]
pub struct Machine {
    process: Process,
    line: Arc<Line>,
    drives: Vec<(Arc<Drive>, Connected)>,
    _directory: TempDir,
}

/// The server of a drive, while the machine runs.
struct Connected(#[expect(dead_code, reason = "it serves until it is dropped")] Server);

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connected")
    }
}

impl Machine {
    pub(crate) fn start(setup: Setup) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("ztier-vm-").tempdir();
        let directory = directory.context("cannot make a directory for a machine")?;
        let place = directory.path();
        let mut parts = Parts { place, args: Vec::new(), drives: Vec::new() };
        parts.basics(&setup)?;
        for (number, (name, behind)) in setup.disks.iter().enumerate() {
            parts.disk(number, name, behind)?;
        }
        let socket = place.join("line");
        parts.line(&socket);
        parts.args.extend(setup.more);
        let listener = UnixListener::bind(&socket).context("cannot make a machine's socket")?;
        let Parts { args, drives, .. } = parts;
        let process = Process::start(&args)?;
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&CONNECT)), Ok(n) if n > 0) || !process.alive() {
            let said = last_lines(&process.console());
            return Err(Error::failure(format!("QEMU did not start: {said}")));
        }
        let (stream, _) = listener.accept().context("QEMU did not come to its port")?;
        Ok(Self { process, line: Line::new(stream)?, drives, _directory: directory })
    }

    /// Waits until the machine has come up `boots` times, counted from its start.
    ///
    /// # Errors
    /// The machine took longer than `patience`, or ended; quotes its last console lines.
    pub fn wait_for_boots(&self, boots: u32, patience: Duration) -> Result<()> {
        self.line.wait_for_boots(boots, patience).map_err(|e| self.explain(&e))
    }

    /// Number of times that the machine has come up.
    pub fn boots(&self) -> u32 {
        self.line.boots()
    }

    /// Runs a script of `sh` to its end.
    ///
    /// # Errors
    /// The script takes longer than `patience`, or the machine ends; quotes the last console lines.
    pub fn run(&self, script: &str, patience: Duration) -> Result<Done> {
        self.begin(script)?.wait(patience).map_err(|e| self.explain(&e))
    }

    /// Runs a script that has to succeed; returns its output.
    ///
    /// # Errors
    /// As [`Self::run`], or the status is not 0.
    pub fn ok(&self, script: &str, patience: Duration) -> Result<String> {
        self.run(script, patience)?.ok()
    }

    /// Starts a script.
    ///
    /// # Errors
    /// The machine cannot be reached.
    pub fn begin(&self, script: &str) -> Result<Task> {
        self.line.begin(Kind::Run, script.as_bytes())
    }

    /// The content of a file in the machine.
    ///
    /// # Errors
    /// The file is missing, or the transfer takes longer than `patience`.
    pub fn get(&self, path: &str, patience: Duration) -> Result<Vec<u8>> {
        match self.line.begin(Kind::Get, path.as_bytes())?.finish(patience)? {
            (bytes, 0, _) => Ok(bytes),
            (_, _, why) => Err(Error::failure(format!("cannot read the machine's {path}: {why}"))),
        }
    }

    /// Makes a file in the machine, executable.
    ///
    /// # Errors
    /// The file cannot be made, or the transfer takes longer than `patience`.
    pub fn put(&self, path: &str, content: &[u8], patience: Duration) -> Result<()> {
        let task = self.line.begin(Kind::Put, path.as_bytes())?;
        task.fill(content)?;
        match task.finish(patience)? {
            (_, 0, _) => Ok(()),
            (_, _, why) => Err(Error::failure(format!("cannot make the machine's {path}: {why}"))),
        }
    }

    /// The console output so far.
    pub fn console(&self) -> String {
        self.process.console()
    }

    /// The id of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits for the machine's end; returns whether it ended in time.
    pub fn wait(&self, patience: Duration) -> bool {
        self.process.wait(patience)
    }

    /// Switches the machine off in order: all that it has written is on its disks.
    ///
    /// # Errors
    /// The machine does not end; then its power is cut.
    pub fn off(self) -> Result<()> {
        let told = self.run("sync", OFF).and_then(|_| self.line.begin(Kind::Off, &[]));
        if told.is_ok() && self.process.wait(OFF) {
            return Ok(());
        }
        let what = Error::failure(format!("a machine was not off within {} s", OFF.as_secs()));
        Err(self.explain(&told.err().unwrap_or(what)))
    }

    /// Stops the machine's process: the machine does nothing any more.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Cuts the machine's power. Drives lose a part of what was not durable; returns the effects on
    /// each.
    ///
    /// # Errors
    /// A drive's file fails.
    pub fn cut(mut self) -> Result<Vec<crate::Cut>> {
        // The machine must not see one drive go before the others.
        self.process.stop();
        let cuts: Result<Vec<_>> = self.drives.iter().map(|(drive, _)| drive.cut()).collect();
        self.process.kill();
        cuts
    }

    fn explain(&self, error: &Error) -> Error {
        // A machine whose line is broken is ending; its last console output is worth the wait.
        if self.line.broken() {
            self.process.wait(END);
        }
        let said = last_lines(&self.process.console());
        Error::failure(format!("{error} (console: {said})"))
    }
}

/// The console's message of a kernel that died, and its last lines.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.len().saturating_sub(LAST_LINES);
    let dire = ["Kernel panic", "BUG:", "Oops:", "Out of memory"];
    let dire = lines[..last].iter().filter(|line| dire.iter().any(|word| line.contains(word)));
    dire.take(LAST_LINES).chain(&lines[last..]).copied().collect::<Vec<_>>().join(" | ")
}

/// The parts of a machine as arguments for QEMU.
struct Parts<'a> {
    place: &'a Path,
    args: Vec<String>,
    drives: Vec<(Arc<Drive>, Connected)>,
}

impl Parts<'_> {
    fn add(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
    }

    fn basics(&mut self, setup: &Setup) -> Result<()> {
        let initrd = self.place.join("initrd");
        let bytes = [&setup.initrd[..], &setup.files.clone().finish()].concat();
        fs::write(&initrd, bytes).context("cannot write a machine's first files")?;
        let accel = std::env::var("ZTIER_VM_ACCEL").unwrap_or_else(|_| "tcg,thread=multi".into());
        self.add(&["-nodefaults", "-nographic", "-serial", "stdio", "-accel", &accel]);
        self.add(&["-cpu", CPU, "-smp", &setup.cpus.to_string()]);
        self.add(&["-m", &setup.memory.to_string()]);
        self.add(&["-kernel", &setup.kernel.to_string_lossy()]);
        self.add(&["-initrd", &initrd.to_string_lossy()]);
        // A busy host delays timers, which is no sign of a hang, or of missing timers. And the
        // emulator translates a program anew at each start if its addresses are random: that took
        // more than half of the time of short commands.
        let quirks = "nowatchdog no_timer_check norandmaps";
        let append = format!("console=ttyS0 quiet panic=-1 {quirks}{}", setup.append);
        self.add(&["-append", &append]);
        if !setup.reboots {
            self.add(&["-no-reboot"]);
        }
        if let Some(programs) = &setup.programs {
            self.blockdev("programs", programs, "writeback", true);
        }
        Ok(())
    }

    fn line(&mut self, socket: &Path) {
        self.add(&["-device", "virtio-serial-pci", "-chardev"]);
        self.add(&[&format!("socket,id=line,path={}", socket.display())]);
        self.add(&["-device", "virtserialport,chardev=line,name=ztier-vm"]);
    }

    fn blockdev(&mut self, name: &str, path: &Path, cache: &str, read_only: bool) {
        let path = path.display().to_string().replace(',', ",,");
        let flags = if read_only { ",read-only=on" } else { ",discard=unmap" };
        self.drive(name, &format!("file={path},format=raw,cache={cache}{flags}"));
    }

    fn drive(&mut self, name: &str, what: &str) {
        let id = format!("disk-{name}");
        self.add(&["-drive", &format!("if=none,id={id},{what},werror=report,rerror=report")]);
        self.add(&["-device", &format!("virtio-blk-pci,drive={id},serial={name}")]);
    }

    fn sparse(&self, number: usize, size: u64) -> Result<PathBuf> {
        let path = self.place.join(format!("disk{number}"));
        let file = File::create(&path).context("cannot make a disk's file")?;
        file.set_len(size).context("cannot size a disk's file")?;
        Ok(path)
    }

    fn disk(&mut self, number: usize, name: &str, behind: &Behind) -> Result<()> {
        match behind {
            Behind::File(path, cache) => self.blockdev(name, path, cache.name(), false),
            Behind::Sparse(size, cache) => {
                let path = self.sparse(number, *size)?;
                self.blockdev(name, &path, cache.name(), false);
            }
            Behind::Held(size, bytes, requests) => {
                let path = self.sparse(number, *size)?.display().to_string().replace(',', ",,");
                let held = format!("throttling.bps-total={bytes},throttling.iops-total={requests}");
                let flags = "format=raw,cache=writeback,discard=unmap";
                self.drive(name, &format!("file={path},{flags},{held}"));
            }
            Behind::Drive(drive) => {
                drive.plug();
                let path: PathBuf = self.place.join(format!("drive{number}"));
                let listen = vec![Listen::Unix(path.clone())];
                let options = Options { name: String::new(), listen, max_connections: 4 };
                let server = Server::start(Arc::clone(drive) as Arc<dyn Device>, options)?;
                self.drives.push((Arc::clone(drive), Connected(server)));
                let what = format!("driver=nbd,server.type=unix,server.path={}", path.display());
                self.drive(name, &format!("{what},cache=writeback,discard=unmap"));
            }
        }
        Ok(())
    }
}
