//! Refusals that cost nothing: each command says in one line what is wrong and what to do, changes
//! no byte, and the volume comes up with its data once the cause is gone.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::place::{BLOCK, BLOCKS, Place, content};
use crate::support::ram_drive::RamDrive;
use crate::support::sandbox::{PATIENCE, Sandbox};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Uid, getrlimit, prlimit};
use rustix::thread::set_thread_res_uid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{
    Algorithm, Device, Options, Recompress, Request, SpillTo, Volume, min_ram_limit,
};
use ztier::error::Status;
use ztier::log::disk::format::{SUPER, SUPER_AT, crc};
use ztier::media::{Drive, Memory};

/// Blocks that each test writes.
const WRITTEN: u64 = 8;

/// A volume with data that only its log has; it is down.
fn with_data_in_the_log() -> Place {
    let place = Place::new();
    place.sandbox.ztier(&up(&place, &place.log, &[])).ok();
    place.write_one_by_one(WRITTEN);
    place.sandbox.ztier(&["down", "vol"]).ok();
    place
}

/// `up` with this log, without writeback.
fn up<'a>(place: &'a Place, log: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let drives = ["--backing", &place.backing, "--log", log, "--writeback", "off"];
    [&["up", "vol", "--export", "nbd", "--segment", "64K"], &drives[..], more].concat()
}

/// Checks that the volume has what [`Place::write_one_by_one`] wrote.
#[track_caller]
fn check(place: &Place, blocks: u64) {
    let mut disk = place.connect();
    for block in 0..blocks {
        let found = disk.read(block * BLOCK, BLOCK as usize);
        assert!(found == content(block, 1), "block {block}");
    }
}

/// All bytes of both drives and of the records.
fn bytes_of(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    let records = fs::read_dir(place.sandbox.state_dir()).unwrap();
    let paths = records.map(|entry| entry.unwrap().path());
    let paths = paths.chain([PathBuf::from(&place.log), PathBuf::from(&place.backing)]);
    paths.map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect()
}

/// Runs a command that is refused and changes neither drives nor records.
#[track_caller]
fn refused(place: &Place, args: &[&str], status: i32, parts: &[&str]) -> String {
    let before = bytes_of(place);
    let said = place.sandbox.ztier(args).refused(status, parts);
    assert!(bytes_of(place) == before, "{args:?} changed something");
    said
}

