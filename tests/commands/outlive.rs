//! Volumes that outlive their daemons: killed while clients write, replaced on purpose, resumed
//! with other settings, with a memory holder that dies. Acknowledged data is there, flushed or not.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::group::Group;
use crate::support::sandbox::{Guard, PATIENCE, Sandbox, eventually, finish, finish_within, stop};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use ztier::control::{Client, Request};

const BLOCK: u64 = 4096;
/// Blocks of each writer.
const OWN: u64 = 600;
const WRITERS: u64 = 3;
const UP: [&str; 8] = ["up", "vol", "--size", "64M", "--export", "nbd", "--segment", "64K"];

fn connect(sandbox: &Sandbox) -> Disk {
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol")
}

/// Blocks of all kinds: compressible, incompressible, and one repeated word.
fn content(block: u64, version: u64) -> Vec<u8> {
    let word = block << 32 | version;
    match version % 4 {
        0 => word.to_le_bytes().repeat(BLOCK as usize / 8),
        1 => crate::support::place::content(block, version),
        kind => {
            let mut bytes = crate::support::place::content(block, version);
            bytes[16..BLOCK as usize / (kind as usize * 2)].fill(kind as u8);
            bytes
        }
    }
}

/// A writer's knowledge of its blocks: the acknowledged version, and the requested one.
struct Own {
    first: u64,
    known: Vec<(u64, u64)>,
    version: u64,
}

impl Own {
    fn new(writer: u64) -> Self {
        Self { first: writer * OWN, known: vec![(0, 0); OWN as usize], version: 0 }
    }

    /// Writes until the daemon is gone. Counts the acknowledged writes.
    fn write(&mut self, mut disk: Disk, mut seed: u64, done: &AtomicU64) {
        loop {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            self.version += 1;
            let own = seed % OWN;
            let block = self.first + own;
            self.known[own as usize].1 = self.version;
            if !disk.try_write(block * BLOCK, &content(block, self.version)) {
                return;
            }
            self.known[own as usize].0 = self.version;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every block is complete and has the acknowledged version, or the one requested last.
    fn check(&mut self, disk: &mut Disk) {
        for (own, (acknowledged, asked)) in (0..).zip(&mut self.known) {
            let block = self.first + own;
            let found = disk.read(block * BLOCK, BLOCK as usize);
            let is = |version| match version {
                0 => found.iter().all(|byte| *byte == 0),
                version => found == content(block, version),
            };
            let now = [*acknowledged, *asked].into_iter().find(|version| is(*version));
            let now = now.unwrap_or_else(|| {
                panic!("block {block} is neither {acknowledged} nor {asked}: {:?}", &found[..24])
            });
            (*acknowledged, *asked) = (now, now);
        }
    }
}

/// Waits until `enough` writes are done, as on a fast machine, but only for a limited time.
fn await_writes(done: &AtomicU64, enough: u64) {
    let end = Instant::now() + Duration::from_secs(5);
    while done.load(Ordering::Relaxed) < enough && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills the daemon `kills` times while all writers write, and resumes with `again`.
fn kill_under_load(sandbox: &Sandbox, kills: u64, again: &[&str]) {
    let mut owns: Vec<Own> = (0..WRITERS).map(Own::new).collect();
    let done = AtomicU64::new(0);
    for round in 0..kills {
        let mut disk = connect(sandbox);
        for own in &mut owns {
            own.check(&mut disk);
        }
        drop(disk);
        std::thread::scope(|scope| {
            let before = done.load(Ordering::Relaxed);
            for own in &mut owns {
                let (disk, done) = (connect(sandbox), &done);
                scope.spawn(move || own.write(disk, (round + 1) * 7919 + own.first, done));
            }
            let ms = round * 37 % 90;
            std::thread::sleep(Duration::from_millis(3 + ms));
            await_writes(&done, before + ms * 10);
            sandbox.kill("vol");
        });
        sandbox.ztier(again).ok();
    }
    let mut disk = connect(sandbox);
    for own in &mut owns {
        own.check(&mut disk);
    }
    let done = done.into_inner();
    assert!(done > kills * WRITERS, "{done} writes in all");
    assert_eq!(sandbox.status("vol")["restarts"], kills);
}

#[test]
fn nothing_acknowledged_is_lost_with_the_daemon() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    kill_under_load(&sandbox, 30, &["restart", "vol"]);
}

/// A client requests recompression of everything all the time, and the daemon dies during that.
#[test]
fn nothing_acknowledged_is_lost_of_what_was_being_recompressed() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    // The recompression thread has the lowest priority: it may take long.
    let recompress = || {
        let command = sandbox.command(&["set", "vol", "recompress=now"]);
        finish_within(command, Duration::from_secs(180))
    };
    let stop = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let mut asked = 0;
            while !stop.load(Ordering::Relaxed) {
                // Fails while there is no daemon, or if the daemon dies before the recompression
                // ends.
                asked += u64::from(recompress().out.starts_with("vol: size="));
            }
            asked
        });
        kill_under_load(&sandbox, 20, &["restart", "vol"]);
        stop.store(true, Ordering::Relaxed);
        asker.join().unwrap()
    });
    recompress().ok();
    let stats = &sandbox.status("vol")["stats"];
    assert!(asked > 10 && stats["blocks_clustered"].as_u64() > Some(200), "{asked} {stats}");
}

