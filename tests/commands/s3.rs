//! A volume in a bucket, by servers of S3 on loopback: what was flushed outlives daemons and moves
//! to other hosts, also behind a network with faults; what can't be is one line; secrets show
//! nowhere.
#![cfg(feature = "object-store")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::place::content;
use crate::support::s3_engine::{BUCKET, Engine, KEY, Kind, SECRET};
use crate::support::sandbox::{Done, Sandbox, eventually, finish, finish_within};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use ztier_s3::{FAULTS, Proxy};

const BLOCK: u64 = 4096;
/// Limit on a command whose store fails now and then.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bucket at an endpoint, and the hosts that share it.
struct Bucket {
    hosts: [Sandbox; 2],
    endpoint: String,
}

impl Bucket {
    fn new(endpoint: String) -> Self {
        Self { hosts: [Sandbox::new(), Sandbox::new()], endpoint }
    }

    /// A command with the environment of this bucket, and nothing else of S3.
    fn command(&self, host: usize, args: &[&str]) -> Command {
        let mut command = self.hosts[host].command(args);
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter(|name| name.starts_with("AWS_")).for_each(|name| {
            command.env_remove(name);
        });
        command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command.env("AWS_REGION", "us-east-1").env("AWS_ENDPOINT_URL", &self.endpoint);
        command
    }

    fn ztier(&self, host: usize, args: &[&str]) -> Done {
        finish_within(self.command(host, args), PATIENCE)
    }

    fn up(&self, host: usize, more: &[&str]) -> Done {
        let place = place("vol");
        let common = ["up", "vol", "--export", "nbd", "--backing", &place];
        self.ztier(host, &[&common[..], more].concat())
    }

    fn disk(&self, host: usize) -> Disk {
        Disk::open(&self.hosts[host].run_dir().join("vol.nbd"), "vol")
    }
}

fn place(prefix: &str) -> String {
    format!("s3://{BUCKET}/test/{prefix}")
}

fn write(disk: &mut Disk, blocks: impl Iterator<Item = u64>, version: u64) {
    for block in blocks {
        disk.write(block * BLOCK, &content(block, version));
    }
}

fn check(disk: &mut Disk, blocks: impl Iterator<Item = u64>, version: u64) {
    for block in blocks {
        let found = disk.read(block * BLOCK, 4096);
        assert!(found == content(block, version), "block {block} is not {version}");
    }
}

#[test]
fn what_was_flushed_outlives_the_daemon_and_moves_to_another_host() {
    for engine in Engine::all() {
        println!("with {:?}", engine.kind);
        let bucket = Bucket::new(engine.endpoint());
        let none = ["--log", "none"];
        bucket.up(0, &none).refused(2, &["has no volume yet; give its size, like --size 1T"]);
        bucket.up(0, &["--log", "none", "--size", "1T"]).ok();
        let mut disk = bucket.disk(0);
        assert_eq!(disk.size, 1 << 40);
        let end = (1 << 40) / BLOCK;
        let some = || (0..100).chain(end - 50..end);
        write(&mut disk, some(), 1);
        disk.flush();
        bucket.hosts[0].kill("vol");
        drop(disk);
        bucket.up(0, &["--log", "none", "--ram-limit", "0"]).ok();
        let mut disk = bucket.disk(0);
        check(&mut disk, some(), 1);
        // Larger than one object.
        let large: Vec<u8> = (1000..4000).flat_map(|block| content(block, 2)).collect();
        for (at, piece) in large.chunks(1 << 20).enumerate() {
            disk.write(1000 * BLOCK + ((at as u64) << 20), piece);
        }
        disk.flush();
        check(&mut disk, (1000..4000).step_by(37), 2);
        // The service's clock says how old the owner's last sign is.
        bucket.up(1, &none).refused(4, &["is in use by vol on ", " s ago; take it down there"]);
        bucket.up(1, &["--log", "none", "--force"]).ok();
        let mut other = bucket.disk(1);
        check(&mut other, some(), 1);
        check(&mut other, (1000..4000).step_by(91), 2);
        write(&mut other, 0..10, 3);
        other.flush();
        // The first owner writes nothing more.
        write(&mut disk, 0..10, 4);
        assert_ne!(disk.flush_error(), 0);
        let found = bucket.ztier(0, &["status", "vol"]);
        assert!(found.out.contains("was taken over by vol on "), "{}", found.out);
        drop(disk);
        bucket.ztier(0, &["down", "vol", "--discard"]).ok();
        check(&mut other, 0..10, 3);
        drop(other);
        bucket.ztier(1, &["set", "vol", "size=2T"]).ok();
        bucket.ztier(1, &["down", "vol"]).ok();
        // An owner that ended in order is not waited for.
        bucket.up(0, &none).ok();
        let mut disk = bucket.disk(0);
        assert_eq!(disk.size, 2 << 40);
        check(&mut disk, 0..10, 3);
        let told = bucket.ztier(0, &["status", "vol"]).ok();
        assert!(told.contains(&place("vol")), "{told}");
    }
}

