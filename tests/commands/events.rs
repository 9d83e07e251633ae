//! `ztier events` and the program of `on-event`, with real daemons.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::sandbox::{Guard, PATIENCE, Sandbox, eventually, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use ztier::control::{Client, EventKind, Events, Request, Since, VolumeChange};

/// The error of NBD for a full volume.
const ENOSPC: u32 = 28;

/// `ztier events --json` that follows.
struct Follower {
    process: Guard,
    lines: Receiver<Value>,
}

impl Follower {
    fn start(sandbox: &Sandbox, more: &[&str]) -> Self {
        let mut command = sandbox.command(&[&["events", "--json"], more].concat());
        let mut process = Guard(command.stdout(Stdio::piped()).spawn().unwrap());
        let out = BufReader::new(process.0.stdout.take().unwrap());
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if to.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    /// The next event of this kind; those before it are passed over.
    #[track_caller]
    fn until(&self, kind: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(event) = self.lines.recv_timeout(left) else { panic!("no {kind}: {seen:?}") };
            if event["kind"] == kind {
                return event;
            }
            seen.push(event);
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.0.id()).unwrap()).unwrap()
    }
}

fn has(event: &Value, part: &str) {
    assert!(event["text"].as_str().unwrap().contains(part), "{event}");
}

fn file(sandbox: &Sandbox, name: &str) -> String {
    let path = sandbox.path().join(name);
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Changes the limit of `v` `count` times, each of which is an event.
fn change_often(sandbox: &Sandbox, count: u64) {
    let client = Client::new(&sandbox.run_dir().join("v.sock"));
    for n in 0..count {
        let ram_limit_bytes = Some((40 << 20) + n % 2 * (1 << 20));
        let set = Request::Set(VolumeChange { ram_limit_bytes, ..VolumeChange::default() });
        client.ask::<Value>(&set, PATIENCE).unwrap();
    }
}

#[test]
fn a_volume_s_life_in_events() {
    let sandbox = Sandbox::new();
    let follower = Follower::start(&sandbox, &[]);
    // It notices a volume that comes up later.
    std::thread::sleep(Duration::from_millis(300));
    sandbox.ztier(&["up", "v", "--size", "64M", "--ram-limit", "20M", "--export", "nbd"]).ok();
    let up = follower.until("up");
    has(&up, "v is up: ");
    assert_eq!((&up["volume"], &up["seq"], &up["dropped"]), (&"v".into(), &1.into(), &0.into()));
    assert!(up["session"].is_string() && up["about"].is_null(), "{up}");
    let time = up["time"].as_str().unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "{up}");

    // Data that does not compress fills the memory.
    let mut disk = Disk::open(&sandbox.run_dir().join("v.nbd"), "v");
    let mut noise = vec![0; 1 << 20];
    File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    let mut at = 0;
    eventually("a write is refused", || {
        noise.rotate_left(4099);
        at += 1;
        disk.write_error((at - 1) << 20, &noise) == ENOSPC
    });
    let full = follower.until("full");
    has(&full, "writes were refused");
    assert_eq!(full["about"], "memory");
    sandbox.ztier(&["set", "v", "ram-limit=100M"]).ok();
    let changed = follower.until("limit-changed");
    has(&changed, "ram-limit 20 MiB -> 100 MiB: set");
    sandbox.ztier(&["set", "v", "size=80M"]).ok();
    has(&follower.until("size-changed"), "size 64 MiB -> 80 MiB");
    drop(disk);

    sandbox.kill("v");
    let dead = follower.until("dead");
    has(&dead, "`ztier restart v` goes on with it");
    assert!(dead["seq"].is_null());
    sandbox.ztier(&["restart", "v"]).ok();
    let again = follower.until("up");
    assert!(again["session"] != up["session"] && again["seq"] == 1, "{again}");
    let before = sandbox.ztier(&["events", "v", "--once"]).ok();
    assert!(before.contains("  v  up  v is up: "), "{before}");
    assert_eq!(sandbox.ztier(&["events", "--once", "--since", "0s"]).ok(), "");
    sandbox.ztier(&["down", "v", "--discard"]).ok();
    has(&follower.until("ended"), "goes down");
    assert_eq!(sandbox.ztier(&["events", "--once"]).ok(), "");
    sandbox.ztier(&["events", "v"]).refused(3, &["no volume `v` is up"]);
    sandbox.ztier(&["events", "--since", "long"]).refused(2, &["like 90s, 10m"]);
}

