//! Removes leftovers of killed runs, or names them.
//!
//! Invariants: this module only touches what has a name of this program with the id of a dead
//! process, and only this user's files. Users of a resource go before it: swap, file systems,
//! volumes, devices, files. Where one step fails, the rest of that run stays. Every wait has a
//! limit: mounts are known from the kernel's table, and no path below one is accessed.

mod kernel;
mod names;

pub use names::{Known, is_gone};

use crate::report::{say, warn};
use crate::sys::command::undo;
use kernel::Loop;
use names::{Places, run_of};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ztier::error::{Context, Error, Result};
use ztier::export::Leftover;
use ztier::media::mounts::{MountEntry, mounts};
use ztier::media::swap_areas::swaps;

/// Directory for files that are too large for memory.
pub const LARGE: &str = "/var/tmp";
const LIMIT: Duration = Duration::from_secs(30);
/// Reading swap back from a slow disk takes this long at most.
const SWAP_LIMIT: Duration = Duration::from_secs(300);

/// A leftover volume: the run that made it, its name, and the result of its removal.
pub type Volume = (u32, String, Result<()>);
/// Takes down the volumes of dead runs.
pub type Down<'a> = &'a dyn Fn(&Known) -> Vec<Volume>;

/// Removes leftovers, and reports them.
pub fn clear(down: Down<'_>) {
    clear_in(&[LARGE.into(), std::env::temp_dir()], down).say();
    for device in kernel::unused_zram() {
        warn(&format!(
            "{device} holds data that is not in use, perhaps of a run that was killed; \
             echo 1 >/sys/block/{device}/reset frees its memory"
        ));
    }
}

/// The leftovers.
#[derive(Default)]
struct Tally {
    gone: Vec<String>,
    stays: Vec<String>,
}

impl Tally {
    /// Notes a removal; returns whether it succeeded.
    fn note(&mut self, what: String, done: Result<()>) -> bool {
        let ok = done.is_ok();
        match done {
            Ok(()) => self.gone.push(what),
            Err(e) => self.stays.push(format!("left by a run that was killed: {what}: {e}")),
        }
        ok
    }

    fn say(&self) {
        if !self.gone.is_empty() {
            say(&format!("removed what a run that was killed has left: {}", self.gone.join(", ")));
        }
        self.stays.iter().for_each(|text| warn(text));
    }
}

fn clear_in(dirs: &[PathBuf], down: Down<'_>) -> Tally {
    let (mut places, mut tally) = (Places::new(dirs), Tally::default());
    swap_off(&mut places, &mut tally);
    // File systems on devices of the run; those that hold the devices come later.
    unmount(&places, &mut tally, |mount| !mount.is_fuse() && mount.kind != "tmpfs");
    for (run, name, done) in down(&places.known()) {
        if !tally.note(format!("volume {name}"), done) {
            places.spare(run);
        }
    }
    for MountEntry { point, .. } in mounts().into_iter().filter(MountEntry::is_fuse) {
        if places.left(&point).is_some() {
            // Its server is dead: the unmount ends its requests and detaches its loop device.
            let mount = Leftover::Mount(point);
            tally.note(mount.describe(), mount.remove());
        }
    }
    for (_, Loop { device, .. }) in loops(&places) {
        let done = undo("losetup", &[Path::new("--detach"), &device], LIMIT).map(drop);
        tally.note(format!("loop device {}", device.display()), done);
    }
    unmount(&places, &mut tally, |_| true);
    for (_, path) in places.entries() {
        match remove(&path) {
            Ok(false) => {}
            done => drop(tally.note(path.display().to_string(), done.map(drop))),
        }
    }
    for dir in kernel::groups() {
        remove_groups(&dir, &mut tally);
    }
    tally
}

/// The loop devices on files of dead runs.
fn loops(places: &Places) -> Vec<(u32, Loop)> {
    let all = kernel::loops().into_iter();
    all.filter_map(|one| Some((places.left(&one.backing)?, one))).collect()
}

/// Ends swap on leftovers; a run whose swap stays is spared.
fn swap_off(places: &mut Places, tally: &mut Tally) {
    let loops = loops(places);
    for path in swaps() {
        let on_loop = || loops.iter().find(|(_, one)| one.device == path).map(|(run, _)| *run);
        let Some(run) = places.left(&path).or_else(on_loop) else { continue };
        let done = undo("swapoff", &[&path], SWAP_LIMIT).map(drop);
        if !tally.note(format!("swap on {}", path.display()), done) {
            places.spare(run);
        }
    }
}

/// Unmounts the wanted leftovers, the last first: it may be on an earlier one.
fn unmount(places: &Places, tally: &mut Tally, wanted: fn(&MountEntry) -> bool) {
    for mount in mounts().iter().rev().filter(|mount| wanted(mount)) {
        let point = &mount.point;
        if places.left(point).is_none() {
            continue;
        }
        let done = undo("umount", &[point], LIMIT)
            .or_else(|_| undo("umount", &[Path::new("--lazy"), point], LIMIT));
        tally.note(format!("mount {}", point.display()), done.map(drop));
    }
}

/// Removes a file; returns whether it existed and belonged to this user.
fn remove(path: &Path) -> Result<bool> {
    if mounts().iter().any(|mount| mount.point.starts_with(path)) {
        return Err(Error::failure("something is mounted there").hint("unmount and remove it"));
    }
    let Ok(found) = rustix::fs::lstat(path) else { return Ok(false) };
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    let done =
        if kind.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match done {
        // Another process has removed it meanwhile.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        done => done.context("cannot be removed").map(|()| true),
    }
}

/// Removes the control groups of dead runs; the kernel keeps groups with processes.
fn remove_groups(dir: &Path, tally: &mut Tally) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().and_then(run_of).is_some_and(is_gone) {
            let done = std::fs::remove_dir(entry.path()).context("cannot be removed");
            tally.note(format!("group {}", entry.path().display()), done);
        }
    }
}

#[cfg(test)]
mod tests;
