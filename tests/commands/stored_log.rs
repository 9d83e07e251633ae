//! A log in front of a volume in a store: the store holds past states of the volume alone, whatever
//! ends the daemon; the log fits only a store that is as it left it; outages; what is lost.
#![allow(clippy::unwrap_used)]

use crate::support::place::content;
use crate::support::sandbox::eventually;
use crate::support::stored::{BLOCK, Stored, check, copy, write};
use crate::support::worn;
use std::fs;
use std::os::unix::fs::FileExt;

const NEW: [&str; 4] = ["--size", "1G", "--log-size", "64M"];

/// The volume is up on host 0, with a log.
fn logged(more: &[&str]) -> Stored {
    let stored = Stored::new();
    stored.up_logged(0, &[&NEW[..], more].concat()).ok();
    stored
}

fn drain(stored: &Stored) {
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
}

#[test]
fn what_is_in_the_log_reaches_the_store_and_outlives_the_daemon() {
    let stored = logged(&[]);
    let mut disk = stored.disk(0);
    write(&mut disk, 0..2000, 1);
    disk.flush();
    disk.zero(100 * BLOCK, 50 * 4096);
    write(&mut disk, 1 << 17..(1 << 17) + 10, 2);
    stored.hosts[0].kill("vol");
    drop(disk);
    // The daemon that follows takes over what was in memory, too.
    stored.up_logged(0, &[]).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, (0..100).chain(150..2000), 1);
    check(&mut disk, 100..150, 0);
    check(&mut disk, 1 << 17..(1 << 17) + 10, 2);
    drop(disk);
    stored.hosts[0].ztier(&["drain", "vol"]).ok();
    let stats = stored.stats(0);
    assert_eq!(
        (stats["object"]["blocks"].as_u64(), stats["log"]["clean"].as_bool()),
        (Some(1960), Some(true))
    );
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    stored.up(1, &[]).ok();
    let mut disk = stored.disk(1);
    check(&mut disk, (0..100).chain(150..2000), 1);
    check(&mut disk, 100..150, 0);
    check(&mut disk, 1 << 17..(1 << 17) + 10, 2);
}

/// Blocks are written in order, round after round, so a past state has one border: blocks before it
/// are of a round, those behind it of the round before.
#[test]
fn the_store_holds_a_past_state_whenever_the_daemon_dies() {
    const BLOCKS: u64 = 700;
    let often = ["--max-unsent", "8M,1s"];
    let stored = logged(&often);
    let other = stored.hosts[1].path().join("copy");
    let mut borders = Vec::new();
    for round in 1..=8 {
        let mut disk = stored.disk(0);
        write(&mut disk, 0..BLOCKS, round);
        disk.flush();
        std::thread::sleep(std::time::Duration::from_millis(300 + 150 * (round % 5)));
        stored.hosts[0].kill("vol");
        drop(disk);
        let _ = fs::remove_dir_all(&other);
        copy(&stored.dir, &other);
        let place = format!("file://{}", other.display());
        let up = ["up", "vol", "--export", "nbd", "--backing", &place, "--log", "none", "--force"];
        if !other.join("root").exists() {
            continue;
        }
        stored.hosts[1].ztier(&up).ok();
        let mut there = stored.disk(1);
        let newest: Vec<u64> = (0..BLOCKS)
            .map(|block| {
                let found = there.read(block * BLOCK, 4096);
                let version = (1..=round).find(|version| found == content(block, *version));
                version.unwrap_or_else(|| {
                    assert!(found == vec![0; 4096], "block {block} was never so");
                    0
                })
            })
            .collect();
        let border = newest.iter().position(|version| *version != newest[0]);
        let border = border.unwrap_or(newest.len());
        assert!(newest[border..].iter().all(|version| version + 1 == newest[0]), "{newest:?}");
        borders.push((newest[0], border));
        drop(there);
        stored.hosts[1].ztier(&["down", "vol"]).ok();
        stored.up_logged(0, &often).ok();
        check(&mut stored.disk(0), 0..BLOCKS, round);
    }
    assert!(borders.is_sorted(), "the store went back: {borders:?}");
    assert!(borders.last().is_some_and(|(version, _)| *version > 3), "{borders:?}");
}

