//! The life of a daemon: readiness, races, signals, death, and what is left after each of them.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::pty::Window;
use crate::support::sandbox::{Guard, PATIENCE, Sandbox, eventually, finish, wait};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;
use ztier::kernel_text::kernel_text;

const UP: [&str; 6] = ["up", "vol", "--size", "64M", "--export", "nbd"];

fn connect(sandbox: &Sandbox) -> Disk {
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol")
}

/// A daemon in the foreground that has printed its endpoint.
fn foreground(command: &mut Command) -> Guard {
    let mut child = Guard(command.arg("--foreground").stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("nbd+unix:///vol?socket="), "{line}");
    child
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A generator of incompressible bytes.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn a_ram_disk_holds_its_size_of_data_that_does_not_shrink() {
    let sandbox = Sandbox::new();
    let up = sandbox.ztier(&["up", "vol", "--size", "64M", "--export", "nbd"]);
    assert!(!up.err.contains("full before its end"), "{up:?}");
    up.ok();
    let mut disk = connect(&sandbox);
    let mut noise = Noise(1);
    for at in 0..64 {
        disk.write(at << 20, &noise.bytes(1 << 20));
    }
    // The full volume can be overwritten anywhere: twice its size.
    let mut last = vec![None; 16 << 10];
    for _ in 0..32 << 10 {
        let block = noise.next() % (16 << 10);
        let bytes = noise.bytes(4096);
        disk.write(block * 4096, &bytes);
        last[block as usize] = Some(bytes);
    }
    for (block, bytes) in (0..).zip(&last) {
        let Some(bytes) = bytes else { continue };
        assert!(disk.read(block * 4096, 4096) == *bytes, "block {block}");
    }
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

#[test]
fn a_ram_disk_that_is_about_to_fill_says_so() {
    let sandbox = Sandbox::new();
    let up =
        sandbox.ztier(&["up", "vol", "--size", "64M", "--export", "nbd", "--ram-limit", "32M"]);
    assert!(up.err.contains("full before its end unless data shrinks to 3"), "{up:?}");
    up.ok();
    let mut disk = connect(&sandbox);
    let mut noise = Noise(1);
    let mut write = |mib: std::ops::Range<u64>| {
        mib.for_each(|at| disk.write(at << 20, &noise.bytes(1 << 20)));
    };
    let state_of = |sandbox: &Sandbox| {
        let status = sandbox.ztier(&["status", "vol"]).ok();
        status.lines().find(|line| line.starts_with("state")).unwrap().to_owned()
    };
    write(0..12);
    assert!(state_of(&sandbox).ends_with("ok"));
    write(12..24);
    let state = state_of(&sandbox);
    assert!(state.contains("filling: as what is stored compresses, there is room for"), "{state}");
    // This is no failure.
    let list = sandbox.ztier(&["list"]).ok();
    assert!(list.lines().nth(1).unwrap().starts_with("vol   filling"), "{list}");
    let top = sandbox.ztier(&["top", "--once", "--interval", "0.1"]).ok();
    assert!(top.contains("1 not ok"), "{top}");
    let metrics = sandbox.ztier(&["metrics", "--once"]).ok();
    let health = "ztier_volume_health{volume=\"vol\",health=\"filling\"} 1";
    assert!(metrics.contains(health) && metrics.contains("ztier_room_bytes{"), "{metrics}");
    sandbox.ztier(&["set", "vol", "ram-limit=96M"]).ok();
    assert!(state_of(&sandbox).ends_with("ok"));
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

#[test]
fn a_killed_daemon_is_listed_and_cleaned_up() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let mut client = connect(&sandbox);
    client.write(0, &[1; 4096]);
    sandbox.kill("vol");
    let list = sandbox.ztier(&["list"]);
    assert!(list.out.lines().nth(1).unwrap().starts_with("vol   dead"), "{list:?}");
    assert!(list.err.contains("vol.nbd") && list.err.contains("ztier restart vol"), "{list:?}");
    sandbox.ztier(&["status", "vol"]).refused(6, &["is gone", "ztier down vol"]);
    sandbox.ztier(&["set", "vol", "size=1G"]).refused(6, &["is gone"]);
    // A dead daemon is reported.
    assert_eq!(list.status, 6);
    sandbox.ztier(&["status"]).refused(6, &["the daemon of volume `vol` is gone", "restart vol"]);
    let left = sandbox.ztier(&["list", "--json"]).looked();
    let left: serde_json::Value = serde_json::from_str(&left).unwrap();
    assert_eq!(left[0]["left"].as_array().unwrap().len(), 2, "{left}");
    sandbox.ztier(&["down", "vol"]).refused(5, &["in memory is kept", "restart", "--discard"]);
    let out = sandbox.ztier(&["down", "vol", "--discard"]).ok();
    assert!(out.contains("removed: socket") && out.contains("vol.nbd"), "{out}");
    assert!(out.contains("the memory that was kept"), "{out}");
    assert_eq!(sandbox.files(), [""; 0]);
    sandbox.ztier(&["down", "vol"]).refused(3, &["no volume `vol`"]);
}

#[test]
fn up_replaces_a_dead_daemon_whose_memory_is_gone() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    connect(&sandbox).write(0, &[1; 4096]);
    sandbox.kill_both("vol");
    let again = sandbox.ztier(&UP);
    assert!(again.err.contains("left by an earlier daemon"), "{again:?}");
    assert!(again.err.contains("the memory of `vol` is gone"), "{again:?}");
    again.ok();
    assert_eq!(connect(&sandbox).read(0, 4096), [0; 4096]);
}

#[test]
fn a_broken_state_file_is_told_and_removed() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    sandbox.kill("vol");
    fs::write(sandbox.run_dir().join("vol.json"), "{\"pid\": tru").unwrap();
    let list = sandbox.ztier(&["list"]);
    list.refused(6, &["volume `vol`", "cannot read"]);
    sandbox.ztier(&UP).refused(5, &["can't be used", "cannot read", "--discard"]);
    let out = sandbox.ztier(&["down", "vol", "--discard"]).ok();
    assert!(out.contains("unreadable state file"), "{out}");
    assert!(out.contains("vol.nbd"), "known by the name of the volume: {out}");
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn of_many_ups_at_once_exactly_one_wins() {
    let sandbox = Sandbox::new();
    for _ in 0..3 {
        let mut all: Vec<_> = (0..6)
            .map(|_| {
                let mut command = sandbox.command(&UP);
                Guard(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
            })
            .collect();
        let mut ended: Vec<i32> = all.iter_mut().map(|child| wait(&mut child.0)).collect();
        ended.sort_unstable();
        assert_eq!(ended, [0, 4, 4, 4, 4, 4]);
        assert_eq!(connect(&sandbox).size, 64 << 20);
        eventually("the client is gone", || sandbox.ztier(&["down", "vol"]).status == 0);
        assert_eq!(sandbox.files(), [""; 0]);
    }
}

#[test]
fn an_up_that_fails_leaves_nothing() {
    let sandbox = Sandbox::new();
    let missing = sandbox.path().join("missing/vol.nbd").display().to_string();
    sandbox
        .ztier(&[&UP[..], &["--socket", &missing]].concat())
        .refused(1, &["/missing", "make that directory"]);
    assert_eq!(sandbox.files(), [""; 0]);
    // A socket that another process serves stays.
    let taken = sandbox.path().join("taken");
    let _listener = UnixListener::bind(&taken).unwrap();
    let taken_by_us = taken.display().to_string();
    sandbox.ztier(&[&UP[..], &["--socket", &taken_by_us]].concat()).refused(4, &["taken"]);
    assert!(taken.exists());
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn the_service_manager_is_told() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut buffer = [0; 4096];
        loop {
            match manager.recv(&mut buffer) {
                Ok(n) => return String::from_utf8_lossy(&buffer[..n]).into_owned(),
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::Interrupted, "{e}"),
            }
        }
    };
    let mut daemon = foreground(sandbox.command(&UP).env("NOTIFY_SOCKET", &path));
    let ready = hear();
    assert!(ready.starts_with("READY=1\n"), "{ready}");
    assert!(ready.contains(&format!("MAINPID={}\n", daemon.0.id())), "{ready}");
    assert_eq!(connect(&sandbox).size, 64 << 20);
    signal(&daemon.0, Signal::TERM);
    assert_eq!(hear(), "STOPPING=1\n");
    assert_eq!(wait(&mut daemon.0), 0);
    assert_eq!(sandbox.files(), [""; 0]);
    // A log may need some time.
    let drive = |name: &str| {
        let path = sandbox.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let (log, backing) = (drive("fast"), drive("slow"));
    let up = ["up", "vol", "--export", "nbd", "--log", &log, "--backing", &backing];
    let mut daemon = foreground(sandbox.command(&up).env("NOTIFY_SOCKET", &path));
    let opening = hear();
    assert!(opening.starts_with("STATUS=reading the log, segment 0 of at most "), "{opening}");
    assert!(opening.ends_with("\nEXTEND_TIMEOUT_USEC=20000000\n"), "{opening}");
    assert!(hear().starts_with("READY=1\n"));
    signal(&daemon.0, Signal::TERM);
    assert_eq!(wait(&mut daemon.0), 0);
}

#[test]
fn sockets_of_the_service_manager_are_served() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("activated");
    let listener = UnixListener::bind(&path).unwrap();
    let mut shell = Command::new("sh");
    // The shell's pid is the program's: it replaces itself.
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null";
    let program = sandbox.command(&UP);
    shell.arg("-c").arg(script).arg(program.get_program()).args(program.get_args());
    for (key, value) in program.get_envs() {
        value.map(|value| shell.env(key, value));
    }
    let printed = sandbox.path().join("printed");
    shell.arg("--foreground").stdin(OwnedFd::from(listener));
    let mut daemon = Guard(shell.stdout(fs::File::create(&printed).unwrap()).spawn().unwrap());
    let mut disk = Disk::open(&path, "vol");
    disk.write(0, &[3; 4096]);
    assert!(!sandbox.files().contains(&"vol.nbd".into()), "only what was handed over is served");
    drop(disk);
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    eventually("it is down", || sandbox.ztier(&["down", "vol", "--discard"]).status == 0);
    assert_eq!(wait(&mut daemon.0), 0);
    assert_eq!(sandbox.files(), [""; 0]);
    assert_eq!(fs::read_to_string(&printed).unwrap(), "", "the client's standard output");
}

