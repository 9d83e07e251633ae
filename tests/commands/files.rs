//! Files for logs and spill devices: `up` makes them for this user only, removes them if the volume
//! does not come up, and refuses those that other users can read.
#![allow(clippy::unwrap_used)]

use crate::support::place::Place;
use crate::support::sandbox::Sandbox;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A place whose log does not exist yet, and the command that makes it.
fn without_log(place: &Place) -> PathBuf {
    fs::remove_file(&place.log).unwrap();
    PathBuf::from(&place.log)
}

#[test]
fn a_log_is_made_for_this_user_alone_and_goes_when_the_volume_does_not_come_up() {
    let place = Place::new();
    let log = without_log(&place);
    let up = place.up();
    let up = |more: &[&str]| place.sandbox.ztier(&[&up[..], more].concat());
    let shown = up(&["--log-size", "16M", "--dry-run"]).ok();
    assert!(shown.contains("fast of 16 MiB") && !log.exists(), "{shown}");
    // Too small for a log.
    up(&["--log-size", "64K"]).refused(1, &["fast"]);
    assert!(!log.exists());
    up(&["--log-size", "16M", "--accept-older-log"]).refused(2, &["leave out --accept-older-log"]);
    assert!(!log.exists());
    up(&["--log-size", "16M"]).ok();
    let meta = fs::metadata(&log).unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o777), (16 << 20, 0o600));
    place.sandbox.ztier(&["down", "vol"]).ok();
    // A script can pass the flag each time; an existing log is never made anew.
    up(&["--log-size", "16M"]).ok();
    place.sandbox.ztier(&["down", "vol"]).ok();
    up(&["--log-size", "32M"]).refused(2, &["is there already, and has 16M"]);
    assert_eq!(fs::metadata(&log).unwrap().len(), 16 << 20);
}

#[test]
fn a_file_to_spill_to_is_made() {
    let sandbox = Sandbox::new();
    let spill = sandbox.path().join("cold");
    let up = ["up", "vol", "--size", "64M", "--export", "nbd", "--spill", text(&spill)];
    let up = |more: &[&str]| sandbox.ztier(&[&up[..], more].concat());
    up(&[]).refused(1, &["does not exist", "--spill-size"]);
    up(&["--spill-size", "32M"]).ok();
    let meta = fs::metadata(&spill).unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o777), (32 << 20, 0o600));
    sandbox.ztier(&["down", "vol"]).ok();
    chmod(&spill, 0o644);
    up(&[]).refused(1, &["other users can read or write", "(mode 644)", "chmod 600"]);
    up(&["--allow-readable"]).ok();
    sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn a_log_that_others_can_read_is_refused_by_up_and_restart() {
    let place = Place::new();
    let up = place.up();
    for mode in [0o644, 0o660] {
        chmod(&place.log, mode);
        let refused = place.sandbox.ztier(&up);
        refused.refused(1, &["other users can read or write", "--allow-readable"]);
        assert!(fs::read(&place.log).unwrap().iter().all(|byte| *byte == 0), "nothing is written");
    }
    place.sandbox.ztier(&[&up[..], &["--allow-readable", "--save"]].concat()).ok();
    place.sandbox.ztier(&["down", "vol"]).ok();
    // The saved settings include the log.
    place.sandbox.ztier(&["up", "vol"]).ok();
    place.sandbox.ztier(&["restart", "vol"]).ok();
    let other = place.sandbox.path().join("other");
    fs::File::create(&other).unwrap().set_len(16 << 20).unwrap();
    chmod(&other, 0o640);
    let restart = ["restart", "vol", "--log", text(&other)];
    place.sandbox.ztier(&restart).refused(1, &["other users can read or write", "(mode 640)"]);
    place.sandbox.ztier(&[&restart[..], &["--allow-readable"]].concat()).ok();
    place.sandbox.ztier(&["down", "vol"]).ok();
}
