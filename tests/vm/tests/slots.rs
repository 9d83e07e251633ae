//! Swap in a machine whose kernel tells which slots it frees: what programs leave behind becomes
//! free memory, pages stay right, and news of another area count for nothing.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::{Duration, Instant};
use support::{SOON, lab_of, nothing_left, ok, setup};
use ztier_vm::kernel::Flavour;
use ztier_vm::{Machine, Task};

/// The programs' memory, in MiB each. Their group has a third of it.
const EACH: u32 = 12;
const PROGRAMS: usize = 6;
/// Blocks that may be stored beyond the slots in use: of slots that were freed since the last look.
const BEYOND: u64 = 2000;
/// How long what is freed may take to be dropped.
const PATIENCE: Duration = Duration::from_secs(60);

/// Slots in use by programs, and blocks stored.
fn counts(machine: &Machine) -> (u64, u64) {
    let script = r#"
        used=$(awk 'END { print $4 }' /proc/swaps)
        text=$(ztier status v --json)
        number() { echo "$text" | grep -m 1 "\"$1\"" | tr -dc 0-9; }
        echo $used $(number ballast_bytes) $(number blocks_stored)"#;
    let text = ok(machine, script);
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [used_kib, ballast, stored] = numbers[..] else { panic!("{text}") };
    ((used_kib << 10).saturating_sub(ballast) >> 12, stored)
}

/// Waits until hardly more is stored than slots are in use.
#[track_caller]
fn dropped(machine: &Machine, when: &str) -> (u64, u64) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (used, stored) = counts(machine);
        if stored <= used + BEYOND {
            println!("{when}: {used} slots in use, {stored} blocks stored");
            return (used, stored);
        }
        let log = || ok(machine, "tail -n 20 /run/ztier/v.log");
        assert!(Instant::now() < until, "{when}: {used} in use, {stored} stored\n{}", log());
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Waits until the volume has the news for the `n`-th time.
#[track_caller]
fn follows(machine: &Machine, n: u32) {
    let script = format!(
        "for i in $(seq 400); do \
             [ $(grep -c 'freed swap slots are dropped' /run/ztier/v.log) -ge {n} ] && exit 0; \
             sleep 0.2; done; tail -n 20 /run/ztier/v.log; exit 1"
    );
    ok(machine, &script);
}

fn load(machine: &Machine, passes: &str) -> Task {
    let script = format!(
        "echo 0 >/sys/fs/cgroup/load/cgroup.procs; echo pid $$; \
         exec ztier-vm-pressure load {EACH} {passes}"
    );
    machine.begin(&script).unwrap()
}

fn end(machine: &Machine, load: Task) {
    let said = load.output();
    let pid = said.lines().find_map(|line| line.strip_prefix("pid ")).unwrap();
    ok(machine, &format!("kill {pid}"));
    assert_eq!(load.wait(SOON).unwrap().status, 128 + 15);
}

#[test]
fn blocks_of_freed_slots_are_dropped() {
    support::in_machines(|| {
        let programs = ["ztier", "ztier-vm-pressure"];
        let Some((lab, _turn)) = lab_of(Flavour::Full, &programs) else { return };
        let machine = setup(&lab).memory(512).cgroups().boot().unwrap();
        let group = u64::from(EACH) * PROGRAMS as u64 / 3;
        ok(
            &machine,
            &format!(
                "modprobe ublk_drv && \
             mkdir /sys/fs/cgroup/load && echo {group}M >/sys/fs/cgroup/load/memory.max && \
             ztier doctor | grep 'freed swap slots: the kernel can' && \
             ztier up v --size 256M --export ublk && ztier swapon v"
            ),
        );
        follows(&machine, 1);
        let mut loads: Vec<Task> = (0..PROGRAMS).map(|_| load(&machine, "")).collect();
        loads.iter().for_each(|load| load.wait_for("pass 1\n", SOON).unwrap());
        // Every second, so that what they leave is in between what stays.
        for n in (0..PROGRAMS / 2).rev() {
            end(&machine, loads.remove(2 * n));
        }
        let (used, _) = dropped(&machine, "half have ended");
        assert!(used > 2000, "hardly anything is swapped out");
        ok(&machine, "ztier restart v");
        follows(&machine, 2);
        restarted_area(&machine, &mut loads);
        loads.into_iter().for_each(|load| end(&machine, load));
        dropped(&machine, "all have ended");
        ok(&machine, "ztier swapoff v && ztier down v --discard && rmdir /sys/fs/cgroup/load");
        nothing_left(&machine);
        machine.off().unwrap();
    });
}

/// An area that ends and begins again without the daemon, with another one of its number meanwhile.
fn restarted_area(machine: &Machine, loads: &mut Vec<Task>) {
    ok(
        machine,
        "echo max >/sys/fs/cgroup/load/memory.max; swapoff /dev/ztier/v && \
         dd if=/dev/zero of=/tmp/other bs=1M count=128 2>/dev/null && \
         modprobe loop && losetup /dev/loop0 /tmp/other && mkswap /dev/loop0 >/dev/null && \
         swapon /dev/loop0",
    );
    // What the volume holds now is a file system's.
    ok(
        machine,
        "mkfs.ext4 -q -F /dev/ztier/v && mount /dev/ztier/v /mnt && \
         dd if=/dev/urandom of=/mnt/file bs=1M count=64 2>/dev/null && sync && \
         sha256sum /mnt/file >/tmp/sum",
    );
    ok(machine, "echo 24M >/sys/fs/cgroup/load/memory.max");
    loads.push(load(machine, "--passes 2"));
    loads.push(load(machine, "--passes 2"));
    for done in loads.drain(loads.len() - 2..) {
        assert_eq!(done.wait(SOON).unwrap().status, 0);
    }
    ok(
        machine,
        "umount /mnt && mount /dev/ztier/v /mnt && sha256sum -c /tmp/sum && umount /mnt && \
         echo max >/sys/fs/cgroup/load/memory.max && swapoff /dev/loop0 && \
         losetup -d /dev/loop0 && rm /tmp/other && \
         mkswap /dev/ztier/v >/dev/null && swapon -d /dev/ztier/v && \
         echo 24M >/sys/fs/cgroup/load/memory.max",
    );
    follows(machine, 3);
}
