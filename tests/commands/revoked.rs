//! Requests whose caller has given up are not carried out: a daemon that was stopped ignores the
//! ones in its socket when it continues, and a working one has begun nothing.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::place::{BLOCK, Place, content};
use crate::support::sandbox::{Guard, Sandbox, eventually, stop, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;
use ztier::config::log::LogChange;
use ztier::control::{Client, NewLog, Question, RecompressChange, Request, VolumeChange};

/// Timeout of the caller that gives up.
const SHORT: Duration = Duration::from_millis(300);
/// Time after which an action counts as never done.
const NEVER: Duration = Duration::from_millis(500);

/// A stopped daemon; it continues when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Self {
        stop(pid);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT); // it may be gone
    }
}

fn client(sandbox: &Sandbox) -> Client {
    Client::new(&sandbox.run_dir().join("vol.sock"))
}

fn set(size_bytes: Option<u64>) -> Request {
    Request::Set(VolumeChange { size_bytes, ..VolumeChange::default() })
}

/// The state of a volume, without values that change on their own.
fn what_it_is(sandbox: &Sandbox) -> Value {
    let mut status = sandbox.status("vol");
    status["stats"] = Value::Null;
    status["holders"] = Value::Null;
    status
}

/// Sends a request while the daemon is stopped, gives up, and checks the volume after the daemon
/// continues.
fn revoked(sandbox: &Sandbox, request: &Request) {
    let before = what_it_is(sandbox);
    let stopped = Stopped::new(sandbox.pid_of("vol"));
    let error = client(sandbox).ask::<Value>(request, SHORT).unwrap_err();
    assert!(error.to_string().contains("in time, and nothing was changed"), "{error}");
    drop(stopped);
    std::thread::sleep(NEVER);
    assert_eq!(what_it_is(sandbox), before, "{request:?}");
}

#[test]
fn what_was_given_up_is_not_carried_out_when_a_stopped_daemon_goes_on() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "vol", "--size", "64M", "--export", "nbd"]).ok();
    let socket = sandbox.run_dir().join("vol.nbd");
    Disk::open(&socket, "vol").write(0, &content(0, 1));
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    let limit = Request::Set(VolumeChange {
        ram_limit_bytes: Some(48 << 20),
        recompress: Some(RecompressChange::Off),
        ..VolumeChange::default()
    });
    for request in [
        set(Some(128 << 20)),
        limit,
        Request::Restart { force: true, log: None },
        Request::Down { discard: true, force: true, drain: false },
    ] {
        revoked(&sandbox, &request);
    }
    assert_eq!(Disk::open(&socket, "vol").read(0, 4096), content(0, 1));
}

