//! A volume in a store of objects, here a directory: what was flushed outlives the daemon and moves
//! to other owners; an owner that has a successor writes nothing; damage and outages.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::place::content;
use crate::support::sandbox::eventually;
use crate::support::shell::missing;
use crate::support::stored::{BLOCK, Stored, check, copy, read_independently, write};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SIZE: &str = "16T";

/// Blocks at both ends of the volume.
fn some() -> impl Iterator<Item = u64> {
    (0..200).chain((1 << 32) - 50..1 << 32)
}

#[test]
fn what_was_flushed_outlives_the_daemon_and_costs_what_it_holds() {
    let stored = Stored::new();
    stored.up(0, &[]).refused(2, &["has no volume yet; give its size, like --size 1T"]);
    stored.up(0, &["--size", SIZE]).ok();
    let mut disk = stored.disk(0);
    assert_eq!(disk.size, 16 << 40);
    check(&mut disk, some(), 0);
    write(&mut disk, some(), 1);
    disk.flush();
    disk.zero(100 * BLOCK, 50 * 4096);
    // Discarding all but the ends takes as long as discarding a block.
    for part in 0..4 {
        disk.zero((part << 42) + (1 << 21), (1 << 31) + (1 << 30));
    }
    disk.flush();
    let stored_bytes: u64 = stored.objects().iter().map(|o| o.metadata().unwrap().len()).sum();
    assert!(stored_bytes < 2 << 20, "{stored_bytes}");
    stored.hosts[0].kill("vol");
    drop(disk);
    // The size is the store's.
    stored.up(0, &["--size", "1T"]).refused(2, &["has 16T", "leave out --size"]);
    stored.up(0, &[]).ok();
    let mut disk = stored.disk(0);
    let zeroed = 100..150;
    check(&mut disk, some().filter(|block| !zeroed.contains(block)), 1);
    check(&mut disk, zeroed, 0);
    let counted = stored.counted(0);
    assert_eq!(counted["blocks"], 200, "{counted}");
    let told = stored.hosts[0].ztier(&["status", "vol"]).ok();
    assert!(told.contains("stored   800 KiB in ") && told.contains("owner    vol on "), "{told}");
    let listed = stored.hosts[0].ztier(&["list"]).ok();
    assert!(listed.contains(" 800 KiB "), "{listed}");
    // Unflushed writes get there by themselves, and on the way down.
    write(&mut disk, 300..310, 3);
    eventually("unflushed writes are sent", || stored.counted(0)["waiting_bytes"] == 0);
    write(&mut disk, 310..320, 3);
    drop(disk);
    stored.hosts[0].ztier(&["restart", "vol"]).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, 300..320, 3);
    write(&mut disk, 320..330, 3);
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    stored.up(1, &[]).ok();
    check(&mut stored.disk(1), 300..330, 3);
}

#[test]
fn a_large_window_is_several_objects_and_counts_as_a_whole() {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G", "--ram-limit", "0"]).ok();
    let mut disk = stored.disk(0);
    for part in 0..20 {
        let blocks = part * 256..(part + 1) * 256;
        let bytes: Vec<u8> = blocks.clone().flat_map(|block| content(block, 1)).collect();
        disk.write(blocks.start * BLOCK, &bytes);
    }
    disk.flush();
    let objects = stored.objects();
    // The fence and, of 20 MiB that do not compress, parts of at most 8 MiB.
    assert_eq!(objects.len(), 4, "{objects:?}");
    assert_eq!(stored.counted(0)["windows"], 1);
    check(&mut disk, (0..20 * 256).step_by(7), 1);
    drop(disk);
    stored.hosts[0].kill("vol");
    // Without its last part none of the window counts.
    let away = stored.dir.with_extension("part");
    fs::rename(&objects[3], &away).unwrap();
    stored.up(0, &[]).ok();
    check(&mut stored.disk(0), (0..20 * 256).step_by(7), 0);
}

