//! What a volume in memory is made into each time it comes up empty: swap, or a file system.
//!
//! Invariant: only a volume without a backing store has a [`Usage`], so a use never overwrites data
//! that is to last.

use super::export::Export;
use super::paths::full;
use super::settings::{Settings, Use};
use super::tunable::{OF_PAGE_CLUSTER, OF_SWAPPINESS};
use crate::error::{Error, Result};
pub use crate::system::job::Job;
pub use crate::system::usage::{Ballast, SlotNews, Usage};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// The default priority of swap: above what the kernel gives disks by itself.
pub const DEFAULT_PRIORITY: i32 = 100;
/// The highest priority that the kernel knows.
pub const HIGHEST_PRIORITY: i32 = 32767;

/// The use that `settings` ask for, if any, of a volume that is offered by `export`.
///
/// # Errors
/// The settings contradict each other, or nothing can be mounted over NBD.
pub(super) fn resolve(settings: &Settings, export: &Export) -> Result<Option<Usage>> {
    let usage = match settings.usage {
        None => return refuse_rest(settings).map(|()| None),
        Some(Use::Swap) => {
            refuse("mount", settings.mount.is_some(), "use = \"ext4\"")?;
            Usage::Swap {
                priority: priority(settings)?,
                page_cluster: OF_PAGE_CLUSTER.resolve(settings.page_cluster)?,
                swappiness: OF_SWAPPINESS.resolve(settings.swappiness)?,
                tuned: Vec::new(),
                ballast: settings.ballast.unwrap_or_default(),
                freed_slots: settings.freed_slots.unwrap_or_default(),
                on_full: absolute("on-full", settings.on_full.as_deref())?,
                forced: false,
            }
        }
        Some(Use::Ext4) => {
            refuse_of_swap(settings)?;
            Usage::Ext4 { mount: mount(settings.mount.as_deref())? }
        }
    };
    if !export.is_block_device() {
        return Err(Error::usage("use needs a block device, and NBD is none")
            .hint("use --export ublk or fuse, as root"));
    }
    Ok(Some(usage))
}

/// Refuses a use for a volume with a log, whose backing store would be overwritten.
///
/// # Errors
/// The settings ask for a use, or name a part of one.
pub(super) fn refuse_with_log(settings: &Settings) -> Result<()> {
    if settings.usage.is_none() {
        return refuse_rest(settings);
    }
    Err(Error::usage("use makes the volume anew, which would destroy what its backing store has")
        .hint("leave out use; make the file system once, and list it in /etc/fstab"))
}

fn refuse_rest(settings: &Settings) -> Result<()> {
    refuse("mount", settings.mount.is_some(), "use = \"ext4\"")?;
    refuse_of_swap(settings)
}

fn refuse_of_swap(settings: &Settings) -> Result<()> {
    refuse("priority", settings.priority.is_some(), "use = \"swap\"")?;
    refuse("ballast", settings.ballast.is_some(), "use = \"swap\"")?;
    refuse("freed-slots", settings.freed_slots.is_some(), "use = \"swap\"")?;
    refuse("on-full", settings.on_full.is_some(), "use = \"swap\"")?;
    refuse("page-cluster", settings.page_cluster.is_some(), "use = \"swap\"")?;
    refuse("swappiness", settings.swappiness.is_some(), "use = \"swap\"")
}

fn refuse(key: &str, given: bool, with: &str) -> Result<()> {
    if !given {
        return Ok(());
    }
    Err(Error::usage(format!("{key} is for {with}"))
        .hint(format!("leave out {key}, or give {with}")))
}

fn priority(settings: &Settings) -> Result<i32> {
    let priority = settings.priority.unwrap_or(DEFAULT_PRIORITY);
    if (0..=HIGHEST_PRIORITY).contains(&priority) {
        return Ok(priority);
    }
    Err(Error::usage(format!("swap can't have priority {priority}"))
        .hint(format!("give 0 to {HIGHEST_PRIORITY}")))
}

/// The program on a command line that is run when memory and swap are nearly full.
///
/// # Errors
/// As [`absolute`]; or it is no program.
pub fn on_full(program: Option<&Path>) -> Result<Option<PathBuf>> {
    runnable("on-full", program)
}

/// The same for the program that is run for events.
///
/// # Errors
/// As [`on_full`].
pub fn on_event(program: Option<&Path>) -> Result<Option<PathBuf>> {
    runnable("on-event", program)
}

fn runnable(key: &str, program: Option<&Path>) -> Result<Option<PathBuf>> {
    let Some(program) = absolute(key, program)? else { return Ok(None) };
    match program.is_file() && access(&program, Access::EXEC_OK).is_ok() {
        true => Ok(Some(program)),
        false => Err(cannot_run(key, &program).hint("give a program: a file with `chmod +x`")),
    }
}

/// The same of a configuration, which may be read before the program's file system is mounted.
///
/// # Errors
/// Its path is relative: nothing says to what.
pub(super) fn absolute(key: &str, program: Option<&Path>) -> Result<Option<PathBuf>> {
    match program {
        Some(program) if !program.is_absolute() => {
            Err(cannot_run(key, program).hint("give its whole path, like /usr/local/sbin/relieve"))
        }
        program => Ok(program.map(Path::to_owned)),
    }
}

fn cannot_run(key: &str, program: &Path) -> Error {
    Error::usage(format!("{} can't be run {key}", program.display()))
}

fn mount(point: Option<&Path>) -> Result<PathBuf> {
    match point {
        Some(point) if point.is_absolute() && point.parent().is_some() => full(point),
        Some(point) => Err(Error::usage(format!("{} can't be mounted on", point.display()))
            .hint("let mount begin with /, like /var/cache/fast")),
        None => Err(Error::usage("use = \"ext4\" needs a place to be mounted on")
            .hint("add mount, like mount = \"/var/cache/fast\"")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_program_is_checked_where_it_is_typed() {
        let [relative, none, text] = ["relieve", "/no/such", "/etc/passwd"].map(Path::new);
        for (program, why) in [(relative, "whole path"), (none, "chmod +x"), (text, "chmod +x")] {
            let refused = on_full(Some(program)).unwrap_err().to_string();
            assert!(refused.contains("can't be run on-full") && refused.contains(why), "{refused}");
        }
        assert_eq!(on_full(Some(Path::new("/bin/sh"))).unwrap(), Some("/bin/sh".into()));
        // Its file system may be mounted later than the volume comes up.
        assert_eq!(absolute("on-full", Some(none)).unwrap(), Some(none.into()));
        assert!(absolute("on-full", Some(relative)).is_err());
    }
}
