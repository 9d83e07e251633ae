//! `ztier top` on a real terminal line, over real volumes, without root.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::pty::Pty;
use crate::support::sandbox::{Guard, Sandbox, eventually, stop, wait};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// A volume in memory, and one with a log.
fn volumes(sandbox: &Sandbox) {
    sandbox.ztier(&["up", "ram", "--size", "64M", "--export", "nbd"]).ok();
    let (log, backing) = (sandbox.path().join("log"), sandbox.path().join("backing"));
    for file in [&log, &backing] {
        File::create(file).unwrap().set_len(64 << 20).unwrap();
    }
    let (log, backing) = (log.to_str().unwrap(), backing.to_str().unwrap());
    sandbox.ztier(&["up", "wc", "--log", log, "--backing", backing, "--export", "nbd"]).ok();
}

fn top(sandbox: &Sandbox, pty: &Pty, more: &[&str]) -> Guard {
    let args = [&["top", "--interval", "0.2"], more].concat();
    let mut command = sandbox.command(&args);
    command.env_remove("NO_COLOR");
    Guard(pty.spawn(&command))
}

fn shows(pty: &Pty, what: &str) {
    let mut text = String::new();
    eventually(&format!("the screen shows {what:?}"), || {
        text = pty.text();
        text.contains(what)
    });
}

fn pid(guard: &Guard) -> Pid {
    Pid::from_raw(i32::try_from(guard.0.id()).unwrap()).unwrap()
}

#[test]
fn volumes_are_shown_chosen_and_put_in_order() {
    let sandbox = Sandbox::new();
    volumes(&sandbox);
    let mut pty = Pty::new(24, 80);
    let before = pty.modes();
    let mut top = top(&sandbox, &pty, &[]);
    shows(&pty, "2 volumes");
    shows(&pty, "── ram: 64 MiB in memory");
    shows(&pty, "q ends");
    assert!(pty.is_taken() && pty.modes() != before && pty.has_colours());
    assert!(pty.chosen().unwrap().starts_with("ram "), "{:?}", pty.chosen());

    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut disk = Disk::open(&sandbox.run_dir().join("ram.nbd"), "ram");
            while !end.load(Ordering::Relaxed) {
                disk.write(0, &[7; 8192]);
                disk.read(0, 8192);
            }
        });
        // The volume is read and written: a rate and latencies, in the row and below.
        let row = || pty.chosen().unwrap_or_default();
        let cells = || row().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        eventually("rates are shown", || {
            let cells = cells();
            cells.len() > 8 && cells[1..7].iter().all(|cell| cell != "0" && cell != "-")
        });
        shows(&pty, "/s  p50 ");
        end.store(true, Ordering::Relaxed);
    });
    // Throughput of the last intervals, and the load.
    shows(&pty, "throughput ");
    shows(&pty, "queue depth ");
    pty.press(b"j");
    shows(&pty, "── wc: 64 MiB write cache");
    shows(&pty, "backing");
    assert!(pty.chosen().unwrap().starts_with("wc "));
    pty.press(b"\x1b[A");
    shows(&pty, "── ram: ");

    pty.resize(40, 120);
    // Also with long paths. The drawing arrives in parts.
    eventually("it is wide, and high", || {
        let text = pty.text();
        text.lines().count() == 40 && text.lines().any(|line| line.chars().count() > 100)
    });
    pty.resize(12, 40);
    eventually("it is narrow", || pty.text().contains("q ends  j k choose"));

    // A volume that comes, goes, hangs or dies is shown as such, and does not delay the display.
    sandbox.ztier(&["up", "late", "--size", "1M", "--export", "nbd"]).ok();
    shows(&pty, "3 volumes");
    sandbox.ztier(&["down", "late"]).ok();
    shows(&pty, "2 volumes");
    pty.resize(24, 80);
    let daemon = sandbox.pid("wc");
    stop(daemon);
    shows(&pty, "busy     its daemon has not answered for");
    kill_process(daemon, Signal::CONT).unwrap();
    eventually("it is up again", || !pty.text().contains("busy"));
    sandbox.kill("wc");
    shows(&pty, "dead     its daemon is gone; `ztier restart wc` goes on");

    pty.press(b"q");
    assert_eq!(wait(&mut top.0), 0);
    eventually("the terminal is given back", || !pty.is_taken());
    assert_eq!(pty.modes(), before);
    sandbox.ztier(&["restart", "wc"]).ok();
}

#[test]
fn help_and_the_interval_are_a_key_away() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "ram", "--size", "64M", "--export", "nbd"]).ok();
    let mut pty = Pty::new(24, 80);
    let mut command = sandbox.command(&["top", "--interval", "0.4"]);
    // A zone without summer time, 9 hours east.
    command.env_remove("NO_COLOR").env("TZ", "JST-9");
    let mut top = Guard(pty.spawn(&command));
    shows(&pty, "every 0.4 s  ");
    pty.press(b"+");
    shows(&pty, "every 0.8 s  ");
    pty.press(b"---");
    shows(&pty, "every 0.1 s  ");
    let clock = || {
        let line = pty.text().lines().next().unwrap_or_default().to_owned();
        let hour: u64 = line.rsplit("  ").next()?.split(':').next()?.parse().ok()?;
        Some(hour)
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let hour = |seconds: u64| seconds / 3600 % 24;
    let there = now.as_secs() + 9 * 3600;
    assert!([hour(there), hour(there + 60)].contains(&clock().unwrap()), "{}", pty.text());
    pty.press(b"?");
    shows(&pty, "latency that half, 99 of 100 reads and writes did not exceed");
    shows(&pty, "any key goes back");
    assert!(!pty.text().contains("── ram: "));
    pty.resize(30, 100);
    shows(&pty, "any key goes back");
    pty.press(b"j");
    shows(&pty, "── ram: ");
    shows(&pty, " QD BUSY ");
    // A daemon that dies is shown in colour, with the whole remedy.
    pty.resize(24, 80);
    sandbox.kill("ram");
    shows(&pty, "goes on with its data");
    assert!(pty.has_colours());
    pty.press(b"?");
    pty.press(b"q");
    assert_eq!(wait(&mut top.0), 0);
    eventually("the terminal is given back", || !pty.is_taken());
}