/// Data of a volume whose daemon was told to end: kept, and available to the next daemon.
fn goes_on_with(sandbox: &Sandbox, data: &[u8]) {
    assert!(sandbox.files().contains(&"vol.keep".into()), "{:?}", sandbox.files());
    let list = sandbox.ztier(&["list"]);
    assert!(list.err.contains("`ztier restart vol` goes on with its data"), "{list:?}");
    sandbox.ztier(&["down", "vol"]).refused(5, &["in memory is kept", "--discard"]);
    sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(connect(sandbox).read(0, data.len()), data);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn a_signal_waits_for_those_who_hold_the_device_and_gives_no_data_up() {
    let sandbox = Sandbox::new();
    let log = sandbox.path().join("log");
    let mut command = sandbox.command(&UP);
    let mut daemon = foreground(command.stderr(fs::File::create(&log).unwrap()));
    let mut client = connect(&sandbox);
    client.write(0, &[7; 4096]);
    signal(&daemon.0, Signal::TERM);
    eventually("the holder is named", || {
        fs::read_to_string(&log).unwrap().contains("asked to end, but")
    });
    assert_eq!(client.read(0, 4096), [7; 4096], "still served");
    drop(client);
    assert_eq!(wait(&mut daemon.0), 0);
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("4 KiB exist nowhere else: the memory is kept"), "{said}");
    assert!(
        said.contains("`ztier down vol --discard` gives up what exists in memory only"),
        "{said}"
    );
    goes_on_with(&sandbox, &[7; 4096]);
}

