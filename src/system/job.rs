//! A program that `ztier run` runs with little memory above a volume: its runner and its cgroup.
//!
//! Invariants: process number and start time together identify the runner, so that a reused number
//! counts as no runner; only a cgroup whose name has ztier's prefix is ever emptied or removed, and
//! no two runs use the same name.

use super::footprint::{self, stalled_us};
use super::mounts::{Hierarchy, hierarchies};
use crate::error::{Context, Error, Result};
use crate::kernel_text::kernel_text;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Prefix of the names of ztier's cgroups.
const PREFIX: &str = "ztier-";
/// How long killed processes may take to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval between checks whether they have ended.
const GLANCE: Duration = Duration::from_millis(2);
/// Processes killed at a time: each takes a descriptor.
const HANDLES: usize = 64;

/// A program that `ztier run` has started or is about to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The process that runs the program and waits for it.
    pub pid: u32,
    /// Start time of that process, in clock ticks since the machine started.
    pub started: u64,
    /// Directory of the program's cgroup.
    pub cgroup: PathBuf,
}

impl Job {
    /// A job that this process runs in the cgroup directory `cgroup`.
    ///
    /// # Errors
    /// The kernel does not tell the start time of this process.
    pub fn of_this_process(cgroup: PathBuf) -> Result<Self> {
        let pid = std::process::id();
        let started = started(pid)
            .ok_or_else(|| Error::failure("cannot tell from /proc when this process began"))?;
        Ok(Self { pid, started, cgroup })
    }

    /// A handle of the runner, which becomes readable when the runner ends. `None` if it has ended,
    /// even if its parent has not waited for it.
    pub fn runner(&self) -> Option<OwnedFd> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Read after the handle was opened, so both belong to the same process.
        (started(self.pid) == Some(self.started) && !ended(&handle)).then_some(handle)
    }

    /// Whether the cgroup exists.
    pub fn exists(&self) -> bool {
        self.is_ours() && self.cgroup.is_dir()
    }

    /// Ends all processes in the cgroup and in cgroups below it, which the program may have made,
    /// and removes these. Returns the number of processes that it ended.
    ///
    /// # Errors
    /// A process does not end within 20 s, or a directory can't be removed.
    pub fn clear(&self) -> Result<usize> {
        if !self.exists() {
            return Ok(0);
        }
        let mut ended = 0;
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Read anew each time: the program may have made more.
            let tree = tree(&self.cgroup);
            ended = ended.max(tree.iter().map(|dir| processes(dir).len()).sum());
            self.kill(&tree);
            match remove(&tree) {
                Ok(()) => return Ok(ended),
                Err(e) if Instant::now() >= deadline => {
                    return Err(e.hint("its cgroup.procs says who does not end; try again then"));
                }
                Err(_) => std::thread::sleep(GLANCE),
            }
        }
    }

    /// Kills all processes in the cgroup and in those below, which `tree` names.
    fn kill(&self, tree: &[PathBuf]) {
        // With this file the kernel misses no process, not even one that is just being made.
        // Version 2 has it since Linux 5.14.
        let all = fs::OpenOptions::new().write(true).open(self.cgroup.join("cgroup.kill"));
        if all.and_then(|mut file| file.write_all(b"1")).is_err() {
            tree.iter().for_each(|dir| kill_in(dir));
        }
    }

    fn is_ours(&self) -> bool {
        self.cgroup
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
    }
}

/// The cgroup `dir` and all below it, children before their parents.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut seen = 0;
    while let Some(dir) = all.get(seen) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let below: Vec<PathBuf> = dirs.map(|entry| entry.path()).collect();
        all.extend(below);
        seen += 1;
    }
    all.reverse();
    all
}

/// The processes in the cgroup `dir`, without those below.
fn processes(dir: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
}

/// Kills the processes in the cgroup `dir`, without those below.
fn kill_in(dir: &Path) {
    for some in processes(dir).chunks(HANDLES) {
        let handle = |pid: &Pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?));
        let handles: Vec<_> = some.iter().filter_map(handle).collect();
        // The number may have been reused before its handle was opened. If the cgroup still lists
        // it, either the handle is of the listed process, or that process has ended and the signal
        // hits none.
        let there = processes(dir);
        for (_, handle) in handles.iter().filter(|(pid, _)| there.contains(pid)) {
            let _ = pidfd_send_signal(handle, Signal::KILL); // the process may have ended just now
        }
    }
}

