//! What the service and the udev rules rely on. Whether they work together has to be tested on a
//! machine with systemd.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::sandbox::Sandbox;
use std::fs::{self, File};
use std::time::{Duration, Instant};

#[test]
fn a_device_tells_its_volume() {
    let sandbox = Sandbox::new();
    let name = sandbox.device_name("boot.");
    let up = sandbox.ztier(&["up", &name, "--size", "16M", "--export", "fuse"]);
    if up.status != 0 {
        println!("skipped: {}", up.err.trim());
        return;
    }
    let link = up.ok();
    let device = fs::canonicalize(link.trim()).unwrap();
    let property = format!("ZTIER_VOLUME={name}\n");
    assert_eq!(sandbox.ztier(&["udev", link.trim()]).ok(), property);
    // As udev runs the command, also when the daemon is gone.
    let mut asked = sandbox.command(&["udev"]);
    asked.env("DEVNAME", &device);
    assert_eq!(String::from_utf8(asked.output().unwrap().stdout).unwrap(), property);
    // udev replaces the link with its own; that link goes with the volume, too.
    fs::remove_file(link.trim()).unwrap();
    let theirs = std::path::Path::new("..").join(device.file_name().unwrap());
    std::os::unix::fs::symlink(theirs, link.trim()).unwrap();
    sandbox.kill(&name);
    assert_eq!(sandbox.ztier(&["udev", device.to_str().unwrap()]).ok(), property);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert!(fs::symlink_metadata(link.trim()).is_err());
    assert_eq!(sandbox.ztier(&["udev", device.to_str().unwrap()]).ok(), "");
    assert_eq!(sandbox.ztier(&["udev", "/dev/null"]).ok(), "");
    assert_eq!(sandbox.ztier(&["udev", "/nonexistent"]).ok(), "");
}

#[test]
fn drives_that_come_late_are_waited_for() {
    let sandbox = Sandbox::new();
    let (log, backing) = (sandbox.path().join("log"), sandbox.path().join("backing"));
    let (fast, slow) = (log.to_str().unwrap(), backing.to_str().unwrap());
    let up = |wait| {
        let drives = ["up", "vol", "--log", fast, "--backing", slow, "--export", "nbd"];
        sandbox.ztier(&[&drives[..], &["--wait", wait]].concat())
    };
    let begun = Instant::now();
    up("1").refused(1, &["backing is not there after 1 s", "lsblk"]);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for path in [&backing, &log] {
                std::thread::sleep(Duration::from_millis(300));
                let new = path.with_extension("new");
                File::create(&new).unwrap().set_len(64 << 20).unwrap();
                fs::rename(new, path).unwrap();
            }
        });
        up("20").ok();
    });
    sandbox.ztier(&["down", "vol"]).ok();
}
