//! The block device of a real daemon under random direct writes while the daemon is killed, and its
//! file under requests of any size: each compared with a model, in each role.
//!
//! Needs root, `/dev/fuse` and loop devices; otherwise the tests print `skipped:` and the reason.
#![cfg(feature = "fuse")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::place::{BLOCK, content};
use crate::support::sandbox::{Sandbox, eventually};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ztier::export::fuse::available;
use ztier::media::Buffer;

const MIB: u64 = 1 << 20;
/// Size of a volume.
const SIZE: u64 = 16 * MIB;
const BLOCKS: u64 = SIZE / BLOCK;
/// Number of kills in each role.
const KILLS: u64 = 32;

/// The role of a volume.
#[derive(Clone, Copy, Debug)]
enum Role {
    Memory,
    Backing,
    Log,
}

/// A volume with a block device.
struct Rig {
    sandbox: Sandbox,
    name: String,
}

impl Rig {
    /// Brings the volume up; `None`, with a message, where there can be no device.
    fn up(role: Role) -> Option<Self> {
        if let Err(why) = available(true) {
            println!("skipped: {why}");
            return None;
        }
        let sandbox = Sandbox::new();
        let name = sandbox.device_name("direct");
        let file = |name: &str, size| {
            let path = sandbox.path().join(name);
            File::create(&path).unwrap().set_len(size).unwrap();
            path.to_str().unwrap().to_owned()
        };
        // Small enough that kills also hit cleaning, eviction and writeback.
        let (log, backing) = (file("fast", 16 * MIB), file("slow", SIZE));
        let size = SIZE.to_string();
        let flags: Vec<&str> = match role {
            Role::Memory => vec!["--size", &size, "--ram-limit", "24M"],
            Role::Backing => vec!["--backing", &backing, "--ram-limit", "4M"],
            Role::Log => vec!["--backing", &backing, "--log", &log, "--ram-limit", "4M"],
        };
        let segment: &[&str] = if let Role::Backing = role { &[] } else { &["--segment", "64K"] };
        let up = ["up", &name, "--export", "fuse"];
        sandbox.ztier(&[&up[..], &flags, segment].concat()).ok();
        Some(Self { sandbox, name })
    }

    fn device(&self) -> PathBuf {
        Path::new("/dev/ztier").join(&self.name)
    }

    fn down(&self) {
        let down = ["down", &self.name, "--discard"];
        eventually("it is down", || self.sandbox.ztier(&down).status == 0);
    }
}

/// Opens a device or file so that its requests reach the daemon unchanged.
fn direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// A generator of random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The content of a block in a version; version 0 is zeros.
fn version_of(block: u64, version: u64) -> Vec<u8> {
    if version == 0 { vec![0; BLOCK as usize] } else { content(block, version) }
}

/// The expected content of the device.
struct Model {
    versions: Vec<u64>,
    /// The newest version written so far.
    newest: u64,
    /// A write without a reply: each of its blocks may be written or not.
    unanswered: Range<u64>,
}

impl Model {
    /// Writes until the device is gone; returns the number of acknowledged writes.
    fn write_until_gone(&mut self, device: &Path, random: &mut Random) -> u64 {
        let device = direct(device);
        for answered in 0.. {
            let first = random.below(BLOCKS);
            let count = (1 + random.below(32)).min(BLOCKS - first);
            (self.newest, self.unanswered) = (self.newest + 1, first..first + count);
            let mut bytes = Buffer::new((count * BLOCK) as usize);
            for (block, out) in (first..).zip(bytes.chunks_exact_mut(BLOCK as usize)) {
                out.copy_from_slice(&version_of(block, self.newest));
            }
            if device.write_all_at(&bytes, first * BLOCK).is_err() {
                return answered;
            }
            self.versions[first as usize..][..count as usize].fill(self.newest);
            self.unanswered = 0..0;
        }
        0
    }