#[test]
fn another_host_takes_over_and_the_first_one_writes_nothing_more() {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G"]).ok();
    let mut disk = stored.disk(0);
    write(&mut disk, 0..100, 1);
    disk.flush();
    let refused = ["is in use by vol on ", " s ago; take it down there"];
    stored.up(1, &[]).refused(4, &refused);
    write(&mut disk, 0..50, 2);
    stored.up(1, &["--force"]).ok();
    let mut other = stored.disk(1);
    check(&mut other, 50..100, 1);
    // What the first owner had not sent is all there or not at all.
    let version = if other.read(0, 4096) == content(0, 1) { 1 } else { 2 };
    check(&mut other, 0..50, version);
    write(&mut other, 0..100, 5);
    other.flush();
    // The first owner can't say that anything is durable, and says why.
    write(&mut disk, 0..100, 7);
    assert_ne!(disk.flush_error(), 0);
    let found = stored.hosts[0].ztier(&["status", "vol"]);
    assert!(found.out.contains("was taken over by vol on "), "{}", found.out);
    assert_eq!(found.status, 6);
    assert_eq!(disk.try_read(0, 4096), None, "what may be old is not served");
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol"]).refused(5, &["would lose data"]);
    stored.hosts[0].ztier(&["down", "vol", "--discard"]).ok();
    check(&mut other, 0..100, 5);
    write(&mut other, 0..10, 6);
    other.flush();
    stored.hosts[1].kill("vol");
    // Its owner of before has the same name, so it need not wait.
    stored.up(1, &[]).ok();
    let mut other = stored.disk(1);
    check(&mut other, 0..10, 6);
    check(&mut other, 10..100, 5);
}

/// A volume whose store has gone away, to the path returned, with version 1 of ten blocks; the
/// daemon has version 2.
fn in_outage() -> (Stored, Disk, PathBuf) {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G"]).ok();
    let mut disk = stored.disk(0);
    write(&mut disk, 0..10, 1);
    disk.flush();
    let away = stored.dir.with_extension("away");
    fs::rename(&stored.dir, &away).unwrap();
    write(&mut disk, 0..10, 2);
    (stored, disk, away)
}

#[test]
fn an_outage_of_the_store_is_waited_for() {
    let (stored, mut disk, away) = in_outage();
    let flushing = std::thread::spawn(move || {
        disk.flush();
        disk
    });
    eventually("the outage is reported", || {
        let looked = stored.hosts[0].ztier(&["status", "vol"]);
        looked.status == 6 && looked.out.contains("the store fails, and is asked again")
    });
    assert!(!flushing.is_finished());
    fs::rename(&away, &stored.dir).unwrap();
    let mut disk = flushing.join().unwrap();
    check(&mut disk, 0..10, 2);
    assert_eq!(stored.hosts[0].ztier(&["status", "vol"]).status, 0);
    stored.hosts[0].kill("vol");
    // A daemon that begins in an outage does not take it for an empty store.
    fs::rename(&stored.dir, &away).unwrap();
    fs::create_dir(&stored.dir).unwrap();
    stored.up(0, &[]).refused(2, &["has no volume yet"]);
    fs::remove_dir_all(&stored.dir).unwrap();
    fs::rename(&away, &stored.dir).unwrap();
    stored.up(0, &[]).ok();
    check(&mut stored.disk(0), 0..10, 2);
}

/// Of a volume without a log, its daemon alone has what the store has not got.
#[test]
fn a_signal_in_an_outage_gives_nothing_up() {
    let (stored, disk, away) = in_outage();
    let sandbox = &stored.hosts[0];
    drop(disk);
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    let pid = sandbox.pid("vol");
    kill_process(pid, Signal::TERM).unwrap();
    let log = sandbox.run_dir().join("vol.log");
    let refused = format!("asked to end, but {} has not got ", stored.place());
    eventually("it refuses to end", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains(&refused))
    });
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(sandbox.pid("vol"), pid);
    check(&mut stored.disk(0), 0..10, 2);
    fs::rename(&away, &stored.dir).unwrap();
    eventually("it ends once the store has all", || sandbox.files().is_empty());
    stored.up(0, &[]).ok();
    check(&mut stored.disk(0), 0..10, 2);
}