#[test]
fn a_log_stands_before_a_bucket() {
    let Some(engine) = Engine::start(Kind::Gofakes3) else { return };
    let bucket = Bucket::new(engine.endpoint());
    let log = bucket.hosts[0].path().join("log");
    fs::File::create(&log).unwrap().set_len(64 << 20).unwrap();
    bucket.up(0, &["--log", log.to_str().unwrap(), "--size", "1G"]).ok();
    let mut disk = bucket.disk(0);
    write(&mut disk, 0..200, 1);
    disk.flush();
    bucket.hosts[0].kill("vol");
    drop(disk);
    bucket.up(0, &["--log", log.to_str().unwrap()]).ok();
    check(&mut bucket.disk(0), 0..200, 1);
    bucket.ztier(0, &["down", "vol", "--drain"]).ok();
    bucket.up(1, &["--log", "none"]).ok();
    check(&mut bucket.disk(1), 0..200, 1);
}

#[test]
fn a_service_that_does_not_answer_holds_no_end_up() {
    let Some(engine) = Engine::start(Kind::Gofakes3) else { return };
    let proxy = Proxy::new(engine.address, Seed::new().0).unwrap();
    let bucket = Bucket::new(proxy.endpoint());
    let log = bucket.hosts[0].path().join("log").display().to_string();
    let with = ["--log", &log, "--log-size", "64M", "--max-unsent", "64M,1s"];
    bucket.up(0, &[&with[..], &["--size", "1G"]].concat()).ok();
    proxy.latency(Duration::from_secs(600));
    let mut disk = bucket.disk(0);
    write(&mut disk, 0..50, 1);
    disk.flush();
    drop(disk);
    // A window is on its way by then.
    std::thread::sleep(Duration::from_secs(3));
    let began = std::time::Instant::now();
    bucket.ztier(0, &["down", "vol"]).ok();
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    proxy.latency(Duration::ZERO);
    bucket.up(0, &["--log", &log]).ok();
    check(&mut bucket.disk(0), 0..50, 1);
    bucket.ztier(0, &["down", "vol", "--drain"]).ok();
}

#[test]
fn a_bucket_is_probed() {
    for engine in Engine::all() {
        let bucket = Bucket::new(engine.endpoint());
        let doctor = || bucket.ztier(0, &["doctor", &place("probed")]);
        let told = doctor().ok();
        assert!(told.contains("of racing writers one succeeds"), "{told}");
        // A probe leaves nothing that another would stumble on. What stays on this machine goes
        // through no proxy.
        let mut again = bucket.command(0, &["doctor", &place("probed")]);
        again.env("HTTP_PROXY", "http://127.0.0.1:9").env("http_proxy", "http://127.0.0.1:9");
        again.env_remove("NO_PROXY").env_remove("no_proxy");
        finish(again).ok();
        if engine.kind != Kind::Gofakes3 {
            let mut wrong = bucket.command(0, &["doctor", &place("probed")]);
            wrong.env("AWS_SECRET_ACCESS_KEY", "another");
            finish(wrong).refused(1, &["403 SignatureDoesNotMatch", "look at AWS_ACCESS_KEY_ID"]);
        }
    }
}

#[test]
fn a_service_with_tls_is_trusted_by_its_certificate_alone() {
    let Some(engine) = Engine::start_tls() else { return };
    let bucket = Bucket::new(engine.endpoint());
    let doctor = |certificates: &Path| {
        let mut doctor = bucket.command(0, &["doctor", &place("vol")]);
        doctor.env("SSL_CERT_FILE", certificates).env_remove("SSL_CERT_DIR");
        finish(doctor)
    };
    doctor(&engine.certificate()).ok();
    // That of another server.
    let Some(other) = Engine::start_tls() else { return };
    doctor(&other.certificate()).refused(1, &["invalid peer certificate"]);
}

/// Prints the seed of a test that fails.
struct Seed(u64);

impl Seed {
    fn new() -> Self {
        let said = std::env::var("ZTIER_S3_SEED").ok();
        Self(said.map_or(20_261_129, |seed| seed.parse().unwrap()))
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with ZTIER_S3_SEED={}", self.0);
        }
    }
}

