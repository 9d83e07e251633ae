//! A machine that is short of memory as a whole, with a ublk volume as its swap: a load of twice
//! its memory compares every byte, a probe beside it makes progress, and the kernel reports no hung
//! task. `tests/vm/pressure` does this for ten minutes.
//!
//! `ZTIER_VM_PRESSURE` sets the duration in seconds; by default 15. A load that is too slow to swap
//! in during that time runs again, for twice as long (15, 30, 60, 120 s).
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::Duration;
use support::{lab_with, nothing_left, setup, times};

#[test]
fn a_machine_short_of_memory_stands_twice_its_memory() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab_with(&["ztier", "ztier-vm-pressure"]) else { return };
        if !lab.image.has("stress-ng") {
            println!("skipped: no stress-ng");
            return;
        }
        let machine =
            setup(&lab).memory(512).disk("other", 64 << 20).disk("spill", 1 << 30).boot().unwrap();
        let seconds = times("ZTIER_VM_PRESSURE", 15);
        let script = format!(
            "modprobe ublk_drv; mkfs.ext4 -q /disk/other && mount /disk/other /mnt && \
         exec ztier-vm-pressure stress --over machine --seconds {seconds} --export ublk \
         --spill /disk/spill --file /mnt/probe"
        );
        let patience = Duration::from_secs(u64::from(seconds) + 700);
        let done = machine.run(&script, patience).unwrap_or_else(|e| panic!("{e}"));
        print!("{}", done.text);
        // On the panic's first line, which a list of failures shows.
        let wrongs: Vec<_> = done.text.lines().filter(|line| line.contains("wrong: ")).collect();
        assert!(done.status == 0, "status {}: {wrongs:?}\n{}", done.status, done.text);
        nothing_left(&machine);
        machine.off().unwrap();
    });
}
