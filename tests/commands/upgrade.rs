//! This program takes over from earlier versions: memory and drives of a killed daemon, its state
//! file, saved settings, its memory holder's messages, and its control protocol.
//! `tests/golden/upgrade/VERSION` has them for each version since 0.2.0 and each role.
//!
//! `ZTIER_GOLDEN=write cargo test --test commands upgrade::` records this version, once, at its
//! release. Records of earlier versions are never written again.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::kept_image::{Holder, Image};
use crate::support::sandbox::{Done, Sandbox, eventually, finish};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use ztier::config::{Ballast, SlotNews};
use ztier::control::{
    Ended, Noted, Request, Sample, Status, Swapon, Swapping, VERSION, Version, VolumeChange,
};
use ztier::metrics::GROUPS;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Placeholder for the directory of a test in records.
const DIR: &str = "@DIR@";

/// A volume of each kind.
struct Role {
    name: &'static str,
    drives: &'static [(&'static str, u64)],
    up: &'static [&'static str],
    /// Flags for a daemon of this role whose drives are copies.
    copied: &'static [&'static str],
    /// Number of noise blocks, which fill memory.
    noise: u64,
    discard: bool,
}

const ROLES: [Role; 4] = [
    Role {
        name: "ram",
        drives: &[],
        up: &["--size", "16M"],
        copied: &[],
        noise: 100,
        discard: true,
    },
    Role {
        name: "spill",
        drives: &[("spill", 32 * MIB)],
        up: &["--size", "16M", "--segment", "64K", "--ram-limit", "8M", "--spill", "spill"],
        copied: &[],
        noise: 2800,
        discard: true,
    },
    Role {
        name: "cache",
        drives: &[("slow", 16 * MIB)],
        up: &["--backing", "slow", "--ram-limit", "32M"],
        copied: &[],
        noise: 100,
        discard: false,
    },
    Role {
        name: "log",
        drives: &[("fast", 16 * MIB), ("slow", 16 * MIB)],
        up: &[
            "--backing",
            "slow",
            "--log",
            "fast",
            "--writeback",
            "off",
            "--ram-limit",
            "32M",
            "--commit-interval",
            "10000",
        ],
        copied: &["--moved"],
        noise: 100,
        discard: false,
    },
];

impl Role {
    fn drive_names(&self) -> Vec<&'static str> {
        self.drives.iter().map(|(name, _)| *name).collect()
    }

    fn down(&self) -> Vec<&'static str> {
        [&["down", "vol"][..], if self.discard { &["--discard"] } else { &[] }].concat()
    }

    /// The final content of block `block`; `None`: discarded or never written.
    fn content(&self, block: u64) -> Option<Vec<u8>> {
        match block {
            0..100 => Some(text(block, 2)),
            100..150 => Some((block << 32 | 7).to_le_bytes().repeat(BLOCK as usize / 8)),
            150..200 => None,
            200..250 => Some(text(block, 1)),
            512.. if block < 512 + self.noise => Some(noise(block)),
            _ => None,
        }
    }

    /// Writes the whole content: a part durable, a part not.
    fn fill(&self, disk: &mut Disk) {
        for block in 0..250 {
            disk.write(block * BLOCK, &text(block, 1));
        }
        for block in 512..512 + self.noise {
            disk.write(block * BLOCK, &noise(block));
        }
        disk.flush();
        disk.zero(150 * BLOCK, 50 * BLOCK as u32);
        for block in 0..150 {
            disk.write(block * BLOCK, &self.content(block).unwrap());
        }
    }

    #[track_caller]
    fn check(&self, disk: &mut Disk) {
        for block in 0..512 + self.noise {
            let found = disk.read(block * BLOCK, BLOCK as usize);
            let wanted = self.content(block).unwrap_or_else(|| vec![0; BLOCK as usize]);
            assert!(found == wanted, "{}: block {block} holds {:?}", self.name, &found[..24]);
        }
    }
}

/// A compressible block.
fn text(block: u64, version: u64) -> Vec<u8> {
    let line = format!("block {block} of version {version}; ");
    line.bytes().cycle().take(BLOCK as usize).collect()
}