#[test]
fn a_second_signal_does_not_wait_and_gives_no_data_up() {
    for data in [&[][..], &[7; 4096]] {
        let sandbox = Sandbox::new();
        let log = sandbox.path().join("log");
        let mut command = sandbox.command(&UP);
        let mut daemon = foreground(command.stderr(fs::File::create(&log).unwrap()));
        let mut client = connect(&sandbox);
        if !data.is_empty() {
            client.write(0, data);
        }
        signal(&daemon.0, Signal::TERM);
        eventually("the holder is named", || {
            fs::read_to_string(&log).unwrap().contains("asked to end, but")
        });
        signal(&daemon.0, Signal::INT);
        assert_eq!(wait(&mut daemon.0), 0);
        assert!(client.is_closed());
        match data {
            // An empty volume leaves nothing.
            [] => assert_eq!(sandbox.files(), [""; 0]),
            data => goes_on_with(&sandbox, data),
        }
    }
}

/// Starts a daemon in the foreground of a terminal, and writes to its volume.
fn in_a_window(sandbox: &Sandbox, window: &Window) -> Guard {
    let daemon = Guard(window.spawn(&sandbox.command(&[&UP[..], &["--foreground"]].concat())));
    let socket = sandbox.run_dir().join("vol.sock");
    eventually("it is up", || socket.exists() && sandbox.ztier(&["status", "vol"]).status == 0);
    connect(sandbox).write(0, &[7; 4096]);
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    daemon
}

