//! A machine whose memory, swap and spill device are all full: the administrator is warned before,
//! the kernel ends the load and nothing else, and no process beside it waits for long.
//!
//! `ZTIER_VM_WAIT` sets how many seconds such a process may wait: 2 is to hold on a quiet machine.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::Duration;
use support::{SOON, lab_with, nothing_left, ok, setup, stolen, times};
use ztier_vm::Machine;

/// What is written down when memory and swap are nearly full.
const HOOK: &[u8] = b"#!/bin/sh
echo $ZTIER_VOLUME $ZTIER_EVENT $((ZTIER_ROOM_BYTES >> 20)) $(cat /proc/self/oom_score_adj) \\
    >>/tmp/events
";
/// The longest that a process beside the load may wait, beside other work of this machine.
const LONGEST: u32 = 60;
/// How often that is tried.
const ROUNDS: usize = 3;
/// Room, in MiB, of which there must be a warning.
const EARLY: u64 = 24;

/// The longest waits of the probe for memory and for a file, in ms.
fn longest(text: &str) -> [u64; 2] {
    ["memory ", "file "].map(|kind| {
        let of_kind = text.lines().filter_map(|line| line.strip_prefix(kind));
        of_kind.map(|number| number.parse::<u64>().unwrap()).max().unwrap()
    })
}

/// Fills the machine twice beside a probe. Returns the longest wait of the probe.
fn round(machine: &Machine) -> Duration {
    let script = "rm -f /tmp/end /tmp/events; (while [ ! -e /tmp/end ]; do sleep 0.2; done) | \
                  ztier-vm-pressure probe /mnt/probe";
    let (probe, before) = (machine.begin(script).unwrap(), stolen());
    for n in 1..=2 {
        fill(machine);
        told(machine, "over");
        let told = events(machine);
        let full: Vec<_> = told.iter().filter(|(what, _)| what == "full").collect();
        assert!(full.len() >= n && full.iter().all(|(_, room)| *room >= EARLY), "{told:?}");
    }
    ok(machine, "touch /tmp/end");
    let text = probe.wait(SOON).unwrap().ok().unwrap();
    println!("longest waits for memory and for a file: {:?} ms", longest(&text));
    let most = longest(&text).into_iter().max().unwrap();
    // Time that the processors of this machine were taken away was lost to the emulated ones.
    Duration::from_millis(most.saturating_sub(stolen().saturating_sub(before)))
}

/// Fills the machine until the kernel ends the load.
fn fill(machine: &Machine) {
    let load = machine.begin("exec ztier-vm-pressure load 900 --noise 8").unwrap();
    let done = load.wait(SOON).unwrap();
    assert_eq!(done.status, 128 + 9, "{done:?}");
}

/// The events so far: what, and the room in MiB.
fn events(machine: &Machine) -> Vec<(String, u64)> {
    let text = ok(machine, "cat /tmp/events 2>&-; true");
    let event = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        // The kernel may end it, unlike the daemon.
        assert_eq!((words[0], words[3]), ("v", "0"), "{text}");
        (words[1].to_owned(), words[2].parse().unwrap())
    };
    text.lines().map(event).collect()
}

/// Waits until the last event is `what`.
#[track_caller]
fn told(machine: &Machine, what: &str) {
    ok(
        machine,
        &format!(
            "for i in $(seq 150); do tail -n 1 /tmp/events | grep -q '^v {what} ' && exit 0; \
             sleep 0.2; done; cat /tmp/events; tail /run/ztier/v.log; exit 1"
        ),
    );
}

#[test]
fn a_full_machine_warns_ends_the_load_alone_and_goes_on() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab_with(&["ztier", "ztier-vm-pressure"]) else { return };
        let setup = setup(&lab).memory(512).disk("below", 96 << 20).disk("other", 32 << 20);
        let machine = setup.file("/usr/local/bin/hook", HOOK).boot().unwrap();
        ok(
            &machine,
            "modprobe ublk_drv && echo 1 >/proc/sys/vm/overcommit_memory && \
         echo 60 >/proc/sys/kernel/hung_task_timeout_secs && \
         mkfs.ext4 -q /disk/other && mount /disk/other /mnt && \
         ztier up v --size 256M --ram-limit 48M --spill /disk/below --export ublk && \
         ztier swapon v --on-full /usr/local/bin/hook",
        );
        // Real processors may be taken away for a moment.
        let mut most = vec![round(&machine)];
        let limit = Duration::from_secs(times("ZTIER_VM_WAIT", LONGEST).into());
        while most.last().is_some_and(|most| *most > limit) && most.len() < ROUNDS {
            most.push(round(&machine));
        }
        assert!(most.last().is_some_and(|most| *most <= limit), "{most:?}");
        let killed = ok(&machine, "dmesg | grep -o 'Out of memory: Killed process.*([^)]*)'; true");
        assert!(killed.lines().count() >= 2 && killed.lines().all(|line| line.ends_with("(load)")));
        assert_eq!(ok(&machine, "dmesg | grep -E 'blocked for more|I/O error'; true"), "");
        let log = ok(&machine, "cat /run/ztier/v.log");
        let said = "memory and swap are nearly full: there is room for";
        assert!(log.contains(said) && log.contains("over: the machine's memory"), "{log}");
        ok(&machine, "ztier status v --json | grep '\"swap_nearly_full\": false'");
        ok(&machine, "umount /mnt && ztier swapoff v && ztier down v --discard");
        nothing_left(&machine);
        machine.off().unwrap();
    });
}
