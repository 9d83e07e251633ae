//! Saved settings: they name the same drives from any directory, and refuse others that have taken
//! their names.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::place::{BLOCK, BLOCKS, content};
use crate::support::sandbox::{Done, Sandbox, finish};
use std::fs;
use std::path::{Path, PathBuf};

const LOG_BYTES: u64 = 16 << 20;

/// A directory with two files for drives.
fn drives(dir: &Path) -> [PathBuf; 2] {
    fs::create_dir(dir).unwrap();
    [("fast", LOG_BYTES), ("slow", BLOCKS * BLOCK)].map(|(name, size)| {
        let path = dir.join(name);
        fs::File::create(&path).unwrap().set_len(size).unwrap();
        path
    })
}

/// Runs `ztier` in a directory.
fn within(sandbox: &Sandbox, dir: &Path, args: &[&str]) -> Done {
    let mut command = sandbox.command(args);
    command.current_dir(dir);
    finish(command)
}

fn saved(sandbox: &Sandbox) -> String {
    fs::read_to_string(sandbox.config_dir().join("vol.toml")).unwrap()
}

fn write(sandbox: &Sandbox, block: u64) {
    let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
    disk.write(block * BLOCK, &content(block, 1));
    disk.flush();
}

fn check(sandbox: &Sandbox, block: u64) {
    let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
    assert!(disk.read(block * BLOCK, BLOCK as usize) == content(block, 1), "block {block}");
}

const UP: [&str; 9] =
    ["up", "vol", "--export", "nbd", "--backing", "slow", "--log", "fast", "--save"];

#[test]
fn relative_paths_lead_to_the_same_files_from_every_directory() {
    let sandbox = Sandbox::new();
    let [here, there] = ["here", "there"].map(|name| sandbox.path().join(name));
    let ([log, backing], others) = (drives(&here), drives(&there));
    within(&sandbox, &here, &UP).ok();
    write(&sandbox, 3);
    sandbox.ztier(&["down", "vol"]).ok();
    let text = saved(&sandbox);
    for (key, path) in [("log", &log), ("backing", &backing)] {
        let path = path.canonicalize().unwrap();
        assert!(text.contains(&format!("{key} = \"{}\"\n", path.display())), "{text}");
    }
    within(&sandbox, &there, &["up", "vol"]).ok();
    check(&sandbox, 3);
    sandbox.ztier(&["down", "vol", "--drain"]).ok();
    for path in others {
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "{}", path.display());
    }
}

#[test]
fn another_log_under_the_saved_name_is_refused_and_stays_as_it_is() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path().join("dir");
    let [log, _] = drives(&dir);
    within(&sandbox, &dir, &UP).ok();
    sandbox.ztier(&["down", "vol"]).ok();
    fs::rename(&log, dir.join("kept")).unwrap();

    // A new, empty drive.
    fs::write(&log, vec![0; LOG_BYTES as usize]).unwrap();
    sandbox.ztier(&["up", "vol"]).refused(5, &["fast holds no log, and not the log", "--save"]);
    assert!(fs::read(&log).unwrap().iter().all(|byte| *byte == 0));

    // The log of another volume.
    let other = sandbox.path().join("other");
    let [another, _] = drives(&other);
    let up = ["up", "two", "--export", "nbd", "--backing", "slow", "--log", "fast"];
    within(&sandbox, &other, &up).ok();
    sandbox.ztier(&["down", "two"]).ok();
    fs::copy(&another, &log).unwrap();
    let before = fs::read(&log).unwrap();
    sandbox.ztier(&["up", "vol"]).refused(5, &["fast holds the log", "not the log", "--save"]);
    assert!(fs::read(&log).unwrap() == before);

    // Its own log, and a new one on request.
    fs::rename(dir.join("kept"), &log).unwrap();
    sandbox.ztier(&["up", "vol"]).ok();
    sandbox.ztier(&["down", "vol"]).ok();
    fs::write(&log, vec![0; LOG_BYTES as usize]).unwrap();
    within(&sandbox, &dir, &UP).ok();
    sandbox.ztier(&["down", "vol"]).ok();
    sandbox.ztier(&["up", "vol"]).ok();
    sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn another_file_under_the_name_of_a_backing_store_is_refused() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path().join("dir");
    let [_, backing] = drives(&dir);
    let up = ["up", "vol", "--export", "nbd", "--backing", "slow", "--save"];
    within(&sandbox, &dir, &up).ok();
    write(&sandbox, 5);
    sandbox.ztier(&["down", "vol"]).ok();
    sandbox.ztier(&["up", "vol"]).ok();
    check(&sandbox, 5);
    sandbox.ztier(&["down", "vol"]).ok();

    let copy = dir.join("copy");
    fs::copy(&backing, &copy).unwrap();
    fs::rename(&copy, &backing).unwrap();
    sandbox.ztier(&["up", "vol"]).refused(5, &["slow is another drive", "--save"]);
    within(&sandbox, &dir, &up).ok();
    sandbox.ztier(&["down", "vol"]).ok();
    sandbox.ztier(&["up", "vol"]).ok();
    sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn a_log_that_was_given_up_is_no_longer_expected() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path().join("dir");
    let [log, _] = drives(&dir);
    within(&sandbox, &dir, &UP).ok();
    write(&sandbox, 1);
    sandbox.ztier(&["down", "vol"]).ok();
    fs::write(&log, vec![0; LOG_BYTES as usize]).unwrap();
    sandbox.ztier(&["up", "vol"]).refused(5, &["holds no log"]);
    sandbox.ztier(&["up", "vol", "--discard-log"]).ok();
    sandbox.ztier(&["down", "vol"]).ok();
    sandbox.ztier(&["up", "vol"]).ok();
    sandbox.ztier(&["down", "vol"]).ok();
}