/// An incompressible block; the record compresses, because all of these have the same noise.
fn noise(block: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut words = Vec::new();
    for _ in 0..BLOCK / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend_from_slice(&state.to_le_bytes());
    }
    words[..8].copy_from_slice(&block.to_le_bytes());
    words
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/upgrade")
}

/// The directories of all recorded versions.
fn versions() -> Vec<PathBuf> {
    let mut all: Vec<_> =
        fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert!(!all.is_empty());
    all
}

/// A sandbox with a record.
struct Place {
    sandbox: Sandbox,
    role: &'static Role,
    golden: PathBuf,
}

impl Place {
    fn new(role: &'static Role, golden: &Path) -> Self {
        let sandbox = Sandbox::new();
        for dir in [sandbox.run_dir(), sandbox.config_dir()] {
            fs::create_dir(dir).unwrap();
        }
        Self { sandbox, role, golden: golden.to_owned() }
    }

    fn recorded(&self, end: &str) -> PathBuf {
        self.golden.join(format!("{}.{end}", self.role.name))
    }

    fn dir(&self) -> &str {
        self.sandbox.path().to_str().unwrap()
    }

    /// Text of a recorded file, for this directory.
    fn text(&self, end: &str) -> String {
        fs::read_to_string(self.recorded(end)).unwrap().replace(DIR, self.dir())
    }

    fn record(&self, end: &str, text: &str) {
        fs::write(self.recorded(end), text.replace(self.dir(), DIR)).unwrap();
    }

    fn state(&self) -> PathBuf {
        self.sandbox.run_dir().join("vol.json")
    }

    fn settings(&self) -> PathBuf {
        self.sandbox.config_dir().join("vol.toml")
    }

    fn keep(&self) -> PathBuf {
        self.sandbox.run_dir().join("vol.keep")
    }

    /// Runs `ztier` in the directory of the drives.
    fn ztier(&self, args: &[&str]) -> Done {
        let mut command = self.sandbox.command(args);
        command.current_dir(self.sandbox.path());
        finish(command)
    }

    fn connect(&self) -> Disk {
        Disk::open(&self.sandbox.run_dir().join("vol.nbd"), "vol")
    }

    /// Waits for the end of the daemon, which has announced it.
    fn left(&self) {
        let lock = File::open(self.sandbox.run_dir().join("vol.lock")).unwrap();
        eventually("the daemon has ended", || {
            flock(&lock, FlockOperation::NonBlockingLockShared).is_ok()
        });
    }

    /// Restores memory, drives, state and settings as they were when the daemon was killed.
    fn restore(&self) -> Holder {
        let image = Image::read(&self.recorded("img"), self.sandbox.path());
        fs::write(self.state(), self.text("json")).unwrap();
        fs::write(self.settings(), self.text("toml")).unwrap();
        Holder::new(image, &self.keep())
    }
}

/// A recorded request to a daemon, with all answers.
struct Talk {
    request: Value,
    /// The daemon's lines; of two, the first is `ready`.
    answers: Vec<String>,
}

impl Talk {
    fn all(text: &str) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for line in text.lines() {
            match line.split_once(' ').unwrap() {
                (">", line) => {
                    let request = serde_json::from_str(line).unwrap();
                    all.push(Self { request, answers: Vec::new() });
                }
                ("<", line) => all.last_mut().unwrap().answers.push(line.to_owned()),
                _ => panic!("{line}"),
            }
        }
        all
    }

    fn op(&self) -> &str {
        self.request["op"].as_str().unwrap()
    }

    /// The value of the last answer; `None` if that is an error.
    fn value(&self) -> Option<Value> {
        let answer: Value = serde_json::from_str(self.answers.last().unwrap()).unwrap();
        answer.get("ok").cloned()
    }
}

