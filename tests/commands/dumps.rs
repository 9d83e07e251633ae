//! Core dumps of a real daemon: they contain nothing of the volume, and take no memory.
//!
//! The daemon runs in a control group with a memory limit: a dump that touched all of the memory
//! files would take the machine's memory. Where there is no such group, or core dumps do not go to
//! the directory of the process, every test prints `skipped:` and the reason.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::group::Group;
use crate::support::sandbox::{Guard, Sandbox};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// Written to the volume, and searched for in the dump.
const MARKER: &[u8] = b"a secret that no core dump may have: ";

/// An incompressible block that contains the marker.
fn secret(block: u64) -> Vec<u8> {
    let mut seed = (block + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut bytes: Vec<u8> = (0..4096)
        .map(|_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as u8
        })
        .collect();
    bytes[64..64 + MARKER.len()].copy_from_slice(MARKER);
    bytes
}

/// A volume with secrets, its daemon and its memory holder.
struct Dumped {
    sandbox: Sandbox,
    daemon: Guard,
    memory_holder: Pid,
}

impl Dumped {
    /// Starts the daemon; `filter` replaces the daemon's own choice of mappings in a dump.
    fn new(group: &Group, filter: Option<&str>) -> Self {
        let sandbox = Sandbox::new();
        let up = ["up", "vol", "--size", "256M", "--export", "nbd", "--foreground"];
        let up = sandbox.command(&[&up[..], &["--algorithm", "none"]].concat());
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -c unlimited && exec \"$0\" \"$@\""]);
        limited.arg(up.get_program()).args(up.get_args());
        limited.envs(up.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let mut command = group.command(&limited);
        command.current_dir(sandbox.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut daemon = Guard(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let memory_holder = sandbox.memory_holder("vol");
        if let Some(filter) = filter {
            fs::write(format!("/proc/{}/coredump_filter", daemon.0.id()), filter).unwrap();
        }
        let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
        for block in 0..64 {
            disk.write(block * 4096, &secret(block));
            assert_eq!(disk.read(block * 4096, 4096), secret(block));
        }
        Self { sandbox, daemon, memory_holder }
    }

    /// Bytes of memory in the volume's memory files.
    fn memory(&self) -> u64 {
        let fds =
            fs::read_dir(format!("/proc/{}/fd", self.memory_holder.as_raw_nonzero())).unwrap();
        let metas = fds.flatten().filter_map(|fd| fs::metadata(fd.path()).ok());
        metas.filter(|meta| meta.is_file()).map(|meta| meta.blocks() * 512).sum()
    }

    /// Makes the daemon dump its core.
    fn dump(&mut self) -> Vec<u8> {
        let pid = Pid::from_raw(i32::try_from(self.daemon.0.id()).unwrap()).unwrap();
        kill_process(pid, Signal::ABORT).unwrap();
        let status = self.daemon.0.wait().unwrap();
        assert!(std::os::unix::process::ExitStatusExt::core_dumped(&status), "{status:?}");
        let files = fs::read_dir(self.sandbox.path()).unwrap().flatten();
        let is_core = |name: &str| name == "core" || name.starts_with("core.");
        let mut cores = files.filter(|f| f.file_name().to_str().is_some_and(is_core));
        fs::read(cores.next().unwrap().path()).unwrap()
    }
}

/// A group for one test; `None`, with a message, where there can be no dump.
fn group(name: &str) -> Option<Group> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.trim() != "core" && pattern.trim() != "core.%p" {
        println!("skipped: core dumps go to {}", pattern.trim());
        return None;
    }
    Group::new(name, 300 * MIB)
}

fn has(dump: &[u8], marker: &[u8]) -> bool {
    dump.windows(marker.len()).any(|window| window == marker)
}

#[test]
fn a_core_dump_has_nothing_of_the_volume_and_takes_no_memory() {
    let Some(group) = group("as-it-is") else { return };
    let mut dumped = Dumped::new(&group, None);
    let before = dumped.memory();
    let dump = dumped.dump();
    assert!(!has(&dump, MARKER));
    assert!(dump.len() < 4 << 20, "{} bytes", dump.len());
    assert!(dump.starts_with(b"\x7fELF") && has(&dump, b"LINUX"), "the kernel's notes are there");
    assert_eq!(dumped.memory(), before);
    assert!(before > 64 * 4096);
}

/// If dumps are to include memory, to find a fault, the volume's memory is left out all the same.
#[test]
fn memory_files_are_left_out_whatever_is_asked_for() {
    let Some(group) = group("asked") else { return };
    let mut dumped = Dumped::new(&group, Some("0x7f"));
    let before = dumped.memory();
    let dump = dumped.dump();
    assert!(has(&dump, b"ztier daemon") || dump.len() > 1 << 20, "the heap is there");
    assert!(dump.len() < 100 << 20, "{} bytes", dump.len());
    assert_eq!(dumped.memory(), before);
}

/// The flags of each mapping of a volume's memory files in a process.
fn flags_of_memory(pid: i32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut flags = Vec::new();
    let mut is_memory = false;
    for line in text.lines() {
        let first = line.split(' ').next().unwrap();
        if first.contains('-') && !first.contains(':') {
            is_memory =
                line.ends_with("(deleted)") && line.contains("rw-s") || line.contains("r--s");
        } else if let Some(of) = line.strip_prefix("VmFlags:")
            && is_memory
        {
            flags.push(of.to_owned());
        }
    }
    flags
}

#[test]
fn the_memory_holder_leaves_the_memory_out_as_well() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "vol", "--size", "64M", "--export", "nbd"]).ok();
    let (daemon, memory_holder) = (sandbox.pid("vol"), sandbox.memory_holder("vol"));
    let [daemon, memory_holder] = [daemon, memory_holder].map(|pid| pid.as_raw_nonzero().get());
    for pid in [daemon, memory_holder] {
        let filter = fs::read_to_string(format!("/proc/{pid}/coredump_filter")).unwrap();
        assert_eq!(filter.trim(), "00000010", "{}", comm(pid));
    }
    let is_out = |flags: &String| flags.split(' ').any(|flag| flag == "dd");
    let flags = flags_of_memory(daemon);
    assert!(flags.len() > 2 && flags.iter().all(is_out), "{flags:?}");
    sandbox.kill("vol");
    // Where memory could otherwise be swapped out, the memory holder maps and locks it.
    let mapped = flags_of_memory(memory_holder);
    assert!(mapped.iter().all(is_out), "{mapped:?}");
}

fn comm(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim().to_owned()
}

#[test]
fn processes_are_called_by_their_volumes() {
    let sandbox = Sandbox::new();
    let name = "a-long-name.of-a-volume";
    sandbox.ztier(&["up", name, "--size", "1M", "--export", "nbd"]).ok();
    let memory_holder = sandbox.memory_holder(name);
    let [daemon, memory_holder] =
        [sandbox.pid(name), memory_holder].map(|pid| pid.as_raw_nonzero().get());
    assert_eq!([comm(daemon), comm(memory_holder)], ["ztier:a-long-na", "zkeep:a-long-na"]);
    // The name that service managers and `ps -f` use.
    let line = fs::read_to_string(format!("/proc/{daemon}/cmdline")).unwrap();
    assert_eq!(line, format!("ztier\0daemon\0{name}\0"));
    sandbox.ztier(&["restart", name]).ok();
    assert_eq!(comm(sandbox.pid(name).as_raw_nonzero().get()), "ztier:a-long-na");
}