/// Removes cgroups; a missing one is no error.
fn remove(tree: &[PathBuf]) -> Result<()> {
    for dir in tree {
        match fs::remove_dir(dir) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(e).context(format!("cannot remove cgroup {}", dir.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the process of a handle has ended.
fn ended(handle: &OwnedFd) -> bool {
    let at_once = Timespec::default();
    let mut looked = [PollFd::new(handle, PollFlags::IN)];
    matches!(retry_on_intr(|| poll(&mut looked, Some(&at_once))), Ok(1..))
}

/// Start time of the process `pid`, in clock ticks since the machine started.
fn started(pid: u32) -> Option<u64> {
    let stat = kernel_text(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and parentheses; the fields after its last one hold none.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A directory in which cgroups with a memory limit can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    dir: PathBuf,
    unified: bool,
}

impl Parent {
    /// Finds the nearest such directory to the cgroup of this process.
    ///
    /// # Errors
    /// There is none; the text says what right is missing.
    pub fn find() -> Result<Self> {
        let groups = kernel_text("/proc/self/cgroup").unwrap_or_default();
        let all = hierarchies(Path::new("/proc/self/mountinfo"));
        if let Some(dir) = legacy(&groups, &all) {
            return Ok(Self { dir, unified: false });
        }
        let none = || {
            Error::failure("no cgroup here has a memory controller that can be used")
                .hint("boot with cgroup_enable=memory, or mount a cgroup file system that has it")
        };
        let (top, own) = unified(&groups, &all).ok_or_else(none)?;
        let has_memory = |dir: &Path, file: &str| {
            let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
            text.split_whitespace().any(|word| word == "memory")
        };
        // A cgroup with processes can't enable controllers for children; one above this process
        // may.
        let above = own.ancestors().take_while(|dir| dir.starts_with(&top));
        for dir in above {
            if has_memory(dir, "cgroup.subtree_control") {
                return Ok(Self { dir: dir.to_owned(), unified: true });
            }
        }
        if !has_memory(&top, "cgroup.controllers") {
            return Err(none());
        }
        fs::write(top.join("cgroup.subtree_control"), "+memory")
            .context(format!("cannot hand memory limits on in {}", top.display()))
            .map_err(|e| e.hint(GRANT))?;
        Ok(Self { dir: top, unified: true })
    }

    /// A unique directory for the cgroup of a volume's job, also among volumes of the same name in
    /// other run directories or containers: all processes in it will be killed.
    ///
    /// # Errors
    /// The kernel has no random number.
    pub fn child(&self, volume: &str) -> Result<PathBuf> {
        let mut unique = [0; 8]; // the kernel returns a request this short whole
        getrandom(&mut unique[..], GetRandomFlags::empty()).context("no random numbers")?;
        let unique = u64::from_ne_bytes(unique);
        Ok(self.dir.join(format!("{PREFIX}{volume}.{unique:016x}")))
    }

    /// Makes the cgroup `dir` with a memory limit of `bytes`. Also sets `swappiness` where a cgroup
    /// has its own.
    ///
    /// # Errors
    /// The cgroup can't be made and does not exist then. The text says what right is missing.
    pub fn make(&self, dir: &Path, bytes: u64, swappiness: Option<u64>) -> Result<()> {
        let grant = |e: Error| e.hint(GRANT);
        fs::create_dir(dir)
            .context(format!("cannot make cgroup {}", dir.display()))
            .map_err(grant)?;
        let limit = if self.unified { "memory.max" } else { "memory.limit_in_bytes" };
        let set = |file: &str, value: u64| {
            let file = dir.join(file);
            let what = format!("cannot write {}", file.display());
            fs::write(file, value.to_string()).context(what).map_err(grant)
        };
        let done = set(limit, bytes).and_then(|()| match swappiness {
            Some(value) if !self.unified => set("memory.swappiness", value),
            _ => Ok(()),
        });
        if done.is_err() {
            let _ = fs::remove_dir(dir); // the first error is reported
        }
        done
    }
}

/// The rights that a process needs to make cgroups.
const GRANT: &str =
    "run as root where cgroups can be written, or have one handed over to this user";

/// The version 1 cgroup of this process that limits memory, if there is one.
fn legacy(groups: &str, all: &[Hierarchy]) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|c| c == "memory").then_some(path)
    })?;
    let found = all.iter().find(|h| !h.unified && h.controllers.iter().any(|c| c == "memory"))?;
    Some(found.directory(own))
}

/// The top of the version 2 hierarchy, and the cgroup of this process.
fn unified(groups: &str, all: &[Hierarchy]) -> Option<(PathBuf, PathBuf)> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let found = all.iter().find(|h| h.unified)?;
    Some((found.point.clone(), found.directory(own)))
}

