//! nbdkit's memory disk with the zstd allocator, on a Unix socket.

use crate::sys::command::{Running, exists};
use crate::sys::interrupt;
use crate::sys::workdir::WorkDir;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use ztier::error::{Error, Result};

/// Name in reports.
pub const NAME: &str = "nbdkit memory zstd";

/// A running server. Fields are dropped in order: process, directory.
pub struct Nbdkit {
    _server: Running,
    socket: Socket,
    _dir: WorkDir,
}

struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Nbdkit {
    /// Serves `size` bytes.
    ///
    /// # Errors
    /// nbdkit is not installed, or does not come up.
    pub fn new(size: u64) -> Result<Self> {
        if !exists("nbdkit") {
            return Err(Error::failure("nbdkit is not installed"));
        }
        let dir = WorkDir::new("nbdkit")?;
        let socket = Socket(dir.path().join("socket"));
        let path = socket.0.to_string_lossy();
        let args = [
            "--foreground",
            "--exit-with-parent",
            "--unix",
            &path,
            "memory",
            &format!("size={size}"),
            "allocator=zstd",
        ];
        let mut server = Running::start("nbdkit", &args)?;
        let end = Instant::now() + Duration::from_secs(5);
        while std::os::unix::net::UnixStream::connect(&socket.0).is_err() {
            if !server.alive() || Instant::now() > end {
                return Err(Error::failure("nbdkit did not come up (no zstd allocator in it?)"));
            }
            interrupt::sleep(Duration::from_millis(10))?;
        }
        drop(path);
        Ok(Self { _server: server, socket, _dir: dir })
    }

    /// Its NBD URI.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.0.display())
    }
}