/// Blocks of the test with faults.
const BLOCKS: u64 = 64;

/// Reads all blocks: a fault of the network is no error of a read.
fn versions(disk: &mut Disk, expected: &[u64]) {
    for (block, version) in (0..).zip(expected) {
        let found = disk.read(block * BLOCK, 4096);
        let right = if *version == 0 { vec![0; 4096] } else { content(block, *version) };
        assert!(found == right, "block {block} is not {version}");
    }
}

#[test]
fn what_was_flushed_is_there_whatever_the_network_does() {
    through_faults(false);
}

#[test]
fn what_a_log_has_gets_there_whatever_the_network_does() {
    through_faults(true);
}

/// Writes, flushes, and ends the daemon again and again, through a network that loses, repeats and
/// cuts requests and answers. With logs, each host has its own.
fn through_faults(logged: bool) {
    let Some(engine) = Engine::start(Kind::Gofakes3) else { return };
    let seed = Seed::new();
    let proxy = Proxy::new(engine.address, seed.0).unwrap();
    let bucket = Bucket::new(proxy.endpoint());
    let up = |host: usize, more: &[&str]| {
        let log = bucket.hosts[host].path().join("log").display().to_string();
        let with = ["--log", &log, "--log-size", "64M", "--max-unsent", "8M,1s"];
        let on = if logged { &with[..] } else { &["--log", "none"] };
        bucket.up(host, &[on, &["--ram-limit", "0"], more].concat()).ok();
    };
    up(0, &["--size", "1G"]);
    proxy.faults(4);
    let mut host = 0;
    let mut disk = bucket.disk(host);
    let mut written = vec![0; BLOCKS as usize];
    for round in 1..=60_u64 {
        let first = round * 7 % BLOCKS;
        for block in first..(first + 5).min(BLOCKS) {
            disk.write(block * BLOCK, &content(block, round));
            written[block as usize] = round;
        }
        if round == 20 {
            proxy.outage(true);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_secs(3));
                    proxy.outage(false);
                });
                disk.flush();
            });
        }
        disk.flush();
        if logged {
            // Windows are on the way when the daemon dies.
            std::thread::sleep(Duration::from_millis(50 * (round % 4)));
        }
        if round % 10 == 0 {
            versions(&mut disk, &written);
        }
        if round % 15 == 0 {
            // The daemon dies, and its volume goes on here, or elsewhere.
            let elsewhere = round % 30 == 0;
            let in_order = elsewhere && logged;
            if !in_order {
                bucket.hosts[host].kill("vol");
            }
            drop(disk);
            if in_order {
                bucket.ztier(host, &["down", "vol", "--drain"]).ok();
            }
            host = if elsewhere { 1 - host } else { host };
            up(host, if elsewhere { &["--force"] } else { &[] });
            disk = bucket.disk(host);
            versions(&mut disk, &written);
        }
    }
    drop(disk);
    let happened = proxy.happened();
    assert!(logged || FAULTS.iter().all(|fault| happened.contains_key(fault)), "{happened:?}");
    proxy.faults(0);
    let drain: &[&str] = if logged { &["--drain"] } else { &[] };
    bucket.ztier(host, &[&["down", "vol"], drain].concat()).ok();
    bucket.up(1 - host, &["--log", "none"]).ok();
    versions(&mut bucket.disk(1 - host), &written);
}

