//! The ublk export: a block device of the kernel whose requests this process serves through
//! io_uring, linked as `/dev/ztier/NAME`.
//!
//! Invariants: a device carries the mark of its volume, which leads to it after its daemon died; it
//! is always made so that it waits for the next server and gives it all unanswered requests; a
//! device that is held is taken away only by force; only a volume with the same size and abilities
//! takes a device over.

mod abi;
mod control;
mod doctor;
mod io_slot;
mod memory;
mod node;
mod offload;
mod params;
mod queue;
mod queue_threads;
mod remove;
mod served;

pub use doctor::{available, probe};
pub(super) use node::is_there;
pub(super) use remove::device;
pub(crate) use remove::{REMOVAL, cut_off, find, remove};

use super::buffers::{UBLK_BUFFERED, UBLK_DEPTH};
use super::{Export, Leftover};
use crate::device::{Device, Sector};
use crate::error::{Context, Error, Result};
use crate::system::helper::{Claim, Helper};
use crate::system::{holders, link};
use abi::{DeviceInfo, Params};
use control::{Control, Failure};
use io_slot::Shape;
use params::Ways;
use queue_threads::QueueThreads;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most bytes of one request.
const MAX_IO: usize = 1 << 20;

/// Time limit of commands that may wait for another process.
const LIMIT: Duration = Duration::from_secs(8);

/// How to export a device.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the volume: the name of the link.
    pub name: String,
    /// The run directory of the daemon. With the name it makes the mark of the device.
    pub run_dir: PathBuf,
    /// Where the link to the device is made, normally `/dev/ztier`; made when missing.
    pub link_dir: PathBuf,
    /// The most threads that serve requests, at least one.
    pub threads: usize,
    /// The logical sector of the device.
    pub sector: Sector,
    /// Take over the device that an earlier daemon of this volume left, if there is one. The
    /// volume must hold all that the earlier one acknowledged.
    pub resume: bool,
    /// The process that claims the device before it is taken away.
    pub helper: Helper,
}

impl Options {
    fn link(&self) -> PathBuf {
        self.link_dir.join(&self.name)
    }

    fn mark(&self) -> u64 {
        let run_dir = std::fs::canonicalize(&self.run_dir).unwrap_or_else(|_| self.run_dir.clone());
        mark(&run_dir, &self.name)
    }

    fn leftovers(&self) -> Vec<Leftover> {
        vec![
            // Before its link: a device that stays keeps its name.
            Leftover::Ublk { name: self.name.clone(), mark: self.mark() },
            Leftover::Link(self.link()),
            Leftover::Directory(self.link_dir.clone()),
        ]
    }
}

