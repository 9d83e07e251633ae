//! `ztier run` with cgroups of version 2 and swap by ublk: a program gets every byte back,
//! whichever process is killed meanwhile, and nothing is left behind. Also swap that comes and goes
//! below a busy program.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::Instant;
use support::{SOON, lab_with, nothing_left, ok, setup};
use ztier_vm::{Machine, Task};

/// A program that fills memory and compares all of it.
const LOAD: &str = "ztier-vm-pressure load";
/// The daemon's pid: the first number of that name, before the runner's.
const PID: &str = r#"$(grep -o '"pid":[0-9]*' /run/ztier/job.json | head -n 1 | cut -d : -f 2)"#;

/// The number that `ztier run` has recorded for `key`.
fn took(machine: &Machine, key: &str) -> u64 {
    let text = ok(machine, "cat /tmp/took");
    let line = text.lines().find(|line| line.contains(&format!("\"{key}\":")));
    let line = line.unwrap_or_else(|| panic!("{key}: {text}"));
    line.split_once(": ").unwrap().1.trim_end_matches(',').parse().unwrap()
}

/// Starts `ztier run` with 32 MiB for a load of `load` MiB; returns when it has swapped.
fn begin(machine: &Machine, load: &str) -> Task {
    begin_program(machine, &format!("{LOAD} {load}"))
}

/// Starts `ztier run` for a program that prints `filled` itself.
fn begin_program(machine: &Machine, program: &str) -> Task {
    let run = "exec ztier run --mem 32M --name job --export ublk --";
    let task = machine.begin(&format!("echo run $$; {run} {program}")).unwrap();
    if let Err(e) = task.wait_for("filled", SOON) {
        panic!("{e}: {}{}", task.output(), ok(machine, "dmesg | tail -n 60"));
    }
    task
}

/// The pid of a `ztier run`, which prints it first.
fn runner(task: &Task) -> String {
    let said = task.output();
    said.lines().find_map(|line| line.strip_prefix("run ")).unwrap().to_owned()
}

/// Nothing is left of any run: no volume, no swap, no cgroup, and the settings are as before.
#[track_caller]
fn all_gone(machine: &Machine) {
    nothing_left(machine);
    let look = "tail -n +2 /proc/swaps; ls -d /sys/fs/cgroup/ztier-* 2>&-; \
                cat /proc/sys/vm/page-cluster /proc/sys/vm/swappiness";
    assert_eq!(ok(machine, look), "3\n60\n");
}

/// The kernel has logged no lost page, no hung task and no kill for want of memory since the last
/// look. Devices may refuse writes, see `calmly`.
#[track_caller]
fn no_complaint(machine: &Machine, what: &str) {
    let bad = "i/o error|read-error on swap-device|blocked for|Killed";
    let found = ok(machine, &format!("dmesg -c >/tmp/log; grep -iE '{bad}' /tmp/log; true"));
    assert!(found.is_empty(), "{what}: {found}{}", ok(machine, "cat /tmp/log"));
}

#[test]
fn programs_get_every_byte_back_whatever_is_killed() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab_with(&["ztier", "ztier-vm-pressure"]) else { return };
        let machine = setup(&lab).memory(768).disk("below", 256 << 20).boot().unwrap();
        ok(&machine, "modprobe ublk_drv; mount -t cgroup2 none /sys/fs/cgroup");
        let step = |what: &str, step: fn(&Machine)| {
            let began = Instant::now();
            step(&machine);
            all_gone(&machine);
            no_complaint(&machine, what);
            println!("{what} in {:.1} s", began.elapsed().as_secs_f64());
        };
        step("twice the memory", twice_the_memory);
        step("slots freed", slots_freed);
        step("exit status and signals", status_and_signals);
        step("spilled", spilled);
        step("run killed", run_killed);
        step("daemon killed", daemon_killed);
        step("both killed", both_killed);
        step("swap moved", swap_moved);
        // Here the kernel does complain.
        swap_lost(&machine);
        all_gone(&machine);
        machine.off().unwrap();
    });
}

