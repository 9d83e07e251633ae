//! Finding and removing the device of a daemon that is gone.
//!
//! Invariants: a device is ours if the driver has kept our mark for it; one that a process serves,
//! in whatever namespace, is not taken away; one that is mounted, or carries swap or another
//! device, is taken away only by force; nothing waits without a bound.

use super::abi::{self, DeviceInfo};
use super::control::{self, Control, Failure};
use super::{LIMIT, doctor, node, served};
use crate::error::{Context, Error, Result};
use crate::export::leftover::within;
use crate::remedy;
use crate::system::usage::{self, Usage};
use crate::system::{holders, loopdev};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long [`remove`] may take: all of its waits.
pub(crate) const REMOVAL: Duration =
    Duration::from_secs(served::GIVEN_BACK.as_secs() + 2 * LIMIT.as_secs() + 4);

/// How long swap may take to end before its device is taken away by force.
const SWAP_WAIT: Duration = Duration::from_secs(1);

/// The number of the device that has `mark`, if there is one and this process may ask.
pub(crate) fn find(mark: u64) -> Option<u32> {
    if control::devices().is_empty() {
        return None;
    }
    find_with(&mut Control::open().ok()?, mark).map(|(id, _)| id)
}

/// The block device that has `mark`.
pub(in crate::export) fn device(mark: u64) -> Option<PathBuf> {
    find(mark).map(node::block)
}

pub(super) fn find_with(control: &mut Control, mark: u64) -> Option<(u32, DeviceInfo)> {
    control::devices()
        .into_iter()
        .filter_map(|id| Some((id, control.info(id).ok()?)))
        .find(|(_, info)| info.server_flags == mark)
}

/// Removes the device that has `mark`. Its waiting requests fail. `force`: also when it is held;
/// requests of its holders fail from then on.
///
/// # Errors
/// The device is held, and the text says by what; or a process serves it.
pub(crate) fn remove(mark: u64, force: bool) -> Result<()> {
    let mut control = Control::open().map_err(|e| doctor::refusal(&e))?;
    let Some((id, _)) = find_with(&mut control, mark) else { return Ok(()) };
    let shown = node::block(id);
    // A process in the middle of a request cannot release the device before that request fails.
    let held = holders::of_block_device(&shown);
    if let Some(holder) = holders::lasting(&held).filter(|_| !force) {
        // A holder that waits for a daemon that never comes cannot release it either.
        return Err(loopdev::in_use(&shown, holder).hint(remedy::HELD_UNSERVED));
    }
    served::until_left(&mut control, id, &|_| {})?;
    for swap in holders::swaps_on(&shown).iter().filter(|_| force) {
        end_swap(swap);
    }
    control.stop(id, LIMIT).context(format!("cannot stop {}", shown.display()))?;
    delete(&mut control, id, LIMIT)
}

/// Stops the device that has `mark` if its server ended without a next one: all requests fail. One
/// that is held is left alone, and so is one that the kernel still takes for served, because
/// stopping that waits for requests that may never be answered. Returns whether it was stopped.
pub(crate) fn cut_off(mark: u64) -> bool {
    let Ok(mut control) = Control::open() else { return false };
    let Some((id, info)) = find_with(&mut control, mark) else { return false };
    let held = holders::of_block_device(&node::block(id));
    info.state == abi::STATE_QUIESCED
        && holders::lasting(&held).is_none()
        && control.stop(id, LIMIT).is_ok()
}

/// Ends swap on the device. This must begin before the device goes: afterwards `swapoff` could not
/// name it, and the kernel would go on using it. Reads of pages that are still swapped out then
/// fail.
fn end_swap(shown: &Path) {
    let usage = Usage::bare_swap(0, true);
    let device = shown.to_owned();
    // The device goes even if this fails.
    let _ = within(SWAP_WAIT, move || usage::end(&usage, &device));
}

/// Deletes a device that is stopped, and waits up to `limit` for it to be gone.
pub(super) fn delete(control: &mut Control, id: u32, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    match control.delete(id, limit) {
        // NODEV: another process has deleted it.
        Ok(()) | Err(Failure::Late | Failure::Errno(Errno::NODEV)) => {}
        Err(e) => return Err(e).context(format!("cannot delete ublk device {id}")),
    }
    while control::devices().contains(&id) {
        if Instant::now() >= deadline {
            let shown = node::block(id);
            let holder = holders::of_block_device(&shown).into_iter().next();
            let holder = holder.unwrap_or_else(|| "something invisible from here".to_owned());
            return Err(Error::busy(format!(
                "{} is stopped, but still open: {holder}",
                shown.display()
            ))
            .hint("end that; the device goes with its last user"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
