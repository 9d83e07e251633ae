//! `ztier swapon` and `swapoff`: refusals, changed settings of the machine, and their restoration,
//! also when the daemon died.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::machine::{Turn, set, settings, swap_line};
use crate::support::sandbox::{Done, Sandbox, eventually, finish, stop};
use crate::support::shell::{missing, ok, ok_once_free, unmount};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Signal, kill_process};
use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use ztier::config::{Ballast, SlotNews};
use ztier::control::{Client, Request, Swapon, Swapping};
use ztier::kernel_text::kernel_text;

/// Brings a volume of this test up as a block device; `None` where that is impossible.
fn up(sandbox: &Sandbox, name: &str, size: &str) -> Option<String> {
    let plan = sandbox.ztier(&["up", name, "--size", size, "--export", "fuse", "--dry-run"]);
    if plan.status != 0 {
        println!("skipped: {}", plan.err.trim());
        return None;
    }
    if missing(&["mkswap", "swapon", "swapoff", "blkid"]) {
        return None;
    }
    let up = sandbox.ztier(&["up", name, "--size", size, "--export", "fuse"]);
    Some(up.ok().trim().to_owned())
}

/// A name unique to this test, since all tests share `/dev/ztier`.
fn name(what: &str) -> String {
    format!("swap-{what}-{}", std::process::id())
}

/// Makes the volume swap, with --force since the daemon may not be safe for swap; the machine has
/// enough memory here.
fn swapon(sandbox: &Sandbox, name: &str, more: &[&str]) -> Done {
    sandbox.ztier(&[&["swapon", name, "--force"], more].concat())
}

#[test]
fn swap_is_no_larger_than_what_memory_holds() {
    const MIB: u64 = 1 << 20;
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("homes");
    let Some(device) = up(&sandbox, &name, "128M") else { return };
    sandbox.ztier(&["set", &name, "ram-limit=24M", "recompress=off"]).ok();
    let done = swapon(&sandbox, &name, &[]);
    let said = "swap is 72 MiB of its 128 MiB: what 24 MiB of memory hold at 3.00x, which is";
    assert!(done.err.contains(said), "{done:?}");
    sandbox.ztier(&["swapoff", &name]).ok();
    // Data that compresses to half.
    let (mut data, mut x) = (vec![0_u8; 20 * MIB as usize], 1_u64);
    for page in data.chunks_exact_mut(4096) {
        for byte in &mut page[..2048] {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (x >> 56) as u8;
        }
    }
    let file = fs::OpenOptions::new().write(true).open(&device).unwrap();
    file.write_all_at(&data, MIB).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // Then nothing of it is stored any more, but its compression ratio is known.
    for _ in 0..2 {
        let done = swapon(&sandbox, &name, &["--json"]).json();
        let size = done["size_bytes"].as_u64().unwrap();
        assert!((44 * MIB..50 * MIB).contains(&size), "{size}");
        assert!(done["notes"][0].as_str().unwrap().ends_with("as measured"), "{done}");
        sandbox.ztier(&["swapoff", &name]).ok();
    }
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    drop(turn);
}

/// Memory of this process that was swapped out.
struct Pages(*mut c_void);

impl Pages {
    const BYTES: usize = 32 << 20;

    /// Has the kernel swap out [`Self::BYTES`] that compress to half.
    fn swapped_out() -> Self {
        let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address of the kernel's choice, which only this thread uses.
        unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), Self::BYTES, access, private).unwrap();
            let words = start.cast::<u64>();
            let mut x = 1_u64;
            for n in 0..Self::BYTES / 8 {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                words.add(n).write(if n % 2 == 0 { x } else { 0 });
            }
            let pages = Self(start);
            pages.out();
            pages
        }
    }

    fn out(&self) {
        // SAFETY: the whole mapping; its content stays.
        unsafe { madvise(self.0, Self::BYTES, Advice::LinuxPageOut).unwrap() };
    }

    /// Reads all and changes every second page, whose words of zero have the number of `round`.
    fn check_and_change(&mut self, round: u64) {
        // SAFETY: the whole mapping, which was filled, and to which there is no other reference.
        let words = unsafe { std::slice::from_raw_parts_mut(self.0.cast(), Self::BYTES / 8) };
        let mut x = 1_u64;
        for (n, page) in words.chunks_exact_mut(512).enumerate() {
            for pair in page.chunks_exact_mut(2) {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let changed = if n % 2 == 0 { round } else { 0 };
                assert_eq!((pair[0], pair[1]), (x, changed), "page {n} in round {round}");
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                pair[1] = if n % 2 == 0 { round + 1 } else { 0 };
            }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which there is no reference.
        unsafe { munmap(self.0, Self::BYTES).unwrap() };
    }
}

