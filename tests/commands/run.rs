//! `ztier run`: a program with little memory and swap below it; its resources, their return, and
//! that nothing is left, however the program ends.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::machine::Turn;
use crate::support::sandbox::{Done, Guard, Sandbox, eventually, finish, finish_within};
use crate::support::shell::missing;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use ztier::kernel_text::kernel_text;

/// The MiB that [`load`] fills and compares, its number of passes, 1 for noise, and the
/// milliseconds that it pauses after each MiB; if set, this test binary is the program.
const LOAD: &str = "ZTIER_TEST_LOAD";

/// No test by itself: fills memory with noise or with pages that compress to half, and compares it.
#[test]
fn load() {
    let Ok(text) = std::env::var(LOAD) else { return };
    let words: Vec<usize> = text.split(' ').map(|word| word.parse().unwrap()).collect();
    let (mib, passes, noise, pause) = (words[0], words[1], words[2], words[3]);
    let page = |n: u64, pass: u64| {
        let mut state = (n << 8 | pass).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        std::array::from_fn::<u64, 512, _>(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if noise == 1 || i % 2 == 0 { state } else { n }
        })
    };
    let mut memory = vec![[0; 512]; mib << 8];
    for pass in 0..passes as u64 {
        for (n, here) in memory.iter_mut().enumerate() {
            let n = n as u64;
            assert!(pass == 0 || *here == page(n, pass - 1), "page {n} in pass {pass}");
            *here = page(n, pass);
            if pause > 0 && n % 256 == 255 {
                std::thread::sleep(Duration::from_millis(pause as u64));
            }
        }
    }
}

/// A sandbox, and the right to swap; `None` where programs can't run like this.
fn place() -> Option<(Turn, Sandbox)> {
    let sandbox = Sandbox::new();
    if missing(&["mkswap", "swapon", "swapoff"]) {
        return None;
    }
    let turn = Turn::wait();
    let tried = sandbox.ztier(&["run", "--mem", "16M", "--", "true"]);
    let lacks = ["cgroup", "no swap can be made", "lock memory", "swapon"];
    if tried.status == 1 && lacks.iter().any(|what| tried.err.contains(what)) {
        println!("skipped: {}", tried.err.trim().replace('\n', "; "));
        return None;
    }
    tried.ok();
    Some((turn, sandbox))
}

/// A command that runs [`load`].
fn loaded(sandbox: &Sandbox, flags: &[&str], load: &str) -> Command {
    let own = std::env::current_exe().unwrap();
    let program = ["--", own.to_str().unwrap(), "--exact", "run::load", "--nocapture"];
    let mut command = sandbox.command(&[&["run"], flags, &program].concat());
    command.env(LOAD, load);
    command
}

/// Runs [`load`] to its success, and returns its record. Where a processor is taken away for a
/// moment, the mempool is exhausted and writes are refused, as users of swap must expect: then the
/// load runs again, twice at most.
fn measured(sandbox: &Sandbox, flags: &[&str], load: &str, json: &Path) -> (Done, Value) {
    let run = || {
        let done = finish_within(loaded(sandbox, flags, load), Duration::from_secs(120));
        assert_eq!(done.status, 0, "{done:?}");
        (done, serde_json::from_slice::<Value>(&fs::read(json).unwrap()).unwrap())
    };
    (0..2).map(|_| run()).find(|(_, took)| took["no_space"] == 0).unwrap_or_else(run)
}

/// Starts a command and waits for its first line of output.
fn begun(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "it has printed nothing");
    child
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The cgroup of a volume's job.
fn cgroup(sandbox: &Sandbox, name: &str) -> PathBuf {
    PathBuf::from(sandbox.status(name)["job"]["cgroup"].as_str().unwrap())
}

/// Nothing is left of any run: no volumes, no swap, no settings.
#[track_caller]
fn nothing_left(turn: &Turn, sandbox: &Sandbox) {
    // A daemon that ends on its own removes its lock last.
    eventually("all volumes are gone", || {
        sandbox.ztier(&["list", "--json"]).looked().trim() == "[]" && sandbox.files().is_empty()
    });
    assert!(turn.is_as_before());
    let run = sandbox.run_dir();
    let mounts = kernel_text("/proc/mounts").unwrap();
    assert!(!mounts.contains(run.to_str().unwrap()), "{mounts}");
}