/// A cgroup's statistics of the programs that were in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// The peak of their memory, in bytes.
    pub peak_bytes: Option<u64>,
    /// The peak of their swapped-out memory, in bytes, if the kernel reports it. It includes pages
    /// of zeros, which newer kernels do not write.
    pub swap_peak_bytes: Option<u64>,
    /// How long at least one program waited for memory, in microseconds.
    pub pressure_us: Option<u64>,
    /// How many programs the kernel killed because memory was short.
    pub oom_kills: Option<u64>,
}

impl Usage {
    /// The present statistics of the cgroup `dir`.
    pub fn of(dir: &Path) -> Self {
        let number = |file: &str| read(dir, file)?.trim().parse::<u64>().ok();
        let peak_bytes = number("memory.peak").or_else(|| number("memory.max_usage_in_bytes"));
        // Version 1 counts memory and swap together.
        let beyond =
            || Some(number("memory.memsw.max_usage_in_bytes")?.saturating_sub(peak_bytes?));
        Self {
            peak_bytes,
            swap_peak_bytes: number("memory.swap.peak").or_else(beyond),
            pressure_us: read(dir, "memory.pressure").and_then(|text| stalled_us(&text)),
            oom_kills: read(dir, "memory.events")
                .or_else(|| read(dir, "memory.oom_control"))
                .and_then(|text| footprint::number(&text, "oom_kill")),
        }
    }
}

/// The memory of a cgroup's programs at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// What is in memory.
    pub memory: u64,
    /// What is in memory or swapped out; without swap, all of it would be in memory.
    pub both: u64,
}

impl Present {
    /// The present memory of the cgroup `dir`; `None` if the kernel does not report it.
    pub fn of(dir: &Path) -> Option<Self> {
        let number = |file: &str| read(dir, file)?.trim().parse::<u64>().ok();
        if let Some(memory) = number("memory.current") {
            // Pages that are in memory and in swap count in both numbers.
            let twice =
                read(dir, "memory.stat").and_then(|text| footprint::number(&text, "swapcached"));
            let swapped = number("memory.swap.current")?.saturating_sub(twice.unwrap_or(0));
            return Some(Self { memory, both: memory + swapped });
        }
        let (memory, both) =
            (number("memory.usage_in_bytes")?, number("memory.memsw.usage_in_bytes")?);
        Some(Self { memory, both })
    }
}

