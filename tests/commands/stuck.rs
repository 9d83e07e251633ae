//! Daemons that are killed at any moment, that do not answer, or whose files were removed: `ztier
//! down` always gets rid of them, and leaves nothing behind.
//!
//! Needs root, `/dev/fuse` and loop devices; where these are missing, tests of the block device
//! print `skipped:` and the reason.
#![cfg(feature = "fuse")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::sandbox::{Guard, Sandbox, eventually, stop, wait};
use crate::support::shell::{run, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::device::{Channel, Device, Extent, ExtentKind, IoError, Request};
use ztier::export::fuse::{FuseLoop, Options, available};
use ztier::export::traces;
use ztier::kernel_text::kernel_text;
use ztier::system::helper::Helper;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(300);
const NBD: [&str; 6] = ["up", "vol", "--size", "64M", "--export", "nbd"];

/// Whether block devices by FUSE work here; prints the reason if not.
fn has_fuse() -> bool {
    available(true).map_err(|why| println!("skipped: {why}")).is_ok()
}

/// Leftovers in the system of the volume `name` and of the sandbox.
fn left(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let here = sandbox.path().canonicalize().unwrap();
    let here = here.to_str().unwrap();
    let mounts = kernel_text("/proc/self/mountinfo").unwrap();
    let loops = text(&run(10, "losetup", &["-a"]));
    let lines = mounts.lines().chain(loops.lines()).filter(|line| line.contains(here));
    let mut left: Vec<String> = lines.map(str::to_owned).collect();
    let link = Path::new("/dev/ztier").join(name);
    left.extend(link.is_symlink().then(|| link.display().to_string()));
    left.extend(sandbox.files());
    left.extend(processes_of(name).iter().map(|pid| format!("process {pid}")));
    left
}

/// Daemons, helpers and memory holders of the volume `name`.
fn processes_of(name: &str) -> Vec<i32> {
    let is_of = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        words.len() > 2
            && ["daemon", "keeper", "helper"].contains(&&*words[1])
            && (words[2] == name || words[2].contains(&format!("/{name}.fuse/")))
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_of).collect()
}

/// The daemons among them.
fn daemons_of(name: &str) -> Vec<i32> {
    let is_daemon = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains_word(b"daemon"))
    };
    processes_of(name).into_iter().filter(is_daemon).collect()
}

trait Words {
    fn contains_word(&self, word: &[u8]) -> bool;
}

impl Words for Vec<u8> {
    fn contains_word(&self, word: &[u8]) -> bool {
        self.split(|byte| *byte == 0).any(|found| found == word)
    }
}

fn kill(pid: i32) {
    // The process may have ended on its own.
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
}

/// Kills the daemon at some moment of each of its actions. A killed daemon ends, and `down` removes
/// its leftovers.
#[test]
fn a_daemon_that_is_killed_at_any_moment_leaves_nothing_that_stays() {
    if !has_fuse() {
        return;
    }
    let sandbox = Sandbox::new();
    let name = sandbox.device_name("stuck");
    let up = ["up", &name, "--size", "16M", "--export", "fuse"];
    let resize: Vec<String> = (0..20).map(|round| format!("size={}M", 17 + round)).collect();
    for round in 0..20_u64 {
        let what = match round % 5 {
            0..3 => &up[..],
            3 => &["restart", &name],
            _ => &["down", &name, "--discard"],
        };
        let what = if round % 10 == 9 { &["set", &name, &resize[round as usize]] } else { what };
        if what[0] != "up" {
            sandbox.ztier(&up).ok();
        }
        let mut command = sandbox.command(what);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = Guard(child.unwrap());
        let deadline = Instant::now() + Duration::from_secs(5);
        while daemons_of(&name).is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(round * 13 % 61));
        let killed = daemons_of(&name);
        killed.iter().for_each(|pid| kill(*pid));
        wait(&mut child.0);
        let down = sandbox.ztier(&["down", &name, "--discard", "--force"]);
        assert!(matches!(down.status, 0 | 3), "round {round}, {what:?}: {down:?}");
        let mut rest = left(&sandbox, &name);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !rest.is_empty() {
            assert!(Instant::now() < deadline, "round {round}, {what:?}: {down:?} left {rest:?}");
            std::thread::sleep(Duration::from_millis(10));
            rest = left(&sandbox, &name);
        }
        let is_gone = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
        eventually("the killed have ended", || killed.iter().all(is_gone));
    }
}