#[test]
fn a_host_that_lost_the_volume_keeps_what_it_had_not_sent() {
    let stored = logged(&["--writeback", "off"]);
    let mut disk = stored.disk(0);
    write(&mut disk, 0..100, 1);
    disk.flush();
    stored.hosts[0].ztier(&["drain", "vol"]).ok();
    write(&mut disk, 0..50, 2);
    disk.flush();
    stored.up(1, &[]).refused(4, &["is in use by vol on "]);
    stored.up(1, &["--force"]).ok();
    let mut other = stored.disk(1);
    check(&mut other, 0..100, 1);
    eventually("the first host notices", || {
        stored.hosts[0].ztier(&["status", "vol"]).out.contains("was taken over by vol on ")
    });
    assert_eq!(disk.try_read(0, 4096), None, "what may be old is not served");
    assert_ne!(disk.flush_error(), 0);
    let overtaken = ["still holds", "was taken over by vol on ", "`ztier log branch DEV"];
    stored.hosts[0].ztier(&["drain", "vol"]).refused(6, &overtaken);
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol"]).looked();
    // The other host has written nothing: the log still fits.
    drop(other);
    stored.hosts[1].ztier(&["down", "vol"]).ok();
    stored.up_logged(0, &[]).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, 0..50, 2);
    check(&mut disk, 50..100, 1);
    // And now it has.
    stored.up(1, &["--force"]).ok();
    let mut other = stored.disk(1);
    write(&mut other, 90..91, 3);
    other.flush();
    drop(other);
    stored.hosts[1].ztier(&["down", "vol"]).ok();
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol"]).looked();
    let held = "held newer data of it";
    stored.up_logged(0, &[]).refused(5, &[held, "is not of that log", "--discard-log"]);
    branch(&stored);
    // Nothing was taken over or written for that.
    stored.up(1, &[]).ok();
    check(&mut stored.disk(1), 90..91, 3);
    stored.hosts[1].ztier(&["down", "vol"]).ok();
    stored.up(0, &[]).refused(5, &["lacks what its log on"]);
    stored.up_logged(0, &["--discard-log"]).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, 0..90, 1);
    check(&mut disk, 90..91, 3);
}

/// What only the overtaken log has can be read at another place, and stays where it is.
fn branch(stored: &Stored) {
    let (log, place) = (stored.log(0), format!("{}-branch", stored.place()));
    let copy = |to: &str| {
        let args = ["log", "branch", &log, "--backing", &stored.place(), "--to", to];
        stored.hosts[0].ztier(&args)
    };
    copy(&stored.place()).refused(1, &["has a volume already"]);
    copy("/tmp").refused(2, &["is no place of a store"]);
    let told = copy(&place).ok();
    assert!(told.contains("has the volume as "), "{told}");
    copy(&place).refused(1, &["has a volume already"]);
    let up = ["up", "vol", "--export", "nbd", "--backing", &place, "--log", &log];
    stored.hosts[0].ztier(&up).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, 0..50, 2);
    check(&mut disk, 50..100, 1);
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol"]).looked();
}

#[test]
fn a_store_that_went_back_is_refused() {
    let stored = logged(&[]);
    let mut disk = stored.disk(0);
    write(&mut disk, 0..10, 1);
    drop(disk);
    drain(&stored);
    let before = stored.dir.with_extension("before");
    copy(&stored.dir, &before);
    stored.up_logged(0, &[]).ok();
    write(&mut stored.disk(0), 0..10, 2);
    drain(&stored);
    fs::remove_dir_all(&stored.dir).unwrap();
    copy(&before, &stored.dir);
    let older = ["is in an older state than ", "--accept-changed-backing goes on without"];
    stored.up_logged(0, &[]).refused(5, &older);
    stored.up_logged(0, &["--accept-changed-backing"]).ok();
    check(&mut stored.disk(0), 0..10, 1);
    drain(&stored);
    let vain = ["nothing shows that", "leave out --accept-changed-backing"];
    stored.up_logged(0, &["--accept-changed-backing"]).refused(2, &vain);
}