/// Sends a request to the daemon of `place`, and records all lines.
fn ask(place: &Place, request: &Request, said: &mut String) {
    let mut line = json!({"v": VERSION});
    let body = serde_json::to_value(request).unwrap();
    line.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    let stream = UnixStream::connect(place.sandbox.run_dir().join("vol.sock")).unwrap();
    stream.set_read_timeout(Some(crate::support::sandbox::PATIENCE)).unwrap();
    let mut lines = BufReader::new(&stream).lines();
    let say = |line: String| (&stream).write_all(format!("{line}\n").as_bytes()).unwrap();
    said.push_str(&format!("> {line}\n"));
    say(line.to_string());
    let mut answer = lines.next().unwrap().unwrap();
    said.push_str(&format!("< {answer}\n"));
    if answer.contains("\"ready\"") {
        say(json!({"v": VERSION, "op": "go"}).to_string());
        answer = lines.next().unwrap().unwrap();
        said.push_str(&format!("< {answer}\n"));
    }
    assert!(answer.contains("\"ok\""), "{answer}");
}

/// Records this version.
fn record(role: &'static Role, golden: &Path) {
    let place = Place::new(role, golden);
    for (name, bytes) in role.drives {
        File::create(place.sandbox.path().join(name)).unwrap().set_len(*bytes).unwrap();
    }
    let up = [&["up", "vol", "--export", "nbd", "--save"], role.up].concat();
    place.ztier(&up).ok();
    role.fill(&mut place.connect());
    let mut said = String::new();
    let log = ztier::config::log::LogChange {
        commit_interval_ms: (role.name == "log").then_some(9000),
        ..Default::default()
    };
    let ram_limit_bytes = Some(24 * MIB);
    let set = Request::Set(VolumeChange { ram_limit_bytes, log, ..VolumeChange::default() });
    for request in [Request::Ping, Request::Status, Request::Stats, Request::Sample, set] {
        ask(&place, &request, &mut said);
    }
    ask(&place, &Request::Holders, &mut said);
    place.sandbox.kill("vol");
    place.record("json", &fs::read_to_string(place.state()).unwrap());
    let settings = fs::read_to_string(place.settings()).unwrap();
    // The id of a file is its inode.
    let settings = settings.lines().filter(|line| !line.starts_with("backing-id"));
    place.record("toml", &settings.map(|line| format!("{line}\n")).collect::<String>());
    let image = Image::kept(&place.keep());
    // A log's memory has the unflushed data.
    assert!(role.name == "cache" || image.memory_bytes() > 50 * BLOCK, "{}", role.name);
    image.write(&place.recorded("img"), place.sandbox.path(), &role.drive_names());
    drop(image);
    place.ztier(&["up", "vol"]).ok();
    if role.name == "log" {
        ask(&place, &Request::Drain, &mut said);
        ask(&place, &Request::AcceptLoss, &mut said);
    }
    ask(&place, &Request::Restart { force: false, log: None }, &mut said);
    place.left();
    place.ztier(&["up", "vol"]).ok();
    role.check(&mut place.connect());
    let down = Request::Down { discard: role.discard, force: false, drain: false };
    ask(&place, &down, &mut said);
    place.record("control", &said);
}

#[test]
fn this_version_is_recorded_when_that_is_asked_for() {
    if std::env::var("ZTIER_GOLDEN").as_deref() != Ok("write") {
        return;
    }
    let golden = golden().join(env!("CARGO_PKG_VERSION"));
    assert!(!golden.exists(), "{} was recorded; it stays as it is", golden.display());
    fs::create_dir_all(&golden).unwrap();
    for role in &ROLES {
        record(role, &golden);
    }
    record_swap(&golden);
    fs::write(golden.join("metrics.txt"), metrics().join("\n") + "\n").unwrap();
}

/// Records swap: as root, by FUSE.
fn record_swap(golden: &Path) {
    let place = Place::new(&ROLES[0], golden);
    place.ztier(&["up", "vol", "--export", "fuse", "--size", "16M"]).ok();
    let on = Swapon {
        priority: 5,
        page_cluster: Some(0),
        swappiness: Some(100),
        ballast: Ballast::Auto,
        freed_slots: SlotNews::Auto,
        on_full: None,
        force: true,
    };
    let mut said = String::new();
    for request in [Request::Swapon(on), Request::Status, Request::Swapoff { force: false }] {
        ask(&place, &request, &mut said);
    }
    place.ztier(&["down", "vol", "--discard"]).ok();
    fs::write(golden.join("swap.control"), said.replace(place.dir(), DIR)).unwrap();
}

/// A line for each metric of this version.
fn metrics() -> Vec<String> {
    let all = GROUPS.iter().flat_map(|group| &group.metrics);
    all.map(|metric| format!("{} {:?} {}", metric.name, metric.kind, metric.labels.join(" ")))
        .collect()
}