/// The mark of a volume: FNV-1a of run directory and name, the same in every version.
pub(super) fn mark(run_dir: &Path, name: &str) -> u64 {
    let bytes = run_dir.as_os_str().as_encoded_bytes().iter().chain(b"\0ztier\0");
    bytes.chain(name.as_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A volume served as a block device. Dropping it leaves the device to the next server.
pub struct Ublk {
    id: u32,
    options: Options,
    device: Arc<dyn Device>,
    resumed: bool,
    /// `None` once service has ended.
    threads: Option<QueueThreads>,
    /// Whether the device is still in the kernel.
    there: bool,
}

impl Ublk {
    /// What [`Ublk::start`] with these options will leave in the system, in the order of removal.
    pub fn planned(options: &Options) -> Vec<Leftover> {
        options.leftovers()
    }

    /// Makes the device, or takes over the one that is waiting, and links it. When this returns,
    /// the device is usable. If a step fails, undoes what it made; a device that was waiting goes
    /// on waiting. `progress` is called now and then while the kernel has not given back what the
    /// last server had.
    ///
    /// # Errors
    /// A step is not possible here (no driver, no privilege, the name is in use, the waiting device
    /// is not this volume's); the text says which and what else would work.
    pub fn start(
        device: Arc<dyn Device>,
        options: Options,
        progress: &dyn Fn(&str),
    ) -> Result<Self> {
        let mut control = open_control()?;
        let left = remove::find_with(&mut control, options.mark());
        link::refuse_taken(&options.link(), |to| {
            node::exists(to) && left.is_none_or(|(id, _)| to != node::block(id))
        })?;
        let export = match left {
            Some((id, info)) if info.state == abi::STATE_DEAD => {
                // Its server died before it had users.
                control.delete(id, LIMIT).context(format!("cannot remove ublk device {id}"))?;
                Self::make(&mut control, device, options)?
            }
            Some((id, info)) if options.resume => {
                // Commands about the device would wait for the kernel, longer than they may take,
                // and take effect after this process gave them up.
                served::until_left(&mut control, id, progress)?;
                Self::take_over(&mut control, id, info, device, options)?
            }
            Some((id, _)) => {
                let name = &options.name;
                let text = format!("{} of volume `{name}` exists", node::block(id).display());
                return Err(Error::busy(text).hint(format!("`ztier down {name}` first")));
            }
            None => Self::make(&mut control, device, options)?,
        };
        match link::make(&node::block(export.id), &export.options.link()) {
            Ok(()) => Ok(export),
            Err(e) => {
                let mut export = export;
                if !export.resumed {
                    // The first error is the one to report.
                    let _ = export.take_away(&mut control, None);
                }
                Err(e)
            }
        }
    }

    /// The block device, `/dev/ublkbN`.
    pub fn block_device(&self) -> PathBuf {
        node::block(self.id)
    }

    /// Whether the device is one that an earlier daemon left.
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    fn make(control: &mut Control, device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let user_copy = control.has(abi::F_USER_COPY);
        let max_io = if user_copy { MAX_IO } else { UBLK_BUFFERED };
        let mut flags = abi::F_USER_RECOVERY | abi::F_USER_RECOVERY_REISSUE;
        if !control.plain() {
            flags |= abi::F_CMD_IOCTL_ENCODE;
        }
        if user_copy {
            flags |= abi::F_USER_COPY;
        }
        let asked = DeviceInfo {
            queues: queues(options.threads),
            depth: UBLK_DEPTH,
            max_io_bytes: max_io as u32,
            flags,
            server_flags: options.mark(),
            ..DeviceInfo::default()
        };
        let info = control.add(asked).map_err(|e| match e {
            Failure::Errno(Errno::NOSPC) => Error::failure("the ublk driver makes no more devices")
                .hint("take other ublk devices down"),
            e => Error::failure(format!("cannot make a ublk device: {e}"))
                .hint("see `ztier doctor`, or use --export fuse"),
        })?;
        match Self::bring_up(control, &info, &device, Some(options.sector)) {
            Ok(threads) => {
                let (id, threads) = (info.id, Some(threads));
                Ok(Self { id, options, device, resumed: false, threads, there: true })
            }
            Err(e) => {
                let _ = control.stop(info.id, LIMIT); // the first error is the one to report
                let _ = control.delete(info.id, LIMIT);
                Err(e)
            }
        }
    }

    fn take_over(
        control: &mut Control,
        id: u32,
        info: DeviceInfo,
        device: Arc<dyn Device>,
        options: Options,
    ) -> Result<Self> {
        let shown = node::block(id);
        let cannot = || format!("cannot take over {}", shown.display());
        if !control::recovers(info.flags) {
            return Err(Error::failure(format!("{}: it can't wait for a server", cannot())));
        }
        let params = control.params(id).context(cannot())?;
        let ours = ours(&*device, options.sector, info.max_io_bytes as usize);
        let behind = params.device_sectors < ours.device_sectors && control.has(abi::F_UPDATE_SIZE);
        let known =
            if behind { Params { device_sectors: ours.device_sectors, ..params } } else { params };
        if let Some(difference) = params::difference(&known, &ours) {
            return Err(Error::failure(format!("{}: {difference}", cannot()))
                .hint("it is not this volume's; unmount it, and `ztier down` removes it"));
        }
        begin_recovery(control, id)?;
        let threads = Self::bring_up(control, &info, &device, None)?;
        let export =
            Self { id, options, device, resumed: true, threads: Some(threads), there: true };
        if behind {
            // If this fails, the device keeps its old size, which does no harm.
            let _ = export.resized();
        }
        Ok(export)
    }

    /// Starts the threads of a device, and then the device. `new` is the sector of a new device.
    fn bring_up(
        control: &mut Control,
        info: &DeviceInfo,
        device: &Arc<dyn Device>,
        new: Option<Sector>,
    ) -> Result<QueueThreads> {
        let shown = node::block(info.id);
        if !control::recovers(info.flags) {
            return Err(Error::failure("the ublk driver of this kernel can't recover devices")
                .hint("use Linux 6.1 or newer, or --export fuse"));
        }
        let shape = Shape {
            depth: info.depth,
            max_io: info.max_io_bytes as usize,
            user_copy: info.flags & abi::F_USER_COPY != 0,
            plain: control.plain(),
            helpers: if device.waits() { helpers(info.queues) } else { 0 },
        };
        if let Some(sector) = new {
            control
                .set_params(info.id, ours(&**device, sector, shape.max_io))
                .context(format!("cannot set up {}", shown.display()))?;
        }
        let node: OwnedFd = node::open_character(info.id)?;
        let mut threads = QueueThreads::new(node)?;
        for queue in 0..info.queues {
            threads
                .start(queue, shape, device)
                .context(format!("cannot serve queue {queue} of {}", shown.display()))?;
        }
        let started =
            if new.is_none() { control.end_recovery(info.id) } else { control.start(info.id) };
        if let Err(e) = started {
            threads.stop();
            return Err(Error::failure(format!("cannot start {}: {e}", shown.display())));
        }
        node::make_missing_block(info.id)?;
        node::tune(info.id, device.waits());
        Ok(threads)
    }

    /// Takes the device out of the kernel, also when it is held. `claim` keeps other processes
    /// from beginning to use it until it is stopped.
    fn take_away(&mut self, control: &mut Control, claim: Option<Claim>) -> Result<()> {
        let shown = self.block_device();
        let cannot = || format!("cannot stop {}", shown.display());
        link::remove(&shown, &self.options.link());
        match control.stop(self.id, LIMIT) {
            // NODEV: another process has deleted it.
            Ok(()) | Err(Failure::Errno(Errno::NODEV)) => {}
            Err(e) => {
                if node::exists(&shown) {
                    let _ = link::make(&shown, &self.options.link()); // as before
                }
                return Err(Error::failure(format!("{}: {e}", cannot()))
                    .hint("try again, or see what uses it"));
            }
        }
        if let Some(threads) = self.threads.take() {
            threads.stop();
        }
        link::remove_directory(&self.options.link());
        drop(claim); // the device goes only with the last descriptor of it
        remove::delete(control, self.id, LIMIT)?;
        self.there = false;
        Ok(())
    }
}

/// Opens the driver for commands.
fn open_control() -> Result<Control> {
    Control::open().map_err(|e| doctor::refusal(&e))
}

/// Offload threads for each of `queues` queues, if requests wait for drives: drives want many
/// requests in flight.
fn helpers(queues: u16) -> usize {
    (16 / usize::from(queues.max(1))).max(2)
}

/// The parameters of the volume for the kernel.
fn ours(device: &dyn Device, sector: Sector, max_io: usize) -> Params {
    let ways = Ways { discards: device.discards(), flushes: device.flushes() };
    params::params(device.size(), sector, max_io, ways)
}

fn queues(threads: usize) -> u16 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    threads.clamp(1, cpus).min(usize::from(u16::MAX)) as u16
}

/// Begins recovery, once the last server of the device has closed it.
fn begin_recovery(control: &mut Control, id: u32) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match control.begin_recovery(id) {
            Ok(()) => return Ok(()),
            Err(Failure::Errno(Errno::BUSY)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Failure::Errno(Errno::BUSY)) => return Err(served::refusal(control, id)),
            // A daemon has begun it before, and was killed, or gave the command up: the kernel has
            // done its part.
            Err(Failure::Errno(Errno::INVAL)) if waits(control, id) => return Ok(()),
            Err(e) => return Err(e).context(format!("cannot take over ublk device {id}")),
        }
    }
}

