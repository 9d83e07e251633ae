//! Where a plan's export is chosen and started: the one place that knows all front-ends.

use crate::config::{Choice, Paths, Plan, Settings, plan};
use crate::error::{Error, Result};
use crate::export::{Export, Leftover, nbd};
use crate::volume::Device;
use std::sync::Arc;

/// The export that will be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// A block device through FUSE; otherwise NBD.
    pub fuse: bool,
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
    match settings.export.unwrap_or_default() {
        Choice::Nbd => Ok(Chosen { fuse: false, why: "asked for".into() }),
        Choice::Fuse if wants_nbd => {
            Err(Error::usage("NBD addresses make no sense with --export fuse")
                .mend("use --export nbd, or leave out --nbd-listen and --socket"))
        }
        Choice::Fuse => match block::available() {
            Ok(()) => Ok(Chosen { fuse: true, why: "asked for".into() }),
            Err(why) => Err(Error::failure(format!("export fuse does not work here: {why}"))
                .mend("--export nbd would; `ztier doctor` says how to get the others")),
        },
        Choice::Auto if wants_nbd => {
            Ok(Chosen { fuse: false, why: "an NBD address was given".into() })
        }
        Choice::Auto => Ok(match block::available() {
            Ok(()) => Chosen { fuse: true, why: "FUSE and loop devices work here".into() },
            Err(why) => Chosen { fuse: false, why: format!("no block device here: {why}") },
        }),
    }
}

/// Prepares this process for the plan's export. Comes before the first thread.
pub fn prepare(plan: &Plan) {
    if matches!(plan.export, plan::Export::Fuse) {
        let prepared = crate::export::reclaim::prepare_for_reclaim();
        super::log::line(&format!("prepared for memory pressure: {prepared}"));
    }
}

/// What starting the plan's export will put into the system, in the order of removal.
pub fn planned(plan: &Plan, paths: &Paths) -> Vec<Leftover> {
    match &plan.export {
        plan::Export::Fuse => block::planned(plan, paths),
        plan::Export::Nbd { .. } => nbd_options(plan).leftovers(),
    }
}

/// Starts the plan's export; when it returns, the volume is usable.
///
/// # Errors
/// Those of the front-end; nothing is left behind.
pub fn start(
    plan: &Plan,
    paths: &Paths,
    volume: Arc<dyn Device>,
    _again: &[Leftover],
) -> Result<Box<dyn Export>> {
    match &plan.export {
        plan::Export::Fuse => block::start(plan, paths, volume),
        plan::Export::Nbd { .. } => Ok(Box::new(nbd::Server::start(volume, nbd_options(plan))?)),
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

/// The block device, in a program that was built with it.
#[cfg(feature = "fuse")]
mod block {
    use super::{Arc, Device, Export, Leftover, Paths, Plan, Result};
    use crate::export::fuse::{self, FuseLoop, Options};

    /// Where block devices are linked.
    const LINKS: &str = "/dev/ztier";

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
            link_dir: LINKS.into(),
            threads: plan.threads as usize,
            block_device: true,
        }
    }
}

/// The block device, in a program that was built without it.
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
        Err(Error::failure(WHY).mend("use --export nbd"))
    }
}
