//! A device of this process behind the product's exports: a block device by FUSE and a loop device,
//! and an NBD server on its own socket.

use crate::sys::workdir::WorkDir;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ztier::device::Device;
use ztier::error::{Error, Result};
use ztier::export::Export;
use ztier::export::fuse::{FuseLoop, Options as FuseOptions};
use ztier::export::nbd::{Listen, MAX_CONNECTIONS, Options as NbdOptions, Server};
use ztier::system::helper::Helper;

/// Limit on the requests in flight on a modelled drive: threads that serve it.
pub const QUEUE: usize = 16;

/// A device behind FUSE and a loop device. Fields are dropped in order.
pub struct Served {
    export: FuseLoop,
    device: PathBuf,
    _dir: WorkDir,
}

impl Served {
    /// Serves `device`; `name` distinguishes it within this run.
    ///
    /// # Errors
    /// The export does not work here.
    pub fn new(device: Arc<dyn Device>, name: &str) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Self::by(device, name, threads)
    }

    /// Serves `device` with `threads` threads: at most as many requests are in flight.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn by(device: Arc<dyn Device>, name: &str, threads: usize) -> Result<Self> {
        let dir = WorkDir::new(name)?;
        let export = FuseLoop::start(
            device,
            FuseOptions {
                name: format!("bench-{}-{name}", std::process::id()),
                run_dir: dir.path().to_owned(),
                link_dir: dir.path().join("link"),
                threads,
                block_device: true,
                sector: ztier::device::Sector::Block,
                helper: Helper::Here,
            },
        )?;
        let device = export
            .loop_device()
            .map(Path::to_owned)
            .ok_or_else(|| Error::failure("the FUSE export made no block device"))?;
        Ok(Self { export, device, _dir: dir })
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(e) = self.export.stop() {
            crate::report::warn(&e.to_string());
        }
    }
}

/// A device behind an NBD server. Fields are dropped in order.
pub struct ServedNbd {
    server: Server,
    uri: String,
    _dir: WorkDir,
}

impl ServedNbd {
    /// Serves `device` as `name`.
    ///
    /// # Errors
    /// No socket, no thread.
    pub fn new(device: Arc<dyn Device>, name: &str) -> Result<Self> {
        let dir = WorkDir::new(name)?;
        let options = NbdOptions {
            name: name.into(),
            listen: vec![Listen::Unix(dir.path().join(name))],
            max_connections: MAX_CONNECTIONS,
        };
        let server = Server::start(device, options)?;
        let uri = server.endpoints().first().cloned();
        let uri = uri.ok_or_else(|| Error::failure("the NBD server has no URI"))?;
        Ok(Self { server, uri, _dir: dir })
    }

    /// The NBD URI.
    pub fn uri(&self) -> &str {
        &self.uri
    }
}

impl Drop for ServedNbd {
    fn drop(&mut self) {
        if let Err(e) = self.server.stop() {
            crate::report::warn(&e.to_string());
        }
    }
}
