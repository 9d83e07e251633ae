//! The NBD server with common clients: libnbd's tools, qemu-img, fio.
//!
//! A missing client is reported as skipped.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::nbd::{Fixture, SIZE, Watched, volume};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::device::{Device, Extent, ExtentKind};
use ztier::export::Export;
use ztier::export::nbd::{Listen, Options, Server};

/// Whether `program` is on the path; prints a message if not.
fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|d| d.join(program).is_file());
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// Runs a command for at most a minute.
fn run(line: &[&str]) -> Output {
    Command::new("timeout").arg("60").args(line).output().unwrap()
}

/// Runs a command that has to succeed. Returns its output.
fn succeed(line: &[&str]) -> String {
    let out = run(line);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{line:?}: {}\n{text}\n{error}", out.status);
    text
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// A file of `len` bytes: a third noise, a third text-like, a third holes.
fn image(directory: &Path, len: u64) -> PathBuf {
    let path = directory.join("image");
    let mut bytes = vec![0u8; len as usize];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for (i, piece) in bytes.chunks_mut(64 << 10).enumerate() {
        for (j, b) in piece.iter_mut().enumerate() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            match i % 3 {
                0 => *b = (state >> 33) as u8,
                1 => *b = b"the quick brown fox "[(j + (state >> 62) as usize) % 20],
                _ => {}
            }
        }
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

fn serving() -> (Fixture, String) {
    let f = Fixture::new(volume(SIZE));
    let uri = f.server.endpoints().remove(0);
    (f, uri)
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    if !installed("nbdinfo") {
        return;
    }
    let (f, uri) = serving();
    let all = json(&succeed(&["nbdinfo", "--json", &uri]));
    assert_eq!(all["protocol"], "newstyle-fixed");
    assert_eq!(all["structured"], true);
    let export = &all["exports"][0];
    assert_eq!(export["export-name"], "disk");
    assert_eq!(export["export-size"], SIZE);
    assert_eq!(export["description"], "ztier volume");
    assert_eq!(export["contexts"][0], "base:allocation");
    for (key, value) in [
        ("is_read_only", false),
        ("is_rotational", false),
        ("can_cache", true),
        ("can_df", true),
        ("can_fast_zero", true),
        ("can_flush", true),
        ("can_fua", true),
        ("can_multi_conn", true),
        ("can_trim", true),
        ("can_zero", true),
    ] {
        assert_eq!(export[key], value, "{key}");
    }
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_preferred"], 4096);
    assert_eq!(export["block_size_maximum"], 32 << 20);
    for can in ["connect", "cache", "df", "fast-zero", "flush", "fua", "multi-conn", "trim", "zero"]
    {
        succeed(&["nbdinfo", "--can", can, &uri]);
    }
    assert!(!run(&["nbdinfo", "--is", "read-only", &uri]).status.success());
    assert_eq!(succeed(&["nbdinfo", "--size", &uri]).trim(), SIZE.to_string());
    let list = json(&succeed(&["nbdinfo", "--list", "--json", &uri]));
    assert_eq!(list["exports"][0]["export-name"], "disk");
    // The default export is the same one; no other exists.
    let socket = uri.split_once('?').unwrap().1;
    assert_eq!(
        succeed(&["nbdinfo", "--size", &format!("nbd+unix:///?{socket}")]).trim(),
        SIZE.to_string()
    );
    assert!(!run(&["nbdinfo", &format!("nbd+unix:///other?{socket}")]).status.success());
    drop(f);
}

#[test]
fn maps_show_the_extents() {
    if !installed("nbdinfo") || !installed("qemu-img") {
        return;
    }
    let device = Watched::new();
    *device.map.lock() = vec![
        Extent { len: 1 << 20, kind: ExtentKind::Data },
        Extent { len: 2 << 20, kind: ExtentKind::Hole },
        Extent { len: 4 << 20, kind: ExtentKind::Zero },
    ];
    let f = Fixture::new(device as Arc<dyn Device>);
    let uri = f.server.endpoints().remove(0);
    let map = json(&succeed(&["nbdinfo", "--map", "--json", &uri]));
    let run = |i: usize| {
        let e = &map[i];
        (e["offset"].as_u64().unwrap(), e["length"].as_u64().unwrap(), e["type"].as_u64().unwrap())
    };
    let m = 1 << 20;
    assert_eq!(
        [run(0), run(1), run(2), run(3)],
        [(0, m, 0), (m, 2 * m, 3), (3 * m, 4 * m, 2), (7 * m, SIZE - 7 * m, 0)]
    );
    let map = json(&succeed(&["qemu-img", "map", "--output=json", "-f", "raw", &uri]));
    assert_eq!((&map[0]["length"], &map[0]["data"]), (&m.into(), &true.into()));
    assert_eq!((&map[1]["length"], &map[1]["zero"]), (&(2 * m).into(), &true.into()));
}

#[test]
fn nbdcopy_round_trip_over_several_connections() {
    if !installed("nbdcopy") {
        return;
    }
    let (f, uri) = serving();
    let source = image(f.directory.path(), SIZE);
    let source = source.to_str().unwrap();
    let back = f.directory.path().join("back");
    let back = back.to_str().unwrap();
    let many = ["--connections=4", "--requests=16"];
    succeed(&["nbdcopy", many[0], many[1], "--flush", source, &uri]);
    succeed(&["nbdcopy", many[0], many[1], &uri, back]);
    assert!(std::fs::read(source).unwrap() == std::fs::read(back).unwrap());
    // One volume onto another, synchronously, and in requests of the largest size.
    let (other, other_uri) = serving();
    succeed(&["nbdcopy", "--synchronous", "--request-size=33554432", &uri, &other_uri]);
    let again = other.directory.path().join("again");
    succeed(&["nbdcopy", "--request-size=4096", &other_uri, again.to_str().unwrap()]);
    assert!(std::fs::read(source).unwrap() == std::fs::read(again).unwrap());
}

#[test]
fn qemu_img_converts_in_and_out_and_compares() {
    if !installed("qemu-img") {
        return;
    }
    let (f, uri) = serving();
    let source = image(f.directory.path(), SIZE);
    let source = source.to_str().unwrap();
    let out = f.directory.path().join("out.qcow2");
    let out = out.to_str().unwrap();
    succeed(&["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, &uri]);
    succeed(&["qemu-img", "compare", "-f", "raw", "-F", "raw", source, &uri]);
    succeed(&["qemu-img", "convert", "-f", "raw", "-O", "qcow2", &uri, out]);
    succeed(&["qemu-img", "compare", "-f", "raw", "-F", "qcow2", source, out]);
    assert!(installed("qemu-io"), "comes with qemu-img");
    succeed(&["qemu-io", "-f", "raw", "-c", "write -z -u 1M 3M", "-c", "discard 8M 1M", &uri]);
    succeed(&["qemu-io", "-f", "raw", "-c", "read -P 0 1M 3M", "-c", "read -P 0 8M 1M", &uri]);
    let differs = run(&["qemu-img", "compare", "-f", "raw", "-F", "raw", source, &uri]);
    assert_eq!(differs.status.code(), Some(1), "compare sees the difference");
}

#[test]
fn fio_verifies_random_writes_reads_and_trims() {
    if !installed("fio") {
        return;
    }
    let (f, uri) = serving();
    let uri = format!("--uri={uri}");
    let common = ["fio", "--ioengine=nbd", &uri, "--size=32m", "--output-format=json"];
    let job = |name: &str, options: &[&str]| {
        let name = format!("--name={name}");
        let line = [&common[..], &[&name], options].concat();
        let out = Command::new("timeout")
            .arg("60")
            .args(&line)
            .current_dir(f.directory.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{line:?}\n{text}");
        // The engine prints a line before the report.
        json(&text[text.find("\n{").map_or(0, |at| at + 1)..])
    };
    for (rw, bs) in [("randwrite", "4k"), ("randrw", "512-64k"), ("randwrite", "1000-300000")] {
        let bs = format!("--bsrange={}", if bs.contains('-') { bs } else { "4k-4k" });
        let rw = format!("--rw={rw}");
        let options = [&rw[..], &bs, "--bs_unaligned", "--iodepth=32", "--verify=crc32c"];
        let report = job("verify", &options);
        assert_eq!(report["jobs"][0]["error"], 0);
        assert!(report["jobs"][0]["read"]["total_ios"].as_u64().unwrap() > 50);
    }
    let trims = ["--rw=randtrimwrite", "--bs=4k", "--iodepth=16", "--verify=crc32c", "--fsync=64"];
    let report = job("trims", &trims);
    assert_eq!(report["jobs"][0]["error"], 0);
    assert!(report["jobs"][0]["trim"]["total_ios"].as_u64().unwrap() > 100);
    // All kinds of requests at once, over three connections.
    let verify = ["--bs=4k", "--iodepth=16", "--verify=crc32c", "--loops=2"];
    let second = ["--name=trimwrite", "--rw=randtrimwrite", "--offset=32m", "--size=16m"];
    let third = ["--name=other", "--rw=randrw", "--offset=48m", "--size=16m"];
    let mixed = [&["--rw=randrw"], &verify[..], &second, &verify, &third, &verify].concat();
    let report = job("readwrite", &mixed);
    for i in 0..3 {
        assert_eq!(report["jobs"][i]["error"], 0);
        let done = |kind: &str| report["jobs"][i][kind]["total_ios"].as_u64().unwrap();
        assert!(done("write") + done("trim") > 1000);
    }
}

#[test]
fn nbdfuse_shows_the_volume_as_a_file() {
    if !installed("nbdfuse") {
        return;
    }
    let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if fuse.is_err() && !installed("fusermount3") {
        println!("skipped: this user can't use /dev/fuse");
        return;
    }
    drop(fuse);
    let (mut f, uri) = serving();
    let file = f.directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut nbdfuse = Command::new("nbdfuse").arg(&file).arg(&uri).spawn().unwrap();
    let mounted = wait_until(|| file.metadata().is_ok_and(|m| m.len() == SIZE));
    let copied = mounted && {
        let source = image(f.directory.path(), SIZE);
        let bytes = std::fs::read(source).unwrap();
        use std::os::unix::fs::FileExt;
        let shown = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
        shown.write_all_at(&bytes, 0).unwrap();
        shown.sync_all().unwrap();
        let holders = f.server.holders();
        assert!(holders[0].contains("nbdfuse"), "{holders:?}");
        let mut back = vec![0; bytes.len()];
        shown.read_exact_at(&mut back, 0).unwrap();
        back == bytes
    };
    // Unmounting ends nbdfuse, also if an earlier step failed.
    let unmounted = run(&["fusermount3", "-u", file.to_str().unwrap()]).status.success()
        || run(&["umount", "-l", file.to_str().unwrap()]).status.success();
    if !unmounted {
        nbdfuse.kill().unwrap();
    }
    nbdfuse.wait().unwrap();
    assert!(mounted && copied && unmounted, "{mounted} {copied} {unmounted}");
    assert!(wait_until(|| f.server.stop().is_ok()), "{:?}", f.server.holders());
}

fn wait_until(mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Socket activation as in libnbd's tools: they start this program with a socket, and in it this
/// test, which then is the server.
#[test]
fn socket_activation() {
    if std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string()) {
        return serve_inherited();
    }
    if !installed("nbdinfo") {
        return;
    }
    let me = std::env::current_exe().unwrap();
    let me = me.to_str().unwrap();
    let child = ["[", me, "nbd_clients::socket_activation", "--exact", "--nocapture", "]"];
    let text = succeed(&[&["nbdinfo", "--size", "--"], &child[..]].concat());
    assert!(text.lines().any(|l| l.trim() == SIZE.to_string()), "{text}");
}

/// Serves the inherited socket until the parent, which is a client, ends this process.
fn serve_inherited() {
    let options =
        Options { name: "disk".into(), listen: vec![Listen::Inherited], max_connections: 4 };
    let server = Server::start(volume(SIZE), options.clone()).unwrap();
    assert!(server.leftovers().is_empty(), "the socket is not ours");
    assert!(Server::start(volume(SIZE), options).is_err(), "taken only once");
    wait_until(|| false);
}

#[test]
fn names_with_strange_characters_are_found_by_their_uri() {
    if !installed("nbdinfo") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let unix = Listen::Unix(directory.path().join("a b#c%20&d+e.sock"));
    let tcp = Listen::Tcp("127.0.0.1:0".parse().unwrap());
    let name = "ä b/c?d=e&f#g%41+".to_owned();
    let options = Options { name: name.clone(), listen: vec![unix, tcp], max_connections: 4 };
    let server = Server::start(volume(SIZE), options).unwrap();
    let uris = server.endpoints();
    assert_eq!(uris.len(), 2);
    for uri in uris {
        let all = json(&succeed(&["nbdinfo", "--json", &uri]));
        assert_eq!(all["exports"][0]["export-name"], name, "{uri}");
    }
}