#[test]
fn the_same_of_a_volume_with_a_log() {
    let place = Place::new();
    let sandbox = &place.sandbox;
    sandbox.ztier(&[&place.up()[..], &["--writeback", "off"]].concat()).ok();
    place.write_one_by_one(4);
    let log = LogChange { writeback: Some(true), ..LogChange::default() };
    let writeback = Request::Set(VolumeChange { log, ..VolumeChange::default() });
    let other = sandbox.path().join("other");
    std::fs::File::create(&other).unwrap().set_len(16 << 20).unwrap();
    for request in [
        writeback,
        Request::Restart { force: true, log: Some(NewLog::On { path: other, wipe: false }) },
        Request::Restart { force: true, log: Some(NewLog::None) },
        Request::Down { discard: false, force: true, drain: true },
    ] {
        revoked(sandbox, &request);
    }
    // A drain lasts as long as a caller waits for it.
    let stopped = Stopped::new(sandbox.pid_of("vol"));
    let asked = Question::ask(&sandbox.run_dir().join("vol.sock"), &Request::Drain).unwrap();
    drop(asked);
    drop(stopped);
    std::thread::sleep(NEVER);
    let log = place.log_of("vol");
    assert_eq!((&log["clean"], &log["windows"]), (&false.into(), &0.into()), "{log}");
    sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

/// A killed command has given up as well.
#[test]
fn commands_that_are_killed_leave_the_volume_as_it_was() {
    let place = Place::new();
    let sandbox = &place.sandbox;
    sandbox.ztier(&[&place.up()[..], &["--writeback", "off"]].concat()).ok();
    place.write_one_by_one(4);
    let before = what_it_is(sandbox);
    // `down` does not wait for a stopped daemon: it reports the daemon, or ends it with --force.
    for args in [
        &["restart", "vol"][..],
        &["restart", "vol", "--log", "none"],
        &["set", "vol", "commit-interval=7"],
        &["drain", "vol"],
    ] {
        let stopped = Stopped::new(sandbox.pid_of("vol"));
        let mut command = sandbox.command(args);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut command = Guard(child);
        std::thread::sleep(SHORT);
        command.0.kill().unwrap();
        assert_eq!(wait(&mut command.0), -1, "{args:?} did not wait for the daemon");
        drop(stopped);
        std::thread::sleep(NEVER);
        assert_eq!(what_it_is(sandbox), before, "{args:?}");
        assert_eq!(place.log_of("vol")["clean"], false, "{args:?}");
    }
}

/// Exchanges lines with a daemon.
struct Conversation(BufReader<UnixStream>);

impl Conversation {
    fn begin(sandbox: &Sandbox, request: &str) -> Self {
        let stream = UnixStream::connect(sandbox.run_dir().join("vol.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut conversation = Self(BufReader::new(stream));
        conversation.say(request);
        conversation
    }

    fn say(&mut self, words: &str) {
        // The daemon may have hung up.
        let _ = writeln!(self.0.get_mut(), "{{\"v\":3,{words}}}");
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn a_caller_has_its_say_until_it_has_said_go() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "vol", "--size", "64M", "--export", "nbd"]).ok();
    let larger = "\"op\":\"set\",\"size_bytes\":134217728,\"ram_limit_bytes\":null";
    let size = || sandbox.status("vol")["size_bytes"].as_u64().unwrap();
    // Hung up, then silent, then late.
    let mut caller = Conversation::begin(&sandbox, larger);
    assert_eq!(caller.hear(), "{\"v\":3,\"ready\":null}\n");
    drop(caller);
    let mut silent = Conversation::begin(&sandbox, larger);
    silent.hear();
    // Another caller meanwhile gets an error, or waits for the end.
    let answer = silent.hear();
    assert!(answer.contains("nothing was changed"), "{answer}");
    let mut late = Conversation::begin(&sandbox, &format!("\"until_ms\":1,{larger}"));
    late.say("\"op\":\"go\"");
    assert!(late.hear().contains("the deadline of the request has passed"));
    assert_eq!(size(), 64 << 20);
    // A sent `go` cannot be taken back, and the daemon may be stopped when it arrives.
    let mut caller = Conversation::begin(&sandbox, larger);
    caller.hear();
    let stopped = Stopped::new(sandbox.pid_of("vol"));
    caller.say("\"op\":\"go\"");
    drop(caller);
    drop(stopped);
    eventually("it is larger", || size() == 128 << 20);
}

#[test]
fn a_drain_ends_when_no_caller_waits_for_it() {
    let place = Place::new();
    let sandbox = &place.sandbox;
    sandbox.ztier(&[&place.up()[..], &["--writeback", "off"]].concat()).ok();
    place.write_one_by_one(8);
    let mut asked = Question::ask(&sandbox.run_dir().join("vol.sock"), &Request::Drain).unwrap();
    let mut stats = None;
    eventually("it is drained", || {
        stats = asked.answer::<Value>().unwrap();
        stats.is_some()
    });
    assert_eq!(stats.unwrap()["log"]["clean"], true);
    // No caller waits any more, so there is no hurry.
    place.connect().write(0, &content(0, 2));
    std::thread::sleep(NEVER);
    assert_eq!(place.log_of("vol")["clean"], false);
    assert_eq!(place.connect().read(0, BLOCK as usize), content(0, 2));
}
