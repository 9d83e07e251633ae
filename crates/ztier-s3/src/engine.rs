//! Servers of S3. They are built once by `go install`, into `$ZTIER_S3_CACHE` or `ztier/s3` in the
//! user's cache directory.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The key that each server knows.
pub const KEY: &str = "AKIAZTIERTEST";
/// Its secret.
pub const SECRET: &str = "a-secret-that-nothing-may-show";
/// The bucket of each server; MinIO has none until it is made.
pub const BUCKET: &str = "bucket";

/// Limit on the time until a server answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between looks at a program.
const LOOK: Duration = Duration::from_millis(10);
/// Seconds that a build may take.
const BUILD_S: &str = "1200";

/// A server that can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Small, in memory; looks at no signature.
    Gofakes3,
    /// Checks signatures; its objects are files.
    Versitygw,
    /// Checks signatures, and syncs.
    Minio,
}

/// Why there is no server.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// It can't be had here.
    Absent(String),
    /// It should be there, and is not.
    Failed(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Absent(text) | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

/// A `Failed` of an error.
fn failed(what: &str) -> impl Fn(std::io::Error) -> Trouble {
    move |e| Trouble::Failed(format!("{what}: {e}"))
}

impl Kind {
    /// Name, module, and the variable without which it is left out, because building it takes
    /// minutes.
    fn about(self) -> (&'static str, &'static str, Option<&'static str>) {
        match self {
            Self::Gofakes3 => {
                ("gofakes3", "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0", None)
            }
            Self::Versitygw => {
                let module = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
                ("versitygw", module, None)
            }
            Self::Minio => {
                let module = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c";
                ("minio", module, Some("ZTIER_S3_MINIO"))
            }
        }
    }

    /// Name and version.
    pub fn name(self) -> String {
        let (name, module, _) = self.about();
        format!("{name} {}", module.split('@').next_back().unwrap_or_default())
    }

    /// Whether it was built before.
    pub fn is_built(self) -> bool {
        self.built().exists()
    }

    /// Where the program is once it was built.
    fn built(self) -> PathBuf {
        let (name, module, _) = self.about();
        let version = module.split('@').next_back().unwrap_or_default();
        cache().join(format!("{name}-{version}"))
    }

    /// The program, built if it is not there. A build ends when `go_on` says no.
    ///
    /// # Errors
    /// It can't be had here; the cache can't be written.
    pub fn program(self, go_on: &dyn Fn() -> bool) -> Result<PathBuf, Trouble> {
        let (name, module, asks) = self.about();
        if let Some(asks) = asks
            && std::env::var_os(asks).is_none_or(|said| said != "yes")
        {
            let text = format!("{name} takes minutes to build; {asks}=yes tries it, too");
            return Err(Trouble::Absent(text));
        }
        let program = self.built();
        // Its name appears when it is whole, so it needs no lock.
        if program.exists() {
            return Ok(program);
        }
        let dir = cache();
        let in_cache = format!("cannot write {}", dir.display());
        fs::create_dir_all(&dir).map_err(failed(&in_cache))?;
        // Tests, programs of tests and benchmarks run beside each other.
        let lock = File::create(dir.join("lock")).map_err(failed(&in_cache))?;
        lock.lock().map_err(failed(&in_cache))?;
        if program.exists() {
            return Ok(program);
        }
        // Only the holder of the lock has this directory, so one that is there is a dead one's.
        let work = dir.join("building");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir(&work).map_err(failed(&in_cache))?;
        let built = build(module, &work, go_on)
            .and_then(|()| fs::rename(work.join(name), &program).map_err(|e| e.to_string()));
        let _ = fs::remove_dir_all(&work);
        built.map(|()| program).map_err(|why| Trouble::Absent(format!("no {name}: {why}")))
    }

    fn command(self, program: &Path, dir: &Path, address: SocketAddr) -> Command {
        let address = address.to_string();
        let mut command = tied(program, "KILL");
        match self {
            Self::Gofakes3 => {
                command.args(["-backend", "memory", "-host", &address, "-initialbucket", BUCKET]);
            }
            Self::Versitygw => {
                command.args(["--port", &address]);
                command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
            }
            Self::Minio => {
                command.args(["server", "--address", &address]).arg(dir);
                command.env("MINIO_ROOT_USER", KEY).env("MINIO_ROOT_PASSWORD", SECRET);
            }
        }
        command
    }
}

/// A command that gets this signal when the thread that starts it ends, also by SIGKILL.
fn tied(program: &Path, signal: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut command = if std::env::split_paths(&path).any(|dir| dir.join("setpriv").is_file()) {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", signal]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Has `go install` put the program of a module into `work`; else says why not.
fn build(module: &str, work: &Path, go_on: &dyn Fn() -> bool) -> Result<(), String> {
    let said = work.join("said");
    let log = File::create(&said).map_err(|e| e.to_string())?;
    // `timeout` passes SIGTERM on to the build.
    let mut install = tied(Path::new("timeout"), "TERM");
    install.args(["-k", "5", BUILD_S, "go", "install", module]);
    install.env("GOBIN", work).env("GOTMPDIR", work).stderr(log);
    let mut child = Owned(install.spawn().map_err(|e| e.to_string())?);
    loop {
        match child.0.try_wait().map_err(|e| e.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => {
                let text = fs::read_to_string(&said).unwrap_or_default();
                return Err(text.lines().last().unwrap_or("the build failed").to_owned());
            }
            None if !go_on() => {
                let pid = rustix::process::Pid::from_child(&child.0);
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                let _ = child.0.wait(); // -k bounds it
                return Err("interrupted".to_owned());
            }
            None => std::thread::sleep(LOOK),
        }
    }
}

fn cache() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("ZTIER_S3_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("ztier/s3")))
        .or_else(|| Some(variable("HOME")?.join(".cache/ztier/s3")))
        .unwrap_or_else(|| std::env::temp_dir().join("ztier-s3"))
}

/// A child that ends with its owner.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Certificate and key of a server with TLS.
#[derive(Clone, Copy, Debug)]
pub struct Tls<'a> {
    /// File of the certificate.
    pub certificate: &'a Path,
    /// File of its key.
    pub key: &'a Path,
}

/// A server at work, ended when dropped.
pub struct Engine {
    /// What it is.
    pub kind: Kind,
    /// Where it listens.
    pub address: SocketAddr,
    process: Owned,
    is_tls: bool,
}

impl Engine {
    /// Starts a server that has its objects in `dir`; the thread that calls this must live as long.
    /// `tls` is for versitygw. Building it, and the wait for it, end when `go_on` says no.
    ///
    /// # Errors
    /// As [`Kind::program`]; the server does not answer.
    pub fn start(
        kind: Kind,
        dir: &Path,
        tls: Option<Tls<'_>>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Self, Trouble> {
        let program = kind.program(go_on)?;
        let address = free_address().map_err(failed("no free port on loopback"))?;
        let mut command = kind.command(&program, dir, address);
        if kind == Kind::Versitygw {
            let bucket = dir.join(BUCKET);
            fs::create_dir(&bucket)
                .map_err(failed(&format!("cannot make {}", bucket.display())))?;
            if let Some(tls) = tls {
                command.arg("--cert").arg(tls.certificate).arg("--key").arg(tls.key);
            }
            command.arg("posix").arg(dir);
        }
        let (name, _, _) = kind.about();
        let child = command.spawn().map_err(failed(&format!("cannot start {name}")))?;
        let mut engine = Self { kind, address, process: Owned(child), is_tls: tls.is_some() };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let ended = !matches!(engine.process.0.try_wait(), Ok(None));
            if ended || Instant::now() > deadline || !go_on() {
                return Err(Trouble::Failed(format!("{name} does not answer at {address}")));
            }
            std::thread::sleep(LOOK);
        }
        Ok(engine)
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http{}://{}", if self.is_tls { "s" } else { "" }, self.address)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.0.id()
    }
}

/// An address that no other has now.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