/// Runs a script that has to succeed; a second time if writes were refused, as they may be while
/// the real CPUs are taken away and the mempool is used up.
#[track_caller]
fn calmly(machine: &Machine, script: &str) -> String {
    let text = ok(machine, script);
    if took(machine, "no_space") == 0 { text } else { ok(machine, script) }
}

fn twice_the_memory(machine: &Machine) {
    let run = "ztier run --mem 64M --export ublk --json /tmp/took --";
    let text = calmly(machine, &format!("{run} {LOAD} 128 --passes 1"));
    assert!(text.contains("compared 32768 pages"), "{text}");
    let mib = 1 << 20;
    let peak = took(machine, "peak_bytes");
    assert!(peak > 48 * mib && peak <= 64 * mib, "{peak}");
    assert!(took(machine, "swapped_out_bytes") > 100 * mib);
    assert!(took(machine, "swapped_in_bytes") > 50 * mib);
    assert!(took(machine, "pressure_us") > 0);
    assert_eq!((took(machine, "oom_kills"), took(machine, "no_space")), (0, 0));
}

/// The kernel keeps no slots of pages that were read back, unless it is left alone.
fn slots_freed(machine: &Machine) {
    let wait_until = |what: &str| {
        format!(
            r#"for i in $(seq 800); do
                high=$(cat /sys/fs/cgroup/ztier-job.*/memory.swap.high)
                used=$(cat /sys/fs/cgroup/ztier-job.*/memory.swap.current)
                {what} && exit 0
                sleep 0.2
            done
            echo "$high $used"; exit 1"#
        )
    };
    for (flags, what) in [
        ("--ballast off", r#"[ "$high" = max ] && [ "$used" -gt 46137344 ]"#),
        ("", r#"[ "$high" != max ] && [ "$used" -lt 35651584 ]"#),
    ] {
        let run = format!("ztier run --mem 32M --swap-size 256M --name job {flags}");
        let task =
            machine.begin(&format!("echo run $$; exec {run} --export ublk -- {LOAD} 48")).unwrap();
        task.wait_for("pass 2\n", SOON).unwrap();
        ok(machine, &wait_until(what));
        ok(machine, &format!("kill -TERM {}", runner(&task)));
        assert_eq!(task.wait(SOON).unwrap().status, 128 + 15);
    }
}

fn status_and_signals(machine: &Machine) {
    let run = "ztier run --mem 16M --name job --export ublk -- ";
    let done = machine.run(&format!("{run} sh -c 'cat /proc/self/cgroup; exit 7'"), SOON).unwrap();
    assert!(done.status == 7 && done.text.contains("0::/ztier-job."), "{done:?}");
    let program = "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; \
                   while :; do sleep 0.05; done";
    let task = machine.begin(&format!("echo run $$; exec {run} sh -c \"{program}\"")).unwrap();
    task.wait_for("ready", SOON).unwrap();
    let pid = runner(&task);
    // Not by a restart: `ztier run` watches its daemon, and would take one that leaves for a dead
    // one.
    let refused = machine.run("ztier restart job", SOON).unwrap();
    assert!(refused.status == 4 && refused.text.contains("ztier run"), "{refused:?}");
    ok(machine, &format!("kill -USR1 {pid}"));
    task.wait_for("usr1", SOON).unwrap();
    ok(machine, &format!("kill -TERM {pid}"));
    let done = task.wait(SOON).unwrap();
    assert!(done.status == 9 && done.text.contains("term\n"), "{done:?}");
}

fn spilled(machine: &Machine) {
    let run = "ztier run --mem 32M --export ublk --ram-limit 12M --spill /disk/below";
    let script = format!("{run} --json /tmp/took -- {LOAD} 64 --passes 1 --noise 5");
    let text = calmly(machine, &script);
    assert!(text.contains("compared 16384 pages"), "{text}");
    assert!(took(machine, "spilled_bytes") > 4 << 20);
    assert!(took(machine, "store_peak_bytes") <= 12 << 20);
    assert_eq!((took(machine, "oom_kills"), took(machine, "no_space")), (0, 0));
}

fn run_killed(machine: &Machine) {
    let task = begin(machine, "48");
    ok(machine, &format!("kill -9 {}", runner(&task)));
    assert_eq!(task.wait(SOON).unwrap().status, 128 + 9);
}

fn daemon_killed(machine: &Machine) {
    let task = begin(machine, "48 --passes 2");
    ok(machine, &format!("kill -9 {PID}"));
    let done = task.wait(SOON).unwrap();
    assert!(done.text.contains("its daemon died; another goes on"), "{done:?}");
    assert!(done.status == 0 && done.text.contains("compared 24576 pages"), "{done:?}");
}

/// Starts several programs that swap. Without a daemon, the device's queue fills within a second
/// with pending pages, and the processes that wait for them can't be killed.
fn begin_several(machine: &Machine) -> Task {
    begin_program(machine, &format!("sh -c '{}wait'", format!("{LOAD} 16 & ").repeat(4)))
}

fn both_killed(machine: &Machine) {
    let task = begin_several(machine);
    // Stopped first, so that neither reacts to the other's end.
    ok(machine, &format!("kill -STOP {0}; kill -9 {PID}; sleep 1; kill -9 {0}", runner(&task)));
    assert_eq!(task.wait(SOON).unwrap().status, 128 + 9);
    let text = ok(machine, "ztier run --mem 16M --export ublk -- true");
    assert!(text.contains("job, an earlier run that was killed: removed"), "{text}");
}

/// Swapped-out memory is lost with the daemon and the memory holder: the program is killed.
fn swap_lost(machine: &Machine) {
    let task = begin_several(machine);
    // Looked up before: the names of other processes may be swapped out.
    let script = format!(
        r#"daemon={PID}
        for p in /proc/[0-9]*; do
            case $(tr '\0' ' ' <$p/cmdline 2>&-) in "ztier keeper job "*) keeper=${{p#/proc/}};; esac
        done
        kill -STOP $daemon {0}; kill -9 $keeper; kill -9 $daemon; sleep 1; kill -CONT {0}"#,
        runner(&task)
    );
    ok(machine, &script);
    let done = task.wait(SOON).unwrap();
    assert!(done.text.contains("died, with what was swapped out"), "{done:?}");
    assert_eq!(done.status, 128 + 9, "{done:?}");
}

/// Swap is taken away below a busy program: its content comes back, and goes to the next swap.
fn swap_moved(machine: &Machine) {
    ok(
        machine,
        "for n in one two; do ztier up $n --size 128M --export ublk || exit 1; done; \
         ztier swapon one --priority 9; mkdir /sys/fs/cgroup/load; \
         echo 32M >/sys/fs/cgroup/load/memory.max",
    );
    let script = format!("echo 0 >/sys/fs/cgroup/load/cgroup.procs; exec {LOAD} 40");
    let load = machine.begin(&script).unwrap();
    load.wait_for("pass 1\n", SOON).unwrap();
    let limit = |most: &str| ok(machine, &format!("echo {most} >/sys/fs/cgroup/load/memory.max"));
    for (old, new) in [("one", "two"), ("two", "one")] {
        ok(machine, &format!("ztier swapon {new} --priority 5"));
        // The kernel gives up where returning pages have no room at once.
        limit("max");
        let text = ok(machine, &format!("ztier swapoff {old}"));
        assert!(text.contains("is no swap any more"), "{text}");
        limit("32M");
        let passes = |text: &str| text.lines().filter(|line| line.starts_with("pass")).count();
        let next = passes(&load.output()) + 1;
        load.wait_for(&format!("pass {next}\n"), SOON).unwrap();
        assert!(took_part(machine, new), "nothing went to {new}");
    }
    ok(machine, "kill $(cat /sys/fs/cgroup/load/cgroup.procs)");
    assert_eq!(load.wait(SOON).unwrap().status, 128 + 15, "{}", load.output());
    ok(machine, "rmdir /sys/fs/cgroup/load && ztier down one && ztier down two --discard");
}

/// Whether much was written to a volume.
fn took_part(machine: &Machine, name: &str) -> bool {
    let text = ok(machine, &format!("ztier stats {name} --format zram | head -n 1"));
    text.split_whitespace().next().unwrap().parse::<u64>().unwrap() > 4 << 20
}
