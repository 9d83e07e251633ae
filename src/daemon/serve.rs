//! Chooses and starts a plan's export: the one place that knows all front-ends.

use super::itself;
use super::opening::Opening;
use crate::config::export::{Export as Offered, Kind};
use crate::config::paths::VolumeFiles;
use crate::config::{Choice, Paths, Plan, Settings, Usage};
use crate::device::{Device, Sector};
use crate::error::{Error, Result};
use crate::export::ublk::{self, Ublk};
use crate::export::{self, Export, Leftover, nbd};
use crate::system::helper::Helper;
use std::path::Path;
use std::sync::Arc;

/// Directory of the links to block devices.
const LINKS: &str = "/dev/ztier";

/// The chosen export, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The export.
    pub kind: Kind,
    /// The reason, in a few words.
    pub why: String,
}

/// Chooses the export for `settings` on this machine, for this user.
///
/// # Errors
/// The requested export does not work here (the text says what would), or settings contradict each
/// other.
pub fn choose(settings: &Settings) -> Result<Chosen> {
    let wants_nbd = settings.nbd_listen.is_some() || settings.socket.is_some();
    let kind = match settings.export.unwrap_or_default() {
        Choice::Nbd => return Ok(Chosen { kind: Kind::Nbd, why: "asked for".into() }),
        Choice::Auto if wants_nbd => {
            return Ok(Chosen { kind: Kind::Nbd, why: "an NBD address was given".into() });
        }
        Choice::Auto => return Ok(best()),
        Choice::Ublk => Kind::Ublk,
        Choice::Fuse => Kind::Fuse,
    };
    let name = kind.name();
    if wants_nbd {
        return Err(Error::usage(format!("NBD addresses make no sense with --export {name}"))
            .hint("use --export nbd, or leave out --nbd-listen and --socket"));
    }
    let works = match kind {
        Kind::Ublk => ublk::available(),
        _ => block::available(),
    };
    match works {
        Ok(()) => Ok(Chosen { kind, why: "asked for".into() }),
        Err(why) => {
            let other = best().kind.name();
            Err(Error::failure(format!("export {name} does not work here: {why}"))
                .hint(format!("--export {other} would; `ztier doctor` says how to get the others")))
        }
    }
}

/// The best export that works here for this user.
fn best() -> Chosen {
    let no_ublk = match ublk::available() {
        Ok(()) => return Chosen { kind: Kind::Ublk, why: "the kernel has ublk".into() },
        Err(why) => why,
    };
    match block::available() {
        Ok(()) => Chosen {
            kind: Kind::Fuse,
            why: format!("FUSE and loop devices work here; no ublk: {no_ublk}"),
        },
        Err(why) => Chosen {
            kind: Kind::Nbd,
            why: format!("no block device here: {why}; no ublk: {no_ublk}"),
        },
    }
}

/// Prepares this process for the plan's export, before it has a second thread. Returns why it must
/// not carry swap; `None` if it may.
///
/// # Errors
/// The volume is to carry swap, this process lacks the rights for that, and swap was not forced.
/// For a job the reason is only returned: its own limit makes it swap while the machine has memory.
/// Or the plan needs inherited sockets, and there are none.
pub fn prepare(plan: &Plan) -> Result<Option<String>> {
    itself::call("ztier", &plan.name);
    itself::keep_out_of_dumps();
    itself::outlive_limits()?;
    super::heap::keep_little();
    if let Offered::Nbd { inherited: true, .. } = plan.export {
        nbd::take_over()?;
    }
    if !plan.export.is_block_device() {
        return Ok(None);
    }
    let prepared = crate::system::reclaim::prepare_for_reclaim();
    super::log::line(&format!("prepared for memory pressure: {prepared}"));
    if prepared.swap_safe() {
        return Ok(None);
    }
    if plan.job.is_none() && matches!(plan.usage, Some(Usage::Swap { forced: false, .. })) {
        return Err(Error::failure(format!("this process must not carry swap: {prepared}"))
            .hint("run as root with CAP_SYS_RESOURCE, CAP_IPC_LOCK and CAP_SYS_NICE"));
    }
    Ok(Some(prepared.to_string()))
}