/// A file of `size` bytes in the sandbox.
fn file(sandbox: &Sandbox, name: &str, size: u64) -> String {
    let path = sandbox.path().join(name);
    File::create(&path).unwrap().set_len(size).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_log_of_a_newer_ztier_is_left_to_that_one() {
    let place = with_data_in_the_log();
    let log = File::options().read(true).write(true).open(&place.log).unwrap();
    let mut copies = SUPER_AT.map(|at| {
        let mut bytes = [0; SUPER];
        log.read_exact_at(&mut bytes, at).unwrap();
        bytes
    });
    let ours = copies;
    for bytes in &mut copies {
        bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
        let sum = crc(&bytes[..SUPER - 4]);
        bytes[SUPER - 4..].copy_from_slice(&sum.to_le_bytes());
    }
    let put = |copies: [&[u8; SUPER]; 2]| {
        for (at, bytes) in SUPER_AT.into_iter().zip(copies) {
            log.write_all_at(bytes, at).unwrap();
        }
    };
    let says = ["can't be used as log: its format has version 99", "use the ztier that made it"];
    let holds = ["holds a log: its format has version 99", "where it can be used"];
    // One copy is enough: the other may be an older state.
    for newer in [[&copies[0], &copies[1]], [&copies[0], &ours[1]], [&ours[0], &copies[1]]] {
        put(newer);
        for more in [&[][..], &["--wipe"], &["--discard-log"], &["--accept-loss"]] {
            refused(&place, &up(&place, &place.log, more), 5, &says);
        }
        let format = ["log", "format", &place.log, "--backing", &place.backing];
        refused(&place, &format, 5, &holds);
        refused(&place, &[&format[..], &["--wipe"]].concat(), 5, &holds);
        refused(&place, &["log", "check", &place.log], 5, &says);
    }
    assert_eq!(place.sandbox.files(), [""; 0]);
    put([&ours[0], &ours[1]]);
    place.sandbox.ztier(&up(&place, &place.log, &[])).ok();
    check(&place, WRITTEN);
}

#[test]
fn a_log_that_became_shorter_works_at_its_length() {
    let place = with_data_in_the_log();
    let log = File::options().read(true).write(true).open(&place.log).unwrap();
    let mut tail = vec![0; 8 << 20];
    log.read_exact_at(&mut tail, 8 << 20).unwrap();
    log.set_len(8 << 20).unwrap();
    let shorter = "it has 8388608 bytes, and the log takes 16777216";
    let says =
        ["can't be used as log: ", shorter, "give the drive its size back", "; what it held: "];
    for more in [&[][..], &["--wipe"], &["--accept-loss"]] {
        refused(&place, &up(&place, &place.log, more), 5, &says);
    }
    let format = ["log", "format", &place.log, "--backing", &place.backing];
    let holds = ["holds a log: ", shorter, "bring it to its backing store where it can be used"];
    refused(&place, &format, 5, &holds);
    refused(&place, &[&format[..], &["--wipe"]].concat(), 5, &holds);
    refused(&place, &["log", "check", &place.log], 5, &says[..3]);
    assert_eq!(place.sandbox.files(), [""; 0]);
    log.write_all_at(&tail, 8 << 20).unwrap();
    place.sandbox.ztier(&up(&place, &place.log, &[])).ok();
    check(&place, WRITTEN);
}

/// Only its own backing store may give up a log whose drive has shrunk.
#[test]
fn a_shorter_log_of_another_drive_is_not_made_anew() {
    let place = with_data_in_the_log();
    let log = File::options().write(true).open(&place.log).unwrap();
    log.set_len(8 << 20).unwrap();
    let other = file(&place.sandbox, "other", BLOCKS * BLOCK);
    let copy = file(&place.sandbox, "copy", BLOCKS * BLOCK);
    fs::write(&other, vec![1; (BLOCKS * BLOCK) as usize]).unwrap();
    let two = |backing: &str, more: &[&str]| {
        let drives = ["--segment", "64K", "--backing", backing, "--log", &place.log];
        let args = [&["up", "two", "--export", "nbd"], &drives[..], more].concat();
        let before = bytes_of(&place);
        let done = place.sandbox.ztier(&args);
        assert_eq!(done.status != 0, bytes_of(&place) == before, "{done:?}");
        done
    };
    for more in [&[][..], &["--wipe"]] {
        two(&other, more).refused(5, &["can't be used as log: it has 8388608 bytes"]);
    }
    let says = ["is the log of another drive than", "it differs in", "give the backing store of"];
    two(&other, &["--discard-log"]).refused(5, &says);
    // It has the content of the log's backing store, and may be a copy of it.
    let says = ["holds data of another drive than", "or add --moved"];
    two(&copy, &["--discard-log"]).refused(5, &says);
    log.set_len(16 << 20).unwrap();
    place.sandbox.ztier(&up(&place, &place.log, &[])).ok();
    check(&place, WRITTEN);
    place.sandbox.ztier(&["down", "vol"]).ok();
    log.set_len(8 << 20).unwrap();
    let given_up = two(&copy, &["--moved", "--discard-log"]);
    assert!(given_up.err.contains("goes on without what its log on"), "{given_up:?}");
    given_up.ok();
}

/// A volume whose daemon was killed, with writes in memory that its log does not have.
fn killed_with_memory() -> Place {
    let place = Place::new();
    let later = ["--commit-interval", "60000"];
    place.sandbox.ztier(&up(&place, &place.log, &later)).ok();
    let mut disk = place.connect();
    for block in 0..WRITTEN {
        disk.write(block * BLOCK, &content(block, 1));
    }
    drop(disk);
    place.sandbox.kill("vol");
    place
}

/// Another drive under the name of the log's drive, as after a boot with another order of drives.
#[test]
fn memory_of_one_log_is_not_put_into_another() {
    let place = killed_with_memory();
    let away = place.sandbox.path().join("away");
    fs::rename(&place.log, &away).unwrap();
    file(&place.sandbox, "fast", 16 << 20);
    let restart = ["restart", "vol"];
    let says = ["what was not durable stays in memory, but ", "lacks what its log on"];
    refused(&place, &restart, 5, &[&says[..], &["bring that log back"]].concat());
    refused(&place, &["restart", "vol", "--log", &place.log], 6, &["go on without --log first"]);
    // On a machine that lost its records, the memory itself tells. One time the drive is empty, the
    // other time a log of this very backing store.
    let records = place.sandbox.path().join("records");
    fs::rename(place.sandbox.state_dir(), &records).unwrap();
    fs::create_dir(place.sandbox.state_dir()).unwrap();
    let other = ["what is kept in memory is of another log", "give the log that the volume had"];
    let says = [&says[..1], &other].concat();
    for _ in 0..2 {
        refused(&place, &restart, 5, &says);
        refused(&place, &up(&place, &place.log, &[]), 5, &says);
        place.sandbox.ztier(&["log", "format", &place.log, "--backing", &place.backing]).ok();
    }
    fs::remove_dir_all(place.sandbox.state_dir()).unwrap();
    fs::rename(&records, place.sandbox.state_dir()).unwrap();
    fs::rename(&away, &place.log).unwrap();
    place.sandbox.ztier(&restart).ok();
    check(&place, WRITTEN);
}

/// The state in the run directory is edited: `up` and `restart` alone leave no log behind.
#[test]
fn a_backing_store_alone_lacks_what_is_in_memory_of_its_log() {
    let place = killed_with_memory();
    let state = place.sandbox.run_dir().join("vol.json");
    let kept = fs::read(&state).unwrap();
    refused(&place, &["restart", "vol", "--log", "none"], 6, &["go on without --log first"]);
    let bare = ["up", "vol", "--backing", &place.backing, "--export", "nbd"];
    fs::remove_file(&state).unwrap();
    refused(&place, &bare, 5, &["the memory that was kept for volume `vol` has no", "vol.json"]);
    let mut edited: Value = serde_json::from_slice(&kept).unwrap();
    let plan = edited["plan"].as_object_mut().unwrap();
    plan.remove("log");
    plan.insert("backing".into(), json!(place.backing));
    fs::write(&state, edited.to_string()).unwrap();
    let says = ["slow lacks what is in memory of its log", "go on with that log, or give up"];
    refused(&place, &["restart", "vol"], 5, &says);
    refused(&place, &bare, 5, &says);
    fs::write(&state, &kept).unwrap();
    // `up` without the log goes on with the log, and says so.
    let done = place.sandbox.ztier(&bare);
    assert!(done.err.contains("its drives stay what they were"), "{done:?}");
    done.ok();
    check(&place, WRITTEN);
}

#[test]
fn a_damaged_record_of_a_backing_store_is_named() {
    let place = with_data_in_the_log();
    let mut records = fs::read_dir(place.sandbox.state_dir()).unwrap();
    let record = records.next().unwrap().unwrap().path();
    let good = fs::read(&record).unwrap();
    let shown = record.to_str().unwrap();
    let bare = ["up", "vol", "--backing", &place.backing, "--export", "nbd"];
    for damage in [&good[..good.len() / 2], b"", b"{}"] {
        fs::write(&record, damage).unwrap();
        let says = ["cannot read ", shown, "remove it, then give the log that the drive had"];
        refused(&place, &up(&place, &place.log, &[]), 1, &says);
        refused(&place, &bare, 1, &says);
    }
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    refused(&place, &bare, 1, &["cannot read ", shown, "Is a directory"]);
    fs::remove_dir(&record).unwrap();
    fs::write(&record, &good).unwrap();
    let fresh = record.with_extension("new");
    fs::create_dir(&fresh).unwrap();
    let says = ["cannot write ", shown, "set ZTIER_STATE_DIR to a directory that can be written"];
    place.sandbox.ztier(&up(&place, &place.log, &[])).refused(1, &says);
    fs::remove_dir(&fresh).unwrap();
    place.sandbox.ztier(&up(&place, &place.log, &[])).ok();
    check(&place, WRITTEN);
    place.sandbox.ztier(&["down", "vol"]).ok();
    // What the refusal advises.
    fs::write(&record, b"").unwrap();
    fs::remove_file(&record).unwrap();
    place.sandbox.ztier(&up(&place, &place.log, &[])).ok();
    check(&place, WRITTEN);
}

const SPILLING: [&str; 10] =
    ["up", "vol", "--size", "32M", "--export", "nbd", "--segment", "64K", "--ram-limit", "5M"];

fn connect(sandbox: &Sandbox) -> Disk {
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol")
}

#[test]
fn a_killed_volume_takes_only_its_whole_spill_device() {
    let sandbox = Sandbox::new();
    let path = file(&sandbox, "below", 64 << 20);
    let up = [&SPILLING[..], &["--spill", &path]].concat();
    let label = || {
        let mut bytes = [0; BLOCK as usize];
        File::open(&path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    sandbox.ztier(&up).ok();
    let earlier = label();
    sandbox.ztier(&["down", "vol"]).ok();
    sandbox.ztier(&up).ok();
    let mut disk = connect(&sandbox);
    (0..4000).for_each(|block| disk.write(block * BLOCK, &content(block, 1)));
    drop(disk);
    sandbox.kill("vol");
    let refused = |why: &str| {
        let before = fs::read(&path).unwrap();
        for args in [&["restart", "vol"][..], &up, &[&up[..], &["--wipe"]].concat()] {
            let says =
                [why, "bring back the device that `vol` had, then `ztier restart vol`; only"];
            sandbox.ztier(args).refused(5, &says);
        }
        assert!(fs::read(&path).unwrap() == before);
    };
    let below = File::options().write(true).open(&path).unwrap();
    let own = label();
    below.write_all_at(&earlier, 0).unwrap();
    refused("below is the spill device of another volume or time");
    below.write_all_at(&own, 0).unwrap();
    // A copy of its beginning in its place.
    let away = sandbox.path().join("away");
    fs::rename(&path, &away).unwrap();
    fs::copy(&away, &path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(32 << 20).unwrap();
    refused("below has 33554432 bytes, and had 67108864");
    fs::rename(&away, &path).unwrap();
    sandbox.ztier(&["restart", "vol"]).ok();
    let mut disk = connect(&sandbox);
    for block in 0..4000 {
        assert!(disk.read(block * BLOCK, BLOCK as usize) == content(block, 1), "block {block}");
    }
}

#[test]
fn a_daemon_without_descriptors_says_so_and_serves_on() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&SPILLING).ok();
    let mut disk = connect(&sandbox);
    disk.write(0, &content(0, 1));
    let pid = sandbox.pid("vol");
    let is_used =
        |fd: u64| fs::symlink_metadata(format!("/proc/{}/fd/{fd}", pid.as_raw_nonzero())).is_ok();
    // A client that has just gone may still hold one.
    let lowest_free = (0..20).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        (0..).find(|fd| !is_used(*fd))
    });
    let current = lowest_free.min().unwrap();
    let limit = rustix::process::Rlimit { current, ..getrlimit(Resource::Nofile) };
    let before = prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    for args in [
        &["status", "vol"][..],
        &["stats", "vol"],
        &["set", "vol", "ram-limit=6M"],
        &["restart", "vol", "--force"],
        &["down", "vol", "--discard", "--force"],
    ] {
        let says = ["the daemon has no file descriptor left", "ulimit -n", "LimitNOFILE"];
        sandbox.ztier(args).refused(6, &says);
    }
    disk.write(BLOCK, &content(1, 1));
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    let status = sandbox.status("vol");
    assert_eq!(status["ram_limit_bytes"], 5 << 20, "{status}");
    assert_eq!(sandbox.pid("vol"), pid);
    for block in 0..2 {
        assert_eq!(disk.read(block * BLOCK, BLOCK as usize), content(block, 1));
    }
}

