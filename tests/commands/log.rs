//! A volume with a log, as users see it: the commands, refusals, kills of the daemon.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::place::{BLOCK, BLOCKS, Place, content};
use crate::support::sandbox::{Sandbox, eventually, finish, wait};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use ztier::log::disk::format::data_at;

#[test]
fn the_backing_store_is_the_volume_before_and_after() {
    let place = Place::new();
    let before = vec![0xab; BLOCK as usize];
    File::options().write(true).open(&place.backing).unwrap().write_at(&before, 8192).unwrap();
    place.sandbox.ztier(&place.up()).ok();
    let mut disk = place.connect();
    assert_eq!(disk.read(8192, 4096), before, "what was there is there");
    disk.write(0, &content(0, 1));
    disk.write(12288 + 100, &[7; 50]);
    disk.flush();
    drop(disk);
    assert_eq!(place.log_of("vol")["clean"], false);
    // A log in use cannot be verified, as it changes during the check.
    let check = place.sandbox.ztier(&["log", "check", &place.log]);
    check.refused(4, &["fast", "is in use", "volume `vol`"]);
    let out = place.sandbox.ztier(&["drain", "vol"]).ok();
    assert!(out.contains("all is in the backing store"), "{out}");
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    let after = fs::read(&place.backing).unwrap();
    assert_eq!(after[..4096], content(0, 1));
    assert_eq!(after[8192..12288], before);
    assert_eq!(after[12288 + 100..12288 + 150], [7; 50]);
    assert_eq!(after[12288 + 150], 0);
    let check = place.sandbox.ztier(&["log", "check", &place.log]).ok();
    assert!(check.contains("log closed in order: 0 changes"), "{check}");
}

/// With a long `writeback-idle` a slow disk can sleep; a shorter one holds at once.
#[test]
fn writeback_waits_for_the_idle_time_that_was_set() {
    let place = Place::new();
    place.sandbox.ztier(&[&place.up()[..], &["--writeback-idle", "3600000"]].concat()).ok();
    place.write_one_by_one(64);
    // Longer than the default.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(place.log_of("vol")["windows"], 0);
    let out = place.sandbox.ztier(&["set", "vol", "writeback-idle=0"]).ok();
    assert!(out.contains(" writeback-idle=0 "), "{out}");
    eventually("it is written back", || place.log_of("vol")["windows"] != 0);
    for (change, why) in [
        ("writeback-idle=86400001", "writeback-idle 86400001 is more than a day"),
        ("writeback-idle=soon", "writeback-idle: `soon` is not a whole number"),
        ("segment=64K", "`segment` is fixed while the volume is up"),
        ("spill=/dev/null", "spill is for a volume in memory alone"),
    ] {
        place.sandbox.ztier(&["set", "vol", change]).refused(2, &[why]);
    }
    place.sandbox.ztier(&["down", "vol"]).ok();
}

/// A process that waits for the lock, as `ztier down` does, wants to use the drives next.
#[test]
fn the_drives_are_let_go_before_the_lock() {
    let place = Place::new();
    let lock = place.sandbox.run_dir().join("vol.lock");
    for _ in 0..5 {
        place.sandbox.ztier(&place.up()).ok();
        place.write_one_by_one(16);
        let open = format!("/proc/{}/fd", place.sandbox.pid("vol").as_raw_nonzero());
        let drives = || {
            // The process may have ended, which is fine as well.
            let files = fs::read_dir(&open).into_iter().flatten().flatten();
            let files = files.filter_map(|file| fs::read_link(file.path()).ok());
            files
                .filter(|file| {
                    [&place.log, &place.backing].iter().any(|d| file.as_os_str() == d.as_str())
                })
                .count()
        };
        assert!(drives() >= 2);
        let mut down = place.sandbox.command(&["down", "vol"]).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while lock.exists() {
            assert!(Instant::now() < until, "it is not down");
        }
        assert_eq!(drives(), 0, "still open");
        assert_eq!(wait(&mut down), 0);
    }
}