#[test]
fn a_program_is_swapped_and_gets_every_byte_back() {
    let Some((turn, sandbox)) = place() else { return };
    let json = sandbox.path().join("took.json");
    let flags = ["--mem", "32M", "--swap-size", "128M", "--name", "job", "--json"];
    let flags = [&flags[..], &[json.to_str().unwrap()]].concat();
    let (done, took) = measured(&sandbox, &flags, "64 4 0 0", &json);
    let said = done.err.lines().next().unwrap();
    assert!(said.contains("job: 32 MiB for the program; 128 MiB of swap by"), "{said}");
    assert!(said.contains("swap is the whole machine's"), "{said}");
    let number = |key: &str| took[key].as_u64().unwrap_or_else(|| panic!("{key}: {took}"));
    let mib = 1 << 20;
    assert_eq!((number("exit_status"), number("mem_limit_bytes")), (0, 32 * mib));
    assert!(number("peak_bytes") <= 32 * mib && number("peak_bytes") > 24 * mib, "{took}");
    assert!(number("swapped_out_bytes") > 64 * mib && number("swapped_in_bytes") > 64 * mib);
    let (most, to) = (number("swapped_most_bytes"), number("compressed_bytes"));
    // Half of each page is noise.
    assert!(most > 24 * mib && to > most * 4 / 10 && to < most * 8 / 10, "{took}");
    assert!(
        number("store_peak_bytes") > to && number("store_peak_bytes") < number("ram_limit_bytes")
    );
    assert_eq!((number("oom_kills"), number("no_space"), number("spilled_bytes")), (0, 0, 0));
    assert!(took["serving_seconds"].as_f64().unwrap() > 0.0);
    nothing_left(&turn, &sandbox);
}

/// Runs a program with 32 MiB on swap that may spill to a file, with this limit.
fn spilling(sandbox: &Sandbox, limit: &str) -> (Done, Value) {
    let (json, below) = (sandbox.path().join("took.json"), sandbox.path().join("below"));
    fs::File::create(&below).unwrap().set_len(128 << 20).unwrap();
    let spill = below.to_str().unwrap();
    let flags = ["--mem", "32M", "--swap-size", "128M", "--ram-limit", limit, "--spill", spill];
    let flags = [&flags[..], &["--json", json.to_str().unwrap()]].concat();
    measured(sandbox, &flags, "80 3 0 0", &json)
}

#[test]
fn what_memory_has_no_room_for_is_spilled_and_comes_back() {
    let Some((turn, sandbox)) = place() else { return };
    // Each thread that serves the device has buffers of 2 MiB.
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 16));
    let limit = 12 + 2 * threads as u64;
    // A second time with another name: the file is not reserved for the first one.
    for _ in 0..2 {
        let (_, took) = spilling(&sandbox, &format!("{limit}M"));
        let number = |key: &str| took[key].as_u64().unwrap_or_else(|| panic!("{key}: {took}"));
        assert!(number("spilled_bytes") > 4 << 20, "{took}");
        assert!(number("store_peak_bytes") <= limit << 20, "{took}");
        assert_eq!((number("oom_kills"), number("no_space")), (0, 0), "{took}");
    }
    nothing_left(&turn, &sandbox);
}

#[test]
fn a_limit_that_adapts_begins_with_what_the_machine_can_spare() {
    let Some((turn, sandbox)) = place() else { return };
    let (done, took) = spilling(&sandbox, "auto");
    assert!(done.err.lines().next().unwrap().contains("beside it, as it adapts"), "{done:?}");
    let limit = took["ram_limit_bytes"].as_u64().unwrap();
    // At least an eighth of the swap, and more if the machine can spare it.
    assert!((16 << 20..192 << 20).contains(&limit), "{took}");
    assert_eq!((&took["oom_kills"], &took["no_space"]), (&0.into(), &0.into()), "{took}");
    nothing_left(&turn, &sandbox);
}

