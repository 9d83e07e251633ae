//! The parts of every machine: a kernel, the initramfs, a disk with programs, programs of this
//! workspace.

use crate::cache::Cache;
use crate::command::find;
use crate::image::Image;
use crate::initramfs::{self, Archive};
use crate::kernel::{Flavour, Kernel};
use crate::programs::{copy_stripped, ours};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ztier::error::{Context, Error, Result};

/// Reason for having no machines.
#[derive(Debug)]
pub enum Trouble {
    /// This system lacks a prerequisite, which is no failure.
    Absent(String),
    /// Something went wrong.
    Failed(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Trouble {
    /// The error for a caller that needs a laboratory.
    pub fn into_error(self) -> Error {
        match self {
            Self::Absent(why) => Error::failure(why).hint("CONTRIBUTING.md says what is needed"),
            Self::Failed(error) => error,
        }
    }
}

/// The parts of machines.
#[derive(Clone, Debug)]
pub struct Lab {
    /// The cache that holds them.
    pub cache: Cache,
    /// The kernel.
    pub kernel: Kernel,
    /// The disk with the programs.
    pub image: Image,
    /// The initramfs of all machines, with the agent and the workspace's programs.
    pub base: Arc<Vec<u8>>,
}

impl Lab {
    /// Opens a laboratory whose machines have `programs` of this workspace (`ztier`) in their
    /// `/usr/local/bin`. The first time takes minutes, and the network.
    ///
    /// # Errors
    /// [`Trouble::Absent`] where this system cannot run machines.
    pub fn open(programs: &[&str]) -> Result<Self, Trouble> {
        Self::of(Flavour::default(), programs)
    }

    /// Opens a laboratory as [`Lab::open`] does, with another kernel.
    ///
    /// # Errors
    /// See [`Lab::open`].
    pub fn of(flavour: Flavour, programs: &[&str]) -> Result<Self, Trouble> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Trouble::Absent("virtual machines only for x86-64".into()));
        }
        for program in ["qemu-system-x86_64", "busybox", "mkfs.ext4", "depmod", "setpriv", "ldd"] {
            if find(program).is_none() {
                return Err(Trouble::Absent(format!("no {program} for virtual machines")));
            }
        }
        let cache = Cache::of_user()?;
        let kernel = Kernel::open(&cache, flavour, false)
            .map_err(|e| Trouble::Absent(format!("no kernel for virtual machines: {e}")))?;
        let agent = ours("ztier-vm-agent")?;
        let mut own = vec![agent.clone()];
        for program in programs {
            own.push(ours(program)?);
        }
        let image = Image::open(&cache, &kernel, &own)?;
        let mut base = initramfs::base(&kernel)?;
        let mut archive = Archive::default();
        let work = tempfile::tempdir().context("cannot make a directory")?;
        for path in &own {
            let place = match path.file_name().and_then(|name| name.to_str()) {
                Some(name) if *path != agent => format!("usr/local/bin/{name}"),
                _ => "boot/agent".to_owned(),
            };
            archive.program(&place, &stripped(path, work.path())?);
        }
        base.extend(archive.finish());
        Ok(Self { cache, kernel, image, base: Arc::new(base) })
    }

    /// Opens a laboratory for a test; prints `skipped: …` where there can be no machines.
    ///
    /// # Panics
    /// On any other failure.
    #[must_use]
    #[expect(clippy::print_stdout, reason = "what the test runner counts")]
    pub fn for_test(flavour: Flavour, programs: &[&str]) -> Option<Self> {
        match Self::of(flavour, programs) {
            Ok(lab) => Some(lab),
            Err(Trouble::Absent(why)) => {
                println!("skipped: {why}");
                None
            }
            Err(Trouble::Failed(error)) => panic!("{error}"),
        }
    }

    /// Waits until this user runs no other machine, as an emulated CPU takes a whole real one.
    ///
    /// # Errors
    /// Another machine runs for longer than `patience`.
    pub fn turn(&self, patience: Duration) -> Result<crate::cache::Lock> {
        self.cache.lock("machine", patience)
    }
}

fn stripped(program: &Path, work: &Path) -> Result<Vec<u8>> {
    let copy: PathBuf = work.join("stripped");
    copy_stripped(program, &copy)?;
    fs::read(&copy).context(format_args!("cannot read {}", copy.display()))
}
