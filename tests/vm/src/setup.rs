//! What a machine will be: memory, CPUs, disks, files, and what it boots.

use crate::drive::Drive;
use crate::initramfs::Archive;
use crate::lab::Lab;
use crate::machine::Machine;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ztier::error::Result;

/// What this system does with what a machine writes to a disk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Caches it, as a drive with a volatile cache does. Killing the machine loses nothing.
    Writeback,
    /// Passes it by, as far as it can.
    None,
    /// Caches it, and takes no notice of flushes.
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

/// What is behind a disk.
#[derive(Clone, Debug)]
pub(crate) enum Behind {
    /// A sparse file of this size, gone with the machine.
    Sparse(u64, Cache),
    /// The same, which moves no more than so many bytes and requests a second.
    Held(u64, u64, u64),
    /// A file of the caller's.
    File(PathBuf, Cache),
    /// A drive of the caller's.
    Drive(Arc<Drive>),
}

/// What a kernel says when it met an instruction that was half replaced.
const EMULATION_FAULT: &str = "Oops: int3";

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
    /// A machine with 512 MiB of memory and two CPUs that boots busybox and the agent: its script
    /// finds the programs of the lab, and disks as `/disk/NAME`.
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

    /// A new disk of `size` bytes, gone with the machine.
    #[must_use]
    pub fn disk(self, name: &str, size: u64) -> Self {
        self.behind(name, Behind::Sparse(size, Cache::Writeback))
    }

    /// A new disk of `size` bytes that moves at most `bytes` and does at most `requests` a second,
    /// however fast this machine's are.
    #[must_use]
    pub fn held_disk(self, name: &str, size: u64, bytes: u64, requests: u64) -> Self {
        self.behind(name, Behind::Held(size, bytes, requests))
    }

    /// A disk over a file of the caller's.
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

    /// A file that is there from the beginning, in a directory that is there.
    #[must_use]
    pub fn file(mut self, path: &str, content: &[u8]) -> Self {
        self.files.program(path.trim_start_matches('/'), content);
        self
    }

    /// Boots the system on the disk `name` (its `/sbin/init`), not busybox. Whether it starts the
    /// agent, and mounts anything, is up to it.
    #[must_use]
    pub fn root(self, name: &str) -> Self {
        self.append(&format!("root={name}"))
    }

    /// Words for the kernel's command line.
    #[must_use]
    pub fn append(mut self, words: &str) -> Self {
        self.append.push(' ');
        self.append.push_str(words);
        self
    }

    /// Lets the machine start again when it wants to, instead of ending then.
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

    /// How long it may take until the agent is there; 120 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Starts the machine, and waits for its agent.
    ///
    /// # Errors
    /// It cannot be started, or ends, or takes too long; says what its console showed last.
    pub fn boot(self) -> Result<Machine> {
        let again = self.clone();
        match self.boot_once() {
            // Now and then QEMU runs an instruction that one CPU's kernel is replacing while the
            // other starts: nothing of ours has begun by then.
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

    /// Starts the machine, and waits for nothing.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(self) -> Result<Machine> {
        Machine::start(self)
    }
}