#[test]
fn metrics_have_the_names_and_labels_that_they_had() {
    let now = metrics();
    for golden in versions() {
        for line in fs::read_to_string(golden.join("metrics.txt")).unwrap().lines() {
            // A label may be added.
            assert!(now.iter().any(|metric| metric.starts_with(line)), "{line} is gone");
        }
    }
}

fn each(mut check: impl FnMut(Place)) {
    for golden in versions() {
        for role in &ROLES {
            println!("{} of {}", role.name, golden.display());
            check(Place::new(role, &golden));
        }
    }
}

#[test]
fn a_daemon_goes_on_with_what_an_earlier_one_left() {
    each(|place| {
        let role = place.role;
        let holder = place.restore();
        place.ztier(&[&["up", "vol"], role.copied].concat()).ok();
        role.check(&mut place.connect());
        let status = place.sandbox.status("vol");
        assert_eq!(status["restarts"], 1, "{status}");
        place.ztier(&["set", "vol", "ram-limit=20M"]).ok();
        place.ztier(&["restart", "vol"]).ok();
        role.check(&mut place.connect());
        if role.name == "log" {
            place.ztier(&["drain", "vol"]).ok();
            let log = &place.sandbox.status("vol")["stats"]["log"];
            assert_eq!(log["blocks_dirty"], 0, "{log}");
            role.check(&mut place.connect());
        }
        place.ztier(&role.down()).ok();
        holder.ended();
        if !role.discard {
            place.ztier(&["up", "vol"]).ok();
            role.check(&mut place.connect());
            place.ztier(&role.down()).ok();
        }
        assert_eq!(place.sandbox.files(), [""; 0]);
    });
}

/// A daemon of an earlier version, as commands see it: its lock, its control socket, and the
/// recorded answers.
struct Earlier {
    thread: JoinHandle<()>,
}

