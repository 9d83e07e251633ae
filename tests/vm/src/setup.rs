//! Description of a machine before its start: memory, CPUs, disks, files, and what it boots.

use crate::drive::Drive;
use crate::initramfs::Archive;
use crate::lab::Lab;
use crate::machine::Machine;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ztier::error::Result;

/// How this system caches a machine's writes to a disk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Cached, as by a drive with a volatile cache. Killing the machine loses nothing.
    Writeback,
    /// Bypasses the cache, as far as possible.
    None,
    /// Cached, and flushes are ignored.
    Unsafe,
}

impl Cache {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::None => "none",
            Self::Unsafe => "unsafe",
        }
    }
}

/// The backing of a disk.
#[derive(Clone, Debug)]
pub(crate) enum Behind {
    /// A sparse file of this size, removed with the machine.
    Sparse(u64, Cache),
    /// Such a file of this size, limited to these bytes and these requests a second.
    Held(u64, u64, u64),
    /// A file of the caller.
    File(PathBuf, Cache),
    /// A drive of the caller.
    Drive(Arc<Drive>),
}

/// The kernel's message after it executed an instruction that another CPU's kernel was replacing:
/// QEMU's fault.
pub const EMULATION_FAULT: &str = "Oops: int3";

/// A machine that can be started.
#[derive(Clone, Debug)]
pub struct Setup {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: Vec<u8>,
    pub(crate) programs: Option<PathBuf>,
    pub(crate) append: String,
    pub(crate) memory: u32,
    pub(crate) cpus: u32,
    pub(crate) disks: Vec<(String, Behind)>,
    pub(crate) files: Archive,
    pub(crate) more: Vec<String>,
    pub(crate) reboots: bool,
    pub(crate) patience: Duration,
}

impl Setup {
    /// A machine with 512 MiB of memory and two CPUs that boots busybox and the agent: scripts find
    /// the programs of the lab, and disks as `/disk/NAME`.
    pub fn new(lab: &Lab) -> Self {
        Self {
            kernel: lab.kernel.vmlinuz(),
            initrd: lab.base.to_vec(),
            programs: Some(lab.image.path().to_owned()),
            append: String::new(),
            memory: 512,
            cpus: 2,
            disks: Vec::new(),
            files: Archive::default(),
            more: Vec::new(),
            reboots: false,
            patience: Duration::from_secs(120),
        }
    }

    /// Memory in MiB.
    #[must_use]
    pub fn memory(mut self, mib: u32) -> Self {
        self.memory = mib;
        self
    }

    /// Number of CPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// A new disk of `size` bytes, removed with the machine.
    #[must_use]
    pub fn disk(self, name: &str, size: u64) -> Self {
        self.behind(name, Behind::Sparse(size, Cache::Writeback))
    }

    /// A new disk of `size` bytes, limited to `bytes` and `requests` a second, however fast this
    /// machine's drives are.
    #[must_use]
    pub fn held_disk(self, name: &str, size: u64, bytes: u64, requests: u64) -> Self {
        self.behind(name, Behind::Held(size, bytes, requests))
    }

    /// A disk over a file of the caller.
    #[must_use]
    pub fn file_disk(self, name: &str, path: &Path, cache: Cache) -> Self {
        self.behind(name, Behind::File(path.to_owned(), cache))
    }

    /// A disk over a drive, which outlives the machine.
    #[must_use]
    pub fn drive(self, name: &str, drive: &Arc<Drive>) -> Self {
        self.behind(name, Behind::Drive(Arc::clone(drive)))
    }

    fn behind(mut self, name: &str, behind: Behind) -> Self {
        self.disks.push((name.to_owned(), behind));
        self
    }

    /// A file that exists from the beginning, in an existing directory.
    #[must_use]
    pub fn file(mut self, path: &str, content: &[u8]) -> Self {
        self.files.program(path.trim_start_matches('/'), content);
        self
    }

    /// Boots the system on the disk `name` (its `/sbin/init`), not busybox. That system may or may
    /// not start the agent, and mount anything.
    #[must_use]
    pub fn root(self, name: &str) -> Self {
        self.append(&format!("root={name}"))
    }

    /// Adds words to the kernel's command line.
    #[must_use]
    pub fn append(mut self, words: &str) -> Self {
        self.append.push(' ');
        self.append.push_str(words);
        self
    }

    /// Mounts control groups, with a limit on memory.
    #[must_use]
    pub fn cgroups(self) -> Self {
        self.append("cgroups")
    }

    /// Lets the machine reboot, instead of ending then.
    #[must_use]
    pub fn reboots(mut self) -> Self {
        self.reboots = true;
        self
    }

    /// More arguments for QEMU.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.more.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Limit on the time until the agent is up; 120 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Starts the machine, and waits for its agent.
    ///
    /// # Errors
    /// The machine cannot be started, or ends, or takes too long; quotes its last console lines.
    pub fn boot(self) -> Result<Machine> {
        let again = self.clone();
        match self.boot_once() {
            // Now and then QEMU runs an instruction that one CPU's kernel is replacing while the
            // other starts; no part of the test has begun by then.
            Err(e) if e.to_string().contains(EMULATION_FAULT) => {
                eprintln!("ztier-vm: booting once more: {e}");
                again.boot_once()
            }
            done => done,
        }
    }

    fn boot_once(self) -> Result<Machine> {
        let patience = self.patience;
        let machine = Machine::start(self)?;
        machine.wait_for_boots(1, patience)?;
        Ok(machine)
    }

    /// Starts the machine without waiting.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(self) -> Result<Machine> {
        Machine::start(self)
    }
}