/// Whether the device waits for its next server.
fn waits(control: &mut Control, id: u32) -> bool {
    control.info(id).is_ok_and(|info| info.state == abi::STATE_QUIESCED)
}

impl Export for Ublk {
    fn endpoints(&self) -> Vec<String> {
        if self.threads.is_some() {
            vec![self.options.link().display().to_string()]
        } else {
            Vec::new()
        }
    }

    fn holders(&self) -> Vec<String> {
        if self.there { holders::of_block_device(&self.block_device()) } else { Vec::new() }
    }

    fn may_resize(&self) -> Result<()> {
        let control = open_control()?;
        if control.has(abi::F_UPDATE_SIZE) {
            return Ok(());
        }
        Err(Error::failure("a ublk device can't grow on this kernel")
            .hint("use Linux 6.16 or newer, or --export fuse"))
    }

    fn resized(&self) -> Result<()> {
        let mut control = open_control()?;
        let sectors = ours(&*self.device, self.options.sector, 0).device_sectors;
        control
            .update_size(self.id, sectors)
            .context(format!("cannot grow {}", self.block_device().display()))
    }

    fn leftovers(&self) -> Vec<Leftover> {
        if self.there { self.options.leftovers() } else { Vec::new() }
    }

    fn stop(&mut self) -> Result<()> {
        if !self.there {
            return Ok(());
        }
        // Before the claim: what can fail must not come between it and the stop.
        let mut control = open_control()?;
        let claim = self.options.helper.claim(&self.block_device(), &self.options.link())?;
        self.take_away(&mut control, Some(claim))
    }

    fn stop_by_force(&mut self) -> Result<()> {
        if self.there { self.take_away(&mut open_control()?, None) } else { Ok(()) }
    }

    fn leave(&mut self) -> Result<()> {
        if let Some(threads) = self.threads.take() {
            threads.stop();
        }
        Ok(())
    }
}

impl std::fmt::Debug for Ublk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ublk")
            .field("name", &self.options.name)
            .field("id", &self.id)
            .field("resumed", &self.resumed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_tell_volumes_apart_and_stay() {
        let run = Path::new("/run/ztier");
        assert_eq!(mark(run, "a"), mark(run, "a"));
        assert_ne!(mark(run, "a"), mark(run, "b"));
        assert_ne!(mark(run, "a"), mark(Path::new("/run/other"), "a"));
        assert_eq!(mark(run, "vol"), MARK_OF_VOL);
    }

    /// Another value would orphan the devices of running daemons.
    const MARK_OF_VOL: u64 = 0x427d_5c60_c238_601d;

    #[test]
    fn there_is_at_least_one_queue_and_no_more_than_cpus() {
        assert_eq!(queues(0), 1);
        assert_eq!(queues(1), 1);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(usize::from(queues(10_000)) <= cpus);
    }
}