/// The log's tail passes segments of copies, of which there is nothing to commit.
#[test]
fn a_log_of_copies_fits_the_store_that_they_are_of() {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G"]).ok();
    write(&mut stored.disk(0), 0..600, 1);
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    let clean = || stored.stats(0)["log"]["blocks_clean"].as_u64().unwrap();
    let mut kept = 0;
    for round in 0..3 {
        let more = ["--log-size", "64M", "--ram-limit", "0", "--log-cache", "50"];
        stored.up_logged(0, &more).ok();
        assert!(clean() >= kept, "round {round}: {} of {kept} outlived `down`", clean());
        let mut disk = stored.disk(0);
        if round == 1 {
            // Here a commit comes before the copies that the tail passes.
            write(&mut disk, 700..710, 2);
            disk.flush();
            stored.hosts[0].ztier(&["drain", "vol"]).ok();
        }
        kept += 200;
        eventually("the log keeps what is read", || {
            check(&mut disk, kept - 200..kept, 1);
            clean() >= kept
        });
        drop(disk);
        stored.hosts[0].ztier(&["down", "vol"]).ok();
    }
}

/// Changes have an age of their own, not that of copies in their segment.
#[test]
fn old_copies_send_no_change() {
    let stored = logged(&["--ram-limit", "0", "--log-cache", "50", "--max-unsent", "1G,8s,wait"]);
    write(&mut stored.disk(0), 0..100, 1);
    drain(&stored);
    let more = ["--ram-limit", "0", "--log-cache", "50", "--max-unsent", "1G,8s,wait"];
    stored.up(1, &[]).ok();
    write(&mut stored.disk(1), 100..200, 1);
    stored.hosts[1].ztier(&["down", "vol"]).ok();
    stored.up_logged(0, &more).ok();
    let mut disk = stored.disk(0);
    eventually("the log keeps what is read", || {
        check(&mut disk, 0..200, 1);
        stored.stats(0)["log"]["blocks_clean"].as_u64() >= Some(200)
    });
    std::thread::sleep(std::time::Duration::from_secs(9));
    write(&mut disk, 0..10, 2);
    let stats = stored.stats(0);
    assert_eq!(
        (&stats["object"]["windows"], &stats["log"]["blocks_dirty"]),
        (&0.into(), &10.into())
    );
    assert!(stats["log"]["unsent_age_s"].as_u64() < Some(3), "{}", stats["log"]);
}

#[test]
fn a_log_that_fails_leaves_the_volume_to_the_store() {
    const BLOCKS: u64 = 4000;
    let stored = Stored::new();
    let (log, place) = (stored.log(0), stored.place());
    let up = ["up", "vol", "--export", "nbd", "--backing", &place, "--log", &log];
    worn::up(&stored.hosts[0], &[&up[..], &NEW, &["--writeback", "off"]].concat());
    let mut disk = stored.disk(0);
    write(&mut disk, 0..BLOCKS / 2, 1);
    disk.flush();
    // Objects are smaller.
    worn::limit(&stored.hosts[0], "vol", Some(12 << 20));
    write(&mut disk, BLOCKS / 4..BLOCKS, 2);
    disk.flush();
    let log = stored.stats(0)["log"].clone();
    assert_eq!((&log["failed"], &log["through"]), (&true.into(), &true.into()), "{log}");
    write(&mut disk, 0..10, 3);
    disk.flush();
    check(&mut disk, BLOCKS / 4..BLOCKS, 2);
    // The host is gone; the store alone has it all.
    stored.hosts[0].kill("vol");
    drop(disk);
    stored.up(1, &["--force"]).ok();
    let mut other = stored.disk(1);
    check(&mut other, 0..10, 3);
    check(&mut other, 10..BLOCKS / 4, 1);
    check(&mut other, BLOCKS / 4..BLOCKS, 2);
}