#[test]
fn nothing_acknowledged_is_lost_of_what_was_spilled() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("below");
    std::fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
    let up = [&UP[..], &["--ram-limit", "5M", "--spill", file.to_str().unwrap()]].concat();
    sandbox.ztier(&up).ok();
    kill_under_load(&sandbox, 20, &up);
    let stats = &sandbox.status("vol")["stats"];
    assert!(stats["spilled_blocks"].as_u64().unwrap() > 100, "{stats}");
}

#[test]
fn nothing_acknowledged_is_lost_at_the_limit() {
    let sandbox = Sandbox::new();
    // So low that cleaning never stops.
    let up = [&UP[..], &["--ram-limit", "9M"]].concat();
    sandbox.ztier(&up).ok();
    kill_under_load(&sandbox, 20, &up);
}

#[test]
fn nothing_acknowledged_is_lost_with_the_daemon_of_a_log() {
    let sandbox = Sandbox::new();
    // Full after a few rounds, so that kills also hit writeback and new laps.
    let [fast, slow] = [("fast", 12 << 20), ("slow", 64 << 20)].map(|(name, size)| {
        let path = sandbox.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let drives = ["--backing", &slow, "--log", &fast, "--segment", "64K"];
    sandbox.ztier(&[&["up", "vol", "--export", "nbd"][..], &drives].concat()).ok();
    kill_under_load(&sandbox, 15, &["restart", "vol"]);
    sandbox.ztier(&["down", "vol", "--drain"]).ok();
    sandbox.ztier(&["log", "check", &fast]).ok();
}

#[test]
fn a_restart_changes_nothing_but_the_daemon() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let mut disk = connect(&sandbox);
    disk.write(8192, &content(2, 1));
    let (pid, memory_holder) = (sandbox.pid("vol"), sandbox.memory_holder("vol"));
    sandbox.ztier(&["restart", "vol"]).refused(4, &["in use", "NBD client", "--force"]);
    assert_eq!(disk.read(8192, 4096), content(2, 1), "still served");
    let again = sandbox.ztier(&["restart", "vol", "--force"]);
    assert!(again.err.contains("open or mount it again"), "{again:?}");
    assert!(again.ok().contains("vol.nbd"));
    assert_ne!(sandbox.pid("vol"), pid);
    assert_eq!(sandbox.memory_holder("vol"), memory_holder);
    assert_eq!(connect(&sandbox).read(8192, 4096), content(2, 1));
    assert!(disk.is_closed());
    let again = sandbox.ztier(&["restart", "vol", "--json"]).json();
    assert_eq!(again["pid"], sandbox.pid("vol").as_raw_nonzero().get());
    eventually("the client is gone", || sandbox.ztier(&["down", "vol", "--discard"]).status == 0);
    assert_eq!(sandbox.files(), [""; 0]);
}

/// A proxy between commands and a daemon: forwards both directions, and stops the daemon before the
/// daemon gets `go`. The receiver is notified when the daemon is stopped and `go` is sent.
fn stop_at_go(sandbox: &Sandbox, daemon: Pid) -> Receiver<()> {
    let (socket, behind) = (sandbox.run_dir().join("vol.sock"), sandbox.path().join("behind"));
    std::fs::rename(&socket, &behind).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let (told, hears) = channel();
    let pass_on = move |from: UnixStream, mut to: UnixStream, told: Sender<()>| {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let go = line.contains("\"op\":\"go\"");
            if go {
                stop(daemon);
            }
            if writeln!(to, "{line}").is_err() {
                break;
            }
            if go {
                let _ = told.send(()); // the test may be over
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both); // the other side may be gone
    };
    std::thread::spawn(move || {
        for command in listener.incoming().map_while(Result::ok) {
            let Ok(daemon) = UnixStream::connect(&behind) else { return };
            let (there, back) = (daemon.try_clone().unwrap(), command.try_clone().unwrap());
            let (told, told_too) = (told.clone(), told.clone());
            std::thread::spawn(move || pass_on(command, there, told));
            std::thread::spawn(move || pass_on(daemon, back, told_too));
        }
    });
    hears
}

/// A restart whose daemon is stopped when `go` was sent. Its volume has data.
fn restart_of_one_that_is_late(sandbox: &Sandbox, complaints: Stdio) -> (Guard, Pid) {
    sandbox.ztier(&UP).ok();
    connect(sandbox).write(8192, &content(2, 1));
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    let late = sandbox.pid("vol");
    let told = stop_at_go(sandbox, late);
    let mut command = sandbox.command(&["restart", "vol"]);
    let child = Guard(command.stdout(Stdio::null()).stderr(complaints).spawn().unwrap());
    told.recv_timeout(PATIENCE).expect("it is told to go ahead, and stopped");
    (child, late)
}

/// A missing answer is no refusal: when the present daemon leaves at last, the next one takes over.
#[test]
fn a_daemon_that_leaves_late_has_a_successor() {
    let sandbox = Sandbox::new();
    let (mut restart, late) = restart_of_one_that_is_late(&sandbox, Stdio::piped());
    let mut said = String::new();
    // The command waits a minute for an answer.
    BufReader::new(restart.0.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    kill_process(late, Signal::CONT).unwrap();
    assert_eq!(crate::support::sandbox::wait(&mut restart.0), 0, "{said}");
    assert!(said.contains("does not answer; the next one waits"), "{said}");
    assert_ne!(sandbox.pid("vol"), late);
    assert_eq!(connect(&sandbox).read(8192, 4096), content(2, 1));
}

/// The command that requested a restart may be gone when the restart happens.
#[test]
fn the_next_daemon_serves_though_no_command_waits_for_it() {
    let sandbox = Sandbox::new();
    let (mut restart, late) = restart_of_one_that_is_late(&sandbox, Stdio::null());
    restart.0.kill().unwrap();
    restart.0.wait().unwrap();
    kill_process(late, Signal::CONT).unwrap();
    eventually("the next daemon serves", || {
        let status = sandbox.ztier(&["status", "vol", "--json"]);
        status.status == 0 && status.json()["pid"] != late.as_raw_nonzero().get()
    });
    assert_eq!(connect(&sandbox).read(8192, 4096), content(2, 1));
}

/// A daemon that never got `go` has no successor that waits for its end.
#[test]
fn a_restart_that_was_given_up_leaves_no_daemon_behind() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let late = sandbox.pid("vol");
    stop(late);
    let mut command = sandbox.command(&["restart", "vol"]);
    let mut restart = Guard(command.stderr(Stdio::null()).spawn().unwrap());
    let pid = restart.0.id();
    let mut next = String::new();
    eventually("the next daemon is started", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        next = children.unwrap().trim().to_owned();
        !next.is_empty()
    });
    restart.0.kill().unwrap();
    restart.0.wait().unwrap();
    eventually("it is gone", || !Path::new(&format!("/proc/{next}/exe")).exists());
    kill_process(late, Signal::CONT).unwrap();
    assert_eq!(sandbox.pid("vol"), late);
}