#[test]
fn a_terminal_that_is_closed_takes_no_volume_with_it() {
    let sandbox = Sandbox::new();
    let window = Window::new();
    let mut daemon = in_a_window(&sandbox, &window);
    let before = sandbox.pid("vol");
    window.close();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(sandbox.pid("vol"), before, "another daemon");
    signal(&daemon.0, Signal::HUP);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(connect(&sandbox).read(0, 4096), [7; 4096]);
    eventually("it is down", || sandbox.ztier(&["down", "vol", "--discard"]).status == 0);
    assert_eq!(wait(&mut daemon.0), 0);
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn ctrl_c_ends_a_volume_in_the_foreground_and_gives_no_data_up() {
    let sandbox = Sandbox::new();
    let mut window = Window::new();
    let mut daemon = in_a_window(&sandbox, &window);
    window.press(b"\x03");
    assert_eq!(wait(&mut daemon.0), 0);
    goes_on_with(&sandbox, &[7; 4096]);
}

/// A signal makes a log durable and closes it in order, as a shutdown requires.
#[test]
fn a_signal_closes_a_log_in_order() {
    let sandbox = Sandbox::new();
    let drive = |name: &str| {
        let path = sandbox.path().join(name);
        fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let (log, backing) = (drive("fast"), drive("slow"));
    let up = ["up", "vol", "--export", "nbd", "--log", &log, "--backing", &backing];
    sandbox.ztier(&[&up[..], &["--writeback", "off"]].concat()).ok();
    connect(&sandbox).write(0, &[7; 4096]);
    kill_process(sandbox.pid("vol"), Signal::TERM).unwrap();
    eventually("it is down", || sandbox.files().is_empty());
    let check = sandbox.ztier(&["log", "check", &log]).ok();
    assert!(check.contains("log closed in order: 1 changes"), "{check}");
}

#[test]
fn a_daemon_that_no_command_waits_for_ends() {
    let sandbox = Sandbox::new();
    let plan = sandbox.ztier(&[&UP[..], &["--dry-run", "--json"]].concat()).json();
    let order = serde_json::json!({
        "v": 3,
        "plan": plan["plan"],
        "paths": {
            "run": sandbox.run_dir(),
            "config": sandbox.config_dir(),
            "state": sandbox.state_dir(),
        },
        "patience_ms": 1000,
        "follows": false,
    });
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let spawned = sandbox.command(&["daemon", "vol"]).stdin(OwnedFd::from(theirs)).spawn();
    let mut daemon = Guard(spawned.unwrap());
    writeln!(ours, "{order}").unwrap();
    drop(ours); // as if `up` had been killed
    wait(&mut daemon.0);
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn silent_clients_of_the_control_socket_keep_no_client_out() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let socket = sandbox.run_dir().join("vol.sock");
    let silent: Vec<_> = (0..15).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    assert_eq!(sandbox.status("vol")["size_bytes"], 64 << 20);
    let mut over = UnixStream::connect(&socket).unwrap();
    over.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = over.write_all(&[b'x'; 64 << 10]); // it may hang up before the end
    let mut answer = Vec::new();
    let _ = over.read_to_end(&mut answer); // and reset what was not read
    drop(silent);
    eventually("there is room", || sandbox.ztier(&["down", "vol"]).status == 0);
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn a_daemon_without_descriptors_says_so() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let pid = sandbox.pid("vol");
    let is_used =
        |fd: u64| fs::symlink_metadata(format!("/proc/{}/fd/{fd}", pid.as_raw_nonzero())).is_ok();
    // All places below the limit are in use. A client that has just gone may still hold one.
    let looks = (0..20).map(|_| {
        sleep(Duration::from_millis(10));
        (0..).find(|fd| !is_used(*fd))
    });
    let lowest_free = looks.min().unwrap();
    let limit = Rlimit { current: lowest_free, ..getrlimit(Resource::Nofile) };
    let before = prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    let says = ["no file descriptor left", "ulimit -n"];
    sandbox.ztier(&["status", "vol"]).refused(6, &says);
    let list = sandbox.ztier(&["list"]);
    assert_eq!(list.status, 6, "{list:?}");
    assert!(list.err.contains(says[0]), "{list:?}");
    sandbox.ztier(&["down", "vol", "--discard"]).refused(6, &says);
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    sandbox.ztier(&["down", "vol", "--discard", "--force"]).ok();
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn a_daemon_is_started_by_up_alone() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["daemon", "vol"]).refused(1, &["ztier up"]);
}

/// A command as a user other than root: this user, or user 65534 with a copy of the program.
fn rootless(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.command(args);
    if rustix::process::geteuid().is_root() {
        let program = sandbox.path().join("ztier");
        if !program.exists() {
            fs::copy(env!("CARGO_BIN_EXE_ztier"), &program).unwrap();
            fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).unwrap();
            fs::create_dir(sandbox.run_dir()).unwrap();
            chown(sandbox.run_dir(), Some(65534), Some(65534)).unwrap();
            fs::set_permissions(sandbox.run_dir(), fs::Permissions::from_mode(0o700)).unwrap();
        }
        command = Command::new(program);
        command
            .args(args)
            .env("ZTIER_RUN_DIR", sandbox.run_dir())
            .env("ZTIER_CONFIG_DIR", sandbox.config_dir())
            .env("ZTIER_STATE_DIR", sandbox.state_dir())
            .stdin(Stdio::null())
            .current_dir("/")
            .uid(65534)
            .gid(65534);
    }
    command
}