/// The processes with ballast for the volume `name`.
fn holders(name: &str) -> usize {
    let procs = fs::read_dir("/proc").unwrap().flatten();
    let comms = procs.filter_map(|process| fs::read_to_string(process.path().join("comm")).ok());
    comms.filter(|comm| comm.trim_end() == format!("zballast:{name}")).count()
}

/// Runs a program that goes over 96 MiB of its memory, of which 64 MiB fit, until `enough` of the
/// volume's status holds.
fn going_over(sandbox: &Sandbox, name: &str, flags: &[&str], enough: impl Fn(&Value) -> bool) {
    let flags = [&["--mem", "64M", "--swap-size", "512M", "--name", name], flags].concat();
    let mut command = loaded(sandbox, &flags, "96 1000 0 0");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("it is up", || sandbox.ztier(&["status", name]).status == 0);
    let mut last = Value::Null;
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !enough(&last) {
        assert!(std::time::Instant::now() < end && child.try_wait().unwrap().is_none(), "{last}");
        last = sandbox.status(name);
    }
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn slots_are_freed_when_their_pages_are_back() {
    let Some((turn, sandbox)) = place() else { return };
    let swaps = kernel_text("/proc/swaps").unwrap();
    if swaps.lines().count() > 1 {
        println!("skipped: this machine has other swap: {swaps}");
        return;
    }
    let bytes = |status: &Value| status["stats"]["orig_data_bytes"].as_u64().unwrap_or(0) >> 20;
    let read = |status: &Value| status["stats"]["read"]["bytes"].as_u64().unwrap_or(0) >> 20;
    // Without ballast nearly all pages are stored, also those that are in memory.
    going_over(&sandbox, "off", &["--ballast", "off"], |status| {
        assert!(status["ballast_bytes"].as_u64().unwrap_or(0) == 0, "{status}");
        bytes(status) > 88
    });
    // With it, or with a limit of the cgroup, those that are not, and freed ones whose places are
    // not overwritten yet.
    going_over(&sandbox, "auto", &[], |status| {
        let Some(group) = status["job"]["cgroup"].as_str() else { return false };
        let there = match fs::read_to_string(Path::new(group).join("memory.swap.high")) {
            Ok(high) => high.trim() != "max",
            Err(_) => status["ballast_bytes"].as_u64().unwrap() > 0 && holders("auto") == 1,
        };
        there && read(status) > 200 && bytes(status) < 70
    });
    assert_eq!(holders("auto"), 0);
    nothing_left(&turn, &sandbox);
}

#[test]
fn ballast_gives_way_to_pages() {
    let Some((turn, sandbox)) = place() else { return };
    let json = sandbox.path().join("took.json");
    // At first half of the 128 MiB are ballast, in the end hardly any are free.
    let flags = ["--mem", "32M", "--swap-size", "128M", "--json", json.to_str().unwrap()];
    let (done, took) = measured(&sandbox, &flags, "140 2 0 0", &json);
    assert_eq!(took["oom_kills"], 0, "{done:?}: {took}");
    // Not all kernels report it.
    let peak = took["swap_peak_bytes"].as_u64();
    assert!(peak.is_none_or(|bytes| bytes > 100 << 20), "{took}");
    let peaks = ["with_store_peak_bytes", "without_swap_peak_bytes"];
    let [with, without] = peaks.map(|key| took[key].as_u64().unwrap());
    assert!(with > 32 << 20 && without > 140 << 20 && without < 150 << 20, "{took}");
    nothing_left(&turn, &sandbox);
}

#[test]
fn stress_ng_finds_no_wrong_byte() {
    let Some((turn, sandbox)) = place() else { return };
    if missing(&["stress-ng"]) {
        return;
    }
    let seconds = std::env::var("ZTIER_SWAP_SECONDS").unwrap_or_else(|_| "6".into());
    let patience = Duration::from_secs(60 + 2 * seconds.parse::<u64>().unwrap());
    // Twice the memory. The program populates all of it at once now and then, which kernels under a
    // limit answer by ending it, on any swap; it starts again then.
    let args = [
        "run",
        "--mem",
        "64M",
        "--swap-size",
        "256M",
        "--",
        "stress-ng",
        "--vm",
        "2",
        "--vm-bytes",
        "128M",
        "--vm-keep",
        "--verify",
        "--timeout",
        &seconds,
        "--temp-path",
        sandbox.path().to_str().unwrap(),
    ];
    let done = finish_within(sandbox.command(&args), patience);
    assert_eq!(done.status, 0, "{done:?}");
    assert!(done.err.contains("successful run") && !done.err.contains("fail:"), "{done:?}");
    assert!(!done.err.contains("store full"), "{done:?}");
    let said = done.err.lines().filter(|l| l.starts_with("swapped") || l.starts_with("compressed"));
    println!("{}", said.collect::<Vec<_>>().join("; "));
    nothing_left(&turn, &sandbox);
}

#[test]
fn exit_statuses_are_the_program_s() {
    let Some((turn, sandbox)) = place() else { return };
    let run = |program: &[&str]| sandbox.ztier(&[&["run", "--mem", "16M", "--"], program].concat());
    let done = run(&["sh", "-c", "echo out; exit 7"]);
    assert_eq!((done.status, done.out.as_str()), (7, "out\n"), "{done:?}");
    assert!(done.err.contains("exit status        7 after"), "{done:?}");
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status, 128 + 9);
    let done = run(&["/no/such program"]);
    assert!(done.status == 127 && done.err.contains("cannot run /no/such program: No such file"));
    let done = run(&["/etc/passwd"]);
    assert!(done.status == 126 && done.err.contains("cannot run /etc/passwd: Permission denied"));
    // Processes that the program leaves running are ended.
    let done = run(&["sh", "-c", "sleep 1000 & exit 3"]);
    assert!(done.status == 3 && done.err.contains("1 processes that the program left"), "{done:?}");
    nothing_left(&turn, &sandbox);
}

