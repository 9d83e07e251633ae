//! A volume `vol` with a small log, on files in a sandbox.
#![allow(clippy::unwrap_used)]

use super::disk::Disk;
use super::sandbox::Sandbox;
use std::fs::File;

pub const BLOCK: u64 = 4096;
pub const BLOCKS: u64 = 2048;

/// A sandbox with two files for drives.
pub struct Place {
    pub sandbox: Sandbox,
    pub log: String,
    pub backing: String,
}

impl Place {
    pub fn new() -> Self {
        let sandbox = Sandbox::new();
        let file = |name: &str, size| {
            let path = sandbox.path().join(name);
            File::create(&path).unwrap().set_len(size).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (log, backing) = (file("fast", 16 << 20), file("slow", BLOCKS * BLOCK));
        Self { sandbox, log, backing }
    }

    /// Brings the volume up; its first block is written and durable.
    pub fn up_with_a_write(&self) -> Disk {
        self.sandbox.ztier(&self.up()).ok();
        let mut disk = self.connect();
        disk.write(0, &content(0, 1));
        disk.flush();
        disk
    }

    /// Writes the first `blocks` blocks, each durable before the next, so that each gets a chunk of
    /// the log.
    pub fn write_one_by_one(&self, blocks: u64) {
        let mut disk = self.connect();
        for block in 0..blocks {
            disk.write(block * BLOCK, &content(block, 1));
            disk.flush();
        }
    }

    pub fn up(&self) -> Vec<&str> {
        let drives = ["--backing", &self.backing, "--log", &self.log];
        [&["up", "vol", "--export", "nbd", "--segment", "64K"], &drives[..]].concat()
    }

    pub fn connect(&self) -> Disk {
        Disk::open(&self.sandbox.run_dir().join("vol.nbd"), "vol")
    }

    pub fn log_of(&self, name: &str) -> serde_json::Value {
        self.sandbox.status(name)["stats"]["log"].clone()
    }
}

/// Bytes that encode block and version, and compress badly.
pub fn content(block: u64, version: u64) -> Vec<u8> {
    let mut state = (block << 20 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = (0..BLOCK as usize)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if i % 3 == 0 { 0 } else { state as u8 }
        })
        .collect();
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}