#[test]
fn filling_begins_and_is_over() {
    let sandbox = Sandbox::new();
    let up = ["up", "v", "--size", "128M", "--ram-limit", "30M", "--export", "nbd"];
    sandbox.ztier(&up).ok();
    let follower = Follower::start(&sandbox, &["v", "--since", "1d"]);
    follower.until("up");
    let mut disk = Disk::open(&sandbox.run_dir().join("v.nbd"), "v");
    let mut noise = vec![0; 1 << 20];
    for at in 0..20 {
        File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
        disk.write(at << 20, &noise);
    }
    let filling = follower.until("filling");
    has(&filling, "there is room for ");
    assert_eq!(filling["about"], "memory");
    sandbox.ztier(&["set", "v", "ram-limit=160M"]).ok();
    has(&follower.until("recovered"), "over: as what is stored compresses");
}

#[test]
fn logs_come_and_go() {
    let sandbox = Sandbox::new();
    let (slow, fast, other) =
        (file(&sandbox, "slow"), file(&sandbox, "fast"), file(&sandbox, "other"));
    sandbox.ztier(&["up", "v", "--log", &fast, "--backing", &slow, "--export", "nbd"]).ok();
    let follower = Follower::start(&sandbox, &["--since", "1h"]);
    follower.until("up");
    sandbox.ztier(&["restart", "v", "--log", &other]).ok();
    has(&follower.until("log-detached"), &fast);
    let attached = follower.until("log-attached");
    has(&attached, &other);
    assert_eq!(attached["about"], "log");
    has(&follower.until("ended"), "waits for its next daemon");
    follower.until("up");
}

#[test]
fn a_slow_reader_gets_the_number_of_lost_events_and_delays_nothing() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "v", "--size", "64M", "--export", "nbd"]).ok();
    let follower = Follower::start(&sandbox, &["v", "--since", "1h"]);
    follower.until("up");
    crate::support::sandbox::stop(follower.pid());
    change_often(&sandbox, 400);
    kill_process(follower.pid(), Signal::CONT).unwrap();
    let dropped = follower.until("dropped");
    let lost = dropped["dropped"].as_u64().unwrap();
    // It may have asked for one more answer before it was stopped.
    assert!((1..=145).contains(&lost), "{dropped}");
    has(&dropped, &format!("{lost} events were lost"));
    let next = follower.until("limit-changed");
    assert!(next["seq"].as_u64().unwrap() > lost, "{next}");

    // Four readers wait at once; a fifth is refused, and other requests are not.
    let client = Client::new(&sandbox.run_dir().join("v.sock"));
    let ask = |since| client.ask::<Events>(&Request::Events(since), PATIENCE);
    let seen = ask(Since::default()).unwrap();
    assert_eq!(seen.events.len(), 64);
    let last = Since { session: Some(seen.session), after: u64::MAX, wait_ms: 30_000 };
    let refused = |asked: &ztier::error::Result<Events>| {
        asked.as_ref().is_err_and(|e| e.to_string().contains("4 requests like this one"))
    };
    // One of them may come while the look below has its place.
    let wait = || loop {
        let asked = ask(last.clone());
        if !refused(&asked) {
            return asked;
        }
    };
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(wait)).collect();
        eventually("one too many is refused", || {
            refused(&ask(Since { wait_ms: 0, ..last.clone() }))
        });
        sandbox.ztier(&["status", "v"]).ok();
        sandbox.ztier(&["down", "v", "--discard"]).ok();
        let answers: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
        let told = answers.iter().flatten().flat_map(|answer| &answer.events);
        let ended = told.filter(|event| event.kind == EventKind::Ended).count();
        assert!(ended >= 3, "{answers:?}");
    });
}

#[test]
fn it_ends_with_its_reader() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["events"]);
    let mut idle = Guard(command.stdout(Stdio::piped()).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(200));
    drop(idle.0.stdout.take());
    assert_eq!(wait(&mut idle.0), 0, "without any event");
}

/// A program for events, which appends what it gets to `told` beside it.
fn program(sandbox: &Sandbox, then: &str) -> (PathBuf, PathBuf) {
    let (program, told) = (sandbox.path().join("program"), sandbox.path().join("told"));
    let script = format!(
        "#!/bin/sh\nread -r json\n\
         held=$(ls -l /proc/$$/fd | grep -cE 'memfd|socket:|anon_inode|[.]lock|[.]sock')\n\
         echo \"$ZTIER_VOLUME|$ZTIER_EVENT|$ZTIER_DROPPED|$held|$(cat /proc/$$/oom_score_adj)|\
         $(nice)|$(grep VmLck /proc/$$/status | tr -dc 0-9)|$AWS_SECRET_ACCESS_KEY|\
         $NOTIFY_SOCKET|$json\" >>{}\n{then}\n",
        told.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    (program, told)
}

/// The lines of `told` so far, in cells; the last cell is the JSON.
fn told(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.splitn(10, '|').map(str::to_owned).collect()).collect()
}