#[test]
fn an_outage_of_the_store_only_fills_the_log() {
    let stored = logged(&["--max-unsent", "8M,1s"]);
    let mut disk = stored.disk(0);
    write(&mut disk, 0..10, 1);
    disk.flush();
    let away = stored.dir.with_extension("away");
    fs::rename(&stored.dir, &away).unwrap();
    for version in 2..6 {
        write(&mut disk, 0..600, version);
        disk.flush();
    }
    eventually("the outage is reported", || {
        let looked = stored.hosts[0].ztier(&["status", "vol"]);
        looked.status == 6 && looked.out.contains("the store fails, and is asked again")
    });
    check(&mut disk, 0..600, 5);
    drop(disk);
    // The daemon goes down and comes back as long as the outage lasts, and loses nothing.
    stored.hosts[0].ztier(&["down", "vol"]).looked();
    stored.up_logged(0, &[]).refused(2, &["has no volume yet"]);
    fs::rename(&away, &stored.dir).unwrap();
    stored.up_logged(0, &[]).ok();
    check(&mut stored.disk(0), 0..600, 5);
    drain(&stored);
    stored.up(1, &[]).ok();
    check(&mut stored.disk(1), 0..600, 5);
}

#[test]
fn a_store_lacks_only_so_much_and_writers_wait_if_that_is_asked_for() {
    let stored = logged(&["--max-unsent", "8M,2s"]);
    let mut disk = stored.disk(0);
    write(&mut disk, 0..10, 1);
    eventually("what is old is sent", || stored.stats(0)["log"]["clean"] == true);
    assert_eq!(stored.counted(0)["blocks"], 10);
    stored.hosts[0].ztier(&["set", "vol", "max-unsent=8M,1s,wait"]).ok();
    let told = stored.hosts[0].ztier(&["status", "vol"]).ok();
    assert!(told.contains("at most 8M and 1 s; beyond it writers wait"), "{told}");
    let away = stored.dir.with_extension("away");
    fs::rename(&stored.dir, &away).unwrap();
    write(&mut disk, 0..10, 2);
    let writing = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(1500));
        write(&mut disk, 10..20, 3);
        disk
    });
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!writing.is_finished(), "a writer did not wait");
    fs::rename(&away, &stored.dir).unwrap();
    let mut disk = writing.join().unwrap();
    check(&mut disk, 0..10, 2);
    check(&mut disk, 10..20, 3);
    stored.hosts[0].ztier(&["set", "vol", "max-unsent=7M,1s"]).refused(2, &["is out of bounds"]);
}

#[test]
fn a_flush_waits_for_the_store_if_that_is_asked_for() {
    let stored = logged(&["--sync-remote", "--max-unsent", "1G,3600s"]);
    let told = stored.hosts[0].ztier(&["status", "vol"]).ok();
    assert!(told.contains("in the store when a flush returns"), "{told}");
    let mut disk = stored.disk(0);
    for round in 1..=20 {
        write(&mut disk, 0..10, round);
        disk.flush();
        assert_eq!(stored.counted(0)["blocks"], 10, "round {round}");
    }
    stored.hosts[0].kill("vol");
    drop(disk);
    // The host and its log are gone.
    stored.up(1, &["--force"]).ok();
    check(&mut stored.disk(1), 0..10, 20);
}

