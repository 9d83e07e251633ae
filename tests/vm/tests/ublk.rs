//! The ublk export on the kernel's own driver: devices that come and go, file systems, fio's
//! verifier with discards, daemons killed and replaced while their device is in use.
//!
//! `ZTIER_VM_ROUNDS` sets how often devices come and go (by default 100), `ZTIER_VM_KILLS` the
//! number of killed daemons (20), `ZTIER_VM_RESTARTS` the number of replaced ones (4).
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::{Duration, Instant};
use support::{SOON, lab, nothing_left, ok, refused, setup, times};
use ztier_vm::{Lab, Machine};

fn boot(lab: &Lab) -> Machine {
    let machine = setup(lab).memory(768).boot().unwrap();
    ok(&machine, "modprobe ublk_drv");
    machine
}

/// Resources that a removed device may have left: open files, processes, memory.
#[derive(Debug)]
struct Held {
    files: i64,
    processes: i64,
    /// KiB that the kernel can't reclaim. (Its figure of available memory goes up and down by
    /// megabytes with its caches.)
    memory: i64,
}

impl Held {
    fn now(machine: &Machine) -> Self {
        let script = "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 0.3; \
                      cut -f 1 /proc/sys/fs/file-nr; ls -d /proc/[0-9]* | wc -l; \
                      awk '/^(AnonPages|Shmem|SUnreclaim|KernelStack|PageTables|Percpu):/ \
                      { sum += $2 } END { print sum }' /proc/meminfo";
        let text = ok(machine, script);
        let numbers: Vec<i64> = text.lines().map(|line| line.parse().unwrap()).collect();
        Self { files: numbers[0], processes: numbers[1], memory: numbers[2] }
    }
}

#[test]
fn devices_come_and_go_and_carry_file_systems() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let machine = boot(&lab);
        up_and_down(&machine);
        file_systems_and_discards(&lab, &machine);
        nothing_left(&machine);
        machine.off().unwrap();
    });
}

fn up_and_down(machine: &Machine) {
    refused(machine, "rmmod ublk_drv && ztier up u --size 64M --export ublk", "modprobe ublk_drv");
    ok(machine, "modprobe ublk_drv");
    let small = ok(
        machine,
        "{ ztier up u --size 64M --export ublk --sector 512 && mkfs.ext4 -q -b 1024 /dev/ztier/u && \
         e2fsck -fn /dev/ztier/u; } >/tmp/said 2>&1 && cd /sys/block/ublkb0/queue && \
         cat logical_block_size physical_block_size && ztier down u --discard >/tmp/said",
    );
    assert_eq!(small, "512\n4096\n");
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
    // Allocations that are made only once stay.
    cycles(5);
    let before = Held::now(machine);
    let (rounds, began) = (times("ZTIER_VM_ROUNDS", 100), Instant::now());
    cycles(rounds);
    let took = began.elapsed().as_secs_f64();
    let after = Held::now(machine);
    println!("{rounds} times up and down in {took:.0} s; {before:?}, then {after:?}");
    assert!(after.files - before.files < 40, "open files");
    // Kernel threads come and go.
    assert!(after.processes - before.processes < 8, "processes");
    assert!(after.memory - before.memory < 20 * i64::from(rounds.max(100)), "memory");
    nothing_left(machine);
}