/// The command line of a daemon with the privileges of the packaged unit, as far as this process
/// may give them up.
fn confined(command: &Command) -> Command {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("etc/systemd/ztier@.service");
    let unit = fs::read_to_string(unit).unwrap();
    let sets = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let kept: String = sets
        .flat_map(str::split_whitespace)
        .map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let mut confined = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        confined.arg("--bounding-set").arg(format!("-all{kept}"));
    }
    confined.arg("--no-new-privs").arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => confined.env(key, value),
            None => confined.env_remove(key),
        };
    }
    confined
}

#[test]
fn a_program_gets_each_event_and_none_of_the_daemon_s_privileges() {
    let sandbox = Sandbox::new();
    let (program, path) = program(&sandbox, "");
    fs::create_dir_all(sandbox.config_dir()).unwrap();
    let settings = format!("size = \"64M\"\nexport = \"nbd\"\non-event = {program:?}\n");
    fs::write(sandbox.config_dir().join("v.toml"), settings).unwrap();
    let mut command = sandbox.command(&["up", "v", "--foreground"]);
    command.env("AWS_SECRET_ACCESS_KEY", "secret");
    let mut command = confined(&command);
    let mut daemon = Guard(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    eventually("it is up", || !told(&path).is_empty());
    assert_eq!(sandbox.status("v")["on_event"].as_str().unwrap(), program.to_str().unwrap());
    sandbox.ztier(&["set", "v", "ram-limit=50M"]).ok();
    eventually("the change is told", || told(&path).len() == 2);
    sandbox.ztier(&["down", "v"]).ok();
    assert_eq!(wait(&mut daemon.0), 0);
    let all = told(&path);
    let kinds: Vec<_> = all.iter().map(|cells| cells[1].as_str()).collect();
    assert_eq!(kinds, ["up", "limit-changed", "ended"]);
    for cells in &all {
        // Nothing of the volume is open; no privilege in a shortage of memory; no secret.
        let rest: Vec<_> = cells[2..9].iter().map(String::as_str).collect();
        assert_eq!(rest, ["0", "0", "0", "0", "0", "", ""], "{cells:?}");
        let json: Value = serde_json::from_str(&cells[9]).unwrap();
        assert_eq!((&json["volume"], &json["kind"]), (&"v".into(), &cells[1].as_str().into()));
    }
    let relative = ["up", "v", "--size", "64M", "--on-event", "program"];
    sandbox.ztier(&relative).refused(2, &["can't be run on-event", "whole path"]);
    let none = ["up", "v", "--size", "64M", "--on-event", "/dev/null"];
    sandbox.ztier(&none).refused(2, &["/dev/null can't be run on-event", "chmod +x"]);
}

#[test]
fn a_program_alone_is_enough_to_notice_a_full_volume() {
    let sandbox = Sandbox::new();
    let (program, path) = program(&sandbox, "");
    let program = program.to_str().unwrap();
    let up = ["up", "v", "--size", "64M", "--ram-limit", "20M", "--export", "nbd"];
    sandbox.ztier(&[&up[..], &["--on-event", program]].concat()).ok();
    let mut disk = Disk::open(&sandbox.run_dir().join("v.nbd"), "v");
    let mut noise = vec![0; 1 << 20];
    for at in 0..40 {
        File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
        disk.write_error(at << 20, &noise);
    }
    eventually("it is told", || told(&path).iter().any(|cells| cells[1] == "full"));
}

#[test]
fn a_slow_program_delays_nothing_and_gets_the_number_of_what_it_missed() {
    let sandbox = Sandbox::new();
    let (program, path) = program(&sandbox, "sleep 0.5; exit 3");
    let program = program.to_str().unwrap();
    let up = ["up", "v", "--size", "64M", "--export", "nbd", "--on-event", program];
    sandbox.ztier(&up).ok();
    eventually("it runs", || !told(&path).is_empty());
    let begun = Instant::now();
    change_often(&sandbox, 40);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let dropped = |all: &[Vec<String>]| -> u64 {
        all.iter().map(|cells| cells[2].parse::<u64>().unwrap()).sum()
    };
    // Each event was told or counted.
    eventually("all is told", || {
        let all = told(&path);
        all.len() as u64 + dropped(&all) == 41
    });
    let all = told(&path);
    assert!(dropped(&all) >= 20 && all.len() >= 10, "{all:?}");
    let log = || fs::read_to_string(sandbox.run_dir().join("v.log")).unwrap();
    eventually("its failure is in the log", || {
        log().contains("the program on-event, ") && log().contains("failed: exit status: 3")
    });
    let begun = Instant::now();
    sandbox.ztier(&["down", "v", "--discard"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(sandbox.files(), [""; 0]);
}
