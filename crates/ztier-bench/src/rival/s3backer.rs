//! s3backer: a file whose blocks are objects of a bucket, by FUSE.
//!
//! Invariant: it runs in the foreground as a child, and its file system is unmounted when it is
//! dropped.

use crate::sys::command::{Running, exists, undo};
use crate::sys::interrupt;
use crate::sys::workdir::{Tree, WorkDir};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};
use ztier::media::mounts::mounts;
use ztier_s3::{BUCKET, KEY, SECRET};

/// Name in reports.
pub const NAME: &str = "s3backer";
/// Limit on the time until it is mounted, and on unmounting it.
const LIMIT: Duration = Duration::from_secs(60);
const FILE: &str = "file";

/// A mounted file. Fields are dropped in order.
pub struct S3backer {
    mount: Mount,
    server: Running,
    file: PathBuf,
    _key: Tree,
    _dir: WorkDir,
}

/// A mount point, unmounted when dropped.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        if !mounts().iter().any(|mount| mount.point == self.0) {
            return;
        }
        let lazily = || undo("umount", &[Path::new("--lazy"), &self.0], LIMIT);
        let _ = undo("umount", &[&self.0], LIMIT).or_else(|_| lazily());
    }
}

impl S3backer {
    /// A file of `size` bytes in the store at `endpoint`, with names that begin with `prefix`. If
    /// `synced`, what was written is in the store before the write returns; otherwise after a
    /// while, and `fsync` does not change that.
    ///
    /// # Errors
    /// It is not installed, or does not come up.
    pub fn new(endpoint: &str, prefix: &str, size: u64, synced: bool) -> Result<Self> {
        if !exists("s3backer") {
            return Err(Error::failure("s3backer is not installed"));
        }
        let (dir, key) = (WorkDir::new("s3backer")?, Tree::new("key")?);
        let access = key.path().join("access");
        std::fs::write(&access, format!("{KEY}:{SECRET}\n")).context("cannot write a key")?;
        let point = dir.path().to_owned();
        // Without this run its requests would be repeated for a long time.
        let mut args: Vec<String> = ["--pdeathsig", "KILL", "s3backer"].map(str::to_owned).into();
        args.extend([
            "-f".to_owned(),
            "--quiet".to_owned(),
            "--blockSize=4k".to_owned(),
            format!("--baseURL={endpoint}/"),
            format!("--accessFile={}", access.display()),
            format!("--prefix={prefix}"),
            format!("--size={size}"),
            format!("--filename={FILE}"),
        ]);
        if synced {
            args.extend(["--blockCacheSync", "--blockCacheWriteDelay=0"].map(str::to_owned));
        }
        args.extend([BUCKET.to_owned(), point.display().to_string()]);
        let server = Running::start("setpriv", &args)?;
        let file = point.join(FILE);
        let mut new = Self { mount: Mount(point), server, file, _key: key, _dir: dir };
        let end = Instant::now() + LIMIT;
        while !new.file.exists() {
            if !new.server.alive() || Instant::now() > end {
                let text = "s3backer did not come up (no FUSE here, or not root?)";
                return Err(Error::failure(text));
            }
            interrupt::sleep(Duration::from_millis(20))?;
        }
        Ok(new)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// Unmounts it, and waits until all that was written is in the store.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn end(mut self) -> Result<()> {
        undo("umount", &[&self.mount.0], LIMIT)?;
        let end = Instant::now() + LIMIT;
        while self.server.alive() {
            if Instant::now() > end {
                return Err(Error::failure("s3backer does not end"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
