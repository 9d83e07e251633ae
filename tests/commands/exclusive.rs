//! A read cache that holds what the page cache drops, with the real page cache of this machine.
//!
//! Needs root, FUSE, loop devices, and a kernel that lets a program tell which pages it drops;
//! where these are missing the tests print `skipped:` and the reason.
#![cfg(feature = "fuse")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::mounted::Mounted;
use crate::support::sandbox::{Sandbox, eventually};
use crate::support::shell::{missing, ok};
use rustix::fs::{Advice, fadvise};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Blocks of a test file: 16 MiB.
const BLOCKS: u64 = 4096;
/// Blocks that are dropped at a time: fewer than the ring has room for.
const AT_ONCE: u64 = 64;

/// Half of it does not shrink.
fn content(block: u64, version: u64) -> [u8; BLOCK] {
    let mut out = [version as u8; BLOCK];
    let mut x = (block << 16 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in out[..BLOCK / 2].as_chunks_mut::<8>().0 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *word = x.to_le_bytes();
    }
    out
}

fn write(path: &Path, version: u64) -> File {
    let file =
        File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
    for block in 0..BLOCKS {
        file.write_all_at(&content(block, version), block * BLOCK as u64).unwrap();
    }
    file.sync_all().unwrap();
    file
}

/// Has the page cache drop the file.
fn drop_pages(file: &File) {
    for first in (0..BLOCKS).step_by(AT_ONCE as usize) {
        let len = std::num::NonZeroU64::new(AT_ONCE * BLOCK as u64);
        fadvise(file, first * BLOCK as u64, len, Advice::DontNeed).unwrap();
        std::thread::sleep(Duration::from_millis(4));
    }
}

/// Reads the file block by block in no order, as it is on the device.
fn check(file: &File, version: impl Fn(u64) -> u64) {
    fadvise(file, 0, None, Advice::Random).unwrap();
    for n in 0..BLOCKS {
        let (block, mut found) = (n * 1237 % BLOCKS, [0; BLOCK]);
        file.read_exact_at(&mut found, block * BLOCK as u64).unwrap();
        assert!(found == content(block, version(block)), "block {block}");
    }
}

fn cache(sandbox: &Sandbox) -> Value {
    sandbox.status("vol")["stats"]["cache"].clone()
}

/// Waits until the cache follows the page cache. `false`, with a message: it can't here.
fn follows(sandbox: &Sandbox) -> bool {
    let mut why = None;
    eventually("the cache follows the page cache, or can't", || {
        let stats = sandbox.status("vol")["stats"].clone();
        why = stats["not_exclusive"].as_str().map(str::to_owned);
        why.is_some() || stats["cache"]["exclusive"] == true
    });
    if let Some(why) = &why {
        assert!(!why.contains('\n'), "{why}");
        println!("skipped: {why}");
    }
    why.is_none()
}

#[test]
fn it_needs_a_page_cache_above() {
    let sandbox = Sandbox::new();
    let backing = sandbox.path().join("slow");
    File::create(&backing).unwrap().set_len(16 << 20).unwrap();
    let backing = backing.to_str().unwrap();
    let up = ["up", "vol", "--exclusive", "on", "--export", "nbd"];
    let more = ["--backing", backing];
    sandbox
        .ztier(&[&up[..], &more].concat())
        .refused(2, &["block device", "--export ublk or fuse"]);
    sandbox.ztier(&[&up[..], &["--size", "16M"]].concat()).refused(2, &["give --backing"]);
}

#[test]
fn what_the_page_cache_drops_comes_back_without_the_drive() {
    if let Err(why) = ztier::export::fuse::available(true) {
        return println!("skipped: {why}");
    }
    if missing(&["mkfs.ext4"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let backing = sandbox.path().join("slow");
    File::create(&backing).unwrap().set_len(96 << 20).unwrap();
    let backing = backing.to_str().unwrap();
    let up = ["up", "vol", "--backing", backing, "--ram-limit", "24M", "--exclusive", "on"];
    let said = sandbox.ztier(&[&up[..], &["--export", "fuse"]].concat()).ok();
    let device = said.lines().last().unwrap().to_owned();
    if !follows(&sandbox) {
        sandbox.ztier(&["down", "vol"]).ok();
        return;
    }
    assert!(sandbox.ztier(&["status", "vol"]).looked().contains("what the page cache drops"));
    ok(30, "mkfs.ext4", &["-q", "-F", &device]);
    let mnt = sandbox.path().join("mnt");
    let mounted = Mounted::new(&[&device], &mnt);
    lives_on(&sandbox, &mnt.join("file"));

    // The next daemon follows it, too.
    drop(mounted);
    // Other tests copy the namespace in which it was mounted, for a moment.
    eventually("it restarts", || sandbox.ztier(&["restart", "vol"]).status == 0);
    assert!(follows(&sandbox));
    let mounted = Mounted::new(&[&device], &mnt);
    let file = File::open(mnt.join("file")).unwrap();
    for _ in 0..2 {
        drop_pages(&file);
        check(&file, |_| 4);
    }
    assert!(cache(&sandbox)["given_blocks"].as_u64().unwrap() > 0);
    drop(file);
    drop(mounted);
    let stats = cache(&sandbox);
    assert!(stats["damaged_copies"] == 0 && stats["backing_errors"] == 0, "{stats}");
    eventually("it goes down", || sandbox.ztier(&["down", "vol"]).status == 0);
    ok(30, "e2fsck", &["-f", "-n", backing]);
}

/// A file is written, dropped, read, changed, and others take its blocks.
fn lives_on(sandbox: &Sandbox, path: &Path) {
    let file = write(path, 1);
    drop_pages(&file);
    eventually("dropped pages are kept", || cache(sandbox)["dropped_pages"].as_u64() > Some(1000));
    check(&file, |_| 1);
    drop_pages(&file);
    let before = cache(sandbox);
    check(&file, |_| 1);
    let after = cache(sandbox);
    let more = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    let (hit, missed, given) = (more("hit_blocks"), more("missed_blocks"), more("given_blocks"));
    println!("{hit} blocks hit, {missed} missed, {given} given");
    assert!(hit > 2 * missed && given > BLOCKS / 2, "{hit} {missed} {given}: {after}");
    assert!(after["used_bytes"].as_u64().unwrap() <= 24 << 20, "{after}");
    // Some blocks are written while others are dropped.
    for block in (0..BLOCKS).step_by(3) {
        file.write_all_at(&content(block, 2), block * BLOCK as u64).unwrap();
    }
    drop_pages(&file);
    file.sync_all().unwrap();
    drop_pages(&file);
    let version = |block: u64| if block.is_multiple_of(3) { 2 } else { 1 };
    check(&file, version);
    // Other files get the blocks of one that is removed.
    drop(file);
    fs::remove_file(path).unwrap();
    for version in 3..5 {
        let file = write(path, version);
        drop_pages(&file);
        check(&file, |_| version);
    }
}