#[test]
fn damage_is_named_and_never_served() {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G", "--ram-limit", "0"]).ok();
    let mut disk = stored.disk(0);
    write(&mut disk, 0..10, 1);
    disk.flush();
    write(&mut disk, 10..20, 1);
    disk.flush();
    let objects = stored.objects();
    let [_, first, second] = &objects[..] else { panic!("{objects:?}") };
    // A payload: its blocks are errors, the others are served.
    let good = fs::read(first).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    fs::write(first, &bad).unwrap();
    assert_eq!(disk.try_read(9 * BLOCK, 4096), None);
    check(&mut disk, (0..9).chain(10..20), 1);
    let name = first.file_name().unwrap().to_str().unwrap();
    let looked = stored.hosts[0].ztier(&["status", "vol"]);
    assert!(looked.out.contains(&format!("{name} is damaged")), "{}", looked.out);
    // An object that is gone: errors for its blocks only.
    fs::remove_file(first).unwrap();
    assert_eq!(disk.try_read(0, 4096), None);
    check(&mut disk, 10..20, 1);
    let looked = stored.hosts[0].ztier(&["status", "vol"]);
    assert!(looked.out.contains(&format!("{name} is damaged or gone")), "{}", looked.out);
    drop(disk);
    stored.hosts[0].kill("vol");
    // With a table that is damaged, nothing can be said of later writes.
    bad = good.clone();
    bad[100] ^= 1;
    fs::write(first, &bad).unwrap();
    stored.up(0, &[]).refused(1, &[&format!("{name} is damaged; restore that object")]);
    // One object in the place of another.
    fs::copy(second, first).unwrap();
    stored.up(0, &[]).refused(1, &[&format!("{name} is of another slot")]);
    fs::write(first, &good).unwrap();
    stored.up(0, &["--ram-limit", "0"]).ok();
    check(&mut stored.disk(0), 0..20, 1);
    // One that is restored while the volume is up.
    let mut disk = stored.disk(0);
    fs::write(first, &good[..good.len() - 1]).unwrap();
    assert_eq!(disk.try_read(9 * BLOCK, 4096), None);
    fs::write(first, &good).unwrap();
    check(&mut disk, 0..20, 1);
    let counted = stored.counted(0);
    assert_eq!(counted["damaged_object"], serde_json::Value::Null, "{counted}");
}