/// The ballast of a volume, in bytes.
fn ballast(sandbox: &Sandbox, name: &str) -> u64 {
    sandbox.status(name)["ballast_bytes"].as_u64().unwrap()
}

#[test]
fn ballast_is_only_where_all_swap_is_ours_and_ends_before_swap() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let [one, two] = [name("one"), name("two")];
    if kernel_text("/proc/swaps").unwrap().lines().count() > 1 {
        println!("skipped: this machine has other swap");
        return;
    }
    let (Some(_), Some(_)) = (up(&sandbox, &one, "128M"), up(&sandbox, &two, "128M")) else {
        return;
    };
    let there = || ballast(&sandbox, &one) > 0;
    let none = || !there();
    swapon(&sandbox, &one, &["--priority", "9"]).ok();
    let pages = Pages::swapped_out();
    eventually("it has ballast", there);
    let status = sandbox.ztier(&["status", &one]).ok();
    assert!(status.contains(" of ballast, priority 9"), "{status}");
    let room = sandbox.status(&one)["stats"]["swap_room_bytes"].as_u64().unwrap();
    assert!(room > 100 << 20, "{room}");
    let metrics = sandbox.ztier(&["metrics", "--once"]).ok();
    let samples: Vec<_> =
        metrics.lines().filter(|line| line.starts_with("ztier_swap_room")).collect();
    assert!(matches!(samples[..], [sample] if sample.contains(&one)), "{samples:?}");

    // Other swap, also that of another volume, is not to count as full.
    swapon(&sandbox, &two, &["--priority", "3"]).ok();
    eventually("it has none", none);
    let log = fs::read_to_string(sandbox.run_dir().join(format!("{one}.log"))).unwrap();
    assert!(log.contains("no ballast for swap: other swap is in use, too"), "{log}");
    sandbox.ztier(&["swapoff", &two]).ok();
    eventually("it has some again", there);

    // What comes back is what was swapped out. (The kernel may have swapped out more.)
    let done = sandbox.ztier(&["swapoff", &one, "--json"]).json();
    let used = done["used_bytes"].as_u64().unwrap();
    assert!((28 << 20..64 << 20).contains(&used), "{done}");
    assert_eq!(ballast(&sandbox, &one), 0);
    drop(pages);

    // When it is asked for, other swap does not matter; when it is not wanted, nothing does.
    swapon(&sandbox, &two, &["--priority", "3", "--ballast", "off"]).ok();
    swapon(&sandbox, &one, &["--priority", "9", "--ballast", "on"]).ok();
    let pages = Pages::swapped_out();
    eventually("it has ballast again", there);
    assert_eq!(ballast(&sandbox, &two), 0);
    // By FUSE a restart ends swap, and begins it again.
    sandbox.ztier(&["restart", &one]).ok();
    let again = Pages::swapped_out();
    eventually("the next daemon has it, too", there);
    for name in [&one, &two] {
        sandbox.ztier(&["down", name, "--discard"]).ok();
    }
    drop((pages, again, turn));
}

/// Swaps memory out, in, and out again until it is dropped.
struct User(Arc<AtomicBool>, Option<JoinHandle<u64>>);