/// Whether this process, and so its children, ignores a signal.
fn ignores(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(set, 16).unwrap() & 1 << (signal.as_raw() - 1) != 0
}

#[test]
fn signals_reach_the_program() {
    let Some((turn, sandbox)) = place() else { return };
    let script = "trap 'echo hup' HUP; trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; \
                  trap '' INT; echo ready; while :; do sleep 0.05; done";
    let args = ["run", "--mem", "16M", "--", "sh", "-c", script];
    let mut child =
        sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "ready");
    let send = |signal| kill_process(pid(&child), signal).unwrap();
    send(Signal::INT);
    send(Signal::USR1);
    assert_eq!(next(), "usr1");
    // No shell can trap a signal that is ignored from the beginning, as below `nohup`.
    if ignores(Signal::HUP) {
        println!("skipped: SIGHUP is ignored here");
    } else {
        send(Signal::HUP);
        assert_eq!(next(), "hup");
    }
    let state = |pid: Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    send(Signal::TSTP);
    eventually("it is stopped", || state(pid(&child)));
    send(Signal::CONT);
    eventually("it goes on", || !state(pid(&child)));
    send(Signal::USR1);
    assert_eq!(next(), "usr1");
    send(Signal::TERM);
    assert_eq!(next(), "term");
    assert_eq!(child.wait().unwrap().code(), Some(9));
    nothing_left(&turn, &sandbox);
}

