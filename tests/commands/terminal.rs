//! Names from outside that would control a terminal: paths, names of processes.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::sandbox::{Done, Sandbox};
use std::fs::{self, File};

/// Clears a screen, ends a line, and has a control sequence in one character.
const EVIL: &str = "\u{1b}[2J\nevil\u{9b}31m\u{7}";
const COMM: &str = "/proc/self/comm";
/// The displayed form.
const SHOWN: &str = r"\u{1b}[2J\nevil\u{9b}31m\u{7}";

/// Fails if the text would make a terminal do more than show lines.
fn tame(text: &str) {
    let steers = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(steers), "{text:?}");
    assert!(!text.lines().any(|line| line.starts_with("evil")), "{text:?}");
}

/// A command with tame output that shows the name.
fn shows(done: Done) -> Done {
    tame(&done.out);
    tame(&done.err);
    assert!(done.out.contains(SHOWN) || done.err.contains(SHOWN), "{done:?}");
    done
}

#[test]
fn paths_that_steer_a_terminal_are_written_out() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join(EVIL);
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let path = path.to_str().unwrap();
    let up = ["up", "v", "--backing", path, "--export", "nbd"];
    tame(&sandbox.ztier(&[&up[..], &["--dry-run"]].concat()).ok());
    shows(sandbox.ztier(&up)).ok();
    shows(sandbox.ztier(&["status", "v"])).ok();
    let json = sandbox.ztier(&["status", "v", "--json"]).ok();
    tame(&json);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json.to_string().contains(&serde_json::to_string(path).unwrap()), "{json}");
    // Prometheus' format has only these three escapes.
    let metrics = sandbox.ztier(&["stats", "v", "--format", "prometheus"]).ok();
    tame(&metrics);
    for part in metrics.split('\\').skip(1) {
        assert!(part.is_empty() || part.starts_with(['n', '"', 'u', 'r']), "{part:?}");
    }
    tame(&sandbox.ztier(&["list"]).ok());
    tame(&sandbox.ztier(&["top", "--once"]).ok());
    let second = ["up", "w", "--backing", path, "--export", "nbd"];
    let second = shows(sandbox.ztier(&second));
    assert!(second.status != 0 && second.err.lines().count() == 1, "{second:?}");
    for arg in ["--backing", "--spill", "--log"] {
        let gone = format!("{path}.gone");
        tame(&sandbox.ztier(&["up", "w", "--size", "16M", arg, &gone]).err);
    }
    for args in [&["status", EVIL][..], &["down", EVIL], &[EVIL], &["up", "w", EVIL]] {
        let refused = sandbox.ztier(args);
        tame(&refused.err);
        assert!(refused.status != 0 && refused.err.lines().count() == 1, "{refused:?}");
    }
    tame(&fs::read_to_string(sandbox.run_dir().join("v.log")).unwrap());
}

/// Another name of this process; dropping it restores the name.
struct Renamed(Vec<u8>);

impl Renamed {
    /// At most 15 bytes, of any value.
    fn to(name: &[u8]) -> Self {
        let before = fs::read(COMM).unwrap();
        fs::write(COMM, name).unwrap();
        Self(before)
    }
}

impl Drop for Renamed {
    fn drop(&mut self) {
        let _ = fs::write(COMM, self.0.trim_ascii_end());
    }
}

#[test]
fn a_client_cannot_steer_the_terminal_by_its_name() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "v", "--size", "16M", "--export", "nbd"]).ok();
    let _name = Renamed::to(b"\x1b[2J\nevil\xffx");
    let shown = "\\u{1b}[2J\\nevil\u{fffd}x";
    let disk = Disk::open(&sandbox.run_dir().join("v.nbd"), "v");
    let status = sandbox.ztier(&["status", "v"]).ok();
    tame(&status);
    assert!(status.contains(shown), "{status}");
    let json = sandbox.status("v");
    assert!(json["holders"].to_string().contains("evil"), "{json}");
    tame(&sandbox.ztier(&["list"]).ok());
    let refused = sandbox.ztier(&["down", "v"]).refused(4, &[shown]);
    tame(&refused);
    drop(disk);
    sandbox.ztier(&["down", "v", "--discard"]).ok();
}
