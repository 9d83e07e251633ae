//! Real drives: files, loop devices, file systems on them, and other programs that use them.
//!
//! Most tests need root and loop devices; where these are missing a test prints `skipped:` and the
//! reason. Every command has a time limit, and mounts and attached devices are undone also if a
//! test fails.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::files::{dir, exclusive, file};
use crate::support::loops::{Loop, lacks_loops as lacks};
use crate::support::mounted::Mounted;
use crate::support::shell::{missing, ok, ok_once_free, run, text};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::media::ring::Op;
use ztier::media::{
    Access, Buffer, Drive, FileDrive, IdKind, Identity, Match, Ring, Signature, StableId,
    Submission,
};

const MIB: u64 = 1 << 20;

impl Loop {
    fn open(&self) -> FileDrive {
        exclusive(&self.0)
    }
}

#[track_caller]
fn refused(path: &Path, access: Access, parts: &[&str]) {
    let text = FileDrive::open(path, access).unwrap_err().to_string();
    assert!(text.starts_with(path.to_str().unwrap()) && !text.contains('\n'), "{text}");
    assert!(parts.iter().all(|p| text.contains(p)), "{text}: {parts:?}");
}

fn pattern(len: usize, seed: u64) -> Buffer {
    let mut buffer = Buffer::new(len);
    let mut x = seed;
    for b in buffer.iter_mut() {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *b = (x >> 56) as u8;
    }
    buffer
}

fn identity(path: &Path) -> Identity {
    let drive = FileDrive::open(path, Access::ReadOnly).unwrap();
    Identity::of(&drive, &StableId::of(&drive)).unwrap()
}

#[track_caller]
fn signature(path: &Path) -> Option<Signature> {
    Signature::of(&FileDrive::open(path, Access::ReadOnly).unwrap()).unwrap()
}

/// Holds a drive until this process is killed.
fn hold(path: &Path) {
    // With requests in flight: these hold the drive until a little after the process's end.
    let drive = Arc::new(exclusive(path));
    let mut ring = Ring::new(Arc::clone(&drive), 8).unwrap();
    let data = Arc::new(pattern(MIB as usize, 1));
    for id in 0..8 {
        ring.submit(Submission { id, action: Op::Write(Arc::clone(&data), 0..1 << 20), at: 0 });
    }
    ring.kick();
    println!("\nheld {}", drive.size());
    std::thread::sleep(Duration::from_secs(60));
}

/// Makes the system refuse new descriptors to this process, so that there is no io_uring; no other
/// test may run in the process.
fn without_io_uring(path: &Path) {
    let drive = Arc::new(exclusive(path));
    // Open descriptors stay open.
    let limit = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let ring = Ring::new(drive, 8).unwrap();
    println!("\nfallback: {}", ring.fallback().unwrap());
    ring_round(ring, 2 * MIB);
    println!("round done");
}