impl User {
    fn begin() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let run = move || {
            let mut pages = Pages::swapped_out();
            let mut round = 0;
            while !until.load(Relaxed) {
                pages.check_and_change(round);
                pages.out();
                round += 1;
            }
            round
        };
        Self(over, Some(thread::spawn(run)))
    }

    /// How often all of it was read and right.
    fn end(mut self) -> u64 {
        self.0.store(true, Relaxed);
        self.1.take().unwrap().join().unwrap()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

#[test]
fn swap_in_use_gets_another_spill_device_and_none() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("respill");
    if up(&sandbox, &name, "128M").is_none() {
        return;
    }
    let made = |file: &str| {
        let path = sandbox.path().join(file);
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
        file.set_len(128 << 20).unwrap();
        format!("spill={}", path.display())
    };
    let (one, two) = (made("one"), made("two"));
    let set = |values: &[&str]| {
        sandbox.ztier(&[&["set", &name], values].concat()).looked();
    };
    let spilled = || sandbox.status(&name)["stats"]["spilled_blocks"].as_u64().unwrap();
    set(&["ram-limit=18M", &one]);
    swapon(&sandbox, &name, &["--priority", "9"]).ok();
    let users = [User::begin(), User::begin()];
    eventually("memory is not enough", || spilled() > 1000);
    for _ in 0..2 {
        set(&[&two]);
        eventually("that is used, too", || spilled() > 1000);
        set(&["ram-limit=128M", "spill=none"]);
        assert_eq!(spilled(), 0);
        set(&[&one]);
        set(&["ram-limit=18M"]);
        eventually("so is the next one", || spilled() > 1000);
    }
    let rounds = users.map(User::end);
    assert!(rounds.iter().all(|rounds| *rounds > 1), "{rounds:?}");
    let status = sandbox.status(&name);
    assert_eq!(status["stats"]["spill_lost_blocks"], 0, "{status}");
    sandbox.ztier(&["swapoff", &name]).ok();
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    drop(turn);
}

/// The nice value of each thread of a process, with the thread's name.
fn threads(pid: &str) -> Vec<(String, i32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let parsed = stats.filter_map(|stat| {
        let (head, rest) = stat.rsplit_once(')')?;
        let nice = rest.split_whitespace().nth(16)?.parse().ok()?;
        Some((head.split_once('(')?.1.to_owned(), nice))
    });
    parsed.collect()
}

#[test]
fn threads_that_serve_swap_come_first_and_processes_that_they_start_do_not() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("first");
    if up(&sandbox, &name, "128M").is_none() {
        return;
    }
    let daemon = sandbox.status(&name)["pid"].to_string();
    let served = |threads: &[(String, i32)]| {
        let first = threads.iter().filter(|(_, nice)| *nice == -20);
        first.filter(|(thread, _)| thread != "ztier-swap").count()
    };
    assert_eq!(served(&threads(&daemon)), 0);
    swapon(&sandbox, &name, &[]).ok();
    let pages = Pages::swapped_out();
    assert!(served(&threads(&daemon)) > 0, "{:?}", threads(&daemon));
    let background = ["ztier-cleaner", "ztier-spiller", "ztier-client", "ztier-limiter"];
    let wrong = |(thread, nice): &(String, i32)| *nice < 0 && background.contains(&&**thread);
    assert!(!threads(&daemon).iter().any(wrong), "{:?}", threads(&daemon));
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    for child in fs::read_to_string(children).unwrap().split_whitespace() {
        // Ballast has to give way in time.
        let of_child = threads(child);
        let wrong = |(thread, nice): &(String, i32)| *nice < 0 && !thread.starts_with("zballast");
        assert!(!of_child.iter().any(wrong), "{of_child:?}");
    }
    drop(pages);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    drop(turn);
}