#[test]
fn a_log_that_opens_says_how_far_it_is() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.run_dir()).unwrap();
    std::fs::set_permissions(sandbox.run_dir(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let what = WatchFlags::CREATE | WatchFlags::DELETE;
    inotify::add_watch(&watch, sandbox.run_dir(), what).unwrap();
    volumes(&sandbox);
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = events.next() {
        if event.file_name().is_some_and(|name| name.to_bytes() == b"wc.step") {
            seen.push(event.events());
        }
    }
    assert_eq!(seen, [ReadFlags::CREATE, ReadFlags::DELETE]);
}

#[test]
fn the_terminal_is_given_back_whatever_ends_it() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "ram", "--size", "64M", "--export", "nbd"]).ok();
    let mut pty = Pty::new(24, 80);
    let before = pty.modes();
    for end in [Some(Signal::TERM), Some(Signal::INT), Some(Signal::HUP), Some(Signal::QUIT), None]
    {
        let mut top = top(&sandbox, &pty, &[]);
        shows(&pty, "── ram: ");
        assert!(pty.is_taken());
        match end {
            Some(signal) => kill_process(pid(&top), signal).unwrap(),
            None => pty.press(b"\x03"), // Ctrl-C
        }
        assert_eq!(wait(&mut top.0), 0, "{end:?}");
        eventually("the terminal is given back", || !pty.is_taken());
        assert_eq!(pty.modes(), before, "{end:?}");
    }
    // The count ends the display.
    assert_eq!(wait(&mut top(&sandbox, &pty, &["--count", "2"]).0), 0);
    eventually("the terminal is given back", || !pty.is_taken());
    assert_eq!(pty.modes(), before);
}

#[test]
fn a_program_that_is_stopped_leaves_the_terminal_to_others() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "ram", "--size", "64M", "--export", "nbd"]).ok();
    let mut pty = Pty::new(24, 80);
    let before = pty.modes();
    let mut top = top(&sandbox, &pty, &[]);
    shows(&pty, "── ram: ");
    kill_process(pid(&top), Signal::TSTP).unwrap();
    eventually("the terminal is given back", || !pty.is_taken() && pty.modes() == before);
    kill_process(pid(&top), Signal::CONT).unwrap();
    eventually("it goes on", || pty.is_taken() && pty.text().contains("── ram: "));
    pty.press(b"q");
    assert_eq!(wait(&mut top.0), 0);
    assert_eq!(pty.modes(), before);
}

#[test]
fn without_colours_nothing_has_one() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "ram", "--size", "64M", "--export", "nbd"]).ok();
    let mut pty = Pty::new(24, 80);
    let mut command = sandbox.command(&["top", "--interval", "0.2"]);
    command.env("NO_COLOR", "1");
    let mut top = Guard(pty.spawn(&command));
    shows(&pty, "── ram: ");
    assert!(!pty.has_colours());
    pty.press(b"q");
    assert_eq!(wait(&mut top.0), 0);
}

#[test]
fn lines_and_json_without_a_terminal() {
    let sandbox = Sandbox::new();
    let none = sandbox.ztier(&["top", "--once", "--interval", "0.1"]).ok();
    assert!(none.contains("0 volumes") && none.contains("no volume is up"), "{none}");
    volumes(&sandbox);
    Disk::open(&sandbox.run_dir().join("ram.nbd"), "ram").write(0, &[7; 8192]);
    let text = sandbox.ztier(&["top", "--interval", "0.1"]).ok();
    assert!(!text.contains('\u{1b}'), "{text:?}");
    for part in ["2 volumes", "NAME", "ram ", "wc ", "64 MiB in memory", "64 MiB write cache"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let twice = sandbox.ztier(&["top", "--count", "2", "--interval", "0.1"]).ok();
    assert_eq!(twice.matches("2 volumes").count(), 2);

    let json = sandbox.ztier(&["top", "--once", "--json", "--interval", "0.1"]).json();
    assert_eq!((&json[0]["name"], &json[0]["state"]), (&"ram".into(), &"up".into()));
    assert_eq!(json[0]["rates"]["read"]["requests_per_s"], 0.0);
    assert_eq!(json[0]["sample"]["stats"]["write"]["requests"], 1);
    let buckets = json[0]["sample"]["latencies"]["write"]["serving"]["buckets"].as_array().unwrap();
    assert_eq!(buckets.iter().map(|bucket| bucket[1].as_u64().unwrap()).sum::<u64>(), 1);
    sandbox.kill("wc");
    let json = sandbox.ztier(&["top", "--once", "--json", "--interval", "0.1"]).json();
    assert_eq!((&json[1]["state"], &json[1]["sample"]), (&"dead".into(), &Value::Null));
    assert!(json[1]["why"].as_str().unwrap().contains("ztier restart wc"), "{json}");
    sandbox.ztier(&["restart", "wc"]).ok();
    for (args, part) in [
        (&["top", "--interval", "0"][..], "0 is not from 0.1 to 3600"),
        (&["top", "--interval", "often"], "no number of seconds"),
        (&["top", "--count", "0"], "0"),
        (&["top", "--json"], "--once"),
    ] {
        sandbox.ztier(args).refused(2, &[part]);
    }
}
