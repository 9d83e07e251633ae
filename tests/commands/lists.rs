//! `ztier list` and `ztier doctor` on terminals of any width, and what they say of devices.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::pty::Pty;
use crate::support::sandbox::{Guard, Sandbox, eventually, wait};
use std::fs;
use std::path::Path;

/// What a command shows on a terminal of this width.
fn shown(sandbox: &Sandbox, args: &[&str], columns: u16, colours: bool) -> Pty {
    let pty = Pty::new(40, columns);
    let mut command = sandbox.command(args);
    match colours {
        true => command.env_remove("NO_COLOR"),
        false => command.env("NO_COLOR", "1"),
    };
    let mut process = Guard(pty.spawn(&command));
    wait(&mut process.0);
    eventually("something is shown", || !pty.text().trim().is_empty());
    pty
}

#[test]
fn columns_fit_the_terminal_and_ill_volumes_have_a_colour() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "data", "--size", "64M", "--export", "nbd"]).ok();
    let heads = |pty: &Pty| pty.text().lines().next().unwrap_or_default().to_owned();
    let all = "NAME  STATE  ROLE";
    eventually("all columns are shown", || {
        heads(&shown(&sandbox, &["list"], 250, true)).starts_with(all)
    });
    let text = shown(&sandbox, &["list"], 250, true).text();
    for part in [" LIMIT ", " RATIO ", " MOUNT ", " DEVICE ", "data  ok     ram   64 MiB"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    eventually("fewer columns are shown", || {
        let heads = heads(&shown(&sandbox, &["list"], 60, true));
        heads.starts_with("NAME  STATE") && !heads.contains("LIMIT") && heads.ends_with("OPEN")
    });
    // Without a terminal, all.
    let piped = sandbox.ztier(&["list"]).ok();
    assert!(piped.starts_with(all) && piped.contains("  LIMIT  "), "{piped}");
    assert!(!shown(&sandbox, &["list"], 250, true).has_colours());
    sandbox.kill("data");
    eventually("a dead volume is shown in colour", || {
        shown(&sandbox, &["list"], 250, true).has_colours()
    });
    let plain = shown(&sandbox, &["list"], 250, false);
    eventually("it is dead", || plain.text().contains("data  dead"));
    assert!(!plain.has_colours());
}

#[test]
fn a_device_is_named_with_what_it_is_used_for() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: no /dev/fuse, or not root");
        return;
    }
    let sandbox = Sandbox::new();
    let (name, place) = (sandbox.device_name("used"), sandbox.path().join("mnt"));
    let mount = place.to_str().unwrap();
    let up = ["up", &name, "--size", "64M", "--export", "fuse", "--use", "ext4", "--mount", mount];
    sandbox.ztier(&up).ok();
    fs::write(place.join("file"), vec![b'x'; 1 << 20]).unwrap();
    rustix::fs::sync();
    let columns = "name,role,limit,mount,device,ratio";
    let text = sandbox.ztier(&["list", "--no-headings", "-o", columns]).ok();
    let cells: Vec<&str> = text.split_whitespace().collect();
    assert_eq!((cells[0], cells[1], cells[4]), (name.as_str(), "ram", mount), "{text}");
    assert!(cells[5].starts_with("/dev/loop") && cells[6].ends_with('x'), "{text}");
    let row = &sandbox.ztier(&["list", "--json"]).json()[0];
    assert_eq!((&row["mounts"][0], &row["swap"]), (&mount.into(), &false.into()), "{row}");
    assert_eq!(row["device"], cells[5]);
    assert!(row["stored_ratio"].as_f64().unwrap() > 0.0, "{row}");
    sandbox.ztier(&["down", &name, "--discard"]).ok();
}

#[test]
fn the_doctor_writes_a_block_an_export() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["doctor"]);
    let done = crate::support::sandbox::finish({
        command.env("LC_ALL", "C.UTF-8");
        command
    });
    let works = ["✓ export ublk", "✓ export fuse"].iter().any(|line| done.out.contains(line));
    assert_eq!(done.status, if works { 0 } else { 6 }, "{done:?}");
    assert!(done.out.starts_with("✓ export nbd: always works"), "{done:?}");
    assert!(done.out.contains("\n\nthis machine\n") && done.out.contains("--export auto takes"));
    // A path may be a long word.
    let long = |line: &&str| line.chars().count() > 80 && line.trim().contains(' ');
    assert_eq!(done.out.lines().find(long), None);
}