#[test]
fn what_is_set_is_put_back() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("set");
    let Some(device) = up(&sandbox, &name, "32M") else { return };
    set("page-cluster", 2);
    set("swappiness", 70);
    let done = swapon(&sandbox, &name, &["--priority", "9", "--json"]).json();
    assert_eq!(done["device"], device);
    assert_eq!(done["settings"][0]["before"], 2);
    assert!(done["size_bytes"].as_u64().unwrap() > 31 << 20);
    assert_eq!(swap_line(&device).unwrap().split_whitespace().last(), Some("9"));
    assert_eq!(settings(), [5, 100]);
    let status = sandbox.ztier(&["status", &name]).ok();
    let held = status.lines().find_map(|line| line.strip_prefix("held by")).unwrap();
    assert!(held.trim() == "swap" && status.contains("priority 9"), "{status}");
    swapon(&sandbox, &name, &[]).refused(4, &["is swap already", "ztier swapoff"]);

    let done = sandbox.ztier(&["swapoff", &name]).ok();
    assert!(done.contains("no swap any more") && done.contains("from 5 to 2"), "{done}");
    assert_eq!((settings(), swap_line(&device)), ([2, 70], None));
    sandbox.ztier(&["swapoff", &name]).refused(4, &["is not swap", "ztier swapon"]);

    // Old swap does not count as content. A setting that another process changes meanwhile stays.
    let own = ["--page-cluster", "0", "--swappiness", "keep"];
    let done = swapon(&sandbox, &name, &own);
    assert!(done.err.contains("vm.page-cluster from 2 to 0"), "{done:?}");
    done.ok();
    assert_eq!(settings(), [0, 70]);
    set("page-cluster", 1);
    let done = sandbox.ztier(&["swapoff", &name]);
    assert!(done.err.contains("vm.page-cluster stays 1, which another process set"), "{done:?}");
    done.ok();
    assert_eq!(settings(), [1, 70]);

    // `down` ends swap by itself.
    set("page-cluster", 3);
    swapon(&sandbox, &name, &[]).ok();
    sandbox.ztier(&["down", &name]).ok();
    assert_eq!((settings(), swap_line(&device)), ([3, 70], None));
    drop(turn);
}

#[test]
fn a_configured_use_sets_the_same_and_puts_it_back() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("use");
    if missing(&["mkswap", "swapon", "swapoff", "blkid"]) {
        return;
    }
    set("page-cluster", 2);
    set("swappiness", 70);
    let up = |more: &[&str]| {
        let up = ["up", &name, "--size", "16M", "--export", "fuse", "--use", "swap", "--ensure"];
        sandbox.ztier(&[&up, more].concat())
    };
    let done = up(&["--save"]);
    let lacks = ["must not carry swap", "does not work here"];
    if done.status != 0 && lacks.iter().any(|text| done.err.contains(text)) {
        println!("skipped: {}", done.err.trim());
        return;
    }
    done.ok();
    assert_eq!(settings(), [5, 100]);
    up(&["--page-cluster", "3"]).refused(7, &["page-cluster is 5 (asked: 3)"]);
    // After a kill another daemon goes on, and still knows what was before.
    sandbox.kill(&name);
    sandbox.ztier(&["restart", &name]).ok();
    assert_eq!(settings(), [5, 100]);
    sandbox.ztier(&["down", &name]).ok();
    assert_eq!(settings(), [2, 70]);

    up(&["--page-cluster", "keep", "--swappiness", "150", "--save"]).ok();
    assert_eq!(settings(), [2, 150]);
    sandbox.ztier(&["down", &name]).ok();
    sandbox.ztier(&["up", &name]).ok();
    assert_eq!(settings(), [2, 150], "by the file");
    set("swappiness", 90);
    sandbox.ztier(&["down", &name]).ok();
    assert_eq!(settings(), [2, 90], "another process set it");
    up(&["--swappiness", "201"]).refused(2, &["vm.swappiness can't be 201", "0 to 200"]);
    drop(turn);
}

#[test]
fn the_last_of_several_puts_settings_back() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let (one, two) = (name("one"), name("two"));
    let Some(_) = up(&sandbox, &one, "32M") else { return };
    up(&sandbox, &two, "32M").unwrap();
    swapon(&sandbox, &one, &[]).ok();
    swapon(&sandbox, &two, &[]).ok();
    let done = sandbox.ztier(&["swapoff", &one]);
    assert!(done.err.contains("stays 5, which another volume needs"), "{done:?}");
    assert_eq!(settings(), [5, 100]);
    sandbox.ztier(&["swapoff", &two]).ok();
    assert!(turn.is_as_before());
}