#[test]
fn what_the_log_lost_is_lost_in_the_store_too() {
    let stored = logged(&["--writeback", "off", "--commit-interval", "10", "--ram-limit", "0"]);
    let mut disk = stored.disk(0);
    write(&mut disk, 0..64, 1);
    disk.flush();
    stored.hosts[0].ztier(&["drain", "vol"]).ok();
    write(&mut disk, 0..64, 2);
    disk.flush();
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol"]).looked();
    // A part of the payload of block 20: its content follows from its number and version.
    let log = fs::read(stored.log(0)).unwrap();
    let payload = &content(20, 2)[1000..1100];
    let at = log.windows(100).position(|bytes| bytes == payload).unwrap();
    let file = fs::OpenOptions::new().write(true).open(stored.log(0)).unwrap();
    file.write_all_at(&[0x55; 8], at as u64 + 50).unwrap();
    stored.up_logged(0, &[]).ok();
    stored.hosts[0].ztier(&["drain", "vol"]).looked();
    assert_eq!(stored.disk(0).try_read(20 * BLOCK, 4096), None);
    stored.hosts[0].ztier(&["down", "vol"]).looked();
    stored.up(1, &[]).ok();
    let mut other = stored.disk(1);
    check(&mut other, (0..20).chain(21..64), 2);
    assert_eq!(other.try_read(20 * BLOCK, 4096), None, "the older content is not served");
    assert_eq!(stored.counted(1)["lost_blocks"], 1);
    write(&mut other, 20..21, 3);
    other.flush();
    check(&mut other, 20..21, 3);
    assert_eq!(stored.counted(1)["lost_blocks"], 0);
}

#[test]
fn what_can_not_be_is_one_line() {
    let stored = Stored::new();
    let place = stored.place();
    let up = |log: &str, more: &[&str]| {
        let common = ["up", "vol", "--export", "nbd", "--backing", &place, "--log", log];
        stored.hosts[0].ztier(&[&common[..], more].concat())
    };
    let log = stored.log(0);
    up(&log, &[]).refused(2, &["has no volume yet; give its size, like --size 1T"]);
    assert!(!fs::exists(&stored.dir).unwrap() && !fs::exists(&log).unwrap());
    let no_log = ["up", "vol", "--export", "nbd", "--backing", &place, "--size", "1G"];
    stored.hosts[0].ztier(&no_log).refused(2, &["waits for that store; give --log DEV"]);
    up(&log, &["--size", "1G"]).refused(1, &[&log]);
    fs::File::create(&log).unwrap().set_len(64 << 10).unwrap();
    up(&log, &["--size", "1G"]).refused(1, &["a log takes", "give a larger drive"]);
    assert!(!fs::exists(stored.dir.join("root")).unwrap(), "a volume was made");
    fs::remove_file(&log).unwrap();
    up(&log, &NEW).ok();
    drain(&stored);
    let inside = format!("{}/log", stored.dir.display());
    up(&inside, &["--log-size", "64M"]).refused(2, &["is inside its store"]);
    assert!(!fs::exists(&inside).unwrap());
    // The log of another volume: refused while it holds something, before a volume is made.
    let other = format!("{place}-other");
    let up_other =
        ["up", "vol", "--export", "nbd", "--backing", &other, "--size", "1G", "--log", &log];
    up(&log, &[]).ok();
    write(&mut stored.disk(0), 0..10, 1);
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    let held = ["is a log that holds data of its volume"];
    stored.hosts[0].ztier(&up_other).refused(5, &held);
    assert!(!fs::exists(other.trim_start_matches("file://")).unwrap());
    up(&log, &[]).ok();
    drain(&stored);
}

#[test]
fn a_log_comes_and_goes_and_is_saved() {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G"]).ok();
    let mut disk = stored.disk(0);
    write(&mut disk, 0..10, 1);
    drop(disk);
    let log = stored.log(0);
    fs::File::create(&log).unwrap().set_len(64 << 20).unwrap();
    stored.hosts[0].ztier(&["restart", "vol", "--log", &log]).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, 0..10, 1);
    write(&mut disk, 5..15, 2);
    disk.flush();
    drop(disk);
    assert_eq!(stored.stats(0)["log"]["clean"], false);
    stored.hosts[0].ztier(&["restart", "vol", "--log", "none"]).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, 0..5, 1);
    check(&mut disk, 5..15, 2);
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    stored.up_logged(0, &["--save"]).ok();
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    stored.hosts[0].ztier(&["up", "vol"]).ok();
    check(&mut stored.disk(0), 5..15, 2);
}