#[test]
fn what_can_not_be_is_one_line_and_soon() {
    let Some(engine) = Engine::start(Kind::Gofakes3) else { return };
    let proxy = Proxy::new(engine.address, 1).unwrap();
    let bucket = Bucket::new(proxy.endpoint());
    let up = |place: &str, change: &dyn Fn(&mut Command)| {
        let args = ["up", "vol", "--export", "nbd", "--log", "none", "--size", "1G", "--backing"];
        let mut command = bucket.command(0, &[&args[..], &[place]].concat());
        change(&mut command);
        let (begun, done) = (Instant::now(), finish(command));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        for text in [&done.out, &done.err] {
            assert!(!text.contains(SECRET), "{text}");
        }
        done
    };
    let as_is = |_: &mut Command| {};
    let with = |name: &'static str, value: &'static str| {
        move |command: &mut Command| {
            command.env(name, value);
        }
    };
    let good = place("vol");
    up("s3://bucket", &as_is).refused(2, &["names no bucket and prefix; write it like s3://"]);
    up("s3://bucket/a/../b", &as_is).refused(2, &["a prefix is words of"]);
    up(&format!("s3://{KEY}:{SECRET}@bucket/p"), &as_is).refused(2, &["is no place of a store"]);
    up("s3://no-such-bucket/a", &as_is).refused(1, &["there is no such bucket"]);
    up(&good, &with("AWS_ENDPOINT_URL", "http://192.0.2.1:9000"))
        .refused(2, &["AWS_ENDPOINT_URL is without TLS", "AWS_ALLOW_HTTP=true"]);
    up(&good, &with("AWS_ENDPOINT_URL", "no-url")).refused(2, &["is no endpoint"]);
    let half = |command: &mut Command| {
        command.env_remove("AWS_SECRET_ACCESS_KEY");
    };
    up(&good, &half).refused(2, &["of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing"]);
    let swap = ["--log", "none", "--size", "1G", "--use", "swap"];
    bucket.up(0, &swap).refused(2, &["leave out use"]);
    // Rights and keys that the service refuses.
    for (refusal, text) in [
        ((403, "AccessDenied"), "403 AccessDenied: the key needs the right s3:GetObject"),
        ((403, "SignatureDoesNotMatch"), "look at AWS_ACCESS_KEY_ID and its secret"),
        ((403, "InvalidAccessKeyId"), "look at AWS_ACCESS_KEY_ID and its secret"),
        ((301, "PermanentRedirect"), "set AWS_REGION"),
    ] {
        proxy.refuse(Some(refusal));
        up(&good, &as_is).refused(1, &["cannot read s3://bucket/test/vol/root: ", text]);
        bucket.ztier(0, &["doctor", &good]).refused(1, &["can't be used"]);
    }
    // What is no word of the store says nothing of a key.
    proxy.refuse(Some((404, "NotFound")));
    bucket.ztier(0, &["doctor", &good]).refused(1, &["the store says 404 NotFound"]);
    proxy.refuse(None);
    // No credentials, and a machine whose metadata never answer.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let metadata = format!("http://{}", silent.local_addr().unwrap());
    up(&good, &|command| {
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        command.env("AWS_METADATA_ENDPOINT", &metadata);
    })
    .refused(1, &["no credentials: no answer in time (set AWS_ACCESS_KEY_ID"]);
    let refused = |place: &str| {
        let mut command = bucket.command(0, &["doctor", place]);
        command.env("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
        finish(command).refused(1, &["Connection refused"])
    };
    refused(&good);
    assert_eq!(bucket.hosts[0].files(), [""; 0]);
}

/// All files below a directory that have one of these texts.
fn telling(dir: &Path, texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.extend(telling(&path, texts));
        } else if entry.file_type().unwrap().is_file() {
            let content = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            if texts.iter().any(|text| content.contains(text)) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[test]
fn secrets_show_nowhere() {
    let Some(engine) = Engine::start(Kind::Gofakes3) else { return };
    let proxy = Proxy::new(engine.address, 1).unwrap();
    let bucket = Bucket::new(proxy.endpoint());
    let token = "a-session-token-that-nothing-may-show";
    let secrets = [SECRET, token];
    let place = place("vol");
    let args = ["up", "vol", "--export", "nbd", "--backing", &place, "--log", "none", "--save"];
    let mut up = bucket.command(0, &[&args[..], &["--size", "1G"]].concat());
    up.env("AWS_SESSION_TOKEN", token);
    finish(up).ok();
    let mut disk = bucket.disk(0);
    write(&mut disk, 0..10, 1);
    disk.flush();
    // Failures that are told, too.
    proxy.refuse(Some((403, "SignatureDoesNotMatch")));
    write(&mut disk, 0..10, 2);
    let told = |args: &[&str]| {
        let done = bucket.ztier(0, args);
        let text = format!("{}{}", done.out, done.err);
        assert!(secrets.iter().all(|secret| !text.contains(secret)), "{text}");
        text
    };
    eventually("the refusal is told", || told(&["status", "vol"]).contains("look at AWS_ACCESS"));
    for args in [&["status", "vol", "--json"][..], &["stats", "vol"], &["list"]] {
        told(args);
    }
    proxy.refuse(None);
    disk.flush();
    drop(disk);
    // `ps` shows this; what is in a process's environment, only its user may read.
    let pid = bucket.hosts[0].pid("vol").as_raw_nonzero();
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(secrets.iter().all(|secret| !line.contains(secret)), "{line}");
    let found = telling(bucket.hosts[0].path(), &secrets);
    assert!(found.is_empty(), "{found:?}");
    // The search finds what is there.
    assert!(!telling(bucket.hosts[0].path(), &["test/vol"]).is_empty());
    bucket.ztier(0, &["down", "vol"]).ok();
    let found = telling(bucket.hosts[0].path(), &secrets);
    assert!(found.is_empty(), "{found:?}");
}
