//! Blocks lost to damage of the log: every command for the volume reports them and ends with 6,
//! until a user acknowledges the loss.
#![allow(clippy::unwrap_used)]

use crate::support::place::{BLOCK, Place, content};
use crate::support::sandbox::{Done, eventually};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use ztier::log::disk::format::data_at;

/// The output of a command that succeeded and reports a loss.
#[track_caller]
fn told(done: Done, blocks: &str) -> String {
    let line = format!("volume `vol`: {blocks}");
    assert_eq!(done.status, 6, "{done:?}");
    assert!(done.err.contains(&line), "{line:?} is missing in {done:?}");
    assert!(done.err.contains("`ztier accept-loss vol`"), "{done:?}");
    done.out
}

/// A volume with eight blocks in its log, of which the first is damaged.
fn damaged() -> Place {
    let place = Place::new();
    let up = [&place.up()[..], &["--writeback", "off"]].concat();
    place.sandbox.ztier(&up).ok();
    place.write_one_by_one(8);
    place.sandbox.ztier(&["down", "vol"]).ok();
    // In the payload of the first block, which is not checked before it is needed.
    let log = File::options().write(true).open(&place.log).unwrap();
    log.write_at(&[0xff; 4], data_at(16 << 20, 64 << 10) + 300).unwrap();
    place.sandbox.ztier(&up).ok();
    place
}

#[test]
fn a_loss_is_told_until_a_user_has_taken_note() {
    let place = damaged();
    let ztier = |args: &[&str]| place.sandbox.ztier(args);
    let blocks = "1 blocks are lost: 0";
    let out = told(ztier(&["drain", "vol"]), blocks);
    assert!(out.contains("all but 1 lost blocks is in the backing store"), "{out}");
    assert_ne!(place.connect().read_error(0, BLOCK as u32), 0);
    assert_eq!(place.connect().read(7 * BLOCK, BLOCK as usize), content(7, 1));

    let status = told(ztier(&["status", "vol"]), blocks);
    for line in ["lost: 1 blocks are lost: 0", "is the volume, but for 1 lost blocks"] {
        assert!(status.contains(line), "{line:?} is missing in {status}");
    }
    told(ztier(&["status"]), blocks);
    let list = told(ztier(&["list"]), blocks);
    assert!(list.lines().nth(1).unwrap().starts_with("vol   lost"), "{list}");
    let list = told(ztier(&["list", "--json"]), blocks);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list[0]["state"], &list[0]["health"]), (&"up".into(), &"lost".into()));
    told(ztier(&["stats", "vol"]), blocks);
    told(ztier(&["set", "vol", "commit-interval=20"]), blocks);
    let top = ztier(&["top", "--once", "--interval", "0.1"]).ok();
    assert!(top.contains("1 not ok") && top.contains(blocks), "{top}");
    let metrics = ztier(&["metrics", "--once"]).ok();
    let line = "ztier_volume_health{volume=\"vol\",health=\"lost\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    let log = place.sandbox.run_dir().join("vol.log");
    eventually("the daemon's log says so", || fs::read_to_string(&log).unwrap().contains(blocks));
    // Another daemon, and another start.
    told(ztier(&["restart", "vol"]), blocks);
    let out = told(ztier(&["down", "vol", "--drain"]), blocks);
    assert_eq!(out, "vol is down\n");
    told(ztier(&place.up()), blocks);

    assert_eq!(ztier(&["accept-loss", "vol"]).ok(), "vol: 1 lost blocks are taken note of\n");
    for args in [
        &["status", "vol"][..],
        &["list"],
        &["drain", "vol"],
        &["restart", "vol"],
        &["down", "vol", "--drain"],
        &place.up(),
    ] {
        let done = ztier(args);
        assert!(!done.err.contains("lost"), "{done:?}");
        done.ok();
    }
    // The block is still lost, and may be written.
    assert_ne!(place.connect().read_error(0, BLOCK as u32), 0);
    let status = ztier(&["status", "vol"]).ok();
    assert!(status.contains("0; note was taken of these"), "{status}");
    let other = place.sandbox.path().join("other");
    File::create(&other).unwrap().set_len(16 << 20).unwrap();
    let other = ["restart", "vol", "--log", other.to_str().unwrap()];
    let refused = ztier(&other).refused(5, &["only the log knows", "write or discard them"]);
    assert!(!refused.contains("--discard-log"), "{refused}");
    place.connect().write(0, &content(0, 2));
    place.connect().flush();
    let status = ztier(&["status", "vol"]).ok();
    let line = status.lines().find(|line| line.starts_with("lost blocks")).unwrap();
    assert!(line.ends_with("none"), "{line}");
    ztier(&other).ok();
    assert_eq!(place.connect().read(0, BLOCK as usize), content(0, 2));
    ztier(&["down", "vol", "--drain"]).ok();
}

#[test]
fn what_is_lost_later_is_told_of_again() {
    let place = damaged();
    let ztier = |args: &[&str]| place.sandbox.ztier(args);
    told(ztier(&["drain", "vol"]), "1 blocks are lost: 0");
    ztier(&["accept-loss", "vol"]).ok();
    ztier(&["accept-loss", "vol"]).ok();
    // Blocks 20 and later, behind the present content of the log.
    let mut disk = place.connect();
    for block in 20..24 {
        disk.write(block * BLOCK, &content(block, 1));
        disk.flush();
    }
    drop(disk);
    ztier(&["down", "vol"]).ok();
    let dump = ztier(&["log", "dump", &place.log, "--entries"]).ok();
    let mut at = None;
    for line in dump.lines() {
        // `chunk N segment S at OFFSET …`, followed by its entries.
        if let Some(rest) = line.strip_prefix("chunk ") {
            let words: Vec<&str> = rest.split(' ').collect();
            let segment: u64 = words[2].parse().unwrap();
            let offset: u64 = words[4].parse().unwrap();
            at = Some((segment, offset));
        } else if line.contains("block 20 ") {
            break;
        }
    }
    let (segment, offset) = at.unwrap();
    let first = data_at(16 << 20, 64 << 10);
    let slots = ((16 << 20) - first) / (64 << 10);
    let log = File::options().write(true).open(&place.log).unwrap();
    log.write_at(&[0xff; 4], first + segment % slots * (64 << 10) + offset + 300).unwrap();
    ztier(&place.up()).ok();
    told(ztier(&["drain", "vol"]), "2 blocks are lost: 0, 20");
    // `up` acknowledges the loss as well.
    told(ztier(&["down", "vol"]), "2 blocks are lost: 0, 20");
    ztier(&[&place.up()[..], &["--accept-loss"]].concat()).ok();
    ztier(&["status", "vol"]).ok();
    ztier(&["down", "vol", "--drain"]).ok();
}