/// The writer's requests: the version of each block that a flush covers, and newer ones.
struct Asked {
    flushed: Vec<u64>,
    newer: Vec<Vec<u64>>,
    version: u64,
}

impl Asked {
    /// Every block is complete, with its flushed version or a newer one; that is the new state.
    fn check(&mut self, disk: &mut Disk) {
        for block in 0..BLOCKS {
            let found = disk.read(block * BLOCK, BLOCK as usize);
            let now = u64::from_le_bytes(found[8..16].try_into().unwrap());
            let (flushed, newer) =
                (&mut self.flushed[block as usize], &mut self.newer[block as usize]);
            let known = now == *flushed || newer.contains(&now);
            assert!(
                known,
                "block {block} has version {now}, {flushed} was flushed, then {newer:?}"
            );
            assert!(now == 0 || found == content(block, now), "block {block} is whole");
            *flushed = now;
            newer.clear();
        }
    }

    fn flush_returned(&mut self) {
        for (flushed, newer) in self.flushed.iter_mut().zip(&mut self.newer) {
            *flushed = newer.pop().unwrap_or(*flushed);
            newer.clear();
        }
    }
}

/// Writes and flushes until the daemon is gone.
fn write_until_killed(mut disk: Disk, asked: &Mutex<Asked>, round: u64) {
    for step in 0u64.. {
        let block = (step * 37 + round * 11) % BLOCKS;
        let version = {
            let mut asked = asked.lock().unwrap();
            asked.version += 1;
            let version = asked.version;
            asked.newer[block as usize].push(version);
            version
        };
        if !disk.try_write(block * BLOCK, &content(block, version)) {
            return;
        }
        if step % 23 == 22 {
            if !disk.try_flush() {
                return;
            }
            asked.lock().unwrap().flush_returned();
        }
    }
}

/// `ZTIER_KILLS` sets the number of kills.
#[test]
fn what_was_flushed_survives_kills_in_the_midst_of_writes() {
    let place = Place::new();
    let kills = std::env::var("ZTIER_KILLS").map_or(20, |text| text.parse().unwrap());
    let blocks = BLOCKS as usize;
    let asked =
        Mutex::new(Asked { flushed: vec![0; blocks], newer: vec![vec![]; blocks], version: 0 });
    for round in 0..kills {
        place.sandbox.ztier(&place.up()).ok();
        let mut disk = place.connect();
        asked.lock().unwrap().check(&mut disk);
        std::thread::scope(|scope| {
            scope.spawn(|| write_until_killed(disk, &asked, round));
            std::thread::sleep(Duration::from_millis(5 + round * 79 % 300));
            place.sandbox.kill("vol");
        });
        // Simulates a failure of the machine: the content of memory is lost.
        place.sandbox.ztier(&["down", "vol", "--discard"]).ok();
    }
    assert!(asked.lock().unwrap().version > kills);
    place.sandbox.ztier(&["log", "check", &place.log]).ok();
}

