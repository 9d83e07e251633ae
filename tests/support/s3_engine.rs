//! Servers of S3 on loopback with a directory of their own, each ended with the test. What can't be
//! had here is said, and left out.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use super::sandbox::eventually;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
pub use ztier_s3::{BUCKET, KEY, Kind, SECRET};
use ztier_s3::{Tls, Trouble};

/// A server at work, with the bucket [`BUCKET`]. Fields are dropped in order.
pub struct Engine {
    pub kind: Kind,
    pub address: SocketAddr,
    server: ztier_s3::Engine,
    dir: tempfile::TempDir,
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
        let files = ["cert", "key"].map(|name| dir.path().join(name));
        let tls = is_tls.then_some(Tls { certificate: &files[0], key: &files[1] });
        let server = match ztier_s3::Engine::start(kind, dir.path(), tls, &|| true) {
            Ok(server) => server,
            Err(Trouble::Absent(why)) => {
                println!("skipped: {why}");
                return None;
            }
            Err(trouble) => panic!("{trouble}"),
        };
        let engine = Self { kind, address: server.address, server, dir };
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
        self.server.endpoint()
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
