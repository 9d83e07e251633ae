//! The FUSE + loop export: one file served through FUSE, shown as a block device by a loop device
//! with direct I/O, linked as `/dev/ztier/NAME`.
//!
//! Invariants: [`FuseLoop::planned`] lists everything in the order of removal, and everything is
//! made in the reverse order; a device that is held is never taken away; a thread that serves
//! requests never causes requests (it would wait for itself).

mod doctor;
mod file;
mod session;

pub use crate::system::Check;
pub use doctor::{available, probe};

use super::leftover::mount_point;
use super::{Export, Leftover};
use crate::device::{Device, Sector};
use crate::error::{Context, Error, Result};
use crate::system::helper::{Helper, Task};
use crate::system::{holders, link, loopdev};
use file::BlockFile;
use session::Mounted;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How to export a device.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the volume: the name of the file and of the link.
    pub name: String,
    /// Where the mount point `NAME.fuse` is made; the directory must exist.
    pub run_dir: PathBuf,
    /// Where the link to the loop device is made, normally `/dev/ztier`; made when missing.
    pub link_dir: PathBuf,
    /// How many threads serve requests, at least one.
    pub threads: usize,
    /// Make a block device (needs root); else only the file, which works without root through
    /// `fusermount3`.
    pub block_device: bool,
    /// The logical sector of the block device.
    pub sector: Sector,
    /// The process that runs tasks on the loop device.
    pub helper: Helper,
}

/// A device served as a file through FUSE, and on it, if asked for, a block device.
pub struct FuseLoop {
    name: String,
    point: PathBuf,
    file: PathBuf,
    link: Option<PathBuf>,
    loop_device: Option<PathBuf>,
    mounted: Mounted,
    helper: Helper,
    sector: Sector,
    /// Whether requests may wait for a drive.
    waits: bool,
    stopped: bool,
}

impl FuseLoop {
    /// What [`FuseLoop::start`] with these options leaves in the system, besides the loop device,
    /// which is found through the mount. The caller notes it before the start.
    pub fn planned(options: &Options) -> Vec<Leftover> {
        // The kernel's tables name places by their true paths.
        let run_dir =
            fs::canonicalize(&options.run_dir).unwrap_or_else(|_| options.run_dir.clone());
        let point = mount_point(&run_dir, &options.name);
        let mut left = Vec::new();
        if options.block_device {
            left.push(Leftover::Link(options.link_dir.join(&options.name)));
        }
        left.push(Leftover::Mount(point.clone()));
        left.push(Leftover::Directory(point));
        if options.block_device {
            left.push(Leftover::Directory(options.link_dir.clone()));
        }
        left
    }

    /// Mounts, attaches and links `device`; when it returns the device is usable. Undoes everything
    /// when a step fails. Must not be called from a thread that serves a FUSE file.
    ///
    /// # Errors
    /// A step is not possible here (no `/dev/fuse`, no privilege, the name is in use); the text
    /// says which and what else would work.
    pub fn start(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let run_dir = fs::canonicalize(&options.run_dir)
            .context(format!("cannot use {}", options.run_dir.display()))?;
        let point = mount_point(&run_dir, &options.name);
        let link = options.block_device.then(|| options.link_dir.join(&options.name));
        refuse_taken(&point, link.as_deref())?;
        match fs::DirBuilder::new().mode(0o700).create(&point) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(e).context(format!("cannot make {}", point.display()));
            }
            _ => {}
        }
        let waits = device.waits();
        let served = BlockFile::new(device, &options.name);
        let mounted = match Mounted::new(served, &point, options.threads) {
            Ok(mounted) => mounted,
            Err(e) => {
                let _ = fs::remove_dir(&point); // the first error is the one to report
                return Err(e);
            }
        };
        let file = point.join(&options.name);
        let mut export = Self {
            name: options.name,
            point,
            file,
            link: None,
            loop_device: None,
            mounted,
            helper: options.helper,
            sector: options.sector,
            waits,
            stopped: false,
        };
        if let Some(link) = link
            && let Err(e) = export.attach(link)
        {
            let _ = export.stop(); // likewise
            return Err(e);
        }
        Ok(export)
    }

    /// The file in the FUSE mount.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The block device, `/dev/loopN`, if there is one.
    pub fn loop_device(&self) -> Option<&Path> {
        self.loop_device.as_deref()
    }

    fn attach(&mut self, link: PathBuf) -> Result<()> {
        let (file, waits) = (self.file.clone(), self.waits);
        let task = Task::Attach { file, block_size: self.sector.bytes(), waits };
        let device = PathBuf::from(self.helper.run(&task)?);
        self.loop_device = Some(device.clone());
        link::make(&device, &link)?;
        self.link = Some(link);
        Ok(())
    }

    fn remove_link(&self) {
        if let (Some(link), Some(device)) = (&self.link, &self.loop_device) {
            link::remove(device, link);
        }
    }

    /// Takes the loop device away: the link first, so that no process finds a disappearing device.
    fn detach(&mut self) -> Result<()> {
        let Some(device) = &self.loop_device else { return Ok(()) };
        self.remove_link();
        if self.is_attached(device) {
            let (device, file, waits) = (device.clone(), self.file.clone(), self.waits);
            let task = Task::Detach { device, file, waits };
            self.helper.run(&task).or_else(|e| self.still_attached(e))?;
        }
        self.loop_device = None;
        if let Some(link) = self.link.take() {
            link::remove_directory(&link);
        }
        Ok(())
    }

    fn is_attached(&self, device: &Path) -> bool {
        holders::backing_file(device).is_some_and(|b| b == self.file)
    }

    /// After a failed detach: links the device again if it is still there.
    fn still_attached(&self, why: Error) -> Result<String> {
        match &self.loop_device {
            Some(device) if self.is_attached(device) => {
                if let Some(link) = &self.link {
                    let _ = symlink(device, link); // the device stays usable under its other name
                }
                Err(why)
            }
            _ => Ok(String::new()), // late, but done
        }
    }

    /// Waits a little for processes that only look, then refuses because of the first holder.
    fn refuse_held(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let held = self.holders();
            let lasting = holders::lasting(&held);
            match lasting.or(held.first()) {
                Some(h) if lasting.is_some() || begun.elapsed() >= holders::patience_with(h) => {
                    return Err(loopdev::in_use(self.shown_as(), h));
                }
                Some(_) => std::thread::sleep(Duration::from_millis(50)),
                None => return Ok(()),
            }
        }
    }

    /// After a failed unmount: makes the block device again. Returns `why` the export does not end,
    /// and what is not as before.
    fn serve_on(&mut self, link: Option<PathBuf>, why: Error) -> Error {
        if !self.mounted.is_there() {
            return why; // without the file no device can be made
        }
        // Something opened the file in between.
        let holder = self.holders().into_iter().next();
        let why = holder.map_or(why, |h| loopdev::in_use(&self.file, &h));
        match link.map(|link| self.attach(link)) {
            Some(Err(second)) => {
                let file = self.file.display();
                Error::new(
                    why.status(),
                    format!("{why}; until then only {file} is served: {second}"),
                )
            }
            _ => why,
        }
    }

    fn shown_as(&self) -> &Path {
        self.link.as_deref().unwrap_or(&self.file)
    }
}