/// Even with access to the socket, which has mode 0600 below a directory of its owner.
#[test]
fn another_user_controls_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root, so there is no other user");
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.ztier(&SPILLING).ok();
    connect(&sandbox).write(0, &content(0, 1));
    let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    let socket = sandbox.run_dir().join("vol.sock");
    let ask = |request: &'static str| {
        let socket = socket.clone();
        // The id is that of this thread alone.
        let asks = std::thread::spawn(move || {
            let other = Uid::from_raw(65534);
            set_thread_res_uid(other, other, other).unwrap();
            let mut stream = UnixStream::connect(&socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let _ = stream.write_all(request.as_bytes()); // it may be refused before
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer); // and reset what was not read
            std::io::Result::Ok(answer)
        });
        asks.join().unwrap()
    };
    let down = "{\"v\":3,\"op\":\"down\",\"discard\":true,\"force\":true,\"drain\":false}\n";
    for path in [sandbox.path(), &sandbox.run_dir(), &socket] {
        assert_eq!(ask(down).unwrap_err().kind(), ErrorKind::PermissionDenied);
        open(path, 0o777).unwrap();
    }
    for request in ["{\"v\":3,\"op\":\"ping\"}\n", "{\"v\":3,\"op\":\"status\"}\n", down] {
        let answer = ask(request).unwrap();
        assert_eq!(answer.lines().count(), 1, "{answer}");
        let says =
            ["user 65534 may not control this volume", "as the user who started it, or as root"];
        assert!(says.iter().all(|part| answer.contains(part)), "{answer}");
    }
    open(sandbox.path(), 0o700).unwrap();
    open(&sandbox.run_dir(), 0o700).unwrap();
    assert_eq!(sandbox.status("vol")["ram_limit_bytes"], 5 << 20);
    assert_eq!(connect(&sandbox).read(0, BLOCK as usize), content(0, 1));
}