#[test]
fn a_daemon_in_the_foreground_replaces_itself() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&UP);
    let child = command.arg("--foreground").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = Guard(child.unwrap());
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    connect(&sandbox).write(0, &content(0, 5));
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    for round in 1..4 {
        let again = sandbox.ztier(&["restart", "vol", "--json"]).json();
        assert_eq!(again["pid"], child.0.id(), "its supervisor sees the same process");
        assert_eq!(sandbox.status("vol")["restarts"], round);
        assert_eq!(connect(&sandbox).read(0, 4096), content(0, 5));
    }
    eventually("it is down", || sandbox.ztier(&["down", "vol", "--discard"]).status == 0);
    assert_eq!(crate::support::sandbox::wait(&mut child.0), 0);
    assert_eq!(sandbox.files(), [""; 0]);
}

/// A daemon in the foreground that serves only `listener`.
fn activated(sandbox: &Sandbox, listener: UnixListener) -> Guard {
    // The shell's pid is the program's: it replaces itself.
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" --foreground 3<&0 </dev/null";
    let program = sandbox.command(&UP);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(program.get_program()).args(program.get_args());
    shell.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let shell = shell.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
    let child = Guard(shell.spawn().unwrap());
    eventually("it is up", || sandbox.ztier(&["status", "vol"]).status == 0);
    child
}