fn read(dir: &Path, file: &str) -> Option<String> {
    fs::read_to_string(dir.join(file)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_number_that_was_given_out_again_is_no_runner() {
        let job = Job::of_this_process("/none/ztier-x".into()).unwrap();
        assert!(job.runner().is_some() && !job.exists());
        assert!(Job { started: job.started + 1, ..job.clone() }.runner().is_none());
        assert!(Job { pid: u32::MAX, ..job }.runner().is_none());
    }

    #[test]
    fn a_process_that_has_ended_is_no_runner_also_before_its_parent_knows() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let started = started(child.id()).unwrap();
        let job = Job { pid: child.id(), started, cgroup: "/none/ztier-x".into() };
        let handle = job.runner().unwrap();
        drop(child.stdin.take());
        retry_on_intr(|| poll(&mut [PollFd::new(&handle, PollFlags::IN)], None)).unwrap();
        assert!(job.runner().is_none());
        child.wait().unwrap();
    }

    #[test]
    fn nothing_that_is_not_ours_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let job = |name: &str| Job { pid: 1, started: 0, cgroup: dir.path().join(name) };
        for name in ["other", "ztier-x"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            assert_eq!(job(name).clear().unwrap(), 0);
        }
        assert!(dir.path().join("other").exists() && !dir.path().join("ztier-x").exists());
    }

    /// Cgroups below it go with it, in both versions as far as this machine has them.
    #[test]
    fn what_a_program_has_made_below_its_cgroup_goes_with_it() {
        let all = hierarchies(Path::new("/proc/self/mountinfo"));
        let legacy = |h: &Hierarchy| h.controllers.iter().any(|c| c == "memory");
        for place in all.into_iter().filter(|h| h.unified || legacy(h)) {
            let cgroup = place.point.join(format!("{PREFIX}test-{}", std::process::id()));
            let inner = cgroup.join("a/b");
            if let Err(e) = fs::create_dir(&cgroup).and_then(|()| fs::create_dir_all(&inner)) {
                eprintln!("skipped: no cgroup can be made here: {e}");
                continue;
            }
            fs::create_dir(cgroup.join("empty")).unwrap();
            let sleep = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
            let mut children = [sleep(), sleep()];
            for (child, dir) in children.iter().zip([&cgroup, &inner]) {
                fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
            }
            let job = Job { pid: 1, started: 0, cgroup };
            let ended = job.clear();
            for child in &mut children {
                let _ = child.kill();
                child.wait().unwrap();
            }
            assert_eq!(ended.unwrap(), 2, "{place:?}");
            assert!(!job.exists());
        }
    }

    #[test]
    fn no_two_runs_have_one_cgroup() {
        let parent = Parent { dir: "/cg".into(), unified: true };
        let [one, two] = [parent.child("x").unwrap(), parent.child("x").unwrap()];
        assert!(one != two && one.to_str().unwrap().starts_with("/cg/ztier-x."), "{one:?}");
    }

    #[test]
    fn cgroups_are_found_where_they_are_mounted() {
        let mounts = "31 23 0:28 / /cg rw - tmpfs tmpfs rw,mode=755\n\
            35 31 0:32 /a /else/where rw,relatime shared:7 - cgroup cgroup rw,memory,hugetlb\n\
            41 31 0:38 / /uni rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mountinfo");
        fs::write(&file, mounts).unwrap();
        let all = hierarchies(&file);
        let groups = "9:name=systemd:/x\n4:hugetlb,memory:/a/b\n0::/user.slice/s\n";
        assert_eq!(legacy(groups, &all), Some("/else/where/b".into()));
        assert_eq!(legacy("4:cpu:/a/b\n0::/s\n", &all), None);
        assert_eq!(unified(groups, &all), Some(("/uni".into(), "/uni/user.slice/s".into())));
    }

    #[test]
    fn what_a_cgroup_says() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        assert_eq!(Usage::of(dir.path()), Usage::default());
        put("memory.max_usage_in_bytes", "4096\n");
        put("memory.memsw.max_usage_in_bytes", "5000\n");
        put("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        let legacy = Usage {
            peak_bytes: Some(4096),
            swap_peak_bytes: Some(904),
            pressure_us: None,
            oom_kills: Some(2),
        };
        assert_eq!(Usage::of(dir.path()), legacy);
        put("memory.peak", "8192\n");
        put("memory.swap.peak", "100\n");
        put("memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n");
        put("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull total=3\n");
        put("memory.usage_in_bytes", "4000\n");
        put("memory.memsw.usage_in_bytes", "6000\n");
        assert_eq!(Present::of(dir.path()), Some(Present { memory: 4000, both: 6000 }));
        put("memory.current", "7000\n");
        put("memory.swap.current", "500\n");
        put("memory.stat", "anon 1\nswapcached 200\n");
        assert_eq!(Present::of(dir.path()), Some(Present { memory: 7000, both: 7300 }));
        let both = Usage {
            peak_bytes: Some(8192),
            swap_peak_bytes: Some(100),
            pressure_us: Some(77),
            oom_kills: Some(1),
        };
        assert_eq!(Usage::of(dir.path()), both);
    }
}
