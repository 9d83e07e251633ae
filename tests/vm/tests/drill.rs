//! The drill of docs/object-store.md, exactly as it is pasted, on this machine: with directories
//! and devices of its own (`tests/vm/scripts/apart`), so that it disturbs and leaves nothing.
//! `package.rs` runs it with all other documents in a machine.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use ztier_vm::command::find;
use ztier_vm::document::{self, Step};
use ztier_vm::programs::ours;

const DOCUMENT: &str = include_str!("../../../docs/object-store.md");
const HEADING: &str = "## A drill: the host is lost";
/// Limit on the time of all commands, in seconds; and for what comes before and behind them.
const SECONDS: u64 = 300;
const MORE: u64 = 120;
/// The directories that are the drill's own while it runs.
const HIDDEN: [&str; 3] = ["/srv", "/mnt", "/dev"];
const LEFT: &str = "\n@@apart left\n";

/// The commands of the document below a heading.
fn steps_below(heading: &str) -> Vec<Step> {
    let lines = || (1..).zip(DOCUMENT.lines());
    let from = lines().find(|(_, line)| *line == heading).unwrap().0;
    let until = lines().find(|(at, line)| *at > from && line.starts_with("## ")).unwrap().0;
    let steps = document::steps(DOCUMENT).unwrap();
    steps.into_iter().filter(|step| (from..until).contains(&step.line)).collect()
}

/// What the drill lacks here.
fn lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounts and devices need root".into());
    }
    let node =
        ["/dev/fuse", "/dev/loop-control"].into_iter().find(|node| !fs::exists(node).unwrap());
    let programs = ["timeout", "unshare", "mkfs.ext4", "fsck.ext4", "losetup", "mount", "mknod"];
    let program = programs.into_iter().find(|program| find(program).is_none());
    node.or(program).map(|what| format!("there is no {what}"))
}

/// Runs a script apart from the machine. Returns what it printed; or why it cannot be had.
fn apart(script: &Path, program: &Path, place: &Path) -> Result<String, String> {
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}:/usr/sbin:/sbin", program.parent().unwrap().display());
    let (output, seconds) = (place.join("output"), SECONDS.to_string());
    let to = fs::File::create(&output).unwrap();
    let status = Command::new("timeout")
        .args(["-k", "5", &(SECONDS + MORE).to_string()])
        .args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/apart"))
        .args([script.as_os_str(), seconds.as_ref()])
        .env("PATH", path)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(to.try_clone().unwrap())
        .stderr(to)
        // A signal for the tests does not keep it from removing what it made.
        .process_group(0)
        .status()
        .unwrap();
    let printed = fs::read_to_string(output).unwrap();
    if status.success() {
        return Ok(printed);
    }
    // `unshare` itself, or the script that prepares the directories.
    let what = printed.lines().last().unwrap_or_default().to_owned();
    assert!(matches!(status.code(), Some(1 | 77)), "{status}: {printed}");
    Err(what)
}

#[test]
fn the_drill_of_the_document_ends_as_it_shows() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    let (place, program) = (tempfile::tempdir().unwrap(), ours("ztier").unwrap());
    let own = [place.path(), &program, Path::new(env!("CARGO_MANIFEST_DIR"))];
    if own.iter().any(|own| HIDDEN.iter().any(|hidden| own.starts_with(hidden))) {
        println!("skipped: what the drill needs is below one of {HIDDEN:?}, which it hides");
        return;
    }
    let all = steps_below(HEADING);
    let steps: Vec<_> = all.iter().collect();
    assert!(steps.len() > 30 && steps.iter().all(|step| step.root), "{}", steps.len());
    let script = place.path().join("script");
    fs::write(&script, document::script(&steps)).unwrap();
    let began = Instant::now();
    let printed = match apart(&script, &program, place.path()) {
        Ok(printed) => printed,
        Err(why) => return println!("skipped: {why}"),
    };
    let (printed, left) = printed.split_once(LEFT).unwrap();
    document::judge(&steps, printed).unwrap_or_else(|e| panic!("docs/object-store.md: {e}"));
    assert_eq!(left.trim(), "", "left behind");
    println!("{} commands in {:.1} s", steps.len(), began.elapsed().as_secs_f64());
    every_line_that_is_shown_counts(&all, printed);
}

/// Whatever shown line is another one, the drill fails.
fn every_line_that_is_shown_counts(all: &[Step], printed: &str) {
    let mut lines = 0;
    for (at, step) in all.iter().enumerate() {
        for line in (0..step.shown.len()).filter(|line| step.shown[*line] != "…") {
            let mut other = all.to_vec();
            other[at].shown[line].push('!');
            let other: Vec<_> = other.iter().collect();
            assert!(document::judge(&other, printed).is_err(), "line {}: {line}", step.line);
            lines += 1;
        }
    }
    assert!(lines > 20, "{lines}");
}