#[test]
fn a_dead_daemon_leaves_no_swap_and_no_settings() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("dead");
    let Some(device) = up(&sandbox, &name, "32M") else { return };
    swapon(&sandbox, &name, &[]).ok();
    let node = fs::canonicalize(&device).unwrap();
    sandbox.kill(&name);
    sandbox.ztier(&["swapoff", &name]).refused(6, &["daemon of volume", "ztier restart"]);
    assert_eq!(settings(), [5, 100]);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert_eq!(swap_line(node.to_str().unwrap()), None);
    assert!(turn.is_as_before());

    // Or the next daemon takes it over, as swap.
    up(&sandbox, &name, "32M").unwrap();
    swapon(&sandbox, &name, &["--priority", "11"]).ok();
    sandbox.kill(&name);
    sandbox.ztier(&["restart", &name]).ok();
    assert_eq!(swap_line(&device).unwrap().split_whitespace().last(), Some("11"));
    assert_eq!(settings(), [5, 100]);
    sandbox.ztier(&["restart", &name]).ok();
    assert_eq!(swap_line(&device).unwrap().split_whitespace().last(), Some("11"));
    assert_eq!(settings(), [5, 100]);
    sandbox.ztier(&["swapoff", &name]).ok();
    assert!(turn.is_as_before());
}

/// Ends swap by hand and makes a file system with a file there. Returns its mount point.
fn file_system_in_place_of_swap(sandbox: &Sandbox, device: &str) -> PathBuf {
    ok(60, "swapoff", &[device]);
    ok_once_free("mkfs.ext4", &["-q", "-F", device]);
    let point = sandbox.path().join("mnt");
    fs::create_dir_all(&point).unwrap();
    ok(20, "mount", &[device, point.to_str().unwrap()]);
    fs::write(point.join("file"), "content").unwrap();
    unmount(&point);
    point
}

/// What the plan says of a device that was swap is no reason to give up what it holds since.
#[test]
fn a_file_system_in_place_of_swap_is_not_given_up() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("former");
    let Some(device) = up(&sandbox, &name, "64M") else { return };
    if missing(&["mkfs.ext4"]) {
        return;
    }
    swapon(&sandbox, &name, &[]).ok();
    let point = file_system_in_place_of_swap(&sandbox, &device);
    let at = point.to_str().unwrap();
    let is_there = || {
        ok(20, "mount", &[&device, at]);
        assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "content");
        unmount(&point);
    };
    sandbox.ztier(&["down", &name]).refused(5, &["exist nowhere else", "--discard"]);
    is_there();
    kill_process(sandbox.pid(&name), Signal::TERM).unwrap();
    eventually("the daemon is gone", || {
        sandbox.ztier(&["status", &name]).err.contains("the daemon of volume")
    });
    assert!(turn.is_as_before());
    // The next daemon does not take it for swap, either.
    let done = sandbox.ztier(&["restart", &name]);
    assert!(done.err.contains("is no swap any more: it holds ext4"), "{done:?}");
    done.ok();
    is_there();
    sandbox.ztier(&["down", &name]).refused(5, &["exist nowhere else", "--discard"]);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert!(turn.is_as_before());
}

#[test]
fn swap_that_could_not_be_noted_is_none() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("unnoted");
    let Some(device) = up(&sandbox, &name, "32M") else { return };
    fs::write(&device, vec![7; 1 << 20]).unwrap();
    // No state file can be made here meanwhile.
    let unfinished = sandbox.run_dir().join(format!("{name}.json.new"));
    fs::create_dir(&unfinished).unwrap();
    swapon(&sandbox, &name, &[]).refused(1, &["cannot write", ".json"]);
    fs::remove_dir(&unfinished).unwrap();
    assert!(swap_line(&device).is_none() && turn.is_as_before());
    let status = sandbox.status(&name);
    assert!(status["usage"].is_null(), "{status}");
    sandbox.ztier(&["down", &name]).refused(5, &["exist nowhere else", "--discard"]);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
}

#[test]
fn settings_are_put_back_also_after_a_swapoff_by_hand() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("again");
    let Some(device) = up(&sandbox, &name, "32M") else { return };
    set("page-cluster", 2);
    set("swappiness", 70);
    for _ in 0..2 {
        swapon(&sandbox, &name, &[]).ok();
        assert_eq!(settings(), [5, 100]);
        ok(60, "swapoff", &[&device]);
    }
    swapon(&sandbox, &name, &[]).ok();
    sandbox.ztier(&["swapoff", &name]).ok();
    assert_eq!(settings(), [2, 70]);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    drop(turn);
}

