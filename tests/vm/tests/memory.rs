//! A machine with little memory whose disks are volumes: the kernel needs them to free memory, and
//! they need memory to work. The kernel names a task that waits too long for either.
//!
//! `ZTIER_VM_SECONDS` sets the duration of each kind of pressure; by default 15.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::Duration;
use support::{lab, nothing_left, ok, setup, stolen, times};
use ztier_vm::Machine;

/// Limit, in ms, on the time that requests may wait while the device completes none, on emulated
/// CPUs that share real ones.
const STALL_MAX: u64 = 5000;

/// Watches the requests of the device `$1`; prints the longest time, in ms, in which some waited
/// and none ended.
const WATCH: &str = r#"
stat=/sys/class/block/$(basename $(readlink -f $1))/stat
most=0
before=
while [ ! -e /tmp/end ]; do
    read -r now rest </proc/uptime
    now=${now%.*}${now#*.}
    read -r reads x x x writes x x x waiting x x discards x x x flushes x <$stat
    ended=$reads.$writes.$discards.$flushes
    if [ "$ended" != "$before" ] || [ $waiting = 0 ]; then since=$now; fi
    before=$ended
    [ $((now - since)) -gt $most ] && most=$((now - since))
    usleep 50000
done
echo $((most * 10))
"#;

/// Allocates `$1` MiB of memory again and again; without swap it cannot be reclaimed.
const HOG: &str = r#"
while [ ! -e /tmp/end ]; do
    dd if=/dev/zero of=/dev/shm/hog bs=1M count=$1 2>/dev/null
    rm /dev/shm/hog
done
"#;

/// Writes more dirty pages than there is memory, to files that are compared in the end.
const WRITE: &str = r#"
dd if=/dev/urandom of=/tmp/noise bs=1M count=16 2>/dev/null
n=0
while [ ! -e /tmp/end ]; do
    n=$((n + 1))
    cat /tmp/noise /tmp/noise /tmp/noise /tmp/noise >/mnt/$((n % 5)) || exit 1
done
echo $((n * 64)) MiB
"#;
const COMPARE: &str = r#"
sync
echo 3 >/proc/sys/vm/drop_caches
for file in /mnt/[0-4]; do
    cat /tmp/noise /tmp/noise /tmp/noise /tmp/noise | cmp - $file || exit 1
done
"#;

/// Asserts that the kernel has reported no hung or killed task.
fn no_task_hung(machine: &Machine) {
    let said =
        ok(machine, "dmesg | grep -E 'blocked for more|Out of memory|oom-kill|I/O error'; true");
    assert_eq!(said, "");
}

#[test]
fn writeback_under_pressure_does_not_stall() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let setup = setup(&lab).memory(512).disk("slow", 512 << 20).disk("fast", 128 << 20);
        let machine = setup.boot().unwrap();
        ok(
            &machine,
            "modprobe loop; modprobe ublk_drv; echo 20 >/proc/sys/kernel/hung_task_timeout_secs",
        );
        ok(&machine, "ztier up v --backing /disk/slow --log /disk/fast --segment 256K");
        ok(&machine, "mkfs.ext4 -q /dev/ztier/v && mount /dev/ztier/v /mnt");
        let free = ok(&machine, "free -m | sed -n 2p");
        let stolen_before = stolen();
        let watch = machine.begin(&format!("set /dev/ztier/v\n{WATCH}")).unwrap();
        let hog = machine.begin(&format!("set 150\n{HOG}")).unwrap();
        let write = machine.begin(WRITE).unwrap();
        let seconds = u64::from(times("ZTIER_VM_SECONDS", 15));
        std::thread::sleep(Duration::from_secs(seconds));
        let least = ok(&machine, "free -m | sed -n 2p; grep -E 'Dirty|Writeback:' /proc/meminfo");
        ok(&machine, "touch /tmp/end");
        let patience = Duration::from_secs(120);
        let done = write.wait(patience).unwrap().ok().unwrap();
        hog.wait(patience).unwrap();
        let most: u64 = watch.wait(patience).unwrap().ok().unwrap().trim().parse().unwrap();
        // CPU time stolen from this machine was lost to the emulated one.
        let lost = stolen().saturating_sub(stolen_before);
        println!("{seconds} s: {} written; no request ended for at most {most} ms", done.trim());
        println!("{}{}", free, least);
        assert!(most < STALL_MAX + lost, "no request ended for {most} ms, {lost} ms were stolen");
        no_task_hung(&machine);
        ok(&machine, COMPARE);
        ok(&machine, "umount /mnt && e2fsck -fn /dev/ztier/v && ztier down v");
        nothing_left(&machine);
        machine.off().unwrap();
    });
}