#[test]
fn sockets_that_were_handed_over_stay_with_a_daemon_that_replaces_itself() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("activated");
    let mut child = activated(&sandbox, UnixListener::bind(&path).unwrap());
    Disk::open(&path, "vol").write(0, &content(0, 5));
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    for round in 1..4 {
        let again = sandbox.ztier(&["restart", "vol", "--json"]).json();
        assert_eq!(again["pid"], child.0.id());
        assert_eq!(sandbox.status("vol")["restarts"], round);
        assert_eq!(Disk::open(&path, "vol").read(0, 4096), content(0, 5));
    }
    eventually("it is down", || sandbox.ztier(&["down", "vol", "--discard"]).status == 0);
    assert_eq!(crate::support::sandbox::wait(&mut child.0), 0);
    eventually("no process has the socket any more", || UnixStream::connect(&path).is_err());
}

#[test]
fn no_process_has_a_socket_that_was_handed_to_a_daemon_that_died() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("activated");
    let mut child = activated(&sandbox, UnixListener::bind(&path).unwrap());
    sandbox.memory_holder("vol");
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    assert!(UnixStream::connect(&path).is_err());
}

#[test]
fn settings_that_memory_decides_stay_and_others_follow() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    connect(&sandbox).write(60 << 20, &content(1, 1));
    sandbox.kill("vol");
    let other = ["up", "vol", "--size", "32M", "--segment", "128K", "--export", "nbd"];
    let up = sandbox.ztier(&[&other[..], &["--algorithm", "zstd", "--ram-limit", "48M"]].concat());
    assert!(up.err.contains("its size stays 64 MiB"), "{up:?}");
    assert!(up.err.contains("its segments stay 64K"), "{up:?}");
    up.ok();
    let status = sandbox.status("vol");
    assert_eq!(
        (&status["size_bytes"], &status["segment_bytes"]),
        (&(64 << 20).into(), &65536.into())
    );
    assert_eq!(
        (&status["algorithm"], &status["ram_limit_bytes"]),
        (&"zstd".into(), &(48 << 20).into())
    );
    assert_eq!(connect(&sandbox).read(60 << 20, 4096), content(1, 1));
    sandbox.kill("vol");
    sandbox.ztier(&["up", "vol", "--size", "128M", "--export", "nbd"]).ok();
    let mut disk = connect(&sandbox);
    assert_eq!(disk.size, 128 << 20);
    assert_eq!(disk.read(60 << 20, 4096), content(1, 1));
}

/// Neither the limit of the memory's maker nor a later one denies access to the content of memory.
#[test]
fn a_limit_that_does_not_go_with_what_is_kept_gives_way() {
    // Memory is made for the group's whole limit.
    let Some(group) = Group::new("outlive", 128 << 20) else { return };
    let sandbox = Sandbox::new();
    let flags = |limit| [&UP[..], &["--ram-limit", limit]].concat();
    let up = |limit| sandbox.ztier(&flags(limit));
    finish(group.command(&sandbox.command(&flags("100M")))).ok();
    connect(&sandbox).write(8192, &content(2, 1));
    sandbox.ztier(&["set", "vol", "ram-limit=64M"]).ok();
    sandbox.kill("vol");
    sandbox.ztier(&["restart", "vol"]).ok();
    let mut disk = connect(&sandbox);
    assert_eq!(disk.read(8192, 4096), content(2, 1));
    for block in 0..10_000 {
        disk.write(block * BLOCK, &content(block, 1));
    }
    sandbox.kill("vol");
    // Less than the stored data.
    let less = up("16M");
    assert!(less.err.contains("its ram-limit is 64 MiB: what it holds takes"), "{less:?}");
    less.ok();
    assert_eq!(sandbox.status("vol")["ram_limit_bytes"], 64 << 20);
    let mut disk = connect(&sandbox);
    disk.write(0, &content(0, 5));
    assert_eq!(disk.read(9999 * BLOCK, 4096), content(9999, 1));
    drop(disk);
    sandbox.kill("vol");
    let more = up("1G");
    assert!(more.err.contains("its ram-limit is 128 MiB: its memory was made for no more"));
    more.ok();
    assert_eq!(connect(&sandbox).read(0, 4096), content(0, 5));
}