#[test]
fn what_holds_or_is_held_is_no_swap() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("full");
    let Some(device) = up(&sandbox, &name, "32M") else { return };
    if missing(&["mkfs.ext4"]) {
        return;
    }
    // Without --force only a daemon that is safe for swap carries it.
    let safe = sandbox.ztier(&["swapon", &name]);
    if safe.status != 0 {
        safe.refused(1, &["must not carry swap", "CAP_SYS_RESOURCE", "--force"]);
    } else {
        sandbox.ztier(&["swapoff", &name]).ok();
        ok(20, "mkfs.ext4", &["-q", "-F", &device]);
        sandbox.ztier(&["swapon", &name]).refused(5, &["holds ext4", "--force"]);
        ok(20, "wipefs", &["-q", "-a", &device]);
        sandbox.ztier(&["swapon", &name]).refused(5, &["of something unknown", "--force"]);
    }
    let held = fs::File::open(&device).unwrap();
    swapon(&sandbox, &name, &[]).refused(4, &["is in use", "process", "end that first"]);
    drop(held);
    ok(20, "mkfs.ext4", &["-q", "-F", &device]);
    let point = sandbox.path().join("mnt");
    fs::create_dir(&point).unwrap();
    ok(20, "mount", &["-o", "nodiscard", &device, point.to_str().unwrap()]);
    swapon(&sandbox, &name, &[]).refused(4, &["is in use", "mounted on"]);
    unmount(point.to_str().unwrap());
    // The old content goes, with its memory.
    fs::write(&device, vec![7; 8 << 20]).unwrap();
    swapon(&sandbox, &name, &[]).ok();
    let stored = sandbox.status(&name)["stats"]["orig_data_bytes"].as_u64().unwrap();
    assert!(stored < 64 << 10, "{stored} bytes");
    sandbox.ztier(&["swapoff", &name]).ok();
    assert!(turn.is_as_before());
}

#[test]
fn some_volumes_can_not_be_swap() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "net", "--size", "16M", "--export", "nbd"]).ok();
    sandbox.ztier(&["swapon", "net"]).refused(2, &["by nbd", "no block device", "--export ublk"]);
    sandbox.ztier(&["swapoff", "net"]).refused(4, &["is not swap"]);
    sandbox.ztier(&["swapon", "nt"]).refused(3, &["no volume `nt` is up"]);
    sandbox.ztier(&["swapon", "net", "--priority", "99999"]).refused(2, &["99999", "0..=32767"]);
    sandbox.ztier(&["swapon", "net", "--page-cluster", "x"]).refused(2, &["neither `keep`"]);

    let slow = sandbox.path().join("slow");
    fs::File::create(&slow).unwrap().set_len(16 << 20).unwrap();
    let name = name("slow");
    let up = ["up", &name, "--backing", slow.to_str().unwrap(), "--export", "fuse"];
    let up = sandbox.ztier(&up);
    if up.status != 0 {
        println!("skipped: {}", up.err.trim());
        return;
    }
    swapon(&sandbox, &name, &[]).refused(5, &["has a backing store", "would destroy"]);
}

