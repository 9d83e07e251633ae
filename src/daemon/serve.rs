//! Where a plan's export is chosen and started: the one place that knows all front-ends.

use super::itself;
use crate::config::paths::VolumeFiles;
use crate::config::plan::Kind;
use crate::config::{Choice, Paths, Plan, Settings, Usage, plan};
use crate::device::{Device, Sector};
use crate::error::{Error, Result};
use crate::export::ublk::{self, Ublk};
use crate::export::{self, Export, Leftover, nbd};
use std::path::Path;
use std::sync::Arc;

/// Where block devices are linked.
const LINKS: &str = "/dev/ztier";

/// The export that will be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Which one.
    pub kind: Kind,
    /// Why this one, in a few words.
    pub why: String,
}

/// Chooses the export for `settings` on this machine, for this user.
///
/// # Errors
/// When what was asked for does not work here (the text says what would), or settings contradict
/// each other.
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

/// The best export that works here, for this user.
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

/// Prepares this process for the plan's export. Comes before the first thread.
///
/// Returns why it must not carry swap, if that is so.
///
/// # Errors
/// The volume shall carry swap, this process is not allowed what that needs, and swap was not
/// forced. For a job that is only told: its limit makes it swap while the machine itself has
/// memory. Or no sockets were handed over that the plan names.
pub fn prepare(plan: &Plan) -> Result<Option<String>> {
    itself::call("ztier", &plan.name);
    itself::keep_out_of_dumps();
    itself::outlive_limits()?;
    super::heap::keep_little();
    if let plan::Export::Nbd { inherited: true, .. } = plan.export {
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
        plan::Export::Ublk => Ublk::planned(&ublk_options(plan, paths, false)),
        plan::Export::Fuse => block::planned(plan, paths),
        plan::Export::Nbd { .. } => nbd_options(plan).leftovers(),
    }
}

/// What there is of the devices and sockets of a volume, as far as its name alone tells: for one
/// whose state file is gone.
pub fn traces(files: &VolumeFiles) -> Vec<Leftover> {
    let mut left = export::traces(&files.name, &files.run, Path::new(LINKS));
    let sockets = [&files.control, &files.nbd].map(|path| Leftover::Socket(path.clone()));
    left.extend(sockets.into_iter().filter(Leftover::exists));
    left
}

/// Starts the plan's export; when it returns, the volume is usable. `again` is what an earlier
/// daemon left of a volume that goes on with all that it had: a device that waits is taken over.
///
/// # Errors
/// Those of the front-end; nothing is left behind that was not there before.
pub fn start(
    plan: &Plan,
    paths: &Paths,
    volume: Arc<dyn Device>,
    again: &[Leftover],
) -> Result<Box<dyn Export>> {
    match &plan.export {
        plan::Export::Ublk => {
            let resume = again.iter().any(Leftover::waits);
            Ok(Box::new(Ublk::start(volume, ublk_options(plan, paths, resume))?))
        }
        plan::Export::Fuse => block::start(plan, paths, volume),
        plan::Export::Nbd { .. } => Ok(Box::new(nbd::Server::start(volume, nbd_options(plan))?)),
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
    }
}

fn nbd_options(plan: &Plan) -> nbd::Options {
    let mut listen = Vec::new();
    if let plan::Export::Nbd { socket, tcp, inherited } = &plan.export {
        listen.extend(inherited.then_some(nbd::Listen::Inherited));
        listen.extend(socket.clone().map(nbd::Listen::Unix));
        listen.extend(tcp.iter().copied().map(nbd::Listen::Tcp));
    }
    nbd::Options { name: plan.name.clone(), listen, max_connections: nbd::MAX_CONNECTIONS }
}

/// The block device through FUSE, in a program that was built with it.
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

/// The block device through FUSE, in a program that was built without it.
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
