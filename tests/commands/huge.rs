//! Volumes of the largest size, 16 TiB: their ends, their memory, and memory freed by discards.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::place::{BLOCK, content};
use crate::support::sandbox::Sandbox;
use std::fs::File;

const SIZE: u64 = 16 << 40;

/// Blocks at the ends and in between; some share a part of the index, others do not.
fn blocks(size: u64) -> Vec<u64> {
    let last = size / BLOCK - 1;
    let between = (0..64).map(|i| i * 0x9e37_79b9 % last);
    [0, 1, last / 2, last - 1, last].into_iter().chain(between).collect()
}

fn connect(sandbox: &Sandbox) -> Disk {
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol")
}

fn check(disk: &mut Disk, version: u64) {
    for block in blocks(disk.size) {
        let found = disk.read(block * BLOCK, BLOCK as usize);
        let expected = if version == 0 { vec![0; BLOCK as usize] } else { content(block, version) };
        assert!(found == expected, "block {block}");
    }
}

/// Writes, restarts, kills, and discards everything.
fn works(sandbox: &Sandbox, size: u64) {
    let mut disk = connect(sandbox);
    assert_eq!(disk.size, size);
    check(&mut disk, 0);
    for block in blocks(size) {
        disk.write(block * BLOCK, &content(block, 1));
    }
    disk.flush();
    assert_ne!(disk.write_error(size - BLOCK, &[1; 2 * BLOCK as usize]), 0, "beyond the end");
    check(&mut disk, 1);
    drop(disk);
    sandbox.ztier(&["restart", "vol"]).ok();
    check(&mut connect(sandbox), 1);
    sandbox.kill("vol");
    sandbox.ztier(&["restart", "vol"]).ok();
    let mut disk = connect(sandbox);
    check(&mut disk, 1);
    for at in (0..size).step_by(2 << 30) {
        disk.zero(at, u32::try_from((size - at).min(2 << 30)).unwrap());
    }
    check(&mut disk, 0);
}

#[test]
fn a_volume_in_memory_can_have_16_tib() {
    let sandbox = Sandbox::new();
    // The refusal of a smaller limit names the memory of an empty volume.
    let up = |limit| {
        let size = SIZE.to_string();
        let up = ["up", "vol", "--size", &size, "--export", "nbd", "--ram-limit", limit];
        sandbox.ztier(&up)
    };
    up("1M").refused(2, &["below the minimum for 16 TiB", "give at least"]);
    up("512M").ok();
    works(&sandbox, SIZE);
    let status = sandbox.status("vol");
    assert_eq!(status["stats"]["blocks_stored"], 0, "{status}");
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

#[test]
fn a_log_can_be_for_16_tib() {
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path().join(name).to_str().unwrap().to_owned();
    let (log, backing) = (path("fast"), path("slow"));
    File::create(&log).unwrap().set_len(64 << 20).unwrap();
    // The largest file of ext4 is one block smaller.
    let file = File::create(&backing).unwrap();
    let sizes = [SIZE, SIZE - BLOCK];
    let Some(size) = sizes.into_iter().find(|size| file.set_len(*size).is_ok()) else {
        println!("skipped: no file here can have 16 TiB");
        return;
    };
    drop(file);
    sandbox.ztier(&["up", "vol", "--export", "nbd", "--backing", &backing, "--log", &log]).ok();
    works(&sandbox, size);
    sandbox.ztier(&["drain", "vol"]).ok();
    check(&mut connect(&sandbox), 0);
    sandbox.ztier(&["down", "vol", "--drain"]).ok();
}