#[test]
fn what_a_full_volume_has_no_memory_for_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&SPILLING).ok();
    let mut disk = connect(&sandbox);
    let full = (0..8192).find(|n| disk.write_error(n * BLOCK, &content(*n, 1)) != 0).unwrap();
    assert!(full > 500, "{full}");
    let set = |args: &[&str]| sandbox.ztier(&[&["set", "vol"], args].concat());
    let room = "discard something (fstrim) or give a higher";
    for (args, status, says) in [
        (&["size=16M"][..], 2, ["size 16M is below the present 32M", "grow, never shrink"]),
        (&["ram-limit=1M"], 2, ["is below the minimum for 32 MiB", "give at least 4484K"]),
        (&["size=1T"], 2, ["is below the minimum for 1 TiB", "give at least 8576K"]),
        (&["ram-limit=4700K"], 5, ["is less than what is stored takes", room]),
        (&["size=16G"], 1, ["no room for 61440 bytes of tables", room]),
        (&["recompress=now"], 1, ["there is no memory to recompress with", room]),
    ] {
        set(args).refused(status, &says);
        let state = sandbox.status("vol");
        assert_eq!(state["size_bytes"], 32 << 20, "{args:?}");
        assert_eq!(state["ram_limit_bytes"], 5 << 20, "{args:?}");
    }
    let blocks = |disk: &mut Disk, range: std::ops::Range<u64>| {
        for block in range {
            let found = disk.read(block * BLOCK, BLOCK as usize);
            assert!(found == content(block, 1), "block {block}");
        }
    };
    blocks(&mut disk, 0..full);
    // Of two changes the one that fails is the last, and says so.
    let says = ["all but recompress is changed: there is no memory to recompress with"];
    set(&["size=33M", "recompress=now"]).refused(1, &says);
    assert_eq!(sandbox.status("vol")["size_bytes"], 33 << 20);
    // What the refusals advise.
    disk.zero(0, 300 * BLOCK as u32);
    set(&["ram-limit=4700K"]).ok();
    set(&["size=16G"]).ok();
    set(&["ram-limit=8M"]).ok();
    set(&["recompress=now"]).ok();
    blocks(&mut disk, 300..full);
}

