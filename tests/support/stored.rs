//! A volume in a store of objects, here a directory, and hosts that share it.
#![allow(clippy::unwrap_used, dead_code)]

use super::disk::Disk;
use super::place::content;
use super::sandbox::{Done, Sandbox};
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

    pub fn objects(&self) -> Vec<PathBuf> {
        let found = fs::read_dir(self.dir.join("chain")).unwrap();
        let mut found: Vec<_> = found.map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    }
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
