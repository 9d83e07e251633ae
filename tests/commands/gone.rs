//! An SSD died, step by step: the errors have the commands, with the names of the volume, and the
//! commands work.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::place::{BLOCK, content};
use crate::support::sandbox::{Done, Sandbox, finish};
use std::fs;

const LOG_BYTES: u64 = 16 << 20;

/// A volume with a saved log that holds what its backing store lacks, and is down.
struct Volume {
    sandbox: Sandbox,
}

impl Volume {
    fn new() -> Self {
        let volume = Self { sandbox: Sandbox::new() };
        volume.file("slow", 64 << 20);
        volume.file("fast", LOG_BYTES);
        let (slow, fast) = (volume.at("slow"), volume.at("fast"));
        let drives = ["--backing", &slow, "--log", &fast, "--writeback", "off", "--save"];
        volume.ztier(&[&["up", "vol", "--export", "nbd"], &drives[..]].concat()).ok();
        let mut disk = volume.disk();
        disk.write(BLOCK, &content(1, 1));
        disk.flush();
        drop(disk);
        volume.ztier(&["down", "vol"]).ok();
        volume
    }

    fn at(&self, name: &str) -> String {
        self.sandbox.path().canonicalize().unwrap().join(name).display().to_string()
    }

    fn file(&self, name: &str, size: u64) {
        fs::File::create(self.at(name)).unwrap().set_len(size).unwrap();
    }

    fn ztier(&self, args: &[&str]) -> Done {
        self.sandbox.ztier(args)
    }

    fn disk(&self) -> Disk {
        Disk::open(&self.sandbox.run_dir().join("vol.nbd"), "vol")
    }

    fn block(&self) -> Vec<u8> {
        self.disk().read(BLOCK, BLOCK as usize)
    }

    fn saved(&self) -> String {
        fs::read_to_string(self.sandbox.config_dir().join("vol.toml")).unwrap()
    }

    /// The commands for this volume in an error, in backquotes.
    fn advised(&self, error: &str) -> Vec<String> {
        let typed = error.split('`').skip(1).step_by(2);
        typed.filter(|text| text.starts_with("ztier up vol ")).map(str::to_owned).collect()
    }

    /// Runs a command as it was advised, with `new` for the drive that it leaves open.
    fn follow(&self, advice: &str, new: &str) -> Done {
        let words = advice.split(' ').skip(1);
        let words = words.map(|word| if word == "DEV" { new } else { word });
        let mut command = self.sandbox.command(&words.collect::<Vec<_>>());
        command.args(["--export", "nbd"]);
        finish(command)
    }

    /// The error without the SSD, also after a wait for it, with a command for each way.
    fn missing(&self) -> Vec<String> {
        fs::rename(self.at("fast"), self.at("away")).unwrap();
        let fast = self.at("fast");
        let lacks = format!("{} lacks what its log on {fast} holds", self.at("slow"));
        let parts = [&lacks[..], "does not exist", "bring that log back", "its state is that of"];
        self.ztier(&["up", "vol", "--wait", "1"]).refused(5, &parts);
        let error = self.ztier(&["up", "vol"]).refused(5, &parts);
        let slow = self.at("slow");
        let up =
            |log: &str| format!("ztier up vol --backing {slow} --log {log} --discard-log --save");
        let advised = self.advised(&error);
        assert_eq!(advised, [up("DEV"), up("none")]);
        advised
    }
}

#[test]
fn the_drive_comes_back_and_nothing_is_lost() {
    let volume = Volume::new();
    let none = volume.missing().remove(1);
    fs::rename(volume.at("away"), volume.at("fast")).unwrap();
    // A log that is there is not given up by a mistake.
    let parts = ["is there, and holds what", "`ztier restart vol --log none`"];
    volume.follow(&none, "").refused(5, &parts);
    volume.ztier(&["up", "vol"]).ok();
    assert!(volume.block() == content(1, 1));
    volume.ztier(&["restart", "vol", "--log", "none"]).ok();
    assert!(volume.block() == content(1, 1));
    volume.ztier(&["down", "vol"]).ok();
    // A flag that gives nothing up is refused: left in a script, it would later.
    volume.follow(&none, "").refused(2, &["lacks nothing of a log", "leave out --discard-log"]);
}

#[test]
fn the_drive_is_replaced() {
    let volume = Volume::new();
    let advised = volume.missing();
    volume.file("new", LOG_BYTES);
    let new = volume.at("new");
    let done = volume.follow(&advised[0], &new);
    assert!(done.err.contains("goes on without what its log on"), "{done:?}");
    done.ok();
    assert!(volume.block() == vec![0; BLOCK as usize], "what only the log held is lost");
    assert!(volume.saved().contains(&format!("log = \"{new}\"")), "{}", volume.saved());
    volume.ztier(&["down", "vol"]).ok();
    volume.ztier(&["up", "vol"]).ok();
}

#[test]
fn the_drive_is_replaced_by_one_of_the_same_name() {
    let volume = Volume::new();
    volume.missing();
    volume.file("fast", LOG_BYTES);
    let error =
        volume.ztier(&["up", "vol"]).refused(5, &["holds no log", "this drive replaces it"]);
    let advised = volume.advised(&error);
    let (slow, fast) = (volume.at("slow"), volume.at("fast"));
    let up = format!("ztier up vol --backing {slow} --log {fast} --discard-log --save");
    assert_eq!(advised, [up]);
    volume.follow(&advised[0], "").ok();
    volume.ztier(&["down", "vol"]).ok();
    volume.ztier(&["up", "vol"]).ok();
}

#[test]
fn there_is_no_drive_any_more() {
    let volume = Volume::new();
    let advised = volume.missing();
    let done = volume.follow(&advised[1], "");
    assert!(done.err.contains("goes on without what its log on"), "{done:?}");
    done.ok();
    let mut disk = volume.disk();
    disk.write(BLOCK, &content(1, 2));
    drop(disk);
    assert!(volume.saved().contains("log = \"none\"") && !volume.saved().contains("log-uuid"));
    volume.ztier(&["down", "vol"]).ok();
    volume.ztier(&["up", "vol"]).ok();
    assert!(volume.block() == content(1, 2));
    volume.ztier(&["down", "vol"]).ok();
    // The old drive turns up: its log is older than the backing store.
    let (slow, away) = (volume.at("slow"), volume.at("away"));
    let up = ["up", "vol", "--export", "nbd", "--backing", &slow, "--log", &away];
    assert_eq!(volume.ztier(&up).status, 5);
    // Another SSD is a new log.
    volume.file("new", LOG_BYTES);
    let new = volume.at("new");
    volume.ztier(&[&up[..up.len() - 1], &[&new, "--save"]].concat()).ok();
    assert!(volume.block() == content(1, 2));
}
