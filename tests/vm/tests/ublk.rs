//! The ublk export on the kernel's own driver: devices that come and go, file systems, fio's
//! verifier with discards, daemons that are killed and replaced while their device is in use.
//!
//! `ZTIER_VM_ROUNDS` says how often devices come and go (by default 100), `ZTIER_VM_KILLS` how many
//! daemons are killed (20), `ZTIER_VM_RESTARTS` how many are replaced (4).
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::{Duration, Instant};
use support::{SOON, lab, nothing_left, ok, refused, setup, times};
use ztier_vm::{Lab, Machine, Task};

fn boot(lab: &Lab) -> Machine {
    let machine = setup(lab).memory(768).boot().unwrap();
    ok(&machine, "modprobe ublk_drv");
    machine
}

/// What a device that is gone may have left: open files, processes, memory that nobody gives back.
#[derive(Debug)]
struct Held {
    files: i64,
    processes: i64,
    /// KiB, without what the kernel can take back.
    memory: i64,
}

impl Held {
    fn now(machine: &Machine) -> Self {
        let script = "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 0.3; \
                      cut -f 1 /proc/sys/fs/file-nr; ls -d /proc/[0-9]* | wc -l; \
                      sed -n 's/^MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo";
        let text = ok(machine, script);
        let numbers: Vec<i64> = text.lines().map(|line| line.parse().unwrap()).collect();
        Self { files: numbers[0], processes: numbers[1], memory: -numbers[2] }
    }
}

#[test]
fn devices_come_and_go_without_a_trace() {
    let Some((lab, _turn)) = lab() else { return };
    let machine = boot(&lab);
    refused(&machine, "rmmod ublk_drv && ztier up u --size 64M --export ublk", "modprobe ublk_drv");
    ok(&machine, "modprobe ublk_drv");
    let cycles = |count: u32| {
        let script = format!(
            "n=0; while [ $n -lt {count} ]; do n=$((n + 1)); \
             ztier up u --size 64M --export ublk >/tmp/said || exit 1; \
             dd if=/dev/urandom of=/dev/ztier/u bs=64k count=4 conv=fsync 2>/dev/null || exit 2; \
             ztier down u --discard >/tmp/said || exit 3; \
             ls /dev | grep ublk[bc] && exit 4; ls /sys/block | grep ublk && exit 5; done; true"
        );
        machine.ok(&script, Duration::from_secs(600)).unwrap()
    };
    // What is made once stays.
    cycles(5);
    let before = Held::now(&machine);
    let (rounds, began) = (times("ZTIER_VM_ROUNDS", 100), Instant::now());
    cycles(rounds);
    let took = began.elapsed().as_secs_f64();
    let after = Held::now(&machine);
    println!("{rounds} times up and down in {took:.0} s; {before:?}, then {after:?}");
    assert!(after.files - before.files < 40, "open files");
    // Kernel threads come and go.
    assert!(after.processes - before.processes < 8, "processes");
    assert!(after.memory - before.memory < 60 * i64::from(rounds.max(100)), "memory");
    nothing_left(&machine);
    machine.off().unwrap();
}

#[test]
fn file_systems_and_discards() {
    let Some((lab, _turn)) = lab() else { return };
    let machine = boot(&lab);
    ok(&machine, "ztier up u --size 400M --export ublk");
    assert!(ok(&machine, "readlink -f /dev/ztier/u").starts_with("/dev/ublkb"));
    let queue = |key: &str| ok(&machine, &format!("cat /sys/block/ublkb0/queue/{key}"));
    assert_eq!(queue("write_cache"), "write back\n");
    assert_eq!((queue("fua"), queue("logical_block_size")), ("1\n".into(), "4096\n".into()));
    assert_ne!(
        (queue("discard_max_bytes"), queue("write_zeroes_max_bytes")),
        ("0\n".into(), "0\n".into())
    );
    let stored = |machine: &Machine| -> u64 {
        let text = ok(machine, "sleep 1; ztier stats u --format zram | head -1");
        text.split_whitespace().next().map_or(0, |n| n.parse().unwrap())
    };
    for kind in ["ext4", "xfs", "btrfs"] {
        if !lab.image.has(&format!("mkfs.{kind}")) {
            println!("skipped: no mkfs.{kind}");
            continue;
        }
        let began = Instant::now();
        print!(
            "{}",
            ok(&machine, &format!("modprobe {kind} 2>&-; filesystem {kind} /dev/ztier/u 16"))
        );
        println!("  in {:.0} s", began.elapsed().as_secs_f64());
        ok(&machine, "blkdiscard -f /dev/ztier/u");
        assert_eq!(ok(&machine, "head -c 1000000 /dev/ztier/u | tr -d '\\0' | wc -c"), "0\n");
    }
    println!("zram's mm_stat says of what was discarded: {} bytes", stored(&machine));
    ok(
        &machine,
        "fio --name=v --filename=/dev/ztier/u --size=48M --rw=randtrimwrite --bs=16k \
         --ioengine=libaio --iodepth=16 --direct=1 --verify=crc32c --verify_fatal=1 \
         --output=/tmp/fio",
    );
    print!("{}", ok(&machine, "grep -E 'total=|issued' /tmp/fio"));
    ok(&machine, "mkfs.ext4 -q /dev/ztier/u && mount /dev/ztier/u /mnt");
    refused(&machine, "ztier down u --discard", "mounted");
    ok(&machine, "umount /mnt && ztier down u --discard");
    nothing_left(&machine);
    machine.off().unwrap();
}

