//! Partitions on the block device by FUSE: found, in use, and gone with the device.
//!
//! Needs root, `/dev/fuse` and loop devices; where these are missing every test prints `skipped:`
//! and the reason. Every command has a time limit.
#![cfg(feature = "fuse")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::loops::Loop;
use crate::support::sandbox::{Sandbox, eventually};
use crate::support::shell::{missing, ok, ok_once_free, unmount};
use std::fs;
use std::path::{Path, PathBuf};

/// Brings a volume up; returns its loop device, or `None` with a message where there can be none.
fn up(sandbox: &Sandbox, name: &str) -> Option<PathBuf> {
    let up = sandbox.ztier(&["up", name, "--size", "64M", "--export", "fuse"]);
    if up.status != 0 {
        println!("skipped: {}", up.err.trim());
        return None;
    }
    Some(fs::canonicalize(up.ok().trim()).unwrap())
}

fn name() -> String {
    let count = {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        COUNT.fetch_add(1, Ordering::Relaxed)
    };
    format!("parts{}.{count}", std::process::id())
}

/// The partitions of a device in the kernel.
fn partitions(device: &Path) -> Vec<PathBuf> {
    let sys = Path::new("/sys/block").join(device.file_name().unwrap());
    let all = fs::read_dir(sys).unwrap().map(|entry| entry.unwrap().path());
    let all = all.filter(|path| path.join("partition").exists());
    all.map(|path| Path::new("/dev").join(path.file_name().unwrap())).collect()
}

/// A DOS partition table with one Linux partition, of `count` blocks from `start` on.
fn table(start: u32, count: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[446 + 4] = 0x83;
    bytes[446 + 8..][..4].copy_from_slice(&start.to_le_bytes());
    bytes[446 + 12..][..4].copy_from_slice(&count.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
    bytes
}

/// Writes a table and makes the kernel read it, as `sfdisk` does; `None` where the kernel supports
/// no tables.
fn part(device: &Path) -> Option<PathBuf> {
    fs::write(device, table(256, 8192)).unwrap();
    ok(20, "blockdev", &["--rereadpt", device.to_str().unwrap()]);
    partitions(device).pop()
}

/// Adds a partition as `partx` does, which reads the table itself.
fn add(device: &Path) -> PathBuf {
    ok(20, "addpart", &[device.to_str().unwrap(), "1", "2048", "65536"]);
    partitions(device).pop().unwrap()
}

#[test]
fn a_partition_that_is_mounted_holds_the_volume() {
    let sandbox = Sandbox::new();
    let name = name();
    if missing(&["mkfs.ext4", "blockdev", "addpart"]) {
        return;
    }
    let Some(device) = up(&sandbox, &name) else { return };
    let partition = part(&device).unwrap_or_else(|| add(&device));
    if !partition.exists() {
        println!("skipped: nothing here makes the node {}", partition.display());
        sandbox.ztier(&["down", &name, "--discard"]).ok();
        return;
    }
    ok_once_free("mkfs.ext4", &["-q", partition.to_str().unwrap()]);
    let mnt = sandbox.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    ok(20, "mount", &[partition.to_str().unwrap(), mnt.to_str().unwrap()]);
    fs::write(mnt.join("file"), "kept").unwrap();
    let refused = sandbox.ztier(&["down", &name, "--discard"]);
    let held = format!("mounted on {}", mnt.display());
    let read = fs::read_to_string(mnt.join("file"));
    unmount(mnt.to_str().unwrap());
    assert!(refused.status != 0 && refused.err.contains(&held), "{refused:?}");
    assert_eq!(read.unwrap(), "kept");
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert!(partitions(&device).is_empty(), "{:?}", partitions(&device));
}

/// The partitions of a table are there again with the next daemon, and not on a removed device.
#[test]
fn partitions_come_back_with_a_restart() {
    let sandbox = Sandbox::new();
    let name = name();
    let Some(device) = up(&sandbox, &name) else { return };
    if part(&device).is_none() {
        println!("skipped: this kernel reads no partition tables");
        return;
    }
    sandbox.kill(&name);
    let restarted = sandbox.ztier(&["restart", &name]).ok();
    let again = fs::canonicalize(restarted.trim()).unwrap();
    eventually("the partition is back", || partitions(&again).len() == 1);
    assert!(again == device || partitions(&device).is_empty());
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert!(partitions(&again).is_empty());
}

/// A partition that a program has added to an unscanned device outlives the device's backing file.
/// It must not become one of the next volume there.
#[test]
fn partitions_of_an_earlier_user_are_not_those_of_the_volume() {
    let sandbox = Sandbox::new();
    if missing(&["addpart", "losetup"]) {
        return;
    }
    let file = sandbox.path().join("image");
    fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
    // Other programs may take the free device meanwhile.
    for _ in 0..5 {
        let earlier = Loop::on(&file, &[]);
        ok(20, "addpart", &[earlier.path(), "3", "2048", "16384"]);
        let ghosts = earlier.0.clone();
        drop(earlier);
        if partitions(&ghosts).is_empty() {
            println!("skipped: this kernel removes them by itself");
            return;
        }
        let name = name();
        let device = up(&sandbox, &name);
        let (same, parts) = (device.as_ref() == Some(&ghosts), partitions(&ghosts));
        if !parts.is_empty() {
            ok(20, "delpart", &[ghosts.to_str().unwrap(), "3"]);
        }
        let Some(_) = device else { return };
        sandbox.ztier(&["down", &name]).ok();
        if same {
            assert!(parts.is_empty(), "{parts:?}");
            return;
        }
    }
    println!("skipped: other programs take each free loop device");
}

/// Runs the real programs, where they exist.
#[test]
fn sfdisk_and_partprobe_work() {
    let sandbox = Sandbox::new();
    let name = name();
    if missing(&["sfdisk", "partprobe"]) {
        return;
    }
    let Some(device) = up(&sandbox, &name) else { return };
    let shown = device.display();
    ok(
        30,
        "sh",
        &["-c", &format!("printf 'label: gpt\\nsize=8MiB\\nsize=8MiB\\n' | sfdisk -q {shown}")],
    );
    if partitions(&device).is_empty() {
        println!("skipped: this kernel reads no partition tables");
        return;
    }
    assert_eq!(partitions(&device).len(), 2);
    ok(30, "partprobe", &[device.to_str().unwrap()]);
    assert_eq!(partitions(&device).len(), 2);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert!(partitions(&device).is_empty());
}