/// A process that holds a drive, killed when dropped: this program, in which the first of the tests
/// below is the holder.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "drives::a_file_belongs_to_one_process_until_that_is_gone",
                "--nocapture",
            ])
            .env("ZTIER_TEST_HOLD", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut holder = Self(child);
        let lines = BufReader::new(holder.0.stdout.take().unwrap()).lines();
        // The helper ends on its own after a minute, and its output with it.
        assert!(lines.map_while(Result::ok).any(|l| l.starts_with("held")), "it never held it");
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_belongs_to_one_process_until_that_is_gone() {
    if let Some(path) = std::env::var_os("ZTIER_TEST_HOLD") {
        return hold(Path::new(&path));
    }
    let (_dir, here) = dir();
    let path = file(&here.join("drive"), MIB);
    let holder = Holder::of(&path);
    let process = format!("process {}", holder.0.id());
    refused(&path, Access::Exclusive, &["is in use", &process, "end that first"]);
    FileDrive::open(&path, Access::ReadOnly).unwrap();
    // Killed with SIGKILL.
    drop(holder);
    FileDrive::open(&path, Access::Exclusive).unwrap();
}

#[test]
fn a_device_belongs_to_one() {
    if lacks(&["mkfs.ext4"]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 32 * MIB);
    let device = Loop::on(&image, &[]);
    let mine = device.open();
    refused(&device.0, Access::Exclusive, &["is in use"]);
    refused(&image, Access::Exclusive, &["is in use: loop device", device.path()]);
    FileDrive::open(&device.0, Access::ReadOnly).unwrap();
    let node = device.path();
    assert!(!run(20, "mkfs.ext4", &["-q", node]).status.success(), "mkfs respects O_EXCL");
    drop(mine);

    let holder = Holder::of(&device.0);
    let process = format!("process {}", holder.0.id());
    refused(&device.0, Access::Exclusive, &["is in use", &process]);
    drop(holder);
    // Its requests end a little after the process.
    drop(device.open());

    ok_once_free("mkfs.ext4", &["-q", "-F", node]);
    let point = here.join("point with blank");
    let mount = Mounted::new(&[node], &point);
    let on = format!("mounted on {}", point.display());
    refused(&device.0, Access::Exclusive, &[&on, "unmount it first"]);
    drop(mount);
    let mine = device.open();
    let out = run(20, "mount", &[node, point.to_str().unwrap()]);
    assert!(!out.status.success(), "a drive of ours can't be mounted");
    drop(mine);
}

#[test]
fn read_only_devices_are_refused_and_can_be_looked_at() {
    if lacks(&[]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 4 * MIB);
    let device = Loop::on(&image, &["--read-only"]);
    refused(&device.0, Access::Exclusive, &["is read-only", "make it writable"]);
    let drive = FileDrive::open(&device.0, Access::ReadOnly).unwrap();
    assert_eq!(drive.size(), 4 * MIB);
    drive.read(0, &mut Buffer::new(4096)).unwrap();
    assert_eq!(drive.write(0, &Buffer::new(4096)).unwrap_err().errno, 30);
}

/// Writes, reads, zeroes and flushes on a drive, and checks the content of `image`, the file below.
fn exercise(drive: &FileDrive, image: &Path) {
    let data = pattern(MIB as usize, 7);
    drive.write(MIB, &data).unwrap();
    drive.zero(MIB + 8192, 65536).unwrap();
    drive.write(2 * MIB, &data[4096..12288]).unwrap();
    drive.flush().unwrap();
    let mut expected = data.to_vec();
    expected[8192..8192 + 65536].fill(0);
    let mut back = Buffer::new(MIB as usize);
    drive.read(MIB, &mut back).unwrap();
    assert!(back[..] == expected[..]);
    let stored = fs::read(image).unwrap();
    assert!(stored[MIB as usize..2 * MIB as usize] == expected[..]);
    assert!(stored[2 * MIB as usize..][..8192] == data[4096..12288]);
}

#[test]
fn data_reaches_the_medium_directly_and_where_that_is_impossible() {
    if lacks(&["mkfs.ext4"]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 64 * MIB);
    let device = Loop::on(&image, &[]);
    {
        let drive = device.open();
        assert!(drive.is_direct() && drive.device_number().is_some());
        assert_eq!(drive.size(), 64 * MIB);
        exercise(&drive, &image);
        // The file system frees the file's space.
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&image).unwrap());
        let before = blocks();
        drive.discard_hint(MIB + 512 * 1024, 512 * 1024);
        drive.flush().unwrap();
        assert!(blocks() < before, "{before} sectors before, {} after", blocks());
    }
    ok_once_free("mkfs.ext4", &["-q", "-F", device.path()]);
    for (name, args, direct) in [
        ("ext4", vec![device.path()], Some(true)),
        // tmpfs supports the flag since Linux 6.6.
        ("tmpfs", vec!["-t", "tmpfs", "tmpfs"], None),
        ("ramfs", vec!["-t", "ramfs", "ramfs"], Some(false)),
    ] {
        let mount = Mounted::new(&args, &here.join(name));
        let path = file(&mount.0.join("drive"), 4 * MIB + 1);
        let drive = FileDrive::open(&path, Access::Exclusive).unwrap();
        assert_eq!(drive.size(), 4 * MIB);
        if let Some(direct) = direct {
            assert_eq!(drive.is_direct(), direct, "{name}");
        }
        exercise(&drive, &path);
        ring_round(Ring::new(Arc::new(drive), 8).unwrap(), 2 * MIB);
    }
}

#[test]
fn an_identity_shows_which_drive_it_is_and_whether_it_was_written() {
    if lacks(&["mkfs.ext4"]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 64 * MIB);
    let device = Loop::on(&image, &[]);
    let empty = identity(&device.0);
    ok_once_free("mkfs.ext4", &["-q", "-F", device.path()]);
    let made = identity(&device.0);
    assert!(matches!(empty.compare(&made), Match::Changed { .. }), "{:?}", empty.compare(&made));
    assert_eq!(made.compare(&identity(&device.0)), Match::Same);

    // The check changes nothing: the device can't be written, not even by the journal.
    let mount = Mounted::new(&["-o", "ro,noload", device.path()], &here.join("point"));
    drop(mount);
    assert_eq!(made.compare(&identity(&device.0)), Match::Same);

    let mount = Mounted::new(&[device.path()], &here.join("point"));
    fs::write(mount.0.join("file"), "x").unwrap();
    drop(mount);
    let used = identity(&device.0);
    match made.compare(&used) {
        Match::Changed { what } => assert!(what.contains("superblock of ext4"), "{what}"),
        found => panic!("{found:?}"),
    }

    // Through another device the drive is the same; a copy counts as a copy, another drive as
    // another.
    let stored = Identity::decode(&used.encode()).unwrap();
    drop(device);
    let busy = Loop::on(&file(&here.join("other"), 64 * MIB), &[]);
    let device = Loop::on(&image, &[]);
    assert_eq!(stored.compare(&identity(&device.0)), Match::Same);
    let copy = here.join("copy");
    fs::copy(&image, &copy).unwrap();
    let copied = Loop::on(&copy, &[]);
    assert!(matches!(stored.compare(&identity(&copied.0)), Match::Moved { compared: 8.. }));
    let other = stored.compare(&identity(&busy.0));
    assert!(matches!(other, Match::Other { .. }), "{other:?}");
    let id = StableId::of(&FileDrive::open(&device.0, Access::ReadOnly).unwrap());
    assert_eq!(id.kind(), IdKind::File, "{}", id.text());
}