#[test]
fn what_can_not_be_is_one_line() {
    let stored = Stored::new();
    let (place, sandbox) = (stored.place(), &stored.hosts[0]);
    let up = |more: &[&str]| sandbox.ztier(&[&["up", "vol", "--export", "nbd"], more].concat());
    let in_store = ["--backing", &place, "--size", "1G"];
    up(&in_store).refused(2, &["waits for that store; give --log DEV", "or --log none if"]);
    let with = |more: &[&'static str]| up(&[&in_store[..], &["--log", "none"], more].concat());
    up(&[&in_store[..], &["--log", "/tmp/no-such"]].concat()).refused(1, &["/tmp/no-such"]);
    with(&["--use", "swap"]).refused(2, &["leave out use"]);
    with(&["--spill", "/tmp/no-such"]).refused(2, &["spill"]);
    with(&["--sync"]).refused(2, &["sync"]);
    up(&["--backing", "file://relative", "--log", "none", "--size", "1G"])
        .refused(2, &["is no place of a store; write it like file:///mnt/nfs/volume"]);
    up(&["--backing", "file:///no/such/dir", "--log", "none", "--size", "1G"])
        .refused(1, &["cannot use /no/such/dir"]);
    up(&["--backing", &place, "--log", "none", "--size", "1000"]).refused(2, &["4096"]);
    up(&["--size", "1G", "--force"]).refused(2, &["--force is for a volume in a store"]);
    fs::create_dir_all(&stored.dir).unwrap();
    fs::write(stored.dir.join("letter"), "dear").unwrap();
    with(&[]).refused(5, &["holds something else (letter)"]);
    fs::remove_file(stored.dir.join("letter")).unwrap();
    fs::write(stored.dir.join("root"), "dear").unwrap();
    with(&[]).refused(1, &["root is no object of ztier"]);
    fs::remove_file(stored.dir.join("root")).unwrap();
    with(&[]).ok();
    sandbox.ztier(&["restart", "vol", "--log", "/tmp/no-such"]).refused(1, &["/tmp/no-such"]);
    sandbox.ztier(&["set", "vol", "size=512M"]).refused(2, &["sizes grow, never shrink"]);
}

#[test]
fn a_store_is_probed() {
    let stored = Stored::new();
    let doctor = |place: &str| stored.hosts[0].ztier(&["doctor", place]);
    let told = doctor(&stored.place()).ok();
    assert!(told.contains("of racing writers one succeeds"), "{told}");
    stored.up(0, &["--size", "1G"]).ok();
    // A volume that is there is left alone.
    doctor(&stored.place()).ok();
    assert_eq!(fs::read_dir(stored.dir.join("probe")).unwrap().count(), 0);
    assert_eq!(stored.objects().len(), 1);
    doctor("file:///proc").refused(5, &["holds something else"]);
    doctor("/tmp").refused(2, &["is no place of a store"]);
}

/// `tests/commands/s3.rs` is about builds with it.
#[cfg(not(feature = "object-store"))]
#[test]
#[allow(clippy::print_stdout)]
fn a_build_without_buckets_says_so() {
    println!("skipped: volumes in buckets: this is a build without the feature object-store");
    let sandbox = crate::support::sandbox::Sandbox::new();
    let lacks = "this ztier was built without s3:// (cargo feature object-store)";
    let up = ["up", "vol", "--export", "nbd", "--backing", "s3://bucket/v", "--log", "none"];
    sandbox.ztier(&[&up[..], &["--size", "1G"]].concat()).refused(2, &[lacks]);
    sandbox.ztier(&["doctor", "s3://bucket/v"]).refused(2, &[lacks]);
}

/// The content that the golden store has, of blocks that are not zeros.
fn golden() -> BTreeMap<u64, Vec<u8>> {
    let text = |word: &str| word.as_bytes().iter().copied().cycle().take(4096).collect::<Vec<_>>();
    BTreeMap::from([
        (0, content(0, 2)),
        (1, vec![7; 4096]),
        (2, text("a block that compresses ")),
        (9, text("and one of the second owner, ")),
        (1 << 19, content(1 << 19, 1)),
    ])
}

/// Writes the golden content, with what is overwritten, zeroed, void and by two owners.
fn write_golden(stored: &Stored) {
    stored.up(0, &["--size", "16G"]).ok();
    let mut disk = stored.disk(0);
    write(&mut disk, 0..6, 1);
    disk.flush();
    disk.zero(0, 100 * 4096);
    for (block, content) in golden().into_iter().filter(|(block, _)| *block != 9) {
        disk.write(block * BLOCK, &content);
    }
    // Windows enough for a checkpoint.
    for window in 1..=70 {
        disk.write(30 * BLOCK, &[window; 4096]);
        disk.flush();
    }
    stored.await_checkpoint(0);
    disk.zero(30 * BLOCK, 4096);
    disk.flush();
    drop(disk);
    stored.hosts[0].kill("vol");
    stored.up(0, &[]).ok();
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    stored.up_logged(0, &["--log-size", "64M"]).ok();
    let mut disk = stored.disk(0);
    disk.write(9 * BLOCK, &golden()[&9]);
    write(&mut disk, 20..30, 1);
    disk.flush();
    stored.hosts[0].ztier(&["drain", "vol"]).ok();
    disk.zero(20 * BLOCK, 10 * 4096);
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
}

/// `ZTIER_GOLDEN=write` makes the golden store anew, which a new version of the format needs.
#[test]
fn stores_are_read_as_the_format_says_now_and_later() {
    if missing(&["python3"]) {
        return;
    }
    let stored = Stored::new();
    write_golden(&stored);
    let told = read_independently(&stored.dir);
    assert_eq!((told.size, &told.blocks, told.marks), (16 << 30, &golden(), 2));
    assert!(told.checkpoint.is_some());
    let versions = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if std::env::var_os("ZTIER_GOLDEN").is_some() {
        for part in ["chain", "index", "root"] {
            let (from, to) = (stored.dir.join(part), versions.join("object-v3").join(part));
            if from.is_dir() { copy(&from, &to) } else { _ = fs::copy(&from, &to).unwrap() }
        }
    }
    // A store of a version is read by all later ones.
    for (version, marks) in [("object-v1", 0), ("object-v2", 2), ("object-v3", 2)] {
        let kept = versions.join(version);
        let told = read_independently(&kept);
        assert_eq!((told.size, told.blocks, told.marks), (16 << 30, golden(), marks));
        assert_eq!(told.checkpoint.is_some(), version == "object-v3");
        fs::remove_dir_all(&stored.dir).unwrap();
        copy(&kept, &stored.dir);
        stored.up(1, &["--ram-limit", "0"]).ok();
        let mut disk = stored.disk(1);
        for block in (0..200).chain([(1 << 19) - 1, 1 << 19, (1 << 22) - 1]) {
            let expected = golden().remove(&block).unwrap_or(vec![0; 4096]);
            assert!(disk.read(block * BLOCK, 4096) == expected, "{version}: block {block}");
        }
        drop(disk);
        stored.hosts[1].ztier(&["down", "vol"]).ok();
    }
}

#[test]
fn a_root_that_is_gone_makes_no_new_volume() {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G"]).ok();
    write(&mut stored.disk(0), 0..10, 1);
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    let (root, away) = (stored.dir.join("root"), stored.dir.with_extension("root"));
    fs::rename(&root, &away).unwrap();
    let gone = "root is gone, and the volume's objects are there; restore it from a copy";
    stored.up(0, &["--size", "1G"]).refused(5, &[gone]);
    assert!(!root.exists());
    fs::rename(&away, &root).unwrap();
    stored.up(0, &[]).ok();
    check(&mut stored.disk(0), 0..10, 1);
}

#[test]
fn a_volume_grows() {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G"]).ok();
    stored.hosts[0].ztier(&["set", "vol", "size=2T"]).ok();
    let last = (2 << 40) / BLOCK - 1;
    let mut disk = stored.disk(0);
    assert_eq!(disk.size, 2 << 40);
    write(&mut disk, last..=last, 1);
    disk.flush();
    drop(disk);
    stored.hosts[0].kill("vol");
    stored.up(1, &["--force"]).ok();
    check(&mut stored.disk(1), last..=last, 1);
    // The first one no longer owns it.
    stored.up(0, &["--force"]).ok();
    stored.hosts[1].ztier(&["set", "vol", "size=3T"]).refused(1, &["cannot change the size in"]);
    assert_eq!(stored.disk(0).size, 2 << 40);
    // A daemon that died knows a size of before; the store knows better.
    stored.hosts[0].kill("vol");
    stored.hosts[1].ztier(&["down", "vol", "--discard"]).ok();
    stored.up(1, &["--force"]).ok();
    stored.hosts[1].ztier(&["set", "vol", "size=4T"]).ok();
    stored.hosts[1].ztier(&["down", "vol"]).ok();
    stored.hosts[0].ztier(&["restart", "vol"]).ok();
    assert_eq!(stored.disk(0).size, 4 << 40);
    assert_eq!(stored.hosts[0].status("vol")["size_bytes"], 4_u64 << 40);
}

#[test]
fn settings_are_saved_and_name_the_store() {
    let stored = Stored::new();
    stored.up(0, &["--size", "1G", "--save"]).ok();
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    let file = stored.hosts[0].config_dir().join("vol.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&format!("backing = \"{}\"", stored.place())), "{text}");
    assert!(text.contains("log = \"none\""), "{text}");
    // At boot, a directory that is not mounted yet is no new store.
    let away = stored.dir.with_extension("away");
    fs::rename(&stored.dir, &away).unwrap();
    stored.hosts[0].ztier(&["up", "vol"]).refused(2, &["has no volume yet"]);
    assert!(!stored.dir.exists());
    fs::rename(&away, &stored.dir).unwrap();
    stored.hosts[0].ztier(&["up", "vol"]).ok();
    assert_eq!(stored.disk(0).size, 1 << 30);
    let looked = stored.hosts[0].ztier(&["status", "vol"]).looked();
    assert!(looked.contains(&stored.place()), "{looked}");
}