#[test]
fn without_root_nbd_works_and_a_block_device_is_refused() {
    let sandbox = Sandbox::new();
    let fuse = ["up", "vol", "--size", "64M", "--export", "fuse"];
    finish(rootless(&sandbox, &fuse)).refused(1, &["export fuse does not work", "--export nbd"]);
    let up = finish(rootless(&sandbox, &["up", "vol", "--size", "64M"]));
    assert!(up.err.contains("by nbd (no block device here"), "{up:?}");
    up.ok();
    assert_eq!(connect(&sandbox).size, 64 << 20);
    eventually("it is down", || finish(rootless(&sandbox, &["down", "vol"])).status == 0);
    assert_eq!(sandbox.files(), [""; 0]);
}

/// Without the right to lock memory a block device is usable for everything but swap.
#[test]
fn a_block_device_comes_up_without_locked_memory() {
    let sandbox = Sandbox::new();
    let report = sandbox.ztier(&["doctor", "--json"]).json();
    if report["export"] == "nbd" || !has("setpriv") || !has("prlimit") {
        eprintln!("skipped: no block devices, setpriv or prlimit here");
        return;
    }
    let name = sandbox.device_name("unlocked");
    let unlocked = |more: &[&str]| {
        let ztier = sandbox.command(&["up", &name, "--size", "64M"]);
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]);
        command.args(["prlimit", "--memlock=0:0"]).arg(ztier.get_program()).args(ztier.get_args());
        command.args(more).envs(ztier.get_envs().filter_map(|(key, value)| Some((key, value?))));
        finish(command)
    };
    unlocked(&["--use", "swap"]).refused(1, &["lock"]);
    let device = unlocked(&[]).ok().trim().to_owned();
    let log = fs::read_to_string(sandbox.run_dir().join(format!("{name}.log"))).unwrap();
    assert!(log.contains("memory is not locked"), "{log}");
    fs::write(&device, [7; 8192]).unwrap();
    assert!(fs::read(&device).unwrap().starts_with(&[7; 8192]));
    sandbox.ztier(&["down", &name, "--discard"]).ok();
}

fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| dir.join(program).exists())
}

#[test]
fn a_killed_block_device_is_cleaned_up_completely() {
    let sandbox = Sandbox::new();
    let report = sandbox.ztier(&["doctor", "--json"]).json();
    if report["export"] != "fuse" {
        eprintln!("skipped: block devices don't work here, see `ztier doctor`");
        return;
    }
    let name = sandbox.device_name("killed");
    let device = format!("/dev/ztier/{name}");
    let out = sandbox.ztier(&["up", &name, "--size", "64M", "--export", "fuse"]).ok();
    assert_eq!(out, format!("{device}\n"));
    fs::write(&device, [7; 8192]).unwrap();
    assert_eq!(fs::read(&device).unwrap().len(), 64 << 20);
    sandbox.ztier(&["set", &name, "size=128M"]).ok();
    assert_eq!(fs::read(&device).unwrap().len(), 128 << 20);
    let open = fs::File::open(&device).unwrap();
    sandbox.ztier(&["down", &name, "--discard"]).refused(4, &["in use", "process"]);
    drop(open);
    sandbox.ztier(&["down", &name]).refused(5, &["nowhere else"]);

    sandbox.kill(&name);
    let list = sandbox.ztier(&["list"]);
    assert!(list.err.contains(&device) && list.err.contains("loop device"), "{list:?}");
    let out = sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert!(out.contains("loop device") && out.contains("FUSE mount"), "{out}");
    assert_eq!(sandbox.files(), [""; 0]);
    assert!(fs::symlink_metadata(Path::new(&device)).is_err());
    assert!(!kernel_text("/proc/mounts").unwrap().contains(&name));
}