#[test]
fn known_content_is_found() {
    if lacks(&["mkfs.ext4", "mkswap", "blkid"]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 64 * MIB);
    let device = Loop::on(&image, &[]);
    assert_eq!(signature(&device.0), None);
    device.open().write(4096, &pattern(4096, 5)).unwrap();
    assert_eq!(signature(&device.0), None, "unknown content is no signature");

    ok_once_free("mkfs.ext4", &["-q", "-F", "-L", "my disk", device.path()]);
    for path in [&device.0, &image] {
        let found = signature(path).unwrap();
        assert_eq!((found.kind.as_str(), found.label.as_deref()), ("ext4", Some("my disk")));
        assert!(found.uuid.is_some());
    }
    // Also while this process holds it.
    let mine = device.open();
    assert_eq!(Signature::of(&mine).unwrap().unwrap().kind, "ext4");
    mine.zero(0, 64 * MIB).unwrap();
    assert_eq!(Signature::of(&mine).unwrap(), None);
    drop(mine);
    ok_once_free("mkswap", &[device.path()]);
    let found = signature(&device.0).unwrap();
    assert_eq!(found.kind, "swap");
}

#[test]
fn several_signatures_are_one_too() {
    if missing(&["mkswap", "blkid"]) {
        return;
    }
    let (_dir, here) = dir();
    let path = file(&here.join("drive"), 16 * MIB);
    ok_once_free("mkswap", &[path.to_str().unwrap()]);
    let drive = FileDrive::open(&path, Access::Exclusive).unwrap();
    let mut block = Buffer::new(4096);
    drive.read(0, &mut block).unwrap();
    // The magic of ext2.
    block[1080..1082].copy_from_slice(&[0x53, 0xEF]);
    drive.write(0, &block).unwrap();
    let found = Signature::of(&drive).unwrap().unwrap();
    // Some versions see through the fake ext2 magic.
    assert!(["several signatures", "swap"].contains(&found.kind.as_str()), "{found}");
}

#[test]
fn partitions_and_their_tables() {
    if lacks(&["sfdisk", "blkid", "mkfs.ext4"]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 64 * MIB);
    let script =
        format!("printf 'label: gpt\\nsize=16MiB\\nsize=16MiB\\n' | sfdisk -q {}", image.display());
    ok(60, "sh", &["-c", &script]);
    let found = signature(&image).unwrap();
    assert_eq!(found.kind, "gpt partition table");
    assert!(found.uuid.is_some());

    let device = Loop::on(&image, &[]);
    // As in the partition table.
    let parts =
        [1, 2].map(|n| device.part(n, ((n as u64 * 16 - 15) * MIB)..((n as u64 * 16 + 1) * MIB)));
    let part = |n: usize| parts[n - 1].node.clone();
    assert_eq!(signature(&part(1)), None, "an entry in the table is not content");
    let (one, two) = (identity(&part(1)), identity(&part(2)));
    assert_eq!(one.compare(&identity(&part(1))), Match::Same);
    let compared = one.compare(&two);
    assert_eq!(compared, Match::Moved { compared: 8 }, "another place with the same content");
    let id = StableId::of(&FileDrive::open(&part(1), Access::ReadOnly).unwrap());
    assert_eq!(id.kind(), IdKind::Loop, "{}", id.text());
    // A loop device on these bytes is the same drive.
    let same = Loop::on(&image, &["--offset", "1M", "--sizelimit", "16M"]);
    assert_eq!(one.compare(&identity(&same.0)), Match::Same);
    drop(same);

    // The disk is not free while a part of it is in use, and vice versa.
    let mine = exclusive(&part(1));
    assert_eq!(mine.size(), 16 * MIB);
    refused(&device.0, Access::Exclusive, &["is in use"]);
    let beside = exclusive(&part(2));
    drop((mine, beside));
    let whole = device.open();
    refused(&part(1), Access::Exclusive, &["is in use"]);
    drop(whole);
    ok_once_free("mkfs.ext4", &["-q", "-F", part(2).to_str().unwrap()]);
    let mount = Mounted::new(&[part(2).to_str().unwrap()], &here.join("point"));
    refused(&device.0, Access::Exclusive, &["mounted on", "unmount it first"]);
    drop(mount);
}