#[test]
fn a_stopped_daemon_is_named_and_ended_by_force_without_loss() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&NBD).ok();
    let content = [7; 4096];
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol").write(8192, &content);
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    let pid = sandbox.pid("vol");
    stop(pid);
    let begun = Instant::now();
    let refused = sandbox.ztier(&["down", "vol", "--discard"]);
    refused.refused(6, &["is stopped", "kill -CONT", "--force"]);
    assert!(begun.elapsed() < Duration::from_secs(5), "that is known at once");
    // A refused request is not carried out later.
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(sandbox.pid("vol"), pid);
    stop(pid);
    let forced = sandbox.ztier(&["down", "vol", "--force"]);
    assert!(forced.err.contains("did not answer and was killed"), "{forced:?}");
    assert!(forced.err.contains("in memory is kept") && forced.status != 0, "{forced:?}");
    sandbox.ztier(&["restart", "vol"]).ok();
    let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
    assert_eq!(disk.read(8192, 4096), content);
    drop(disk);
    stop(sandbox.pid("vol"));
    let forced = sandbox.ztier(&["down", "vol", "--force", "--discard"]);
    assert!(forced.out.contains("the memory that was kept"), "{forced:?}");
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn a_volume_goes_down_and_restarts_while_a_large_window_is_gathered() {
    const BLOCKS: u64 = 60_000;
    let sandbox = Sandbox::new();
    let file = |name: &str, mib: u64| {
        let path = sandbox.path().join(name);
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (log, backing) = (file("fast", 1024), file("slow", 512));
    let drives = ["--backing", &backing, "--log", &log, "--writeback", "off"];
    let up = [&["up", "vol", "--export", "nbd"], &drives[..]].concat();
    for command in [&["restart", "vol"][..], &["down", "vol"]] {
        sandbox.ztier(&up).ok();
        let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
        // Many blocks in few segments, and then many zeroed ranges.
        for first in (0..BLOCKS).step_by(256) {
            let mut blocks = vec![0; 256 * 4096];
            for (number, block) in (first..).zip(blocks.chunks_exact_mut(4096)) {
                block[..8].copy_from_slice(&number.to_le_bytes());
            }
            disk.write(first * 4096, &blocks);
        }
        let zeroed: Vec<u64> = (0..BLOCKS).step_by(2).map(|block| block * 4096).collect();
        disk.zero_blocks(&zeroed);
        disk.flush();
        drop(disk);
        let mut drain = sandbox.command(&["drain", "vol"]).spawn().unwrap();
        // A window begins at once; gathering takes longer.
        std::thread::sleep(Duration::from_millis(100));
        sandbox.ztier(command).ok();
        wait(&mut drain);
        if command[0] == "down" {
            break;
        }
        let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
        for block in [0_u64, 1, 2, 29_999, 59_998, 59_999] {
            let number = if block % 2 == 0 { 0 } else { block };
            let mut expected = number.to_le_bytes().to_vec();
            expected.resize(4096, 0);
            assert_eq!(disk.read(block * 4096, 4096), expected, "block {block}");
        }
        drop(disk);
        sandbox.ztier(&["down", "vol", "--drain"]).ok();
    }
}

/// A cleaner of temporary files removes files of a daemon, which makes them anew when they are
/// needed; meanwhile no other daemon gets the volume.
#[test]
fn removed_files_are_made_anew_when_they_are_missed() {
    let all = ["lock", "json", "sock", "keep"];
    for gone in [&all[..1], &all[1..2], &all[2..3], &all[3..], &all[..3], &all[..]] {
        let sandbox = Sandbox::new();
        sandbox.ztier(&NBD).ok();
        let (pid, whole) = (sandbox.pid("vol"), sandbox.files());
        let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
        disk.write(4096, &[9; 4096]);
        drop(disk);
        for end in gone {
            fs::remove_file(sandbox.run_dir().join(format!("vol.{end}"))).unwrap();
        }
        sandbox.ztier(&NBD).refused(4, &["already up"]);
        assert_eq!(sandbox.pid("vol"), pid, "{gone:?}");
        // The restart needs all of these files.
        eventually("the client is gone", || sandbox.ztier(&["restart", "vol"]).status == 0);
        assert_eq!(sandbox.files(), whole, "{gone:?}");
        let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
        assert_eq!(disk.read(4096, 4096), [9; 4096], "{gone:?}");
        drop(disk);
        eventually("the client is gone", || {
            sandbox.ztier(&["down", "vol", "--discard"]).status == 0
        });
        assert_eq!(sandbox.files(), [""; 0], "{gone:?}");
    }
}

/// Without a state file, the name of the volume alone identifies the leftovers of a dead daemon.
#[test]
fn without_a_state_file_down_finds_what_a_dead_daemon_left() {
    if !has_fuse() {
        return;
    }
    let ends = ["json", "keep", "sock", "lock", "log"];
    for (damaged, gone) in [(true, &ends[..0]), (false, &ends[..1]), (false, &ends[..])] {
        let sandbox = Sandbox::new();
        let name = sandbox.device_name("lost");
        sandbox.ztier(&["up", &name, "--size", "16M", "--export", "fuse"]).ok();
        sandbox.kill_both(&name);
        let file = |end: &str| sandbox.run_dir().join(format!("{name}.{end}"));
        if damaged {
            fs::write(file("json"), "{\"pid\": tru").unwrap();
        }
        for end in gone {
            let _ = fs::remove_file(file(end)); // the memory holder's may have gone by itself
        }
        let listed = sandbox.ztier(&["list"]);
        assert!(listed.out.contains(&name) && listed.out.contains("dead"), "{listed:?}");
        let down = sandbox.ztier(&["down", &name, "--discard"]).ok();
        assert!(down.contains("FUSE mount") && down.contains("link"), "{down}");
        assert_eq!(left(&sandbox, &name), [""; 0]);
    }
}

/// A device whose reads, and size query if `asked`, take longer than any test.
struct Slow {
    /// File that is made when the size is queried, if that query has to hang.
    asked: Option<PathBuf>,
}

impl Device for Slow {
    fn size(&self) -> u64 {
        if let Some(file) = &self.asked {
            fs::write(file, "").unwrap();
            std::thread::sleep(LONG);
        }
        16 << 20
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(Self { asked: None })
    }

    fn extents(&self, _: u64, len: u64, _: usize) -> Result<Vec<Extent>, IoError> {
        Ok(vec![Extent { len, kind: ExtentKind::Hole }])
    }
}

impl Channel for Slow {
    fn submit(&mut self, request: Request<'_>, _: Instant) -> Result<(), IoError> {
        if let Request::Read { .. } = request {
            std::thread::sleep(LONG);
        }
        Ok(())
    }
}

/// The state of the server at its kill.
#[derive(Clone, Copy, PartialEq)]
enum Moment {
    /// It has its own file open.
    Open,
    /// Its loop device is being attached, and one of its threads is about to answer for that.
    Attaching,
    /// One of its threads reads its own file, and so waits for another thread.
    Waiting,
}

/// Serves `vol` in the run directory as a daemon does, with its lock, until this process is killed.
fn serve(moment: Moment, run_dir: &Path) {
    let lock = File::create(run_dir.join("vol.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let options = Options {
        name: "vol".into(),
        run_dir: run_dir.to_owned(),
        link_dir: run_dir.join("dev"),
        threads: 2,
        block_device: moment == Moment::Attaching,
        sector: ztier::device::Sector::Block,
        helper: Helper::Program(env!("CARGO_BIN_EXE_ztier").into()),
    };
    let ready = run_dir.join("ready");
    let asked = (moment == Moment::Attaching).then(|| ready.clone());
    let export = FuseLoop::start(Arc::new(Slow { asked }), options).unwrap();
    let own = File::open(export.file()).unwrap();
    fs::write(ready, "").unwrap();
    if moment == Moment::Waiting {
        let _ = own.read_at(&mut [0; 4096], 0);
    }
    std::thread::sleep(LONG);
}

/// The loop devices on files in a directory.
fn loops_in(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let (dir, all) = (dir.canonicalize().unwrap(), fs::read_dir("/sys/block").unwrap().flatten());
    all.map(|entry| entry.path()).filter(move |device| {
        let backing = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        Path::new(backing.trim()).starts_with(&dir)
    })
}

/// Aborts the FUSE connection that a failed test leaves, which ends all waits for it.
struct Abort(PathBuf);

impl Drop for Abort {
    fn drop(&mut self) {
        for left in traces("vol", &self.0, &self.0.join("dev")) {
            left.abort();
            let _ = left.remove();
        }
    }
}

/// A separate process that serves, killed at that moment.
fn killed(moment: Moment, run_dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stuck::a_process_that_waits_for_itself_is_cut_off_by_down"])
        .env("ZTIER_TEST_SERVE", run_dir)
        .env("ZTIER_TEST_MOMENT", (moment as u8).to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it serves", || run_dir.join("ready").exists());
    fs::remove_file(run_dir.join("ready")).unwrap();
    if moment == Moment::Waiting {
        // Waits until another thread has its request.
        let tasks = format!("/proc/{}/task", child.id());
        let wchan = |task: PathBuf| fs::read_to_string(task.join("wchan")).unwrap_or_default();
        eventually("it waits for itself", || {
            let mut tasks = fs::read_dir(&tasks).unwrap().flatten();
            tasks.any(|task| wchan(task.path()).contains("nanosleep"))
                || tasks.any(|task| wchan(task.path()).contains("hrtimer"))
        });
    }
    child.kill().unwrap();
    child
}

/// A daemon only opens, closes and attaches its own file. It dies all the same, because a close
/// sends it no request and a helper does the rest.
#[test]
fn a_process_that_serves_ends_at_once_when_it_is_killed() {
    if !has_fuse() {
        return;
    }
    for moment in [Moment::Open, Moment::Attaching] {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.run_dir()).unwrap();
        let abort = Abort(sandbox.run_dir());
        let mut child = killed(moment, &sandbox.run_dir());
        wait(&mut child);
        sandbox.ztier(&["down", "vol"]).ok();
        eventually("the helper has ended", || loops_in(sandbox.path()).next().is_none());
        drop(abort);
        fs::remove_dir_all(sandbox.run_dir()).unwrap();
    }
}

/// No daemon does this any more; even so, one command gets rid of it.
#[test]
fn a_process_that_waits_for_itself_is_cut_off_by_down() {
    if let Some(dir) = std::env::var_os("ZTIER_TEST_SERVE") {
        let moments = [Moment::Open, Moment::Attaching, Moment::Waiting];
        let moment: usize = std::env::var("ZTIER_TEST_MOMENT").unwrap().parse().unwrap();
        return serve(moments[moment], Path::new(&dir));
    }
    if !has_fuse() {
        return;
    }
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.run_dir()).unwrap();
    let _abort = Abort(sandbox.run_dir());
    let mut child = killed(Moment::Waiting, &sandbox.run_dir());
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it waits for itself");
    let down = sandbox.ztier(&["down", "vol"]);
    assert!(down.err.contains("its FUSE connection is aborted"), "{down:?}");
    assert!(down.ok().contains("FUSE mount"));
    wait(&mut child);
}
