//! Limits the requests in flight to a device that carries swap.
//!
//! Programs that swap out faster than a device writes would have all their memory in flight, and
//! none that the kernel can reclaim yet. A kernel that finds nothing to reclaim kills a program for
//! lack of memory, although there is swap (control groups of version 2 do not wait for requests in
//! flight). With few requests in flight, a process that swaps out waits for the device.

use super::helper::{Helper, Task};
use std::fs;
use std::path::{Path, PathBuf};

/// Requests in flight, in all queues of a device together.
const REQUESTS: usize = 32;
/// The least number that the kernel accepts for a queue.
const REQUESTS_LEAST: usize = 4;
/// The longest request in KiB: large enough to share among the helper threads, and no larger.
const LARGEST: &str = "256";
/// The kernel's defaults: requests of each queue, and 0 for a length of the kernel's choice.
const USUAL: (&str, &str) = ("128", "0");

/// Sets these limits for `device`. Best effort: without them, swap works as long as memory is not
/// very short.
pub(super) fn narrow(device: &Path) {
    let Some(device) = sys_of(device) else { return };
    let queues = fs::read_dir(device.join("mq")).map_or(1, |queues| queues.count().max(1));
    set(&device, &(REQUESTS / queues).max(REQUESTS_LEAST).to_string(), LARGEST);
}

/// Restores the kernel's defaults.
pub(super) fn widen(device: &Path) {
    if let Some(device) = sys_of(device) {
        set(&device, USUAL.0, USUAL.1);
    }
}

/// Uses a helper: the kernel waits for all requests in flight, which this process has to answer.
fn set(device: &Path, requests: &str, largest: &str) {
    let value = |file: &str, value: &str| (device.join("queue").join(file), value.to_owned());
    let values = vec![value("nr_requests", requests), value("max_sectors_kb", largest)];
    let _ = Helper::of_this_program().run(&Task::Set { values });
}

/// The `/sys/block` directory of a block device, by any of its names.
fn sys_of(device: &Path) -> Option<PathBuf> {
    let device = fs::canonicalize(device).ok()?;
    let sys = Path::new("/sys/block").join(device.file_name()?);
    sys.is_dir().then_some(sys)
}