fn file_systems_and_discards(lab: &Lab, machine: &Machine) {
    ok(machine, "ztier up u --size 400M --export ublk");
    assert!(ok(machine, "readlink -f /dev/ztier/u").starts_with("/dev/ublkb"));
    let queue = |key: &str| ok(machine, &format!("cat /sys/block/ublkb0/queue/{key}"));
    // A volume in memory has nothing to flush.
    assert_eq!((queue("write_cache"), queue("fua")), ("write through\n".into(), "0\n".into()));
    assert_eq!(queue("logical_block_size"), "4096\n");
    assert_ne!(
        (queue("discard_max_bytes"), queue("write_zeroes_max_bytes")),
        ("0\n".into(), "0\n".into())
    );
    let stored = || -> u64 {
        let text = ok(machine, "ztier stats u --format zram | head -1");
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    for kind in ["ext4", "xfs", "btrfs"] {
        if !lab.image.has(&format!("mkfs.{kind}")) {
            println!("skipped: no mkfs.{kind}");
            continue;
        }
        let began = Instant::now();
        print!(
            "{}",
            ok(machine, &format!("modprobe {kind} 2>&-; filesystem {kind} /dev/ztier/u 16"))
        );
        println!("  in {:.0} s", began.elapsed().as_secs_f64());
        assert!(stored() > 4 << 20, "where are the files?");
        ok(machine, "blkdiscard -f /dev/ztier/u");
        assert_eq!(stored(), 0);
        assert_eq!(ok(machine, "head -c 1000000 /dev/ztier/u | tr -d '\\0' | wc -c"), "0\n");
    }
    ok(
        machine,
        "fio --name=v --filename=/dev/ztier/u --size=48M --rw=randtrimwrite --bs=16k \
         --ioengine=libaio --iodepth=16 --direct=1 --verify=crc32c --verify_fatal=1 \
         --output=/tmp/fio",
    );
    print!("{}", ok(machine, "grep -E 'total=|issued' /tmp/fio"));
    ok(machine, "mkfs.ext4 -q /dev/ztier/u && mount /dev/ztier/u /mnt");
    refused(machine, "ztier down u --discard", "mounted");
    ok(machine, "umount /mnt && ztier down u --discard");
}

/// fio writes and compares everything, and ends at the first error.
const FIO: &str = r#"
rm -f /tmp/end
fio() { command fio --name=v --filename=/dev/ztier/u --size=96M --bs=4k --ioengine=libaio \
    --iodepth=16 --direct=1 --rw=randwrite --verify=crc32c --verify_fatal=1 --output=/tmp/fio "$@"; }
while [ ! -e /tmp/end ]; do
    echo writing
    fio --do_verify=0 || { cat /tmp/fio; exit 1; }
    echo comparing
    fio --verify_only || { cat /tmp/fio; exit 2; }
    echo done
done
"#;
const PID: &str = r#"$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' /run/ztier/u.json | head -1)"#;

#[test]
fn nothing_is_lost_when_daemons_are_killed_or_replaced() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let setup = setup(&lab).memory(768).disk("slow", 128 << 20).disk("fast", 64 << 20);
        let machine = setup.boot().unwrap();
        ok(&machine, "modprobe ublk_drv");
        let kills = times("ZTIER_VM_KILLS", 20);
        killed(&machine, "--size 128M --export ublk", kills);
        let log = "--backing /disk/slow --log /disk/fast --segment 256K --export ublk";
        killed(&machine, log, kills.div_ceil(4));
        replaced(&machine);
        nothing_left(&machine);
        machine.off().unwrap();
    });
}

fn killed(machine: &Machine, what: &str, kills: u32) {
    ok(machine, &format!("ztier up u {what}"));
    let fio = machine.begin(FIO).unwrap();
    fio.wait_for("writing", SOON).unwrap();
    let (mut slowest, mut all) = (0.0f64, 0.0);
    for n in 0..kills {
        std::thread::sleep(Duration::from_millis(200 + u64::from(n) * 337 % 900));
        let again = if n % 2 == 0 { format!("up u {what}") } else { "restart u".to_owned() };
        let began = Instant::now();
        let script = format!("kill -9 {PID} && ztier {again}");
        machine.ok(&script, SOON).unwrap_or_else(|e| panic!("{what}: kill {n}: {e}"));
        let took = began.elapsed().as_secs_f64();
        (slowest, all) = (slowest.max(took), all + took);
        assert!(!fio.ended(), "{what}: kill {n}: {}", fio.output());
    }
    ok(machine, "touch /tmp/end");
    let text = fio.wait(SOON).unwrap().ok().unwrap();
    let passes = text.lines().filter(|line| *line == "done").count();
    println!(
        "{what}: {kills} daemons killed, {passes} passes of fio without an error; from kill to \
         service {:.2} s on average, at most {slowest:.2} s",
        all / f64::from(kills)
    );
    assert_eq!(ok(machine, "dmesg | grep -iE 'i/o error|blocked for more'; true"), "");
    ok(machine, "ztier down u --discard");
}

fn replaced(machine: &Machine) {
    ok(machine, "ztier up u --size 256M --export ublk && mkfs.ext4 -q /dev/ztier/u");
    ok(machine, "mount /dev/ztier/u /mnt && dd if=/dev/urandom of=/tmp/noise bs=1M count=8");
    let script = "rm /tmp/end; n=0; while [ ! -e /tmp/end ]; do n=$((n + 1)); \
                  dd if=/tmp/noise of=/mnt/$((n % 9)) bs=64k conv=fsync 2>/dev/null || exit 1; \
                  cmp /tmp/noise /mnt/$((n % 9)) || exit 2; echo $n; done";
    let writer = machine.begin(script).unwrap();
    writer.wait_for("2\n", SOON).unwrap();
    for n in 0..times("ZTIER_VM_RESTARTS", 4) {
        let before = ok(machine, &format!("echo {PID}"));
        let began = Instant::now();
        machine.ok("ztier restart u", SOON).unwrap_or_else(|e| panic!("restart {n}: {e}"));
        println!("restart {n} under load in {:.2} s", began.elapsed().as_secs_f64());
        assert_ne!(ok(machine, &format!("echo {PID}")), before, "the same daemon");
        std::thread::sleep(Duration::from_millis(500));
        assert!(!writer.ended(), "{}", writer.output());
    }
    ok(machine, "touch /tmp/end");
    writer.wait(SOON).unwrap().ok().unwrap();
    ok(
        machine,
        "echo 3 >/proc/sys/vm/drop_caches; \
         for f in /mnt/[0-9]; do cmp /tmp/noise $f || exit 1; done; \
         umount /mnt && e2fsck -fn /dev/ztier/u",
    );
    ok(machine, "ztier down u --discard");
}

