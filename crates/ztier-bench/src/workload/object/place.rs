//! The stores of a run: a bucket behind a proxy with a latency, and a directory.
//!
//! Invariants: each volume has a prefix or directory of its own; without a server of S3 the reason
//! is reported, and the directory is still measured.

use super::Plan;
use crate::report::{Report, say};
use crate::rival::stored::Host;
use crate::sys::interrupt;
use crate::sys::workdir::Tree;
use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ztier::error::{Context, Result};
use ztier_s3::{BUCKET, Counts, Engine, KEY, Kind, Proxy, SECRET};

/// The largest latency that a volume can do with.
pub const LATENCY_MAX_MS: u64 = 2000;
const ENGINE: Kind = Kind::Versitygw;
/// Limit on the time of the check of a store.
const DOCTOR_LIMIT: Duration = Duration::from_secs(60);

/// A store in which volumes are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// A directory.
    Directory,
    /// A bucket whose requests take this many milliseconds more.
    Bucket(u64),
}

impl Spot {
    /// Name in tables.
    pub fn name(self) -> String {
        match self {
            Self::Directory => "directory".into(),
            Self::Bucket(ms) => format!("s3 {ms} ms"),
        }
    }

    /// Name in the names of ratios.
    pub fn word(self) -> String {
        match self {
            Self::Directory => "directory".into(),
            Self::Bucket(ms) => format!("{ms}ms"),
        }
    }
}

/// A server of S3 and what is before it. Fields are dropped in order.
struct Bucket {
    proxy: Proxy,
    _engine: Engine,
    _dir: Tree,
}

/// See the module.
pub struct Stores {
    bucket: std::result::Result<Bucket, String>,
    files: Tree,
    next: Cell<u32>,
    latencies: Vec<u64>,
}

impl Stores {
    /// Starts the server, and builds it if it was never built here.
    ///
    /// # Errors
    /// There is no room for files; interrupted.
    pub fn open(plan: &Plan) -> Result<Self> {
        say(&format!(
            "starting {} (the first time it is built, which takes minutes)",
            ENGINE.name()
        ));
        let bucket = Bucket::open().map_err(|e| e.to_string());
        interrupt::check()?;
        let latencies = plan.latencies.clone();
        let mut stores =
            Self { bucket, files: Tree::large("files")?, next: Cell::new(0), latencies };
        // A build without the feature, or a server that a volume can't use.
        if stores.bucket.is_ok()
            && let Err(e) = stores.check()
        {
            interrupt::check()?;
            stores.bucket = Err(e.to_string());
        }
        Ok(stores)
    }

    fn check(&self) -> Result<()> {
        let place = self.place(Spot::Bucket(0));
        Host::new(&self.access())?.ztier(&["doctor", &place], DOCTOR_LIMIT).map(drop)
    }

    /// Reports what the stores are, and what there is none of.
    pub fn describe(&self, report: &mut Report) {
        match &self.bucket {
            Ok(_) => {
                let text = "behind a proxy on the same machine, which delays each request; a \
                            connection costs nothing, bandwidth has no limit, no TLS";
                super::note(report, "object", "store", format!("{}, {text}", ENGINE.name()));
            }
            Err(reason) => {
                super::missing(report, "object", "s3", format!("skipped: {reason}"));
            }
        }
    }

    /// The stores that can be had: a bucket at each latency, and a directory.
    pub fn spots(&self) -> Vec<Spot> {
        let mut all = vec![Spot::Directory];
        if self.bucket.is_ok() {
            all.extend(self.latencies.iter().map(|ms| Spot::Bucket(*ms)));
        }
        all
    }

    /// Those for which a run has time: a quick one leaves out the directory.
    pub fn chosen(&self, plan: &Plan) -> Vec<Spot> {
        if plan.quick { self.buckets() } else { self.spots() }
    }

    /// The bucket at each latency, or the directory where there is none.
    pub fn buckets(&self) -> Vec<Spot> {
        let mut all = self.spots();
        if self.bucket.is_ok() {
            all.remove(0);
        }
        all
    }

    /// The bucket without latency, or the directory.
    pub fn fastest(&self) -> Spot {
        if self.bucket.is_ok() { Spot::Bucket(0) } else { Spot::Directory }
    }

    /// Has requests take the time of `spot` from now on.
    pub fn enter(&self, spot: Spot) {
        if let (Ok(bucket), Spot::Bucket(ms)) = (&self.bucket, spot) {
            bucket.proxy.latency(Duration::from_millis(ms));
        }
    }

    /// A place for a new volume.
    pub fn place(&self, spot: Spot) -> String {
        let n = self.number();
        match spot {
            Spot::Directory => format!("file://{}/store{n}", self.files.path().display()),
            Spot::Bucket(_) => format!("s3://{BUCKET}/bench/{n}"),
        }
    }

    fn number(&self) -> u32 {
        self.next.replace(self.next.get() + 1)
    }

    /// What has passed the proxy so far; `None` of a directory.
    pub fn counts(&self, spot: Spot) -> Option<Counts> {
        match (&self.bucket, spot) {
            (Ok(bucket), Spot::Bucket(_)) => Some(bucket.proxy.counts()),
            _ => None,
        }
    }

    /// The URL of the bucket's service.
    pub fn endpoint(&self) -> Option<String> {
        self.bucket.as_ref().ok().map(|bucket| bucket.proxy.endpoint())
    }

    /// The variables with which a host reaches the stores.
    pub fn access(&self) -> Vec<(String, String)> {
        let of = |(name, value): (&str, String)| (name.to_owned(), value);
        [
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT_URL", self.endpoint().unwrap_or_default()),
        ]
        .map(of)
        .into()
    }

    /// A new host.
    pub fn host(&self) -> Result<Host> {
        Host::new(&self.access())
    }

    /// A path without a file.
    pub fn vacant(&self, what: &str) -> LocalFile {
        LocalFile(self.files.path().join(format!("{what}{}", self.number())))
    }

    /// A new file of zeros, all of which are written: a log or a local backing store.
    ///
    /// # Errors
    /// There is no room.
    pub fn file(&self, what: &str, bytes: u64) -> Result<LocalFile> {
        let made = self.vacant(what);
        let fill = || -> std::io::Result<()> {
            let mut file = File::options().write(true).create_new(true).open(made.path())?;
            rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600))?;
            let zeros = vec![0; 1 << 20];
            for _ in 0..bytes >> 20 {
                file.write_all(&zeros)?;
            }
            file.sync_all()
        };
        fill().context(format!("cannot make {}", made.path().display()))?;
        Ok(made)
    }
}

impl Bucket {
    fn open() -> Result<Self> {
        let dir = Tree::large("s3")?;
        let engine = Engine::start(ENGINE, dir.path(), None, &|| !interrupt::requested())
            .map_err(|trouble| ztier::error::Error::failure(trouble.to_string()))?;
        let proxy = Proxy::new(engine.address, 1).context("cannot start a proxy")?;
        Ok(Self { proxy, _engine: engine, _dir: dir })
    }
}

/// A file, removed when dropped.
pub struct LocalFile(PathBuf);

impl LocalFile {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its path, as an argument.
    pub fn text(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
