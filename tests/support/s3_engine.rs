//! Servers of S3 on loopback, each ended with the test. They are built once by `go install`, into
//! `$ZTIER_S3_CACHE` or `ztier/s3` in the user's cache directory.
#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)]

use super::sandbox::{Guard, eventually};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub const KEY: &str = "AKIAZTIERTEST";
pub const SECRET: &str = "a-secret-that-nothing-may-show";
pub const BUCKET: &str = "bucket";

/// A server that can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Small, in memory; looks at no signature.
    Gofakes3,
    /// Checks signatures.
    Versitygw,
    /// Checks signatures, and syncs.
    Minio,
}

impl Kind {
    /// Its name, its module, and the variable without which it is left out, because building it
    /// takes minutes.
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

    /// The program, built if it is not there; `None`: it can't be had here, and that was said.
    fn program(self) -> Option<PathBuf> {
        let (name, module, asks) = self.about();
        if let Some(asks) = asks
            && std::env::var_os(asks).is_none_or(|said| said != "yes")
        {
            println!("skipped: {name} takes minutes to build; {asks}=yes tries it, too");
            return None;
        }
        let version = module.split('@').next_back().unwrap();
        let dir = cache();
        fs::create_dir_all(&dir).unwrap();
        let program = dir.join(format!("{name}-{version}"));
        // Tests and programs of tests run beside each other.
        let lock = File::create(dir.join("lock")).unwrap();
        lock.lock().unwrap();
        if program.exists() {
            return Some(program);
        }
        let work = tempfile::tempdir_in(&dir).unwrap();
        let mut install = Command::new("timeout");
        install.args(["-k", "5", "1200", "go", "install", module]);
        let built = install.env("GOBIN", work.path()).stdin(Stdio::null()).output();
        let why = match built {
            Ok(built) if built.status.success() => {
                fs::rename(work.path().join(name), &program).unwrap();
                return Some(program);
            }
            Ok(built) => String::from_utf8_lossy(&built.stderr).into_owned(),
            Err(e) => e.to_string(),
        };
        println!("skipped: no {name}: {}", why.lines().last().unwrap_or_default());
        None
    }
}

fn cache() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("ZTIER_S3_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("ztier/s3")))
        .or_else(|| Some(variable("HOME")?.join(".cache/ztier/s3")))
        .unwrap_or_else(|| std::env::temp_dir().join("ztier-s3"))
}

/// A server at work, with the bucket [`BUCKET`].
pub struct Engine {
    pub kind: Kind,
    pub address: SocketAddr,
    _process: Guard,
    dir: tempfile::TempDir,
    is_tls: bool,
}

impl Engine {
    /// `None`: it can't be had here, and that was said.
    pub fn start(kind: Kind) -> Option<Self> {
        Self::start_in(kind, tempfile::tempdir().unwrap(), false)
    }

    /// versitygw with TLS, and with a certificate that no other trusts: [`Engine::certificate`].
    /// `None`: as with [`Engine::start`].
    pub fn start_tls() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut make = Command::new("openssl");
        make.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
        make.args(["-subj", "/CN=ztier", "-addext", "basicConstraints=critical,CA:FALSE"]);
        make.args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key", "-out", "cert"]);
        let made = make.current_dir(dir.path()).stdin(Stdio::null()).output();
        if !made.is_ok_and(|made| made.status.success()) {
            println!("skipped: no openssl to make a certificate");
            return None;
        }
        Self::start_in(Kind::Versitygw, dir, true)
    }

    fn start_in(kind: Kind, dir: tempfile::TempDir, is_tls: bool) -> Option<Self> {
        let program = kind.program()?;
        let address = free_address();
        let mut command = kind.command(&program, dir.path(), address);
        if is_tls {
            let file = |name| dir.path().join(name);
            command = Command::new(&program);
            command.arg("--port").arg(address.to_string());
            command.arg("--cert").arg(file("cert")).arg("--key").arg(file("key"));
            command.arg("posix").arg(dir.path());
            command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        }
        let process = Guard(command.spawn().unwrap());
        let engine = Self { kind, address, _process: process, dir, is_tls };
        eventually("the server answers", || TcpStream::connect(address).is_ok());
        if kind == Kind::Minio {
            engine.make_bucket();
        }
        Some(engine)
    }

    /// All servers that are asked for.
    pub fn all() -> impl Iterator<Item = Self> {
        [Kind::Gofakes3, Kind::Versitygw, Kind::Minio].into_iter().filter_map(Self::start)
    }

    pub fn endpoint(&self) -> String {
        format!("http{}://{}", if self.is_tls { "s" } else { "" }, self.address)
    }

    /// The file with the certificate of a server with TLS.
    pub fn certificate(&self) -> PathBuf {
        self.dir.path().join("cert")
    }

    /// By an address that is signed for this.
    fn make_bucket(&self) {
        use object_store::signer::Signer;
        use std::io::{Read, Write};
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = object_store::aws::AmazonS3Builder::new()
            .with_bucket_name(BUCKET)
            .with_endpoint(self.endpoint())
            .with_allow_http(true)
            .with_access_key_id(KEY)
            .with_secret_access_key(SECRET)
            .build()
            .unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let valid = std::time::Duration::from_secs(60);
        let root = object_store::path::Path::default();
        eventually("the bucket is made", || {
            let put = "PUT".parse().unwrap();
            let url = runtime.block_on(client.signed_url(put, &root, valid)).unwrap();
            let (path, query) = (url.path(), url.query().unwrap());
            let mut server = TcpStream::connect(self.address).unwrap();
            let request = format!(
                "PUT {path}?{query} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                self.address
            );
            server.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            server.read_to_string(&mut answer).unwrap();
            answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 409")
        });
    }
}

impl Kind {
    fn command(self, program: &Path, dir: &Path, address: SocketAddr) -> Command {
        let address = address.to_string();
        let mut command = Command::new(program);
        match self {
            Self::Gofakes3 => {
                command.args(["-backend", "memory", "-host", &address, "-initialbucket", BUCKET]);
            }
            Self::Versitygw => {
                fs::create_dir(dir.join(BUCKET)).unwrap();
                command.args(["--port", &address, "posix"]).arg(dir);
                command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
            }
            Self::Minio => {
                command.args(["server", "--address", &address]).arg(dir);
                command.env("MINIO_ROOT_USER", KEY).env("MINIO_ROOT_PASSWORD", SECRET);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// An address that no other has now.
fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