/// A drive that does not answer while its device-mapper target is suspended.
const HELD: &str = "modprobe dm-mod && dmsetup create held --table \
     \"0 $(blockdev --getsz /disk/slow) linear $(readlink -f /disk/slow) 0\" && \
     dmsetup mknodes && modprobe ublk_drv && \
     ztier up u --backing /dev/mapper/held --export ublk && \
     dd if=/dev/zero of=/dev/ztier/u bs=64k count=16 oflag=direct";

#[test]
fn a_daemon_that_goes_down_never_waits_for_itself() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        if !lab.image.has("dmsetup") {
            println!("skipped: no dmsetup");
            return;
        }
        let machine = setup(&lab).memory(768).disk("slow", 128 << 20).boot().unwrap();
        ok(&machine, HELD);
        // The flush before the end has a bound, and the device goes on afterwards.
        ok(&machine, "dmsetup suspend --nolockfs --noflush held");
        refused(&machine, "ztier down u --discard", "/dev/ublkb0 takes longer than 40 s");
        ok(&machine, "dmsetup resume held");
        ok(&machine, "dd if=/dev/zero of=/dev/ztier/u bs=64k count=16 oflag=direct conv=fsync");
        // A daemon that is killed during that flush ends as soon as its drive answers.
        ok(&machine, "dmsetup suspend --nolockfs --noflush held");
        let down = machine.begin("ztier down u --discard").unwrap();
        std::thread::sleep(Duration::from_secs(4));
        let pid = ok(&machine, &format!("echo {PID}"));
        let pid = pid.trim();
        ok(&machine, &format!("kill -9 {pid} && dmsetup resume held"));
        let ended = "n=0; while [ -d /proc/$pid ]; do n=$((n + 1)); [ $n -lt 100 ] || exit 1; \
                     sleep 0.2; done";
        ok(&machine, &format!("pid={pid}; {ended}"));
        assert_ne!(down.wait(SOON).unwrap().status, 0);
        ok(&machine, "ztier restart u && ztier down u && dmsetup remove held");
        nothing_left(&machine);
        machine.off().unwrap();
    });
}

/// More random reads at once than a queue has tags, until it is ended or a read fails.
const READS: &str = "echo reading; fio --name=r --filename=/dev/ztier/u --size=96M --bs=4k \
     --ioengine=libaio --iodepth=256 --direct=1 --rw=randread --time_based --runtime=900 \
     --output=/tmp/fio || { cat /tmp/fio; exit 1; }";

/// The kernel gives back the requests of a queue without a free tag only when their time is over,
/// and does nothing else with the device until then.
#[test]
fn a_daemon_that_is_killed_with_a_full_queue_is_followed() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let setup = setup(&lab).memory(768).held_disk("slow", 128 << 20, 4 << 20, 50);
        let machine = setup.disk("fast", 64 << 20).boot().unwrap();
        ok(
            &machine,
            "modprobe ublk_drv && ztier up u --backing /disk/slow --log /disk/fast \
             --segment 256K --export ublk --threads 2",
        );
        let reads = machine.begin(READS).unwrap();
        reads.wait_for("reading", SOON).unwrap();
        let full = "n=0; while sleep 0.2; do read n _ </sys/block/ublkb0/inflight; \
                    [ $n -lt 128 ] || exit 0; done";
        for n in 0..2 {
            ok(&machine, full);
            std::thread::sleep(Duration::from_secs(1));
            let began = Instant::now();
            machine.ok(&format!("kill -9 {PID} && ztier restart u"), SOON).unwrap();
            println!("kill {n} with a full queue: served again in {:?}", began.elapsed());
            assert!(!reads.ended(), "kill {n}: {}", reads.output());
        }
        // Nor does the end of the volume fail.
        ok(&machine, full);
        ok(&machine, &format!("kill -9 {PID}"));
        let began = Instant::now();
        ok(&machine, "ztier down u --discard");
        println!("taken down in {:?}", began.elapsed());
        assert_ne!(reads.wait(SOON).unwrap().status, 0);
        assert_eq!(ok(&machine, "dmesg | grep 'blocked for more'; true"), "");
        nothing_left(&machine);
        machine.off().unwrap();
    });
}