#[test]
fn historic_counters_are_right() {
    let sandbox = Sandbox::new();
    let name = name("stats");
    let Some(device) = up(&sandbox, &name, "16M") else { return };
    if missing(&["blkdiscard"]) {
        return;
    }
    // 10 pages of noise, 5 that compress to half and more, 3 of zeros; then 4 of the noise are
    // freed.
    let mut x = 1u64;
    let noise = std::iter::repeat_with(|| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 56) as u8
    });
    let mut data: Vec<u8> = noise.take(10 * 4096).collect();
    data.extend((1..=5u8).flat_map(|n| [[n; 2048], [n + 100; 2048]].concat()));
    data.resize(18 * 4096, 0);
    let file = fs::File::options().write(true).open(&device).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &data, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    ok(20, "blkdiscard", &["-o", "8192", "-l", "16384", &device]);
    let swap = sandbox.ztier(&["stats", &name, "--format", "ramzswap"]).ok();
    let stats = sandbox.ztier(&["stats", &name, "--format", "json"]).json();
    let line = |key: &str, value: u64, unit: &str| {
        let line = format!("{key}:\t{value:>8}{unit}\n");
        assert!(swap.contains(&line), "{line} is missing in {swap}");
    };
    let number = |key: &str| stats[key].as_u64().unwrap();
    line("DiskSize", 16 << 10, " kB");
    line("NumWrites", stats["write"]["requests"].as_u64().unwrap(), "");
    line("FailedReads", 0, "");
    line("FailedWrites", 0, "");
    line("InvalidIO", 0, "");
    line("PagesDiscard", 4, "");
    line("ZeroPages", 3, "");
    // 6 of 11 are noise, which no codec compresses.
    line("GoodCompress", 45, " %");
    line("NoCompress", 54, " %");
    line("PagesStored", 11, "");
    line("PagesUsed", number("mem_used_bytes") / 4096, "");
    line("OrigDataSize", 44, " kB");
    line("ComprDataSize", number("compr_data_bytes") >> 10, " kB");
    line("BDevNumReads", 0, "");
    line("BDevNumWrites", 0, "");
    let config = sandbox.ztier(&["stats", &name, "--format", "zramconfig"]).ok();
    assert!(config.contains("NotifyFree:            4\n"), "{config}");
    sandbox.ztier(&["down", &name, "--discard"]).ok();
}

/// A request to a stopped daemon whose caller has given up is not carried out later.
#[test]
fn what_was_given_up_is_not_carried_out() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("revoked");
    let Some(device) = up(&sandbox, &name, "32M") else { return };
    let client = Client::new(&sandbox.run_dir().join(format!("{name}.sock")));
    let revoked = |request: &Request| {
        let pid = sandbox.pid_of(&name);
        stop(pid);
        let error = client.ask::<Swapping>(request, Duration::from_millis(300)).unwrap_err();
        kill_process(pid, Signal::CONT).unwrap();
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        std::thread::sleep(Duration::from_millis(500));
    };
    let on = Swapon {
        priority: 1,
        page_cluster: Some(1),
        swappiness: Some(1),
        ballast: Ballast::Auto,
        freed_slots: SlotNews::Auto,
        on_full: None,
        force: true,
    };
    revoked(&Request::Swapon(on));
    assert!(turn.is_as_before() && swap_line(&device).is_none());
    swapon(&sandbox, &name, &[]).ok();
    let set = settings();
    revoked(&Request::Swapoff { force: true });
    assert_eq!(settings(), set);
    assert!(swap_line(&device).is_some());
    sandbox.ztier(&["swapoff", &name]).ok();
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert!(turn.is_as_before());
}

/// Requests in flight of a device, and the length of the longest.
fn queue(device: &str) -> [String; 2] {
    let device = fs::canonicalize(device).unwrap();
    let queue = Path::new("/sys/block").join(device.file_name().unwrap()).join("queue");
    ["nr_requests", "max_sectors_kb"].map(|file| fs::read_to_string(queue.join(file)).unwrap())
}

/// Only a device that is swap has a short queue: not one that could not become swap, nor one that a
/// user has ended as such.
#[test]
fn only_swap_has_a_short_queue() {
    let (turn, sandbox) = (Turn::wait(), Sandbox::new());
    let name = name("queue");
    let Some(device) = up(&sandbox, &name, "64M") else { return };
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    // A `swapon` that fails, for the daemon.
    let bin = sandbox.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let fails = bin.join("swapon");
    let file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&fails);
    file.unwrap().write_all_at(b"#!/bin/sh\nexit 1\n", 0).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = sandbox.command(&["up", &name, "--size", "64M", "--export", "fuse"]);
    command.env("PATH", path);
    assert_eq!(finish(command).ok().trim(), device);
    let usual = queue(&device);
    swapon(&sandbox, &name, &[]).refused(1, &["swapon", "failed"]);
    assert_eq!(queue(&device), usual);
    fs::remove_file(fails).unwrap();
    swapon(&sandbox, &name, &[]).ok();
    assert_ne!(queue(&device), usual);
    ok(60, "swapoff", &[&device]);
    sandbox.ztier(&["swapoff", &name]).ok();
    assert_eq!(queue(&device), usual);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    drop(turn);
}