fn options(ram_limit: u64) -> Options {
    Options {
        size: 32 << 20,
        ram_limit,
        ram_limit_max: 64 << 20,
        segment: 64 << 10,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    }
}

/// The same refusals of the library: the command line checks most of them first.
#[test]
fn a_volume_in_memory_refuses_sizes_that_cannot_be() {
    let least = min_ram_limit(32 << 20, 64 << 10);
    let drive: Arc<dyn Drive> = Arc::new(RamDrive::new(1 << 20));
    for below in [None, Some(SpillTo { drive, slots: 8, daily: 0 })] {
        let spills = below.is_some();
        let least = least + if spills { 64 << 10 } else { 0 };
        let volume = Volume::new_over(&options(least), &Memory::default(), below);
        let volume = Arc::new(volume.unwrap());
        let refused = |done: ztier::error::Result<()>, status: Status, says: &str| {
            let error = done.unwrap_err();
            assert_eq!(error.status(), status, "{error}");
            assert!(error.to_string().contains(says), "{error}");
            let stats = volume.stats();
            assert_eq!((stats.disk_size_bytes, stats.ram_limit_bytes), (32 << 20, least));
        };
        let few = "is too small for this size and segment; give at least ";
        refused(volume.grow(16 << 20), Status::Usage, "size 16777216 is less than the 33554432");
        refused(volume.grow(1 << 40), Status::Usage, few);
        refused(volume.set_ram_limit(least - 1), Status::Usage, few);
        refused(volume.set_ram_limit(65 << 20), Status::Usage, "is above 67108864");
        let mut channel = Arc::clone(&volume).channel();
        let mut write = |block: u64| {
            let (offset, data) = (block * BLOCK, &content(block, 1)[..]);
            channel.submit(Request::Write { offset, data, fua: false }, Instant::now())
        };
        let full = (0..8192).find(|block| write(*block).is_err()).unwrap();
        let none = "there is no memory to recompress with; discard something";
        refused(volume.recompress(), Status::Failed, none);
        // Only above a spill device it takes its memory at once.
        match spills {
            true => refused(volume.set_recompress(Recompress::Idle), Status::Failed, none),
            false => volume.set_recompress(Recompress::Idle).unwrap(),
        }
        volume.set_recompress(Recompress::Off).unwrap();
        for block in 0..full {
            let mut buf = [0; BLOCK as usize];
            let read = Request::Read { offset: block * BLOCK, buf: &mut buf };
            channel.submit(read, Instant::now()).unwrap();
            assert!(buf[..] == content(block, 1), "block {block}");
        }
        let len = full * BLOCK;
        channel.submit(Request::Discard { offset: 0, len }, Instant::now()).unwrap();
        volume.recompress().unwrap();
    }
}