#[test]
fn a_run_that_is_killed_leaves_nothing() {
    let Some((turn, sandbox)) = place() else { return };
    let args = ["run", "--mem", "16M", "--name", "job", "--", "sh", "-c", "echo ready; sleep 1000"];
    let mut child = begun(sandbox.command(&args));
    let group = cgroup(&sandbox, "job");
    assert!(group.is_dir());
    // No other command takes the volume away meanwhile.
    sandbox.ztier(&["down", "job"]).refused(4, &["is that of `ztier run`", "end that"]);
    sandbox.ztier(&["swapoff", "job"]).refused(4, &["is that of `ztier run`"]);
    sandbox.ztier(&["restart", "job"]).refused(4, &["is that of `ztier run`"]);
    kill_process(pid(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    nothing_left(&turn, &sandbox);
    assert!(!group.exists());
}

#[test]
fn after_run_and_daemon_were_killed_the_next_run_cleans_up() {
    let Some((turn, sandbox)) = place() else { return };
    let args = ["run", "--mem", "16M", "--name", "job", "--", "sh", "-c", "echo ready; sleep 1000"];
    let mut child = begun(sandbox.command(&args));
    let group = cgroup(&sandbox, "job");
    // Stopped, so that it does not see its daemon die.
    kill_process(pid(&child), Signal::STOP).unwrap();
    sandbox.kill("job");
    kill_process(pid(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert!(group.is_dir());
    let done = sandbox.ztier(&["run", "--mem", "16M", "--", "true"]);
    assert!(done.err.contains("job, an earlier run that was killed: removed"), "{done:?}");
    done.ok();
    nothing_left(&turn, &sandbox);
    assert!(!group.exists());
}

/// Names are unique in one run directory; with several run directories, also in containers, they
/// share the machine's cgroups.
#[test]
fn another_run_of_the_same_name_is_left_alone() {
    let Some((turn, sandbox)) = place() else { return };
    let args = ["run", "--mem", "16M", "--name", "job", "--", "sh", "-c", "echo ready; sleep 1000"];
    let mut child = begun(sandbox.command(&args));
    let group = cgroup(&sandbox, "job");
    let members = || fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let before = members();
    // There is only one link with that name.
    let other = Sandbox::new();
    let done = other.ztier(&["run", "--mem", "16M", "--name", "job", "--", "true"]);
    assert!(done.status == 4 && done.err.contains("/dev/ztier/job"), "{done:?}");
    assert!(!before.is_empty() && members() == before, "{done:?}");
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    nothing_left(&turn, &sandbox);
    nothing_left(&turn, &other);
}

#[test]
fn cgroups_that_the_program_has_made_go_with_it() {
    let Some((turn, sandbox)) = place() else { return };
    let args =
        ["run", "--mem", "16M", "--name", "job", "--", "sh", "-c", "echo ready; exec sleep 60"];
    let mut command = sandbox.command(&args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let group = cgroup(&sandbox, "job");
    // As a container's runtime makes them.
    let inner = group.join("runtime/container");
    fs::create_dir_all(&inner).unwrap();
    let mut left = Guard(Command::new("sleep").arg("60").spawn().unwrap());
    fs::write(inner.join("cgroup.procs"), left.0.id().to_string()).unwrap();
    kill_process(pid(&child), Signal::TERM).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(left.0.try_wait().unwrap().is_some(), "{said}");
    assert!(said.contains("1 processes that the program left were ended"), "{said}");
    assert_eq!(out.status.code(), Some(128 + 15), "{said}");
    nothing_left(&turn, &sandbox);
    assert!(!group.exists());
}

#[test]
fn without_its_daemon_the_program_is_ended() {
    let Some((turn, sandbox)) = place() else { return };
    let args = ["run", "--mem", "16M", "--name", "job", "--export", "fuse", "--", "sh", "-c"];
    let args = [&args[..], &["echo ready; sleep 1000"]].concat();
    let mut command = sandbox.command(&args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    kill_process(sandbox.pid("job"), Signal::KILL).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(128 + 9), "{said}");
    assert!(said.contains("daemon of volume `job` died"), "{said}");
    nothing_left(&turn, &sandbox);
}

#[test]
fn when_all_is_full_the_program_is_ended_and_nothing_hangs() {
    let Some((turn, sandbox)) = place() else { return };
    let flags = ["--mem", "32M", "--swap-size", "256M", "--ram-limit", "32M"];
    // The swap is large enough, but the content does not compress. While other programs take all
    // processors, the kernel may end the program before the first pages are stored.
    let attempt =
        || finish_within(loaded(&sandbox, &flags, "100 2 1 20"), Duration::from_secs(100));
    let mut attempts = std::iter::repeat_with(attempt).take(3).inspect(|done| {
        assert!(done.status == 128 + 9 && done.err.contains("out of memory"), "{done:?}");
    });
    assert!(attempts.any(|done| done.err.contains("store full")), "it never was");
    // The swap is too small: for the zeros with which the load begins, which the kernel does not
    // write. It charges pages in batches, and each processor keeps 2 MiB of slots for itself.
    let json = sandbox.path().join("took.json");
    let flags = [&flags[..], &["--json", json.to_str().unwrap()]].concat();
    let attempt = || {
        let done = finish_within(loaded(&sandbox, &flags, "160 2 1 0"), Duration::from_secs(100));
        let took: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        assert_eq!(done.status, 128 + 9, "{took}: {done:?}");
        assert!(done.err.contains("swap is 96 MiB of its 256 MiB"), "{done:?}");
        assert!(took["oom_kills"].as_u64() > Some(0), "{took}");
        took
    };
    let mib = |took: &Value, key: &str| took[key].as_u64().unwrap_or_default() >> 20;
    let is_full = |took: &Value| {
        mib(took, "peak_bytes") >= 31 && (88..=97).contains(&mib(took, "swap_peak_bytes"))
    };
    // As above: not every attempt gets there.
    let mut took = std::iter::repeat_with(attempt).take(3).inspect(|took| println!("{took}"));
    assert!(took.any(|took| is_full(&took)), "swap was never full");
    nothing_left(&turn, &sandbox);
}

#[test]
fn without_a_cgroup_nothing_is_left() {
    let Some((turn, sandbox)) = place() else { return };
    if missing(&["unshare", "mount"]) {
        return;
    }
    let ztier = sandbox.command(&["run", "--mem", "64M", "--", "true"]);
    for (change, said) in [
        ("mount -o remount,bind,ro", "Read-only file system"),
        ("umount -l", "no cgroup here has a memory controller"),
    ] {
        let groups = r#"$(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts)"#;
        let script = format!("for m in {groups}; do {change} $m; done; exec \"$0\" \"$@\"");
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", &script]).arg(ztier.get_program());
        shell.args(ztier.get_args()).envs(ztier.get_envs().filter_map(|(k, v)| Some((k, v?))));
        let done = finish(shell);
        assert_eq!(done.status, 1, "{done:?}");
        let last = done.err.lines().last().unwrap();
        assert!(last.starts_with("ztier: ") && last.contains(said) && last.contains(';'), "{last}");
        nothing_left(&turn, &sandbox);
    }
}

#[test]
fn what_can_not_be_is_one_line() {
    let sandbox = Sandbox::new();
    let run = |args: &[&str]| -> Done { sandbox.ztier(&[&["run"], args].concat()) };
    run(&["--mem", "1K", "--", "true"]).refused(2, &["mem 0 B is less", "at least 4 MiB"]);
    run(&["--mem", "64M"]).refused(2, &["PROGRAM"]);
    run(&["--", "true"]).refused(2, &["--mem"]);
    run(&["--mem", "64M", "--swap-size", "5000", "--", "true"]).refused(2, &["4096"]);
    run(&["--mem", "64M", "--swap-size", "16T", "--", "true"]).refused(1, &["can spare"]);
    run(&["--mem", "64M", "--name", "a/b", "--", "true"]).refused(2, &["a/b"]);
    assert_eq!(sandbox.files(), Vec::<String>::new());
    if rustix::process::geteuid().is_root() && !missing(&["setpriv"]) {
        let open = tempfile::Builder::new().prefix("ztier-").tempdir().unwrap();
        let own = open.path().join("ztier");
        fs::copy(env!("CARGO_BIN_EXE_ztier"), &own).unwrap();
        let everyone = |path: &std::path::Path, mode| {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        everyone(open.path(), 0o777);
        everyone(&own, 0o755);
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"])
            .arg(&own)
            .args(["run", "--mem", "64M", "--", "true"])
            .env("ZTIER_RUN_DIR", open.path().join("run"))
            .env("ZTIER_CONFIG_DIR", open.path())
            .env("ZTIER_STATE_DIR", open.path());
        finish(command).refused(1, &["as root"]);
        assert!(!open.path().join("run").exists());
    }
}
