//! A volume in a store of objects, here a directory, and hosts that share it.
#![allow(clippy::unwrap_used)]

use super::disk::Disk;
use super::place::content;
use super::sandbox::{Done, Sandbox, eventually};
use super::shell::ok;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub const BLOCK: u64 = 4096;

/// A store, and the hosts that share it.
pub struct Stored {
    pub hosts: [Sandbox; 2],
    pub dir: PathBuf,
}

impl Stored {
    pub fn new() -> Self {
        let hosts = [Sandbox::new(), Sandbox::new()];
        let dir = hosts[0].path().join("store");
        Self { hosts, dir }
    }

    pub fn place(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// Brings the volume up without a log.
    pub fn up(&self, host: usize, more: &[&str]) -> Done {
        self.up_on(host, "none", more)
    }

    /// The log of a host.
    pub fn log(&self, host: usize) -> String {
        self.hosts[host].path().join("log").display().to_string()
    }

    /// Brings the volume up with the host's log.
    pub fn up_logged(&self, host: usize, more: &[&str]) -> Done {
        self.up_on(host, &self.log(host), more)
    }

    fn up_on(&self, host: usize, log: &str, more: &[&str]) -> Done {
        let place = self.place();
        let common = ["up", "vol", "--export", "nbd", "--backing", &place, "--log", log];
        self.hosts[host].ztier(&[&common[..], more].concat())
    }

    pub fn disk(&self, host: usize) -> Disk {
        Disk::open(&self.hosts[host].run_dir().join("vol.nbd"), "vol")
    }

    /// The counters.
    pub fn stats(&self, host: usize) -> serde_json::Value {
        self.hosts[host].status("vol")["stats"].clone()
    }

    /// What the counters say of the store.
    pub fn counted(&self, host: usize) -> serde_json::Value {
        self.stats(host)["object"].clone()
    }

    /// Waits until most of the chain is in a checkpoint.
    pub fn await_checkpoint(&self, host: usize) {
        let made = || self.counted(host)["walk_objects"].as_u64().unwrap() < 64;
        eventually("a checkpoint", made);
    }

    /// Pieces of checkpoints.
    pub fn pieces(&self) -> Vec<PathBuf> {
        let found = fs::read_dir(self.dir.join("index")).unwrap();
        found.map(|entry| entry.unwrap().path()).collect()
    }

    pub fn objects(&self) -> Vec<PathBuf> {
        let found = fs::read_dir(self.dir.join("chain")).unwrap();
        let mut found: Vec<_> = found.map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    }
}

/// What a reader finds in a store.
pub struct Told {
    pub size: u64,
    /// The blocks that are not zeros.
    pub blocks: BTreeMap<u64, Vec<u8>>,
    /// How many windows were made by logs.
    pub marks: usize,
    /// The slot of the newest checkpoint.
    pub checkpoint: Option<u64>,
}

/// What a reader written from `docs/object-format.md` alone finds in a store.
pub fn read_independently(dir: &Path) -> Told {
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/object_reader.py");
    let out = tempfile::tempdir().unwrap();
    let contents = out.path().join("contents");
    // -B: no compiled module beside the sources.
    let args = ["-B", reader, dir.to_str().unwrap(), contents.to_str().unwrap()];
    let printed = ok(60, "python3", &args);
    let contents = fs::read(contents).unwrap();
    let mut contents = contents.chunks_exact(4096);
    let mut told = Told { size: 0, blocks: BTreeMap::new(), marks: 0, checkpoint: None };
    for line in printed.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["volume", bytes] => told.size = bytes.parse().unwrap(),
            ["mark", _, _, _, _, _, "0"] => told.marks += 1,
            ["checkpoint", slot] => told.checkpoint = Some(slot.parse().unwrap()),
            ["block", number] => {
                let content = contents.next().unwrap().to_vec();
                told.blocks.insert(number.parse().unwrap(), content);
            }
            _ => panic!("{line}"),
        }
    }
    assert!(contents.next().is_none());
    told
}

/// Copies a directory.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy(&from, &to);
        } else if let Err(e) = fs::copy(&from, &to) {
            // A file that a daemon had not finished is gone by now.
            assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{e}");
        }
    }
}

pub fn write(disk: &mut Disk, blocks: impl Iterator<Item = u64>, version: u64) {
    for block in blocks {
        disk.write(block * BLOCK, &content(block, version));
    }
}

pub fn check(disk: &mut Disk, blocks: impl Iterator<Item = u64>, version: u64) {
    for block in blocks {
        let expected = if version == 0 { vec![0; 4096] } else { content(block, version) };
        assert!(disk.read(block * BLOCK, 4096) == expected, "block {block} is not {version}");
    }
}