#[test]
fn what_would_destroy_or_mix_data_is_refused() {
    let place = Place::new();
    let (log, backing) = (&place.log[..], &place.backing[..]);
    let up =
        |args: &[&str]| place.sandbox.ztier(&[&["up", "vol", "--export", "nbd"], args].concat());
    up(&["--log", log]).refused(2, &["--log needs a backing store", "give --backing"]);
    up(&["--backing", backing, "--log", backing]).refused(2, &["log and backing store at once"]);
    up(&["--backing", backing, "--log", "/nowhere/x"]).refused(1, &["/nowhere/x"]);
    up(&["--backing", "/nowhere/x", "--log", log]).refused(1, &["/nowhere/x"]);
    up(&["--backing", backing, "--log", log, "--size", "1G"]).refused(2, &["leave out size"]);
    let odd = ["--backing", backing, "--log", log, "--segment", "48K"];
    up(&odd).refused(2, &["segment 48K is not a power of two"]);
    let tiny = place.sandbox.path().join("tiny");
    File::create(&tiny).unwrap().set_len(64 << 10).unwrap();
    up(&["--backing", backing, "--log", tiny.to_str().unwrap()]).refused(1, &["segments fit"]);
    assert!(fs::read(&place.log).unwrap().iter().all(|b| *b == 0), "nothing was written");
    // A file system on the log's drive.
    let mkfs = Command::new("mkfs.ext4").args(["-q", "-F", log]).status();
    if mkfs.is_ok_and(|status| status.success()) {
        up(&["--backing", backing, "--log", log]).refused(5, &["holds ext4", "--wipe"]);
        up(&["--backing", backing, "--log", log, "--wipe"]).ok();
        place.sandbox.ztier(&["down", "vol"]).ok();
    } else {
        eprintln!("skipped the file system on the log: there is no mkfs.ext4");
    }
}

#[test]
fn a_log_serves_only_its_own_backing_store_as_it_left_it() {
    let place = Place::new();
    let (log, backing) = (&place.log[..], &place.backing[..]);
    place.sandbox.ztier(&place.up()).ok();
    place
        .sandbox
        .ztier(&["up", "two", "--export", "nbd", "--backing", backing, "--log", log])
        .refused(4, &["is in use", "volume `vol`"]);
    let mut disk = place.connect();
    disk.write(0, &content(0, 1));
    disk.flush();
    drop(disk);
    let down = place.sandbox.ztier(&["down", "vol"]);
    assert_eq!(down.err.lines().count(), 1, "{down:?}");
    for part in ["4 KiB are on", log, backing, "--drain"] {
        assert!(down.err.contains(part), "{part:?} is missing in {down:?}");
    }
    assert_eq!(down.ok(), "vol is down\n");
    // The log holds data: it is not formatted, and serves no other backing store.
    let format = ["log", "format", log, "--backing", backing];
    place.sandbox.ztier(&format).refused(5, &["holds data of its volume", "--force"]);
    place.sandbox.ztier(&[&format[..], &["--wipe"]].concat()).refused(5, &["holds data"]);
    let other = place.sandbox.path().join("other");
    File::create(&other).unwrap().set_len(BLOCKS * BLOCK).unwrap();
    let swapped = ["--backing", other.to_str().unwrap(), "--log", log];
    let up =
        |args: &[&str]| place.sandbox.ztier(&[&["up", "vol", "--export", "nbd"], args].concat());
    up(&swapped).refused(5, &["data of another drive", "--moved"]);
    fs::write(&other, vec![1; (BLOCKS * BLOCK) as usize]).unwrap();
    up(&swapped).refused(5, &["log of another drive"]);
    // Another program writes to the backing store meanwhile.
    let file = File::options().write(true).open(backing).unwrap();
    file.write_at(&[1; 16], 5).unwrap();
    let drives = ["--backing", backing, "--log", log];
    up(&drives).refused(5, &["was changed", "newer data", "superblock of ext4"]);
    // The bytes are the same, but the backing store was written.
    file.write_at(&[0; 16], 5).unwrap();
    let changed = up(&drives);
    if changed.status == 0 {
        println!("skipped: this file system tells nothing of changes");
    } else {
        changed.refused(5, &["was changed", "counted", "--accept-changed-backing"]);
        let said = up(&[&drives[..], &["--accept-changed-backing"]].concat());
        assert!(said.err.contains("which was changed meanwhile"), "{said:?}");
        said.ok();
    }
    assert_eq!(place.connect().read(0, 4096), content(0, 1));
    let drained = place.sandbox.ztier(&["down", "vol", "--drain"]);
    assert!(!drained.err.contains("only"), "{drained:?}");
    drained.ok();
    // After a drain the backing store may be used alone, and changed.
    file.write_at(&[1; 16], 8192).unwrap();
    up(&["--backing", backing, "--log", log]).ok();
    assert_eq!(place.connect().read(8192, 16), [1; 16]);
    place.sandbox.ztier(&["down", "vol"]).ok();
    place.sandbox.ztier(&format).ok();
}