const WRITTEN: &str = "\
# For the archive.
size = '64M' # enough
ram-limit = '40M'
threads = 3
";

/// A volume in memory by a file with comments.
fn by_file(sandbox: &Sandbox) -> PathBuf {
    fs::create_dir_all(sandbox.config_dir()).unwrap();
    let file = sandbox.config_dir().join("vol.toml");
    fs::write(&file, WRITTEN).unwrap();
    file
}

#[test]
fn set_saves_what_it_changed_and_nothing_else() {
    let sandbox = Sandbox::new();
    let file = by_file(&sandbox);
    sandbox.ztier(&["up", "vol", "--export", "nbd"]).ok();
    let set = |change: &[&str]| sandbox.ztier(&[&["set", "vol"], change].concat());
    set(&["ram-limit=39M"]).ok();
    assert_eq!(saved(&sandbox), WRITTEN, "without --save");
    let done = set(&["size=80M", "ram-limit=38M", "--save"]);
    assert!(done.err.contains(&format!("saved {}", file.display())), "{done:?}");
    let after = WRITTEN.replace("'64M'", "\"80M\"").replace("'40M'", "\"38M\"");
    assert_eq!(saved(&sandbox), after);
    assert_eq!(set(&["ram-limit=38M", "--save"]).err, "", "nothing to save");

    // An unknown key stays, and is named before anything changes.
    let unknown = format!("{after}colour = 'blue'\n");
    fs::write(&file, &unknown).unwrap();
    set(&["ram-limit=37M", "--save"]).refused(2, &["vol.toml:5: unknown key `colour`"]);
    assert_eq!(saved(&sandbox), unknown);
    assert_eq!(sandbox.status("vol")["ram_limit_bytes"], 38 << 20);

    fs::remove_file(&file).unwrap();
    set(&["ram-limit=36M", "--save"]).refused(2, &["no configuration", "`ztier up vol … --save`"]);
    assert!(!file.exists());
    set(&["recompress=now", "--save"]).refused(2, &["nothing to save"]);
    // That makes it.
    let up = ["up", "vol", "--size", "80M", "--ensure", "--save", "--json"];
    assert_eq!(sandbox.ztier(&up).json()["changed"], true);
    assert_eq!(saved(&sandbox), "size = \"80M\"\n");
    assert_eq!(sandbox.ztier(&up).json()["changed"], false);
    set(&["ram-limit=auto", "ram-max=60M", "--save"]).ok();
    let bounds = "size = \"80M\"\nram-limit = \"auto\"\nram-max = \"60M\"\n";
    assert_eq!(saved(&sandbox), bounds);
    // A fixed limit has no bounds.
    set(&["ram-limit=36M", "--save"]).ok();
    assert_eq!(saved(&sandbox), "size = \"80M\"\nram-limit = \"36M\"\n");
    sandbox.ztier(&["down", "vol"]).ok();
    sandbox.ztier(&["up", "vol", "--export", "nbd"]).ok();
    assert_eq!(sandbox.status("vol")["ram_limit_bytes"], 36 << 20);
}

#[test]
fn up_saves_into_the_file_that_is_there() {
    let sandbox = Sandbox::new();
    let file = by_file(&sandbox);
    let up = ["up", "vol", "--size", "32M", "--export", "nbd", "--threads", "3", "--save"];
    let done = sandbox.ztier(&up);
    let text = format!("saved {}, without its ram-limit", file.display());
    assert!(done.err.contains(&text), "{done:?}");
    let after = WRITTEN.replace("'64M'", "\"32M\"").replace("ram-limit = '40M'\n", "");
    assert_eq!(saved(&sandbox), after + "export = \"nbd\"\n");
    sandbox.ztier(&["down", "vol"]).ok();

    // What is no TOML is an error before anything is made.
    fs::write(&file, "size = \n").unwrap();
    sandbox.ztier(&up).refused(2, &["vol.toml:1: "]);
    assert_eq!(sandbox.files(), [""; 0]);
    assert_eq!(saved(&sandbox), "size = \n");
}

#[test]
fn a_directory_that_cannot_be_written_keeps_the_old_file() {
    let sandbox = Sandbox::new();
    let file = by_file(&sandbox);
    sandbox.ztier(&["up", "vol", "--export", "nbd"]).ok();
    // Root may write to any directory; over a directory none can rename a file.
    let new = file.with_extension("toml.new");
    fs::create_dir(&new).unwrap();
    let what = ["is changed, but cannot write", "vol.toml", "make its directory writable"];
    sandbox.ztier(&["set", "vol", "ram-limit=38M", "--save"]).refused(1, &what);
    assert_eq!(saved(&sandbox), WRITTEN);
}