/// What starting the plan's export will put into the system, in the order of removal.
pub fn planned(plan: &Plan, paths: &Paths) -> Vec<Leftover> {
    match &plan.export {
        Offered::Ublk => Ublk::planned(&ublk_options(plan, paths, false)),
        Offered::Fuse => block::planned(plan, paths),
        Offered::Nbd { .. } => nbd_options(plan).leftovers(),
    }
}

/// A volume's devices and sockets that can be found by its name alone, for a volume without a state
/// file.
pub fn traces(files: &VolumeFiles) -> Vec<Leftover> {
    let mut left = export::traces(&files.name, &files.run, Path::new(LINKS));
    let sockets = [&files.control, &files.nbd].map(|path| Leftover::Socket(path.clone()));
    left.extend(sockets.into_iter().filter(Leftover::exists));
    left
}

/// Starts the plan's export; when it returns, the volume is usable. `again` has the leftovers of
/// the earlier daemon of a volume that is taken over: a device that waits is used again. `progress`
/// is called now and then while that takes time.
///
/// # Errors
/// The front-end fails; then it has left nothing new behind.
pub fn start(
    plan: &Plan,
    paths: &Paths,
    volume: Arc<dyn Device>,
    again: &[Leftover],
    progress: &dyn Fn(&str),
) -> Result<Box<dyn Export>> {
    match &plan.export {
        Offered::Ublk => {
            let resume = again.iter().any(Leftover::waits);
            let (options, opening) = (ublk_options(plan, paths, resume), Opening::new(progress));
            Ok(Box::new(Ublk::start(volume, options, &|what| opening.tell(what))?))
        }
        Offered::Fuse => block::start(plan, paths, volume),
        Offered::Nbd { .. } => Ok(Box::new(nbd::Server::start(volume, nbd_options(plan))?)),
    }
}

fn ublk_options(plan: &Plan, paths: &Paths, resume: bool) -> ublk::Options {
    ublk::Options {
        name: plan.name.clone(),
        run_dir: paths.run.clone(),
        link_dir: LINKS.into(),
        threads: plan.threads as usize,
        sector: plan.sector_bytes.unwrap_or(Sector::Block),
        resume,
        helper: Helper::of_this_program(),
    }
}

fn nbd_options(plan: &Plan) -> nbd::Options {
    let mut listen = Vec::new();
    if let Offered::Nbd { socket, tcp, inherited } = &plan.export {
        listen.extend(inherited.then_some(nbd::Listen::Inherited));
        listen.extend(socket.clone().map(nbd::Listen::Unix));
        listen.extend(tcp.iter().copied().map(nbd::Listen::Tcp));
    }
    nbd::Options { name: plan.name.clone(), listen, max_connections: nbd::MAX_CONNECTIONS }
}

/// The block device through FUSE, in a program built with it.
#[cfg(feature = "fuse")]
mod block {
    use super::{Arc, Device, Export, Leftover, Paths, Plan, Result};
    use crate::export::fuse::{self, FuseLoop, Options};
    use crate::system::helper::Helper;

    pub fn available() -> std::result::Result<(), String> {
        fuse::available(true)
    }

    pub fn planned(plan: &Plan, paths: &Paths) -> Vec<Leftover> {
        FuseLoop::planned(&options(plan, paths))
    }

    pub fn start(plan: &Plan, paths: &Paths, volume: Arc<dyn Device>) -> Result<Box<dyn Export>> {
        Ok(Box::new(FuseLoop::start(volume, options(plan, paths))?))
    }

    fn options(plan: &Plan, paths: &Paths) -> Options {
        Options {
            name: plan.name.clone(),
            run_dir: paths.run.clone(),
            link_dir: super::LINKS.into(),
            threads: plan.threads as usize,
            block_device: true,
            sector: plan.sector_bytes.unwrap_or(super::Sector::Block),
            helper: Helper::of_this_program(),
        }
    }
}

/// The block device through FUSE, in a program built without it.
#[cfg(not(feature = "fuse"))]
mod block {
    use super::{Arc, Device, Error, Export, Leftover, Paths, Plan, Result};

    const WHY: &str = "this ztier was built without FUSE";

    pub fn available() -> std::result::Result<(), String> {
        Err(WHY.into())
    }

    pub fn planned(_: &Plan, _: &Paths) -> Vec<Leftover> {
        vec![]
    }

    pub fn start(_: &Plan, _: &Paths, _: Arc<dyn Device>) -> Result<Box<dyn Export>> {
        Err(Error::failure(WHY).hint("use --export nbd"))
    }
}