impl Earlier {
    fn new(place: &Place) -> Self {
        let run = place.sandbox.run_dir();
        let lock = File::create(run.join("vol.lock")).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let path = run.join("vol.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let all = Talk::all(&place.text("control"));
        let thread = std::thread::spawn(move || {
            // Until it has gone down, which ends it.
            while !answer(&listener.accept().unwrap().0, &all) {}
            fs::remove_file(path).unwrap();
            drop(lock);
        });
        Self { thread }
    }

    fn ended(self) {
        eventually("the earlier daemon was told to end", || self.thread.is_finished());
        self.thread.join().unwrap();
    }
}

/// Answers one request from the record. Returns whether the daemon ends with that.
fn answer(stream: &UnixStream, all: &[Talk]) -> bool {
    stream.set_read_timeout(Some(crate::support::sandbox::PATIENCE)).unwrap();
    let mut lines = BufReader::new(stream).lines();
    // Some commands only check whether there is a daemon.
    let Some(Ok(line)) = lines.next() else { return false };
    let mut asked: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(asked["v"], 3, "{line}");
    asked.as_object_mut().unwrap().remove("until_ms");
    let talk = all.iter().find(|talk| talk.request["op"] == asked["op"]);
    let talk = talk.unwrap_or_else(|| panic!("never asked before: {line}"));
    // An earlier version refuses unknown keys.
    known(&asked, &talk.request);
    let say = |line: &str| (&*stream).write_all(format!("{line}\n").as_bytes()).unwrap();
    let (last, before) = talk.answers.split_last().unwrap();
    for ready in before {
        say(ready);
        assert_eq!(lines.next().unwrap().unwrap(), r#"{"v":3,"op":"go"}"#);
    }
    say(last);
    matches!(talk.op(), "restart" | "down")
}

/// Every key of `found` is in `wanted`.
#[track_caller]
fn known(found: &Value, wanted: &Value) {
    let Value::Object(found) = found else { return };
    for (key, value) in found {
        let wanted = wanted.get(key).unwrap_or_else(|| panic!("`{key}` is unknown to it"));
        // A key without a recorded value may have any value.
        if !wanted.is_null() {
            known(value, wanted);
        }
    }
}

#[test]
fn commands_understand_an_earlier_daemon() {
    each(|place| {
        let role = place.role;
        let holder = place.restore();
        let daemon = Earlier::new(&place);
        let status: Value = place.sandbox.status("vol");
        assert_eq!(status["size_bytes"], 16 * MIB, "{status}");
        for args in
            [&["status", "vol"][..], &["stats", "vol"], &["list"], &["set", "vol", "ram-limit=24M"]]
        {
            place.ztier(args).ok();
        }
        if role.name == "log" {
            place.ztier(&["drain", "vol"]).ok();
            place.ztier(&["accept-loss", "vol"]).ok();
            place.ztier(&role.down()).ok();
            daemon.ended();
            return;
        }
        place.ztier(&["restart", "vol"]).ok();
        daemon.ended();
        role.check(&mut place.connect());
        place.ztier(&role.down()).ok();
        holder.ended();
    });
}

/// Vice versa: a script, or a command of the version before, with the present daemon.
#[test]
fn a_daemon_understands_earlier_commands_and_tells_all_that_was_told_then() {
    each(|place| {
        let role = place.role;
        let holder = place.restore();
        place.ztier(&[&["up", "vol"], role.copied].concat()).ok();
        for talk in Talk::all(&place.text("control")) {
            let mut said = String::new();
            ask(&place, &repeated(&talk), &mut said);
            let now = Talk::all(&said)[0].value().unwrap();
            told(&talk.value().unwrap(), &now, talk.op());
            if talk.op() == "restart" {
                place.left();
                place.ztier(&["up", "vol"]).ok();
                role.check(&mut place.connect());
            }
        }
        holder.ended();
        eventually("the volume is down", || place.sandbox.files().is_empty());
    });
}

/// The requests of swap, without a daemon: it needs root, and the machine's swap.
#[test]
fn requests_and_answers_of_swap_are_what_they_were() {
    for golden in versions() {
        let all = Talk::all(&fs::read_to_string(golden.join("swap.control")).unwrap());
        assert_eq!(all.iter().map(Talk::op).collect::<Vec<_>>(), ["swapon", "status", "swapoff"]);
        all.iter().for_each(|talk| drop(repeated(talk)));
    }
}

/// The request as sent now; checks that it equals the recorded one, and that commands understand
/// its answer.
fn repeated(talk: &Talk) -> Request {
    let mut body = talk.request.clone();
    body.as_object_mut().unwrap().remove("v");
    let request: Request = serde_json::from_value(body.clone()).unwrap();
    assert_eq!(serde_json::to_value(&request).unwrap(), body, "it is asked otherwise now");
    understood(talk.op(), talk.value().unwrap());
    request
}

/// Today's commands can read a recorded answer.
fn understood(op: &str, value: Value) {
    let read = match op {
        "ping" => serde_json::from_value::<Version>(value).map(drop),
        "status" | "set" => serde_json::from_value::<Status>(value).map(drop),
        "stats" | "drain" => serde_json::from_value::<ztier::stats::Stats>(value).map(drop),
        "sample" => serde_json::from_value::<Sample>(value).map(drop),
        "holders" => serde_json::from_value::<Vec<String>>(value).map(drop),
        "accept-loss" => serde_json::from_value::<Noted>(value).map(drop),
        "swapon" | "swapoff" => serde_json::from_value::<Swapping>(value).map(drop),
        "down" => serde_json::from_value::<Ended>(value).map(drop),
        "restart" => Ok(()),
        _ => panic!("{op} is new here"),
    };
    read.unwrap_or_else(|e| panic!("{op}: {e}"));
}

/// Every recorded key is there, with a value of the same kind.
#[track_caller]
fn told(before: &Value, now: &Value, path: &str) {
    match (before, now) {
        (Value::Object(before), Value::Object(_)) => {
            for (key, value) in before {
                let path = format!("{path}.{key}");
                told(value, now.get(key).unwrap_or_else(|| panic!("{path} is gone")), &path);
            }
        }
        // Optional values.
        (Value::Null, _) | (_, Value::Null) => {}
        (before, now) => {
            let kind = |value: &Value| std::mem::discriminant(value);
            assert_eq!(kind(before), kind(now), "{path}: {before} was, {now} is");
        }
    }
}
