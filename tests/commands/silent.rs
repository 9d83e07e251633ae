//! Clients that send nothing, half a message, or too much, or read no answer: they exclude no other
//! client from a real daemon, its exporter, or the memory holder.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::sandbox::{Guard, PATIENCE, Sandbox, eventually};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const UP: [&str; 6] = ["up", "vol", "--size", "64M", "--export", "nbd"];
/// Concurrent connections, far more than the places of a server.
const MANY: usize = 300;
/// Threads in addition to those of an idle daemon: one for each place of its control socket, and
/// as many that have given their place back and are about to end.
const THREADS_MORE: usize = 40;

/// Bytes that a client of the control socket sends before it falls silent.
const BEGINNINGS: [&[u8]; 5] = [
    b"",
    b"{\"v\":3,\"op\":",
    b"{\"v\":3,\"op\":\"status\"}\n",
    // Waits for a `go` that does not come.
    b"{\"v\":3,\"op\":\"set\",\"size_bytes\":null,\"ram_limit_bytes\":null}\n",
    // A line without an end, as large as one packet allows.
    &[b'x'; 15 << 10],
];

fn threads(pid: Pid) -> usize {
    fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap().count()
}

/// Connects and sends `beginning`. A server may hang up on the client at any time.
fn silent(socket: &Path, beginning: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let _ = stream.write_all(beginning);
    stream
}

/// Clients that reconnect as soon as the server hangs up.
struct Flood {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    fn begin(socket: &Path, beginning: &'static [u8], clients: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = || {
            let (socket, stop) = (socket.to_owned(), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let Ok(mut stream) = UnixStream::connect(&socket) else { return };
                    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                    let _ = stream.write_all(beginning);
                    while !stop.load(Ordering::Relaxed)
                        && match stream.read(&mut [0; 4096]) {
                            Ok(n) => n > 0,
                            Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
                        }
                    {}
                }
            }
        };
        let threads = (0..clients).map(|_| std::thread::spawn(client())).collect();
        Self { stop, threads }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
fn silent_clients_of_the_control_socket_give_way() {
    for beginning in BEGINNINGS {
        let sandbox = Sandbox::new();
        sandbox.ztier(&UP).ok();
        let (socket, pid) = (sandbox.run_dir().join("vol.sock"), sandbox.pid("vol"));
        let before = threads(pid);
        let clients: Vec<_> = (0..MANY).map(|_| silent(&socket, beginning)).collect();
        assert_eq!(sandbox.status("vol")["size_bytes"], 64 << 20);
        assert!(threads(pid) <= before + THREADS_MORE, "{} of {before}", threads(pid));
        sandbox.ztier(&["list"]).ok();
        // Changes whose clients do not send `go` may come first, for a while.
        eventually("the volume goes down", || {
            let done = sandbox.ztier(&["down", "vol"]);
            if done.status != 0 {
                done.refused(4, &["try again soon"]);
                return false;
            }
            true
        });
        drop(clients);
    }
}

#[test]
fn clients_that_come_back_lock_no_other_out() {
    for beginning in [BEGINNINGS[0], BEGINNINGS[1], BEGINNINGS[4]] {
        let sandbox = Sandbox::new();
        sandbox.ztier(&UP).ok();
        let pid = sandbox.pid("vol");
        let before = threads(pid);
        let flood = Flood::begin(&sandbox.run_dir().join("vol.sock"), beginning, 60);
        for _ in 0..5 {
            assert_eq!(sandbox.status("vol")["size_bytes"], 64 << 20);
            assert!(threads(pid) <= before + THREADS_MORE);
        }
        sandbox.ztier(&["down", "vol"]).ok();
        drop(flood);
    }
}

#[test]
fn silent_clients_of_a_daemon_with_few_descriptors_give_way() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let (socket, pid) = (sandbox.run_dir().join("vol.sock"), sandbox.pid("vol"));
    let used = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    let numbers = used.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u64>());
    let highest = numbers.map(Result::unwrap).max().unwrap();
    // Below the places of the control socket.
    let limit = Rlimit { current: Some(highest + 4), ..getrlimit(Resource::Nofile) };
    let before = prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    let clients: Vec<_> = (0..MANY).map(|_| silent(&socket, b"")).collect();
    // A silent client that has just connected keeps its descriptor for a moment.
    eventually("there is a descriptor", || {
        let done = sandbox.ztier(&["status", "vol"]);
        if done.status != 0 {
            done.refused(6, &["no file descriptor left"]);
            return false;
        }
        true
    });
    drop(clients);
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn silent_scrapers_give_way() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let mut command = sandbox.command(&["metrics", "--listen", "0"]);
    let mut process = Guard(command.stdout(Stdio::piped()).spawn().unwrap());
    let pid = Pid::from_raw(i32::try_from(process.0.id()).unwrap()).unwrap();
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let scrape = b"GET /metrics HTTP/1.1\r\n\r\n";
    for beginning in [&b""[..], b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: x\r\n", scrape] {
        let clients: Vec<_> = (0..100)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                // Too small for a whole answer.
                set_socket_recv_buffer_size(&stream, 2048).unwrap();
                let _ = stream.write_all(beginning);
                stream
            })
            .collect();
        let got = || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(scrape);
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer.starts_with("HTTP/1.1 200 ") && answer.contains("ztier_volume_up")
        };
        if beginning == scrape {
            // A client that reads no answer may be slow, for a moment.
            eventually("there is a place", got);
        } else {
            assert!(got(), "after {:?}", String::from_utf8_lossy(beginning));
        }
        assert!(threads(pid) <= 1 + 8, "{}", threads(pid));
        drop(clients);
    }
}

#[test]
fn silent_clients_of_a_memory_holder_lock_no_daemon_out() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let memory_holder = sandbox.memory_holder("vol");
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol").write(0, &[7; 4096]);
    sandbox.kill("vol");
    let address = SocketAddrUnix::new(sandbox.run_dir().join("vol.keep")).unwrap();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let clients: Vec<OwnedFd> = (0..MANY)
        .map(|_| {
            let kind = SocketType::SEQPACKET;
            let socket = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            // The daemon's queue may be full.
            let _ = connect(&socket, &address);
            socket
        })
        .collect();
    sandbox.ztier(&UP).ok();
    assert_eq!(sandbox.memory_holder("vol"), memory_holder);
    assert_eq!(Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol").read(0, 4096), [7; 4096]);
    drop(clients);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}