/// Waits for all submitted requests, which must succeed.
fn settle(ring: &mut Ring) -> Vec<(u64, Option<Buffer>)> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut found = Vec::new();
    while ring.in_flight() > 0 {
        assert!(Instant::now() < deadline, "{} never ended", ring.in_flight());
        let ended = ring.wait(Duration::from_secs(1));
        found.extend(ended.into_iter().map(|c| (c.id, c.result.unwrap())));
    }
    found
}

/// Fills the first `len` bytes with many writes at once, flushes, reads everything back at once,
/// and zeroes every other piece.
fn ring_round(mut ring: Ring, len: u64) {
    const PIECE: u64 = 64 << 10;
    let data = Arc::new(pattern(len as usize, len));
    let pieces = len / PIECE;
    let range = |n: u64| (n * PIECE) as usize..((n + 1) * PIECE) as usize;
    for n in 0..pieces {
        let action = Op::Write(Arc::clone(&data), range(n));
        ring.submit(Submission { id: n, action, at: n * PIECE });
    }
    assert_eq!(settle(&mut ring).len() as u64, pieces);
    ring.submit(Submission { id: 1, action: Op::Flush, at: 0 });
    assert!(matches!(settle(&mut ring)[..], [(1, None)]));
    for n in (1..pieces).step_by(2) {
        ring.submit(Submission { id: n, action: Op::Zero { len: PIECE }, at: n * PIECE });
    }
    settle(&mut ring);
    for n in 0..pieces {
        let action = Op::Read(Buffer::new(PIECE as usize));
        ring.submit(Submission { id: n, action, at: n * PIECE });
    }
    let read = settle(&mut ring);
    assert_eq!(read.len() as u64, pieces);
    for (n, buffer) in read {
        let buffer = buffer.unwrap();
        if n % 2 == 1 {
            assert!(buffer.iter().all(|b| *b == 0), "piece {n}");
        } else {
            assert!(buffer[..] == data[range(n)], "piece {n}");
        }
    }
}

#[test]
fn a_ring_keeps_many_requests_of_a_device_in_flight() {
    if lacks(&[]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 64 * MIB);
    let device = Loop::on(&image, &[]);
    let drive = Arc::new(device.open());
    let ring = Ring::new(Arc::clone(&drive), 32).unwrap();
    match ring.fallback() {
        None => ring_round(ring, 48 * MIB),
        Some(why) => println!("skipped: {why}"),
    }
    ring_round(Ring::with_threads(drive.clone(), 32).unwrap(), 48 * MIB);
    ring_round(Ring::new(drive, 1).unwrap(), 4 * MIB);
}

#[test]
fn threads_take_over_where_io_uring_is_refused() {
    if let Some(path) = std::env::var_os("ZTIER_TEST_NO_RING") {
        return without_io_uring(Path::new(&path));
    }
    let (_dir, here) = dir();
    let path = file(&here.join("drive"), 4 * MIB);
    let out = Command::new("timeout")
        .args(["-k", "2", "60"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "drives::threads_take_over_where_io_uring_is_refused", "--nocapture"])
        .arg("--test-threads=1")
        .env("ZTIER_TEST_NO_RING", &path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = text(&out);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("fallback: no io_uring") && said.contains("round done"), "{said}");
}

#[test]
fn a_full_file_system_is_an_error_of_that_write() {
    if lacks(&[]) {
        return;
    }
    let (_dir, here) = dir();
    let mount = Mounted::new(&["-t", "tmpfs", "-o", "size=4M", "tmpfs"], &here.join("small"));
    let drive =
        FileDrive::open(&file(&mount.0.join("drive"), 16 * MIB), Access::Exclusive).unwrap();
    let drive = Arc::new(drive);
    let data = Arc::new(pattern(MIB as usize, 3));
    for mut ring in [
        Ring::new(Arc::clone(&drive), 4).unwrap(),
        Ring::with_threads(Arc::clone(&drive) as Arc<dyn Drive>, 4).unwrap(),
    ] {
        for n in 0..16 {
            let action = Op::Write(Arc::clone(&data), 0..data.len());
            ring.submit(Submission { id: n, action, at: n * MIB });
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut failed = 0;
        while ring.in_flight() > 0 && Instant::now() < deadline {
            for completion in ring.wait(Duration::from_secs(1)) {
                if let Err(e) = completion.result {
                    assert_eq!(e.errno, 28, "{e}");
                    failed += 1;
                }
            }
        }
        assert!(failed >= 12, "{failed} of 16");
        drive.zero(0, 16 * MIB).unwrap();
    }
}
