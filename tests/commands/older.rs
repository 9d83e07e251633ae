//! Older copies and snapshots of a log are refused, in each state of a log. A log that is not older
//! is never refused, whenever its daemon is killed.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::place::{BLOCK, BLOCKS, Place, content};
use std::fs::{self, File};
use std::time::Duration;

/// No sample of the identity is near this block.
const FIRST: u64 = 200;
const COUNT: u64 = 20;

/// Writes a version of some blocks, durably.
fn write(place: &Place, version: u64) {
    let mut disk = place.connect();
    for block in FIRST..FIRST + COUNT {
        disk.write(block * BLOCK, &content(block, version));
    }
    disk.flush();
}

#[track_caller]
fn check(place: &Place, version: u64) {
    let mut disk = place.connect();
    for block in FIRST..FIRST + COUNT {
        let found = disk.read(block * BLOCK, BLOCK as usize);
        assert!(found == content(block, version), "block {block} is not of version {version}");
    }
}

fn with<'a>(place: &'a Place, more: &[&'a str]) -> Vec<&'a str> {
    [&place.up()[..], &["--writeback", "off"], more].concat()
}

#[track_caller]
fn up(place: &Place, more: &[&str]) -> String {
    let done = place.sandbox.ztier(&with(place, more));
    let said = done.err.clone();
    done.ok();
    said
}

#[track_caller]
fn down(place: &Place, more: &[&str]) {
    place.sandbox.ztier(&[&["down", "vol"], more].concat()).ok();
}

/// Copies a file in place, as `dd` or a restored backup does.
fn copy(from: &str, to: &str) {
    let bytes = fs::read(from).unwrap();
    fs::write(to, bytes).unwrap();
}

fn refused(place: &Place, more: &[&str], says: &[&str]) {
    let before = (fs::read(&place.log).unwrap(), fs::read(&place.backing).unwrap());
    place.sandbox.ztier(&with(place, more)).refused(5, says);
    let after = (fs::read(&place.log).unwrap(), fs::read(&place.backing).unwrap());
    assert!(before == after, "something was written");
}

const OLDER: &str = "in an older state (of 20";

#[test]
fn a_copy_from_before_a_drain_is_not_put_over_what_was_written_since() {
    let place = Place::new();
    let old = format!("{}.old", place.log);
    up(&place, &[]);
    write(&place, 1);
    down(&place, &[]);
    copy(&place.log, &old);
    up(&place, &[]);
    down(&place, &["--drain"]);
    // Used without its log.
    let bare = ["up", "vol", "--export", "nbd", "--backing", &place.backing];
    place.sandbox.ztier(&bare).ok();
    write(&place, 2);
    down(&place, &[]);
    let drained = format!("{}.drained", place.log);
    copy(&place.log, &drained);
    copy(&old, &place.log);
    let says = [
        OLDER,
        "than this machine has seen (of 20",
        "has what it held",
        "ztier log format DEV --backing DEV --force",
    ];
    refused(&place, &[], &says);
    // Other flags do not accept the older log.
    refused(&place, &["--accept-changed-backing", "--moved", "--accept-loss"], &[OLDER]);
    // The name does not matter.
    let other = format!("{}.other", place.log);
    copy(&old, &other);
    let args: Vec<_> = with(&place, &[])
        .into_iter()
        .map(|arg| if arg == place.log { &other } else { arg })
        .collect();
    place.sandbox.ztier(&args).refused(5, &[&other, OLDER]);
    // A running volume refuses it as well.
    place.sandbox.ztier(&bare).ok();
    place.sandbox.ztier(&["restart", "vol", "--log", &place.log]).refused(5, &["holds data"]);
    check(&place, 2);
    down(&place, &[]);
    // The step that the message suggests loses nothing.
    let format = ["log", "format", &place.log, "--backing", &place.backing, "--force"];
    place.sandbox.ztier(&format).ok();
    up(&place, &[]);
    check(&place, 2);
    down(&place, &["--drain"]);
    // The log after the last drain holds nothing: it may come back.
    copy(&drained, &place.log);
    up(&place, &[]);
    check(&place, 2);
    down(&place, &["--drain"]);
}

#[test]
fn a_copy_from_before_more_was_written_is_not_the_log() {
    let place = Place::new();
    let (old, new) = (format!("{}.old", place.log), format!("{}.new", place.log));
    up(&place, &[]);
    write(&place, 1);
    down(&place, &[]);
    copy(&place.log, &old);
    up(&place, &[]);
    write(&place, 2);
    down(&place, &[]);
    copy(&place.log, &new);
    copy(&old, &place.log);
    refused(&place, &[], &[OLDER, "give the newer log", &place.log, "--accept-older-log"]);
    // The newer log is still valid, also in another place.
    copy(&new, &place.log);
    up(&place, &[]);
    check(&place, 2);
    down(&place, &[]);
    // With the flag the older log is accepted. From then on the newer ones are refused.
    let newest = format!("{}.newest", place.log);
    copy(&place.log, &newest);
    copy(&old, &place.log);
    let said = up(&place, &["--accept-older-log"]);
    assert!(said.contains("what was written since then is lost"), "{said}");
    check(&place, 1);
    write(&place, 3);
    down(&place, &[]);
    up(&place, &[]);
    check(&place, 3);
    down(&place, &[]);
    for stale in [&new, &newest, &old] {
        copy(&place.log, &format!("{}.third", place.log));
        copy(stale, &place.log);
        refused(&place, &[], &[OLDER]);
        copy(&format!("{}.third", place.log), &place.log);
    }
    up(&place, &[]);
    check(&place, 3);
    down(&place, &["--drain"]);
}

/// A copy of an empty log does not replace the log that holds data.
#[test]
fn an_empty_copy_does_not_hide_what_the_log_holds() {
    let place = Place::new();
    let old = format!("{}.old", place.log);
    up(&place, &[]);
    write(&place, 1);
    down(&place, &["--drain"]);
    copy(&place.log, &old);
    up(&place, &[]);
    write(&place, 2);
    down(&place, &[]);
    let new = format!("{}.new", place.log);
    copy(&place.log, &new);
    copy(&old, &place.log);
    refused(&place, &[], &[OLDER, "give the newer log"]);
    copy(&new, &place.log);
    up(&place, &[]);
    check(&place, 2);
    down(&place, &["--drain"]);
}

/// A copy taken while the volume was up, or after its daemon was killed.
#[test]
fn a_copy_from_a_volume_at_work_is_an_older_state_as_well() {
    let place = Place::new();
    let (hot, dead) = (format!("{}.hot", place.log), format!("{}.dead", place.log));
    up(&place, &[]);
    write(&place, 1);
    copy(&place.log, &hot);
    place.sandbox.kill_both("vol");
    place.sandbox.ztier(&["down", "vol", "--discard"]).ok();
    copy(&place.log, &dead);
    // The volume has not come up since.
    copy(&hot, &place.log);
    up(&place, &[]);
    check(&place, 1);
    write(&place, 2);
    down(&place, &[]);
    let new = format!("{}.new", place.log);
    copy(&place.log, &new);
    for old in [&hot, &dead] {
        copy(old, &place.log);
        refused(&place, &[], &[OLDER]);
    }
    copy(&new, &place.log);
    up(&place, &[]);
    check(&place, 2);
    down(&place, &["--drain"]);
}

#[test]
fn each_log_that_a_backing_store_had_is_remembered() {
    let place = Place::new();
    let second = format!("{}.second", place.log);
    File::create(&second).unwrap().set_len(16 << 20).unwrap();
    let (old, old_second) = (format!("{}.old", place.log), format!("{}.old", second));
    up(&place, &[]);
    write(&place, 1);
    down(&place, &[]);
    copy(&place.log, &old);
    up(&place, &[]);
    place.sandbox.ztier(&["restart", "vol", "--log", &second]).ok();
    write(&place, 2);
    place.sandbox.kill("vol");
    copy(&second, &old_second);
    place.sandbox.ztier(&["restart", "vol"]).ok();
    // Back to the first log, which holds nothing.
    place.sandbox.ztier(&["restart", "vol", "--log", &place.log]).ok();
    check(&place, 2);
    write(&place, 3);
    down(&place, &["--drain"]);
    let drained = format!("{}.drained", place.log);
    copy(&place.log, &drained);
    for stale in [&old, &old_second] {
        copy(stale, &place.log);
        refused(&place, &[], &[OLDER, "has what it held"]);
    }
    copy(&drained, &place.log);
    up(&place, &[]);
    check(&place, 3);
    down(&place, &["--drain"]);
}

/// A log on another drive is the same log, if nothing is missing in it.
#[test]
fn a_log_may_move() {
    let place = Place::new();
    let other = place.sandbox.path().join("elsewhere");
    fs::create_dir(&other).unwrap();
    let other = other.join("fast").to_str().unwrap().to_owned();
    up(&place, &[]);
    write(&place, 1);
    down(&place, &[]);
    fs::copy(&place.log, &other).unwrap();
    let moved: Vec<_> = with(&place, &[])
        .into_iter()
        .map(|arg| if arg == place.log { &other } else { arg })
        .collect();
    place.sandbox.ztier(&moved).ok();
    check(&place, 1);
    write(&place, 2);
    down(&place, &[]);
    // The copy left behind is the older one now.
    refused(&place, &[], &[&place.log, OLDER, "give the newer log", "last on", &other]);
    place.sandbox.ztier(&moved).ok();
    check(&place, 2);
    down(&place, &["--drain"]);
}

/// Both drives were restored to the same moment. They are consistent, which only the user can know.
#[test]
fn a_pair_that_was_put_back_goes_on_at_a_word() {
    let place = Place::new();
    up(&place, &[]);
    write(&place, 1);
    down(&place, &[]);
    let olds = [&place.log, &place.backing].map(|path| (path, format!("{path}.old")));
    olds.iter().for_each(|(path, old)| copy(path, old));
    up(&place, &[]);
    write(&place, 2);
    down(&place, &["--drain"]);
    olds.iter().for_each(|(path, old)| copy(old, path));
    refused(&place, &[], &[OLDER, "only if", "was put back to that state, too"]);
    let said = place.sandbox.ztier(&with(&place, &["--accept-older-log"]));
    if said.err.contains("the kernel counted changes") {
        // Restoring the backing store was a write.
        up(&place, &["--accept-older-log", "--accept-changed-backing"]);
    } else {
        said.ok();
    }
    check(&place, 1);
    down(&place, &["--drain"]);
}

/// A pair and its copy diverge on one machine, each with its own state.
#[test]
fn a_copy_of_both_drives_makes_neither_older() {
    let place = Place::new();
    up(&place, &[]);
    write(&place, 1);
    down(&place, &[]);
    let copies = [&place.backing, &place.log].map(|path| {
        let to = format!("{path}.copy");
        fs::copy(path, &to).unwrap();
        to
    });
    let two = ["up", "two", "--export", "nbd", "--backing", &copies[0], "--log", &copies[1]];
    place.sandbox.ztier(&two).refused(5, &["of the same content", "--moved"]);
    for round in 0..3 {
        let moved: &[&str] = if round == 0 { &["--moved"] } else { &[] };
        place.sandbox.ztier(&[&two[..], &["--writeback", "off"], moved].concat()).ok();
        place.sandbox.ztier(&["down", "two"]).ok();
    }
    up(&place, &[]);
    check(&place, 1);
    write(&place, 2);
    down(&place, &["--drain"]);
    // A copy older than the log at its first use is refused, also for a backing store that this
    // machine sees for the first time.
    let third = format!("{}.third", place.backing);
    copy(&copies[0], &third);
    let args = ["up", "three", "--export", "nbd", "--moved", "--backing", &third, "--log"];
    let old = format!("{}.old", place.log);
    copy(&copies[1], &old);
    place.sandbox.ztier(&[&args[..], &[&old]].concat()).ok();
    place.sandbox.ztier(&["down", "three"]).ok();
}

/// A machine without a record cannot refuse: see `docs/durability.md`.
#[test]
fn where_nothing_is_known_a_log_is_what_it_says() {
    let place = Place::new();
    let old = format!("{}.old", place.log);
    up(&place, &[]);
    write(&place, 1);
    down(&place, &[]);
    copy(&place.log, &old);
    up(&place, &[]);
    write(&place, 2);
    down(&place, &[]);
    copy(&old, &place.log);
    refused(&place, &[], &[OLDER]);
    fs::remove_dir_all(place.sandbox.state_dir()).unwrap();
    up(&place, &[]);
    check(&place, 1);
    down(&place, &["--drain"]);
}

#[test]
fn a_word_for_what_is_not_so_is_refused() {
    let place = Place::new();
    let refused = |word: &str| {
        let done = place.sandbox.ztier(&with(&place, &[word]));
        done.refused(2, &["nothing shows that", "leave out", word]);
    };
    refused("--accept-older-log");
    refused("--accept-changed-backing");
    up(&place, &[]);
    write(&place, 1);
    down(&place, &[]);
    refused("--accept-older-log");
    refused("--accept-changed-backing");
    let bare = ["up", "vol", "--backing", &place.backing, "--accept-older-log"];
    place.sandbox.ztier(&bare).refused(2, &["is for a volume with a log"]);
}

/// The daemon is killed while it comes up, works, drains, goes down or is replaced. `ZTIER_KILLS`
/// sets the number of kills.
#[test]
fn no_kill_makes_a_log_older_than_it_is() {
    let place = Place::new();
    let kills = std::env::var("ZTIER_KILLS").map_or(24, |text| text.parse().unwrap());
    for round in 0..kills {
        let up = place.sandbox.ztier(&place.up());
        assert_eq!(up.status, 0, "round {round}: {up:?}");
        if round > 0 {
            check(&place, round);
        }
        write(&place, round + 1);
        let spawn = |args: &[&str]| place.sandbox.command(args).spawn().unwrap();
        let mut command = match round % 4 {
            0 => spawn(&["down", "vol"]),
            1 => spawn(&["down", "vol", "--drain"]),
            2 => spawn(&["drain", "vol"]),
            _ => spawn(&["restart", "vol"]),
        };
        std::thread::sleep(Duration::from_micros(round * 3711 % 60_000));
        // Daemon and memory holder, also their successors.
        kill_all(&place);
        crate::support::sandbox::wait(&mut command);
        kill_all(&place);
        place.sandbox.ztier(&["down", "vol", "--discard", "--force"]);
    }
    place.sandbox.ztier(&["log", "check", &place.log]).ok();
    // Killed while it comes up.
    for round in 0..kills {
        let mut up = place.sandbox.command(&place.up()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(round * 5711 % 90_000));
        kill_all(&place);
        crate::support::sandbox::wait(&mut up);
        kill_all(&place);
        place.sandbox.ztier(&["down", "vol", "--discard", "--force"]);
    }
    let up = place.sandbox.ztier(&place.up());
    assert_eq!(up.status, 0, "{up:?}");
    check(&place, kills);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    let backing = fs::read(&place.backing).unwrap();
    assert_eq!(backing.len() as u64, BLOCKS * BLOCK);
    let at = (FIRST * BLOCK) as usize;
    assert!(backing[at..at + BLOCK as usize] == content(FIRST, kills));
}

/// Kills every process of the sandbox's volume, found by its run directory in the environment.
fn kill_all(place: &Place) {
    let mark = format!("ZTIER_RUN_DIR={}\0", place.sandbox.run_dir().display());
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let ours = String::from_utf8_lossy(&environment).contains(&mark);
        if ours && (line.starts_with("ztier\0daemon\0") || line.starts_with("ztier\0keep")) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