    /// Compares the whole device; accepts the blocks of the last write as they are.
    fn check(&mut self, device: &Path, round: u64) {
        let device = direct(device);
        let mut bytes = Buffer::new(MIB as usize);
        for at in (0..SIZE).step_by(MIB as usize) {
            device.read_exact_at(&mut bytes, at).unwrap();
            for (block, found) in (at / BLOCK..).zip(bytes.chunks_exact(BLOCK as usize)) {
                let version = &mut self.versions[block as usize];
                if found == version_of(block, *version) {
                    continue;
                }
                let may = self.unanswered.contains(&block);
                assert!(
                    may && found == version_of(block, self.newest),
                    "round {round}, block {block}: not version {version}"
                );
                *version = self.newest;
            }
        }
    }
}

fn kills_lose_nothing(role: Role) {
    let Some(rig) = Rig::up(role) else { return };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let versions = vec![0; BLOCKS as usize];
    let mut model = Model { versions, newest: 0, unanswered: 0..0 };
    let mut answered = 0;
    for round in 0..KILLS {
        let delay = Duration::from_millis(5 + round * 37 % 120);
        std::thread::scope(|scope| {
            let (device, model, random) = (rig.device(), &mut model, &mut random);
            let writer = scope.spawn(move || model.write_until_gone(&device, random));
            std::thread::sleep(delay);
            rig.sandbox.kill(&rig.name);
            answered += writer.join().unwrap();
        });
        rig.sandbox.ztier(&["restart", &rig.name]).ok();
        model.check(&rig.device(), round);
    }
    assert!(answered > KILLS, "{answered} writes");
    rig.down();
}

#[test]
fn kills_lose_nothing_of_a_volume_in_memory() {
    kills_lose_nothing(Role::Memory);
}

#[test]
fn kills_lose_nothing_of_a_cached_backing_store() {
    kills_lose_nothing(Role::Backing);
}

#[test]
fn kills_lose_nothing_of_a_log() {
    kills_lose_nothing(Role::Log);
}

/// Writes, punches, zeroes and reads ranges of any size and offset, in the file behind the device.
fn any_request_is_as_in_the_model(role: Role) {
    let Some(rig) = Rig::up(role) else { return };
    let directory = rig.sandbox.run_dir().join(format!("{}.fuse", rig.name));
    let path = directory.join(&rig.name);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut model = vec![0_u8; SIZE as usize];
    for step in 0..1500 {
        let at = random.below(SIZE);
        let longest = if step % 16 == 0 { 3 * MIB } else { 20_000 };
        let len = (1 + random.below(longest)).min(SIZE - at);
        let range = at as usize..(at + len) as usize;
        match step % 5 {
            0 | 1 => {
                let seed = random.below(u64::MAX);
                let bytes: Vec<u8> = (0..len).map(|i| (seed >> (i % 7 * 8)) as u8).collect();
                file.write_all_at(&bytes, at).unwrap();
                model[range].copy_from_slice(&bytes);
            }
            2 | 3 => {
                let how = match step % 2 {
                    0 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    _ => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                };
                fallocate(&file, how, at, len).unwrap();
                model[range].fill(0);
            }
            _ => {
                let mut bytes = vec![0; len as usize];
                file.read_exact_at(&mut bytes, at).unwrap();
                assert!(bytes == model[range], "step {step}: {at}+{len}");
            }
        }
    }
    drop(file);
    rig.sandbox.ztier(&["restart", &rig.name]).ok();
    assert!(std::fs::read(&path).unwrap() == model, "after a restart");
    rig.down();
}

#[test]
fn any_request_to_a_volume_in_memory_is_as_in_the_model() {
    any_request_is_as_in_the_model(Role::Memory);
}

#[test]
fn any_request_to_a_cached_backing_store_is_as_in_the_model() {
    any_request_is_as_in_the_model(Role::Backing);
}

#[test]
fn any_request_to_a_log_is_as_in_the_model() {
    any_request_is_as_in_the_model(Role::Log);
}