/// The command, with limits set by `ulimit`.
fn limited(ulimit: &str, command: &Command) -> Command {
    let mut limited = Command::new("bash");
    limited.args(["-c", &format!("ulimit {ulimit} && exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    limited.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    limited
}

/// A write beyond the file size limit is an error of that request, and ends no process.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_end() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("slow").display().to_string();
    fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
    let up = ["up", "vol", "--backing", &file, "--export", "nbd"];
    // The daemon lifts the limit where it may (CAP_SYS_RESOURCE); otherwise its memory files are
    // larger than the limit.
    let in_limits = finish(limited("-f 16384", &sandbox.command(&up)));
    if in_limits.status != 0 {
        in_limits.refused(1, &["File too large", "ulimit -f"]);
        assert_eq!(sandbox.files(), [""; 0]);
        sandbox.ztier(&up).ok();
    }
    let pid = sandbox.pid("vol");
    let mut disk = connect(&sandbox);
    assert!(disk.try_write(32 << 20, &[1; 4096]));
    let mut set = Command::new("prlimit");
    set.args(["--fsize=16777216:16777216", "--pid", &pid.as_raw_nonzero().to_string()]);
    finish(set).ok();
    for _ in 0..3 {
        assert_eq!(disk.write_error(40 << 20, &[2; 4096]), 28, "as of a drive without room");
    }
    assert!(disk.try_write(8 << 20, &[3; 4096]));
    assert_eq!(disk.read(32 << 20, 4096), [1; 4096]);
    assert_eq!(sandbox.pid("vol"), pid);
    drop(disk);
    eventually("the client is gone", || sandbox.ztier(&["down", "vol"]).status == 0);
    let other = sandbox.path().join("fast").display().to_string();
    fs::File::create(&other).unwrap().set_len(64 << 20).unwrap();
    let log = ["log", "format", &other, "--backing", &file];
    finish(limited("-f 16", &sandbox.command(&log))).refused(1, &[&other, "errno 27"]); // EFBIG
    assert_eq!(sandbox.files(), [""; 0]);
}

/// A shell that limits the CPU time of its children does not end a volume.
#[test]
fn a_limit_on_time_does_not_end_a_daemon() {
    let sandbox = Sandbox::new();
    finish(limited("-S -t 7", &sandbox.command(&UP))).ok();
    let pid = sandbox.pid("vol");
    let limits = fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero())).unwrap();
    let time = limits.lines().find(|line| line.starts_with("Max cpu time")).unwrap();
    assert!(!time.contains(" 7 "), "{time}");
}

/// Signals that do not request an end do not end a process: neither the daemon nor the memory
/// holder, which has the only copy once the daemon is gone.
#[test]
fn stray_signals_end_no_process_of_a_volume() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let (pid, memory_holder) = (sandbox.pid("vol"), sandbox.memory_holder("vol"));
    let mut disk = connect(&sandbox);
    assert!(disk.try_write(8192, &[5; 4096]));
    let stray = [
        Signal::XFSZ,
        Signal::XCPU,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::POWER,
        Signal::STKFLT,
        Signal::USR1,
        Signal::USR2,
    ];
    for process in [pid, memory_holder] {
        for signal in stray {
            kill_process(process, signal).unwrap();
        }
    }
    assert_eq!(disk.read(8192, 4096), [5; 4096]);
    drop(disk);
    assert_eq!((sandbox.pid("vol"), sandbox.memory_holder("vol")), (pid, memory_holder));
    sandbox.kill("vol");
    for signal in stray {
        kill_process(memory_holder, signal).unwrap();
    }
    sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(connect(&sandbox).read(8192, 4096), [5; 4096]);
}