/// Refuses a mount point or a link that is taken.
fn refuse_taken(point: &Path, link: Option<&Path>) -> Result<()> {
    if let Some(m) = crate::system::mounts::mounted_on(point) {
        let hint = if m.is_ours() { "take the volume down first" } else { "unmount it first" };
        return Err(Error::busy(format!("{} is mounted already", point.display())).hint(hint));
    }
    let Some(link) = link else { return Ok(()) };
    link::refuse_taken(link, |to| holders::backing_file(to).is_some())
}

impl Export for FuseLoop {
    fn endpoints(&self) -> Vec<String> {
        if self.stopped { Vec::new() } else { vec![self.shown_as().display().to_string()] }
    }

    fn holders(&self) -> Vec<String> {
        if self.stopped {
            return Vec::new();
        }
        let mut held = match &self.loop_device {
            Some(device) => holders::of_block_device(device),
            None => Vec::new(),
        };
        held.extend(holders::of_file(&self.file, self.loop_device.as_deref()));
        held
    }

    fn resized(&self) -> Result<()> {
        self.mounted
            .forget_size()
            .context(format!("cannot tell the kernel the new size of {}", self.file.display()))?;
        let Some(device) = self.loop_device.clone() else { return Ok(()) };
        self.helper.run(&Task::Grow { device, file: self.file.clone() }).map(drop)
    }

    fn leftovers(&self) -> Vec<Leftover> {
        if self.stopped {
            return Vec::new();
        }
        let mut left = Vec::new();
        left.extend(self.link.clone().map(Leftover::Link));
        left.extend(
            self.loop_device
                .clone()
                .map(|device| Leftover::Loop { device, backing: self.file.clone() }),
        );
        left.push(Leftover::Mount(self.point.clone()));
        left.push(Leftover::Directory(self.point.clone()));
        let dir = self.link.as_deref().and_then(Path::parent);
        left.extend(dir.map(|d| Leftover::Directory(d.to_owned())));
        left
    }

    fn stop(&mut self) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        self.refuse_held()?;
        let link = self.link.clone();
        self.detach()?;
        if let Err(e) = self.mounted.unmount() {
            return Err(self.serve_on(link, e));
        }
        self.stopped = true;
        fs::remove_dir(&self.point).context(format!("cannot remove {}", self.point.display()))
    }
}

impl Drop for FuseLoop {
    fn drop(&mut self) {
        // What can't be stopped ends with the process, and `Leftover::remove` cleans up.
        let _ = self.stop();
    }
}

impl std::fmt::Debug for FuseLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FuseLoop")
            .field("name", &self.name)
            .field("file", &self.file)
            .field("loop_device", &self.loop_device)
            .finish_non_exhaustive()
    }
}
