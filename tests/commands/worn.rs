//! A log whose drive fails for good, as users see it: the messages, what goes on, and where the
//! data is.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::loops::Loop;
use crate::support::place::{BLOCK, BLOCKS, Place, content};
use crate::support::sandbox::eventually;
use crate::support::worn;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A volume with a log whose drive wears out.
struct Worn {
    place: Place,
}

impl Worn {
    fn up(place: Place) -> Self {
        worn::up(&place.sandbox, &place.up());
        Self { place }
    }

    fn limit(&self, bytes: Option<u64>) {
        worn::limit(&self.place.sandbox, "vol", bytes);
    }

    /// The text of `status` under a heading.
    fn says(&self, heading: &str) -> String {
        let status = self.place.sandbox.ztier(&["status", "vol"]).looked();
        let line = status.lines().find(|line| line.starts_with(heading));
        line.unwrap_or_else(|| panic!("{status}")).to_owned()
    }

    /// Asserts that all blocks of the volume have this version.
    fn holds(&self, version: u64) {
        let mut disk = self.place.connect();
        for block in 0..BLOCKS {
            assert!(disk.read(block * BLOCK, 4096) == content(block, version), "block {block}");
        }
    }
}

#[test]
fn behind_a_worn_log_the_volume_goes_on_without_it() {
    let worn = Worn::up(Place::new());
    let place = &worn.place;
    place.sandbox.ztier(&["set", "vol", "writeback=off"]).ok();
    let mut disk = place.connect();
    let end = BLOCKS * BLOCK + (1 << 20);
    worn.limit(Some(end));
    for version in 1..4 {
        for block in 0..BLOCKS {
            disk.write(block * BLOCK, &content(block, version));
        }
        disk.flush();
    }
    assert!(worn.says("durable").contains("writing through since 20"), "{}", worn.says("durable"));
    assert!(worn.says("backing alone").contains("is the volume"));
    let log = place.log_of("vol");
    assert_eq!((&log["failed"], &log["through"]), (&true.into(), &true.into()), "{log}");
    assert!(log["errors"].as_u64() > Some(0), "{log}");
    worn.holds(3);
    // The backing store gets each write.
    disk.write(5 * BLOCK, &content(5, 9));
    disk.flush();
    let mut now = vec![0; 4096];
    File::open(&place.backing).unwrap().read_exact_at(&mut now, 5 * BLOCK).unwrap();
    assert!(now == content(5, 9));
    disk.write(5 * BLOCK, &content(5, 3));
    drop(disk);
    place.sandbox.ztier(&["drain", "vol"]).ok();
    place.sandbox.ztier(&["down", "vol"]).ok();
    let check = place.sandbox.ztier(&["log", "check", &place.log]).ok();
    assert!(check.contains("0 changes"), "{check}");
    // Without the limit, that is with a repaired log, the log is used again.
    place.sandbox.ztier(&place.up()).ok();
    worn.holds(3);
    assert!(worn.says("durable").contains("in the log when a flush returns"));
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

#[test]
fn where_log_and_backing_store_take_nothing_errors_last_until_they_do() {
    let worn = Worn::up(Place::new());
    let place = &worn.place;
    let mut disk = place.connect();
    for block in 0..BLOCKS {
        disk.write(block * BLOCK, &content(block, 1));
    }
    disk.flush();
    // Only both superblocks and little else can be written.
    worn.limit(Some(128 << 10));
    let began = Instant::now();
    disk.write(0, &content(0, 2));
    assert_ne!(disk.flush_error(), 0, "a flush that nothing could keep");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    assert!(worn.says("durable").contains("is being brought to the backing store"));
    let drain = place.sandbox.ztier(&["drain", "vol"]);
    assert!(drain.status == 6 && drain.err.contains("a drive fails"), "{drain:?}");
    assert!(disk.read(9 * BLOCK, 4096) == content(9, 1), "what the log has can be read");
    worn.limit(None);
    eventually("writes go through", || place.log_of("vol")["through"] == true);
    disk.write(1, &[7]);
    disk.flush();
    assert!(worn.says("durable").contains("writing through since 20"));
    let mut now = vec![0; 4096];
    File::open(&place.backing).unwrap().read_exact_at(&mut now, 9 * BLOCK).unwrap();
    assert!(now == content(9, 1));
    drop(disk);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

#[test]
fn a_log_that_cannot_even_be_marked_takes_nothing_more() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        println!("skipped: loop devices need root and /dev/loop-control");
        return;
    }
    let files = Place::new();
    // The limit only applies to files.
    let device = Loop::on(Path::new(&files.backing), &[]);
    let worn = Worn::up(Place { backing: device.path().to_owned(), ..files });
    let place = &worn.place;
    let mut disk = place.connect();
    for block in 0..BLOCKS {
        disk.write(block * BLOCK, &content(block, 1));
    }
    disk.flush();
    worn.limit(Some(0));
    disk.write(0, &content(0, 2));
    assert_ne!(disk.flush_error(), 0, "a flush that nothing could keep");
    assert!(worn.says("durable").contains("nothing more is taken"), "{}", worn.says("durable"));
    assert_ne!(disk.write_error(BLOCK, &content(1, 2)), 0, "a write that nothing will keep");
    for block in 1..BLOCKS {
        assert!(disk.read(block * BLOCK, 4096) == content(block, 1), "block {block}");
    }
    drop(disk);
    eventually("the client is gone", || {
        place.sandbox.status("vol")["holders"].as_array().is_some_and(Vec::is_empty)
    });
    // A client that never flushes may not know of it.
    let refused = ["would lose data", "can't be made durable", "--discard"];
    place.sandbox.ztier(&["down", "vol"]).refused(5, &refused);
    place.sandbox.ztier(&["down", "vol", "--force"]).refused(5, &refused);
    place.sandbox.ztier(&["down", "vol", "--discard"]).ok();
    // Durable data is in both.
    let mut now = vec![0; 4096];
    let backing = File::open(&place.backing).unwrap();
    for block in 1..BLOCKS {
        backing.read_exact_at(&mut now, block * BLOCK).unwrap();
        assert!(now == content(block, 1), "block {block} of the backing store");
    }
    drop(backing);
    // The limit applies to all files: neither the superblock nor this machine's record says that
    // the volume itself changed the backing store.
    place.sandbox.ztier(&place.up()).refused(5, &["was changed", "--discard-log"]);
    place.sandbox.ztier(&[&place.up()[..], &["--discard-log"]].concat()).ok();
    worn.holds(1);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}