/// Memory of a dead process whose table of segments contradicts itself.
#[test]
fn memory_that_contradicts_itself_is_refused_and_stays() {
    let memory = Memory::default();
    let inherited = || {
        let files = memory.files().into_iter();
        Memory::inherited(files.map(|(name, file)| (name, file.try_clone().unwrap())).collect())
    };
    let volume = Arc::new(Volume::new_in(&options(8 << 20), &memory).unwrap());
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..100 {
        let (offset, data) = (block * BLOCK, &content(block, 1)[..]);
        let write = Request::Write { offset, data, fua: false };
        channel.submit(write, Instant::now()).unwrap();
    }
    drop((channel, volume));
    let bytes = |name: &str| {
        let file = memory.files().into_iter().find(|(known, _)| known == name).unwrap().1;
        File::from(file.try_clone().unwrap())
    };
    let table = bytes("segments");
    // The first word of a row is the number of its frame, from 1 on.
    let place = |row: u64| {
        let mut word = [0; 8];
        table.read_exact_at(&mut word, row * 64).unwrap();
        word
    };
    let own = place(1);
    assert!(own != [0; 8] && own != place(0));
    let frames = bytes("frames").metadata().unwrap().len() / (64 << 10);
    for wrong in [place(0), (frames + 1).to_le_bytes(), u64::from(u32::MAX).to_le_bytes()] {
        table.write_all_at(&wrong, 64).unwrap();
        let refused = Volume::new_in(&options(8 << 20), &inherited()).map(drop).unwrap_err();
        let says =
            "the memory that was kept contradicts itself: segment 1 has a frame that cannot be";
        assert!(refused.to_string().contains(says), "{refused}");
        assert_eq!(refused.status(), Status::WouldLose);
    }
    table.write_all_at(&own, 64).unwrap();
    // Of a smaller volume: the files have the lengths of the one that made them.
    let other = Options { segment: 1 << 20, ram_limit: 16 << 20, ..options(0) };
    let refused = Volume::new_in(&other, &inherited()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("it is of another version or volume"), "{refused}");
    assert_eq!(refused.status(), Status::WouldLose);
    let volume = Arc::new(Volume::new_in(&options(8 << 20), &inherited()).unwrap());
    volume.audit().unwrap();
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..100 {
        let mut buf = [0; BLOCK as usize];
        let read = Request::Read { offset: block * BLOCK, buf: &mut buf };
        channel.submit(read, Instant::now()).unwrap();
        assert!(buf[..] == content(block, 1), "block {block}");
    }
}

#[test]
fn a_locked_socket_directory_is_said_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.run_dir()).unwrap();
    fs::set_permissions(sandbox.run_dir(), Permissions::from_mode(0o700)).unwrap();
    let dir = File::open(sandbox.run_dir()).unwrap();
    flock(&dir, FlockOperation::LockExclusive).unwrap();
    let up = ["up", "vol", "--size", "16M", "--export", "nbd"];
    let says = ["cannot make a socket in ", "another process keeps that directory locked; end"];
    sandbox.ztier(&up).refused(4, &says);
    assert_eq!(sandbox.files(), [""; 0]);
    // A lock that is held for a moment is waited for.
    let moment = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(dir);
    });
    sandbox.ztier(&up).ok();
    moment.join().unwrap();
    assert_eq!(connect(&sandbox).size, 16 << 20);
}