#[test]
fn a_memory_holder_that_dies_is_replaced() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    connect(&sandbox).write(4096, &content(1, 2));
    let replaced = || {
        let memory_holder = sandbox.memory_holder("vol");
        kill_process(memory_holder, Signal::KILL).unwrap();
        eventually("there is another", || sandbox.memory_holder("vol") != memory_holder);
    };
    replaced();
    replaced();
    sandbox.kill("vol");
    sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(connect(&sandbox).read(4096, 4096), content(1, 2));
    // Also for a memory holder that an earlier daemon has started.
    replaced();
    sandbox.kill("vol");
    sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(connect(&sandbox).read(4096, 4096), content(1, 2));
}

#[test]
fn memory_that_could_not_be_found_gets_another_memory_holder() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    connect(&sandbox).write(4096, &content(1, 2));
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    std::fs::remove_file(sandbox.run_dir().join("vol.keep")).unwrap();
    sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(connect(&sandbox).read(4096, 4096), content(1, 2));
}

#[test]
fn a_memory_holder_that_cannot_be_found_ends() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let memory_holder = sandbox.memory_holder("vol");
    sandbox.kill("vol");
    // As when a user removes the run directory.
    std::fs::remove_file(sandbox.run_dir().join("vol.keep")).unwrap();
    // Where no process reaps orphans, as in some containers, the ended memory holder stays as a
    // zombie.
    let alive = || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", memory_holder.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
    };
    assert!(alive());
    eventually("it has ended", || !alive());
}

#[test]
fn memory_of_another_version_is_kept_and_refused() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    sandbox.kill("vol");
    // The state file of another volume beside this memory.
    let file = sandbox.run_dir().join("vol.json");
    let state = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    sandbox.ztier(&UP).refused(5, &["has no", "vol.json beside it", "--discard"]);
    for (command, status) in [("restart", 6), ("down", 5)] {
        sandbox.ztier(&[command, "vol"]).refused(status, &["kept", "--discard"]);
    }
    std::fs::write(&file, state.replace("\"segment_bytes\":65536", "\"segment_bytes\":131072"))
        .unwrap();
    sandbox.ztier(&["restart", "vol"]).refused(5, &["another version or volume"]);
    std::fs::write(&file, state).unwrap();
    sandbox.ztier(&["restart", "vol"]).ok();
}

#[test]
fn memory_without_a_state_file_can_be_given_up() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    sandbox.kill("vol");
    std::fs::remove_file(sandbox.run_dir().join("vol.json")).unwrap();
    let down = sandbox.ztier(&["down", "vol", "--discard"]).ok();
    assert!(down.contains("the memory that was kept"), "{down}");
    assert!(down.contains("vol.nbd"), "known by the name of the volume: {down}");
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn a_daemon_leaves_though_it_cannot_note_what_it_left() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    connect(&sandbox).write(8192, &content(2, 1));
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    // As where the run directory is full.
    let in_the_way = sandbox.run_dir().join("vol.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let request = Request::Restart { force: false, log: None };
    let client = Client::new(&sandbox.run_dir().join("vol.sock"));
    client.ask::<()>(&request, Duration::from_secs(30)).unwrap();
    std::fs::remove_dir(&in_the_way).unwrap();
    eventually("it has left", || {
        sandbox.ztier(&["status", "vol"]).err.contains("the daemon of volume")
    });
    sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(connect(&sandbox).read(8192, 4096), content(2, 1));
}

/// A command right after a kill waits until the killed daemon has ended and released its lock.
#[test]
fn the_next_daemon_may_come_at_once() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    connect(&sandbox).write(0, &vec![7; 32 << 20]);
    for round in 0..10 {
        kill_process(sandbox.pid("vol"), Signal::KILL).unwrap();
        if round % 2 == 0 { sandbox.ztier(&UP) } else { sandbox.ztier(&["restart", "vol"]) }.ok();
    }
    assert_eq!(connect(&sandbox).read((32 << 20) - 1, 1), [7]);
    sandbox.ztier(&UP).refused(4, &["is already up"]);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}
