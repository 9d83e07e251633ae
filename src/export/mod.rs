//! Front-ends: a protocol on one side, [`crate::device::Request`]s on the other, nothing else.
//!
//! Invariant: what a front-end leaves in the system (a mount, a loop device, a socket, a link) is
//! named by [`Export::leftovers`] before it is made, so that another process can remove it after
//! a kill -9.

pub mod buffers;
#[cfg(feature = "fuse")]
pub mod fuse;
mod leftover;
pub mod nbd;
pub mod ublk;

pub use leftover::traces;

use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A running front-end of one volume. Dropping it ends service; a device that can wait for the next
/// daemon stays, anything else is removed, best effort.
pub trait Export: Send {
    /// What users open: `/dev/ztier/NAME`, or NBD URIs.
    fn endpoints(&self) -> Vec<String>;

    /// The device's holders now (`mounted on /mnt`, `swap`, `process 123 (fio)`, `2 NBD clients`).
    fn holders(&self) -> Vec<String>;

    /// Refuses a new size before the volume has it, if the device can't follow.
    fn may_resize(&self) -> Result<()> {
        Ok(())
    }

    /// Tells the users of the device its new size.
    fn resized(&self) -> Result<()>;

    /// What has to be undone if this process dies.
    fn leftovers(&self) -> Vec<Leftover>;

    /// Ends service and removes everything that [`Export::leftovers`] named. Refuses while the
    /// device is held, naming a holder; then it goes on serving.
    fn stop(&mut self) -> Result<()>;

    /// Ends what [`Export::stop`] refused to end because it is held; the holders' requests fail.
    /// Does nothing where dropping the export does that.
    fn stop_by_force(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends service, and leaves what the next daemon of the volume takes over: a device that can
    /// wait for it stays, with its users and their requests. What stays is named by
    /// [`Export::leftovers`]. Where nothing can wait, this is [`Export::stop`].
    fn leave(&mut self) -> Result<()> {
        self.stop()
    }

    /// Whether the device waits for the next daemon.
    fn waits(&self) -> bool {
        self.leftovers().iter().any(Leftover::waits)
    }
}

/// Something a front-end put into the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Leftover {
    /// A loop device, by path (`/dev/loop3`), and the file that must be behind it.
    Loop {
        /// The device.
        device: PathBuf,
        /// The file it shows.
        backing: PathBuf,
    },
    /// A ublk device, found by the mark that its maker gave it.
    Ublk {
        /// Name of the volume.
        name: String,
        /// The number that the driver keeps for the device's server.
        mark: u64,
    },
    /// A mount point of a FUSE file system.
    Mount(PathBuf),
    /// A symbolic link.
    Link(PathBuf),
    /// A Unix socket.
    Socket(PathBuf),
    /// A directory, removed when it is empty.
    Directory(PathBuf),
}
