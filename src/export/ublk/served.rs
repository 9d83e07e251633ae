//! Waits until no process serves a device.
//!
//! Invariants: the kernel says whether one does, never `/proc`, which shows the processes of one
//! PID namespace only; no question here waits for the lock of a device in the driver; every wait
//! has a bound.

use super::abi;
use super::control::{Control, Failure};
use super::node;
use crate::error::{Error, Result};
use crate::media::sysfs;
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the kernel takes at most, mostly, to see that a server is gone: before Linux 6.7 it
/// looks every 5 s.
const NOTICED: Duration = Duration::from_secs(8);
/// The same where the server had taken all requests that a queue can have: from Linux 6.7 on they
/// come back only when their time is over, 30 s after they were sent, or as long after that.
pub(super) const GIVEN_BACK: Duration = Duration::from_secs(45);
/// Interval between questions.
const LOOK: Duration = Duration::from_millis(5);
/// Interval between reports.
const TELL: Duration = Duration::from_secs(1);

/// Waits until no process serves device `id`, as the kernel sees it: after a kill, until all
/// requests of the killed server are given back. `progress` is called now and then.
///
/// # Errors
/// A process serves the device; or the kernel does not give back what a dead one had.
pub(super) fn until_left(control: &mut Control, id: u32, progress: &dyn Fn(&str)) -> Result<()> {
    let begun = Instant::now();
    let (mut left, mut told) = (false, begun);
    while is_live(control, id) {
        let time = begun.elapsed();
        if time >= NOTICED && !left {
            // A server has this open from its beginning to its end, and no other process can.
            left = node::open_character(id).is_ok();
            if !left {
                return Err(refusal(control, id));
            }
        }
        if time >= GIVEN_BACK {
            let text = format!(
                "the kernel does not give back the requests that the last daemon of {} had",
                node::block(id).display()
            );
            return Err(Error::failure(text).hint("its log (dmesg) may say why"));
        }
        if told.elapsed() >= TELL {
            told = Instant::now();
            let (device, seconds) = (node::block(id), time.as_secs());
            progress(&format!("{} is still with its last daemon ({seconds} s)", device.display()));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The error for a device that a process serves.
pub(super) fn refusal(control: &mut Control, id: u32) -> Error {
    let pid = control.info(id).map_or(0, |info| info.server_pid);
    let unseen = if serves(pid, id) { "" } else { " (invisible from here)" };
    let shown = node::block(id);
    Error::busy(format!("{} is still served by process {pid}{unseen}", shown.display()))
        .hint("end that first")
}

/// Whether the device has a server, or had one whose end the kernel has not seen yet.
fn is_live(control: &mut Control, id: u32) -> bool {
    match control.info(id) {
        Ok(info) => info.state == abi::STATE_LIVE,
        // An answer that does not come is no leave to take the device away.
        Err(e) => e != Failure::Errno(Errno::NODEV),
    }
}

/// Whether process `pid` of this PID namespace has the character device open.
fn serves(pid: i32, id: u32) -> bool {
    let node = format!("/dev/ublkc{id}");
    let mut fds = sysfs::entries(Path::new(&format!("/proc/{pid}/fd")));
    fds.any(|fd| fs::read_link(fd).is_ok_and(|to| to == Path::new(&node)))
}
