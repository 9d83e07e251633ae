//! Leftovers of a killed process, and the absence of leftovers after the cleanup.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::rival::Disk;
use crate::rival::ext4::Ext4;
use crate::rival::ramdisk::RamDisk;
use crate::rival::served::Served;
use crate::sys::victim::{gone, killed};
use crate::sys::workdir::{Tree, WorkDir};
use std::collections::BTreeSet;
use std::fs;

fn nothing(_: &Known) -> Vec<Volume> {
    Vec::new()
}

/// The name of the directory of the host that [`killed`]'s work plays.
fn host(run: u32) -> String {
    format!("ztier-bench-{run}-1-host")
}

/// Size of a file in memory, large enough for the tests.
const BYTES: u64 = 16 << 20;

#[test]
fn files_of_who_is_gone_go_and_others_stay() {
    let test = "sys::remains::tests::files_of_who_is_gone_go_and_others_stay";
    let (dir, left) = killed(test, || {
        let work = WorkDir::new("state").map_err(|e| e.to_string())?;
        fs::write(work.path().join("file"), "content").unwrap();
        let large = format!("ztier-bench-{}-swap", std::process::id());
        fs::write(std::env::temp_dir().join(large), "content").unwrap();
        let host = Tree::new("host").map_err(|e| e.to_string())?;
        fs::write(host.path().join("file"), "content").unwrap();
        Ok((work, host))
    });
    let left = left.unwrap();
    let own = format!("ztier-bench-{}-0-mnt", std::process::id());
    let kept = [own, "ztier-bench-log".to_owned(), format!("other-{left}-state")];
    kept.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), kept.len() + 3);

    let told = std::cell::RefCell::new(Known::default());
    let down = |known: &Known| {
        told.replace(known.clone());
        nothing(known)
    };
    let tally = clear_in(&[dir.path().into()], &down);
    let told = told.into_inner();
    assert_eq!(told.runs, BTreeSet::from([left]));
    assert!(matches!(&told.hosts[..], [(id, path)] if *id == left && path.ends_with(host(left))));
    assert_eq!((tally.gone.len(), tally.stays), (3, vec![]));
    assert!(kept.iter().all(|name| dir.path().join(name).exists()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), kept.len());
}

#[test]
fn what_a_volume_that_stays_needs_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (id, other) = (gone(), gone());
    let file = |id: u32, what: &str| dir.path().join(format!("ztier-bench-{id}-{what}"));
    for path in [file(id, "0-state"), file(id, "log"), file(other, "0-state")] {
        fs::write(path, "").unwrap();
    }
    let down = |_: &Known| {
        vec![
            (id, format!("bench-{id}-0"), Err(Error::failure("it is held"))),
            (other, format!("bench-{other}-0"), Ok(())),
        ]
    };
    let tally = clear_in(&[dir.path().into()], &down);
    assert!(file(id, "0-state").exists() && file(id, "log").exists());
    assert!(!file(other, "0-state").exists());
    assert_eq!(tally.gone.len(), 2);
    let expected = format!("left by a run that was killed: volume bench-{id}-0: it is held");
    assert_eq!(tally.stays, [expected]);
}

/// Where none of these exist, there is nothing to remove.
#[test]
fn mounts_and_devices_of_who_was_killed_go() {
    let test = "sys::remains::tests::mounts_and_devices_of_who_was_killed_go";
    let (dir, made) = killed(test, || {
        let disk = RamDisk::new(BYTES).map_err(|e| e.to_string())?;
        let fs = Ext4::new(disk.path()).map_err(|e| e.to_string())?;
        // A disk that this process serves itself: its users wait for a dead server.
        let drive = crate::model::ModelDrive::real_time(crate::model::Name {
            size: BYTES,
            ..crate::model::Kind::SsdNull.into()
        });
        let raw = crate::rival::raw::RawDevice(std::sync::Arc::new(drive));
        let served = Served::new(std::sync::Arc::new(raw), "slow").map_err(|e| e.to_string())?;
        let above = Ext4::new(served.path()).map_err(|e| e.to_string())?;
        fs::write(above.path().join("file"), vec![1; 1 << 20]).unwrap();
        Ok((disk, fs, served, above))
    });
    let root = fs::canonicalize(dir.path()).unwrap();
    let mounted = || mounts().into_iter().filter(|m| m.point.starts_with(&root)).count();
    let loops = || kernel::loops().into_iter().filter(|l| l.backing.starts_with(&root)).count();
    if made.is_ok() {
        assert_eq!((mounted(), loops()), (4, 2));
    }
    let begun = std::time::Instant::now();
    let tally = clear_in(&[dir.path().into()], &nothing);
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!((mounted(), loops(), &tally.stays), (0, 0, &vec![]), "{made:?}: {:?}", tally.gone);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{made:?}: {:?}", tally.gone);
}

#[test]
fn groups_of_who_is_gone_go() {
    let dir = tempfile::tempdir().unwrap();
    let group = |id: u32| dir.path().join(format!("ztier-bench-{id}-0"));
    let (left, own) = (group(gone()), group(std::process::id()));
    for dir in [&left, &own] {
        fs::create_dir(dir).unwrap();
    }
    let mut tally = Tally::default();
    remove_groups(dir.path(), &mut tally);
    assert!(!left.exists() && own.exists());
    assert_eq!((tally.gone.len(), tally.stays.len()), (1, 0));
}
