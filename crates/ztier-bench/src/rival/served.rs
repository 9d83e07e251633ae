//! A device of this process as a block device, by the product's FUSE and loop export.

use crate::sys::workdir::WorkDir;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ztier::error::{Error, Result};
use ztier::export::Export;
use ztier::export::fuse::{FuseLoop, Options as FuseOptions};
use ztier::volume::Device;

/// A device behind FUSE and a loop device. Fields are dropped in order.
pub struct Served {
    export: FuseLoop,
    device: PathBuf,
    _dir: WorkDir,
}

impl Served {
    /// Serves it; `name` tells it from others of this run.
    ///
    /// # Errors
    /// The export does not work here.
    pub fn new(device: Arc<dyn Device>, name: &str) -> Result<Self> {
        let dir = WorkDir::new(name)?;
        let export = FuseLoop::start(
            device,
            FuseOptions {
                name: format!("bench-{}-{name}", std::process::id()),
                run_dir: dir.path().to_owned(),
                link_dir: dir.path().join("link"),
                threads: std::thread::available_parallelism().map_or(2, usize::from),
                block_device: true,
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