/// fio, which writes everything and compares everything, and ends at the first error.
fn fio(machine: &Machine, seed: u32) -> Task {
    let common = format!(
        "--name=v --filename=/dev/ztier/u --size=96M --bs=4k --ioengine=libaio --iodepth=16 \
         --direct=1 --verify=crc32c --verify_fatal=1 --randseed={seed} --output=/tmp/fio.{seed}"
    );
    let script = format!(
        "while [ ! -e /tmp/end ]; do echo writing; fio {common} --rw=randwrite --do_verify=0 || exit 1; \
         echo comparing; fio {common} --rw=randwrite --verify_only || exit 2; echo done; done"
    );
    machine.begin(&script).unwrap()
}

const PID: &str = r#"$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' /run/ztier/u.json | head -1)"#;

#[test]
fn nothing_is_lost_when_daemons_are_killed() {
    let Some((lab, _turn)) = lab() else { return };
    let machine = boot(&lab);
    ok(&machine, "ztier up u --size 128M --export ublk");
    let fio = fio(&machine, 1);
    fio.wait_for("writing", SOON).unwrap();
    let kills = times("ZTIER_VM_KILLS", 20);
    let (mut slowest, mut all) = (0.0f64, 0.0);
    for n in 0..kills {
        std::thread::sleep(Duration::from_millis(200 + u64::from(n) * 337 % 900));
        let again = if n % 2 == 0 { "up u --size 128M --export ublk" } else { "restart u" };
        let began = Instant::now();
        let script = format!("kill -9 {PID} && ztier {again}");
        machine.ok(&script, SOON).unwrap_or_else(|e| panic!("kill {n}: {e}"));
        let took = began.elapsed().as_secs_f64();
        (slowest, all) = (slowest.max(took), all + took);
        assert!(!fio.ended(), "kill {n}: {}", fio.output());
    }
    ok(&machine, "touch /tmp/end");
    let text = fio.wait(SOON).unwrap().ok().unwrap();
    let passes = text.lines().filter(|line| *line == "done").count();
    println!(
        "{kills} daemons killed, {passes} passes of fio without an error; from kill to service \
         {:.2} s on average, at most {slowest:.2} s",
        all / f64::from(kills)
    );
    assert_eq!(ok(&machine, "dmesg | grep -iE 'i/o error|blocked for more'; true"), "");
    ok(&machine, "ztier down u --discard");
    nothing_left(&machine);
    machine.off().unwrap();
}

#[test]
fn a_daemon_is_replaced_under_a_mounted_file_system() {
    let Some((lab, _turn)) = lab() else { return };
    let machine = boot(&lab);
    ok(&machine, "ztier up u --size 256M --export ublk && mkfs.ext4 -q /dev/ztier/u");
    ok(&machine, "mount /dev/ztier/u /mnt && dd if=/dev/urandom of=/tmp/noise bs=1M count=8");
    let script = "n=0; while [ ! -e /tmp/end ]; do n=$((n + 1)); \
                  dd if=/tmp/noise of=/mnt/$((n % 9)) bs=64k conv=fsync 2>/dev/null || exit 1; \
                  cmp /tmp/noise /mnt/$((n % 9)) || exit 2; echo $n; done";
    let writer = machine.begin(script).unwrap();
    writer.wait_for("2\n", SOON).unwrap();
    let restarts = times("ZTIER_VM_RESTARTS", 4);
    for n in 0..restarts {
        let before = ok(&machine, &format!("echo {PID}"));
        let began = Instant::now();
        machine.ok("ztier restart u", SOON).unwrap_or_else(|e| panic!("restart {n}: {e}"));
        println!("restart {n} under load in {:.2} s", began.elapsed().as_secs_f64());
        assert_ne!(ok(&machine, &format!("echo {PID}")), before, "the same daemon");
        std::thread::sleep(Duration::from_millis(500));
        assert!(!writer.ended(), "{}", writer.output());
    }
    ok(&machine, "touch /tmp/end");
    writer.wait(SOON).unwrap().ok().unwrap();
    ok(
        &machine,
        "echo 3 >/proc/sys/vm/drop_caches; for f in /mnt/[0-9]; do cmp /tmp/noise $f || exit 1; done; \
         umount /mnt && e2fsck -fn /dev/ztier/u",
    );
    ok(&machine, "ztier down u --discard");
    nothing_left(&machine);
    machine.off().unwrap();
}