#[test]
fn damage_in_a_log_is_told_and_refused() {
    let place = Place::new();
    place.sandbox.ztier(&place.up()).ok();
    place.write_one_by_one(8);
    place.sandbox.ztier(&["down", "vol"]).ok();
    let dump = place.sandbox.ztier(&["log", "dump", &place.log, "--entries"]).ok();
    assert!(dump.contains("block 3 Lz4") || dump.contains("block 3 Raw"), "{dump}");
    // A payload, then the header of the first chunk.
    let first = data_at(16 << 20, 64 << 10);
    let fifth = first + chunk_at(&dump, 4);
    let file = File::options().write(true).open(&place.log).unwrap();
    file.write_at(&[0xff; 4], first + 300).unwrap();
    let check = place.sandbox.ztier(&["log", "check", &place.log]);
    assert!(check.out.contains("block 0 in chunk 0 is damaged"), "{check:?}");
    check.refused(6, &["is damaged", "--accept-loss"]);
    file.write_at(&[0xff; 4], first).unwrap();
    place.sandbox.ztier(&place.up()).refused(5, &["chunk 0 in segment 0 was durable"]);
    place.sandbox.ztier(&[&place.up()[..], &["--accept-loss"]].concat()).ok();
    assert_eq!(place.connect().read(7 * BLOCK, 4096), content(7, 1));
    // That loss is known to all later daemons; another one is not.
    let restart = || place.sandbox.ztier(&["restart", "vol"]);
    restart().ok();
    place.sandbox.kill("vol");
    restart().ok();
    assert_eq!(place.connect().read(7 * BLOCK, 4096), content(7, 1));
    place.sandbox.kill("vol");
    let whole = damage(&place.log, fifth);
    restart().refused(5, &["was durable and is damaged", "--accept-loss"]);
    file.write_at(&whole, fifth).unwrap();
    restart().ok();
    assert_eq!(place.connect().read(7 * BLOCK, 4096), content(7, 1));
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

#[test]
fn the_damaged_log_of_another_drive_is_not_made_anew() {
    let (place, other) = (Place::new(), Place::new());
    other.sandbox.ztier(&other.up()).ok();
    other.write_one_by_one(2);
    other.sandbox.ztier(&["down", "vol"]).ok();
    let dump = other.sandbox.ztier(&["log", "dump", &other.log, "--entries"]).ok();
    let first = data_at(16 << 20, 64 << 10);
    let last = first + chunk_at(&dump, 1);
    let whole = damage(&other.log, first);
    let with_other = |arg: &'static str| {
        let up = place.up().into_iter().map(|own| if own == place.log { &other.log } else { own });
        place.sandbox.ztier(&up.chain([arg]).collect::<Vec<_>>())
    };
    with_other("--discard-log").refused(5, &["holds data of another drive", "--moved"]);
    File::options().write(true).open(&other.log).unwrap().write_at(&whole, first).unwrap();
    // Damage at the end of a log counts as elsewhere.
    let whole = damage(&other.log, last);
    other.sandbox.ztier(&["log", "check", &other.log]).refused(6, &["is damaged"]);
    File::options().write(true).open(&other.log).unwrap().write_at(&whole, last).unwrap();
    other.sandbox.ztier(&other.up()).ok();
    assert_eq!(other.connect().read(BLOCK, 4096), content(1, 1));
    other.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

/// Offset of a chunk within the first segment, according to `log dump`.
fn chunk_at(dump: &str, number: u64) -> u64 {
    let head = format!("chunk {number} segment 0 at ");
    let found = dump.lines().find_map(|line| line.strip_prefix(&head));
    found.and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap()
}

/// Damages four bytes at `at`. Returns the old ones.
fn damage(path: &str, at: u64) -> [u8; 4] {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut whole = [0; 4];
    file.read_exact_at(&mut whole, at).unwrap();
    file.write_at(&whole.map(|byte| !byte), at).unwrap();
    whole
}

/// Runs a command on its own terminal; returns the output.
fn on_a_terminal(sandbox: &Sandbox, args: &[&str]) -> String {
    let command = sandbox.command(args);
    let line = [&[env!("CARGO_BIN_EXE_ztier")], args].concat().join(" ");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    command.get_envs().for_each(|(key, value)| {
        value.map(|value| script.env(key, value));
    });
    script.stdin(Stdio::null());
    finish(script).ok()
}

#[test]
fn opening_and_verifying_show_how_far_they_are_on_a_terminal_alone() {
    let place = Place::new();
    if Command::new("script").arg("--version").output().is_err() {
        println!("skipped: no script, which makes terminals");
        return;
    }
    drop(place.up_with_a_write());
    place.sandbox.ztier(&["down", "vol"]).ok();
    // The daemon is another process without a terminal.
    let up = on_a_terminal(&place.sandbox, &place.up());
    let (progress, result) = up.rsplit_once("\r\x1b[K").unwrap_or_else(|| panic!("{up:?}"));
    assert!(progress.contains("\rvol: reading the log, segment 0 of at most "), "{up:?}");
    assert!(result.contains("behind the log on"), "{up:?}");
    place.sandbox.ztier(&["down", "vol"]).ok();
    let check = ["log", "check", &place.log];
    let shown = on_a_terminal(&place.sandbox, &check);
    let (progress, result) = shown.rsplit_once("\r\x1b[K").unwrap_or_else(|| panic!("{shown:?}"));
    assert!(progress.contains("\rreading the log, segment 0 of"), "{shown:?}");
    assert!(result.contains("log closed in order: 1 changes"), "{shown:?}");
    assert_eq!(place.sandbox.ztier(&check).err, "");
}

/// Times are shown in seconds, in UTC.
fn has_moment(text: &str) -> bool {
    text.split_whitespace().any(|word| {
        let word = word.trim_end_matches([',', ')', ';']);
        word.len() == 20 && word.starts_with("20") && word.ends_with('Z') && word.contains('T')
    })
}

#[test]
fn a_log_that_is_gone_is_missed_and_given_up_only_when_told() {
    let place = Place::new();
    let mut disk = place.up_with_a_write();
    place.sandbox.ztier(&["drain", "vol"]).ok();
    let status = place.sandbox.ztier(&["status", "vol"]).ok();
    assert!(status.contains("is the volume"), "{status}");
    disk.write(0, &content(0, 2));
    disk.flush();
    let status = place.sandbox.ztier(&["status", "vol"]).ok();
    assert!(status.contains("the volume as it was at") && has_moment(&status), "{status}");
    drop(disk);
    place.sandbox.ztier(&["down", "vol"]).ok();
    let away = format!("{}.away", place.log);
    fs::rename(&place.log, &away).unwrap();
    let missed = ["lacks what its log on", "--discard-log", "its state is that of 20"];
    place.sandbox.ztier(&place.up()).refused(5, &missed);
    // Another log is refused, too.
    File::create(&place.log).unwrap().set_len(16 << 20).unwrap();
    place.sandbox.ztier(&place.up()).refused(5, &missed);
    let format = ["log", "format", &place.log, "--backing", &place.backing];
    place.sandbox.ztier(&format).refused(5, &["lacks what its log", "--force"]);
    assert!(fs::read(&place.log).unwrap().iter().all(|b| *b == 0), "nothing was written");
    let abandon = [&place.up()[..], &["--discard-log"]].concat();
    let done = place.sandbox.ztier(&abandon);
    assert!(done.err.contains("goes on without what its log on"), "{done:?}");
    assert!(has_moment(&done.err), "{done:?}");
    done.ok();
    // The loss was accepted once.
    place.sandbox.ztier(&["restart", "vol"]).ok();
    let mut disk = place.connect();
    assert_eq!(disk.read(0, 4096), content(0, 1), "the state of the backing store");
    disk.write(200 * BLOCK, &content(200, 3));
    disk.flush();
    drop(disk);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    place.sandbox.ztier(&abandon).refused(2, &["can be used", "leave out --discard-log"]);
    // The old log comes back, and the samples of the backing store match.
    let (fresh, log) = (format!("{}.fresh", place.log), &place.log);
    fs::rename(log, &fresh).unwrap();
    fs::rename(&away, log).unwrap();
    place.sandbox.ztier(&place.up()).refused(5, &["has gone on without"]);
    fs::rename(log, &away).unwrap();
    fs::rename(&fresh, log).unwrap();
    place.sandbox.ztier(&place.up()).ok();
    place.sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn a_log_that_another_was_made_for_by_force_does_not_come_back() {
    let place = Place::new();
    drop(place.up_with_a_write());
    place.sandbox.ztier(&["down", "vol"]).ok();
    let (away, log) = (format!("{}.away", place.log), &place.log);
    fs::rename(log, &away).unwrap();
    File::create(log).unwrap().set_len(16 << 20).unwrap();
    let format = ["log", "format", log, "--backing", &place.backing, "--force"];
    place.sandbox.ztier(&format).ok();
    place.sandbox.ztier(&place.up()).ok();
    // At a block without a sample of the backing store's identity.
    let mut disk = place.connect();
    disk.write(200 * BLOCK, &content(200, 7));
    disk.flush();
    drop(disk);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    fs::rename(&away, log).unwrap();
    place.sandbox.ztier(&place.up()).refused(5, &["holds data", "has gone on without"]);
}

#[test]
fn who_goes_on_gives_up_nothing_that_was_given_up_before() {
    let place = Place::new();
    drop(place.up_with_a_write());
    place.sandbox.ztier(&["down", "vol"]).ok();
    damage(&place.log, 100);
    damage(&place.log, (64 << 10) + 100);
    place.sandbox.ztier(&[&place.up()[..], &["--discard-log"]].concat()).ok();
    place.write_one_by_one(8);
    place.sandbox.kill("vol");
    // The log is unusable for now.
    let first = data_at(16 << 20, 64 << 10);
    let whole = damage(&place.log, first);
    place.sandbox.ztier(&["restart", "vol"]).refused(5, &["was durable", "--accept-loss"]);
    File::options().write(true).open(&place.log).unwrap().write_at(&whole, first).unwrap();
    place.sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(place.connect().read(5 * BLOCK, 4096), content(5, 1));
    place.sandbox.ztier(&["down", "vol", "--drain", "--force"]).ok();
}

#[test]
fn a_log_with_damaged_superblocks_can_be_given_up_in_place() {
    let place = Place::new();
    drop(place.up_with_a_write());
    place.sandbox.ztier(&["down", "vol"]).ok();
    let file = File::options().write(true).open(&place.log).unwrap();
    file.write_at(&[0xff; 4], 100).unwrap();
    file.write_at(&[0xff; 4], (64 << 10) + 100).unwrap();
    place.sandbox.ztier(&place.up()).refused(5, &["superblock are damaged", "--discard-log"]);
    place.sandbox.ztier(&[&place.up()[..], &["--discard-log"]].concat()).ok();
    let found = place.connect().read(0, 4096);
    assert!(found == [0; 4096], "the state of the backing store");
    place.sandbox.ztier(&["down", "vol", "--drain", "--force"]).ok();
}

#[test]
fn a_record_says_whether_the_log_holds_anything() {
    let place = Place::new();
    let records = || {
        let files = fs::read_dir(place.sandbox.state_dir()).into_iter().flatten().flatten();
        let read = |file: fs::DirEntry| fs::read(file.path()).unwrap();
        let all = files.map(|file| serde_json::from_slice(&read(file)).unwrap());
        all.map(|record: serde_json::Value| record["dirty"].as_bool().unwrap()).collect::<Vec<_>>()
    };
    drop(place.up_with_a_write());
    assert_eq!(records(), [true]);
    place.sandbox.ztier(&["down", "vol"]).ok();
    assert_eq!(records(), [true]);
    place.sandbox.ztier(&place.up()).ok();
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    assert_eq!(records(), [false]);
    // Now the backing store is free.
    let bare = ["up", "vol", "--backing", &place.backing, "--export", "nbd"];
    place.sandbox.ztier(&bare).ok();
    place.sandbox.ztier(&["down", "vol"]).ok();
}

/// Only a daemon drains: without one, `down --drain` removes nothing and does not succeed.
#[test]
fn the_log_of_a_dead_daemon_is_not_taken_for_drained() {
    let place = Place::new();
    let ztier = |args: &[&str]| place.sandbox.ztier(args);
    let up = [&place.up()[..], &["--writeback", "off"]].concat();
    let holds = format!("{} may hold what {} lacks", place.log, place.backing);
    let next = "`ztier restart vol`, then `ztier down vol --drain`";
    let says = ["the daemon of volume `vol` is gone", &holds, next];
    ztier(&up).ok();
    place.write_one_by_one(1);
    // All that was in memory is gone.
    place.sandbox.kill_both("vol");
    let files = place.sandbox.files();
    ztier(&["down", "vol", "--drain"]).refused(6, &says);
    ztier(&["down", "--all", "--drain"]).refused(6, &says);
    assert_eq!(place.sandbox.files(), files);
    ztier(&["restart", "vol"]).ok();
    // It is kept, and given up on request; that is no word about what the log holds.
    place.sandbox.kill("vol");
    ztier(&["down", "vol", "--drain"]).refused(5, &["is kept"]);
    ztier(&["down", "vol", "--drain", "--discard"]).refused(6, &says);
    // Without a drain that was asked for, it is said.
    let done = ztier(&["down", "vol", "--discard"]);
    let alone = format!("{holds}; before {} is used alone, bring", place.backing);
    assert!(done.err.contains(&alone), "{done:?}");
    done.ok();
    ztier(&up).ok();
    // The state file does not say that there is a log.
    place.sandbox.kill_both("vol");
    let state = place.sandbox.run_dir().join("vol.json");
    let text = fs::read(&state).unwrap();
    fs::write(&state, "{").unwrap();
    let unknown = ["what its log holds is not known", "`ztier up vol`, then"];
    ztier(&["down", "vol", "--drain"]).refused(6, &unknown);
    fs::write(&state, text).unwrap();
    ztier(&["restart", "vol"]).ok();
    ztier(&["down", "vol", "--drain"]).ok();
    assert_eq!(fs::read(&place.backing).unwrap()[..BLOCK as usize], content(0, 1));
}

#[test]
fn flags_and_files_tune_a_log_from_the_beginning() {
    let place = Place::new();
    let flags = [
        "--writeback",
        "off",
        "--writeback-threshold",
        "70",
        "--writeback-window",
        "1M",
        "--commit-interval",
        "60000",
    ];
    let up = [&place.up()[..], &flags].concat();
    let shown = place.sandbox.ztier(&[&up[..], &["--dry-run"]].concat()).ok();
    assert!(shown.contains("switched off") && shown.contains("durable after 60000 ms"), "{shown}");
    let plan = place.sandbox.ztier(&[&up[..], &["--dry-run", "--json"]].concat()).json();
    let tuning = |plan: &serde_json::Value| {
        let log = &plan["log"];
        let number = |key: &str| log[key].as_u64().unwrap();
        let numbers = ["writeback_threshold_percent", "writeback_window_bytes"].map(number);
        (log["writeback"].as_bool().unwrap(), numbers, number("commit_interval_ms"))
    };
    let wanted = (false, [70, 1 << 20], 60_000);
    assert_eq!(tuning(&plan["plan"]), wanted);
    place.sandbox.ztier(&[&up[..], &["--save"]].concat()).ok();
    place.sandbox.ztier(&["down", "vol"]).ok();
    let file = fs::read_to_string(place.sandbox.config_dir().join("vol.toml")).unwrap();
    assert!(file.contains("writeback = false\n") && file.contains("commit-interval = 60000\n"));
    place.sandbox.ztier(&["up", "vol"]).ok();
    assert_eq!(tuning(&place.sandbox.status("vol")), wanted);
    // No client flushes; without the file the data would become durable after a second.
    let mut disk = place.connect();
    disk.write(0, &content(0, 1));
    let partial = || place.log_of("vol")["chunks_partial"].as_u64().unwrap();
    std::thread::sleep(Duration::from_millis(1600));
    assert_eq!(partial(), 0);
    place.sandbox.ztier(&["set", "vol", "commit-interval=20"]).ok();
    crate::support::sandbox::eventually("all is durable", || partial() > 0);
    assert_eq!(place.log_of("vol")["windows"], 0, "writeback is off");
    drop(disk);
    place.sandbox.ztier(&["down", "vol"]).ok();
    let day = [&place.up()[..], &["--commit-interval", "86400001"]].concat();
    place.sandbox.ztier(&day).refused(2, &["more than a day", "0 to 86400000"]);
    let odd = [&place.up()[..], &["--writeback", "maybe"]].concat();
    place.sandbox.ztier(&odd).refused(2, &["possible values: on, off"]);
}

#[test]
fn a_log_is_tuned_while_it_works_and_counts_what_it_does() {
    let place = Place::new();
    place.sandbox.ztier(&place.up()).ok();
    let set = |change: &[&str]| place.sandbox.ztier(&[&["set", "vol"], change].concat());
    let said = set(&["writeback=off", "commit-interval=20", "writeback-window=1M"]).ok();
    assert!(said.contains("writeback=off writeback-threshold=50 writeback-window=1M"), "{said}");
    set(&["writeback-threshold=101"]).refused(2, &["more than 100 percent"]);
    set(&["ram-limit=100K"]).refused(2, &["too little for a cache"]);
    let mut disk = place.connect();
    for block in 0..64 {
        disk.write(block * BLOCK, &content(block, 1));
    }
    disk.write(0, &content(0, 2));
    disk.write(BLOCK + 8, &[1; 8]);
    // No client flushes: the log flushes on its own, and writes nothing back.
    crate::support::sandbox::eventually("all is durable", || {
        let log = place.log_of("vol");
        log["drive_flushes"].as_u64() > Some(0)
    });
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(disk.read(0, 4096), content(0, 2));
    assert_eq!(disk.read(1000 * BLOCK, 4096), [0; 4096]);
    let log = place.log_of("vol");
    let count = |key: &str| log[key].as_u64().unwrap();
    assert_eq!(count("windows"), 0, "writeback is off: {log}");
    assert_eq!((count("writes_new"), count("writes_partial")), (64, 1), "{log}");
    assert_eq!(count("writes_over_memory") + count("writes_over_log"), 2, "{log}");
    assert!(count("reads_log") + count("reads_memory") >= 2 && count("reads_backing") >= 1);
    assert!(count("chunks_partial") > 0 && count("asked_bytes") == 66 * BLOCK, "{log}");
    assert!(count("segment_newest") >= count("segment_durable"), "{log}");
    set(&["writeback=on"]).ok();
    crate::support::sandbox::eventually("it is written back", || {
        place.log_of("vol")["written_back_bytes"].as_u64() > Some(0)
    });
    let table = place.sandbox.ztier(&["stats", "vol"]).ok();
    assert!(table.contains("closed with room left"), "{table}");
    drop(disk);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}
