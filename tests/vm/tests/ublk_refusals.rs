//! The ublk export where a condition prevents it: what is refused, with which message, and that a
//! refusal leaves everything as it was.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::{Duration, Instant};
use support::{SOON, lab, nothing_left, ok, refused, setup};
use ztier_vm::Machine;

/// Kills the daemon; its memory holder stays.
const KILL: &str =
    r#"kill -9 $(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' /run/ztier/u.json | head -1); sleep 0.3"#;

#[test]
fn what_is_in_the_way_is_named_and_nothing_changes() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let machine = setup(&lab).memory(768).boot().unwrap();
        ok(&machine, "modprobe ublk_drv; modprobe loop");

        // A machine without io_uring has no ublk, and uses another export.
        ok(&machine, "echo 2 >/proc/sys/kernel/io_uring_disabled");
        refused(&machine, "ztier up u --size 64M --export ublk", "io_uring_disabled=0");
        assert!(ok(&machine, "ztier up u --size 64M --dry-run").contains("no io_uring"));
        ok(&machine, "echo 0 >/proc/sys/kernel/io_uring_disabled");
        assert!(ok(&machine, "ztier up u --size 64M --dry-run").contains("the kernel has ublk"));

        // What the kernel can't do is refused before the volume changes.
        ok(&machine, "ztier up u --size 64M");
        if machine.run("ztier set u size=128M", SOON).unwrap().status != 0 {
            refused(&machine, "ztier set u size=128M", "can't grow on this kernel");
            assert!(ok(&machine, "ztier status u").contains("64 MiB"));
        }

        // A device with a mounted file system is not removed, also if its daemon is dead.
        ok(&machine, "mkfs.ext4 -q /dev/ztier/u && mount /dev/ztier/u /mnt && echo kept >/mnt/a");
        refused(&machine, "ztier down u --discard", "mounted on /mnt");
        ok(&machine, KILL);
        refused(&machine, "ztier down u --discard", "mounted on /mnt");
        ok(&machine, "ztier restart u && sync && echo 3 >/proc/sys/vm/drop_caches");
        assert_eq!(ok(&machine, "cat /mnt/a; readlink /dev/ztier/u"), "kept\n/dev/ublkb0\n");
        ok(&machine, "umount /mnt && ztier down u --discard");
        nothing_left(&machine);

        a_partition_is_as_good(&machine);
        a_device_over_a_store_goes_on_only_over_what_it_had(&machine);

        // A process that waits for a device that no daemon will serve again gets an error.
        ok(&machine, "ztier up u --size 64M --export ublk");
        ok(&machine, KILL);
        let reader = machine.begin("dd if=/dev/ztier/u of=/dev/null bs=64k iflag=direct").unwrap();
        std::thread::sleep(Duration::from_millis(700));
        assert!(!reader.ended(), "{}", reader.output());
        let began = Instant::now();
        ok(&machine, "ztier down u --discard");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let done = reader.wait(SOON).unwrap();
        assert!(done.status != 0 && done.text.contains("error"), "{done:?}");
        nothing_left(&machine);

        // The device is removed by force under a process: its requests fail, and the device goes
        // when the process closes it.
        ok(&machine, "ztier up u --size 64M --export ublk");
        let held = "exec 3</dev/ztier/u; echo open; while [ ! -e /tmp/enough ]; do sleep 0.2; done";
        let holder = machine.begin(held).unwrap();
        holder.wait_for("open", SOON).unwrap();
        refused(&machine, "ztier down u --discard", "process");
        let _enough = machine.begin("sleep 2; touch /tmp/enough").unwrap();
        let forced = machine.run("ztier down u --discard --force", SOON).unwrap();
        holder.wait(SOON).unwrap();
        let gone = "for n in $(seq 100); do [ -e /dev/ublkb0 ] || exit 0; sleep 0.2; done; exit 1";
        ok(&machine, gone);
        assert!(forced.status == 0 || forced.text.contains("still open"), "{forced:?}");
        machine.off().unwrap();
    });
}

/// A partition behaves as the whole device: 62 MiB from 1 MiB on.
fn a_partition_is_as_good(machine: &Machine) {
    let part = "ztier up u --size 64M --export ublk && cd /dev/ztier && \
                printf '\\203\\0\\0\\0\\0\\010\\0\\0\\0\\360\\1\\0' | dd of=u bs=1 seek=450 && \
                printf '\\125\\252' | dd of=u bs=1 seek=510 && sync && \
                blockdev --rereadpt /dev/ublkb0 && sleep 1 && mkfs.ext4 -q /dev/ublkb0p1 && \
                mount /dev/ublkb0p1 /mnt && echo kept >/mnt/a";
    ok(machine, part);
    refused(machine, "ztier down u --discard", "mounted on /mnt");
    ok(machine, KILL);
    refused(machine, "ztier down u --discard", "mounted on /mnt");
    ok(machine, "ztier restart u && sync && echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(ok(machine, "cat /mnt/a"), "kept\n");
    ok(machine, "umount /mnt && ztier down u --discard");
    nothing_left(machine);
}

/// What acknowledged writes were lost with a daemon, or whatever another host has written, shows as
/// errors to users of the device of before, and never as other content.
fn a_device_over_a_store_goes_on_only_over_what_it_had(machine: &Machine) {
    let up = |log: &str| {
        format!("ztier up u --backing file:///srv/u --size 64M --export ublk --log {log}")
    };
    let begin = format!(
        "mkdir -p /srv && {} && mkfs.ext4 -q /dev/ztier/u && mount /dev/ztier/u /mnt && \
         echo kept >/mnt/a && sync",
        up("none")
    );
    ok(machine, &begin);
    // In order, the device stays.
    ok(machine, "ztier restart u && echo more >/mnt/b && sync");
    ok(machine, KILL);
    assert!(ok(machine, "ztier restart u").contains("writes that the store may lack"));
    refused(machine, "echo 3 >/proc/sys/vm/drop_caches; echo new >/mnt/c && sync /mnt/c", "");
    let again = "umount /mnt && mount /dev/ztier/u /mnt && cat /mnt/a /mnt/b && umount /mnt";
    assert_eq!(ok(machine, again), "kept\nmore\n");
    ok(machine, "ztier down u");
    nothing_left(machine);

    // Behind a log nothing is lost; but another host may have had the volume.
    ok(machine, &format!("{} --log-size 32M && mount /dev/ztier/u /mnt", up("/srv/log")));
    ok(machine, KILL);
    ok(machine, "ztier restart u && echo logged >/mnt/a && sync && ztier drain u");
    ok(machine, KILL);
    let other = "export ZTIER_RUN_DIR=/tmp/other ZTIER_STATE_DIR=/tmp/state; \
                 ztier up u --backing file:///srv/u --log none --export nbd --force && \
                 ztier down u";
    ok(machine, other);
    assert!(ok(machine, "ztier restart u").contains("has had the volume since"));
    assert_eq!(ok(machine, "umount /mnt && mount /dev/ztier/u /mnt && cat /mnt/a"), "logged\n");
    ok(machine, "umount /mnt && ztier down u --drain && rm -rf /srv /tmp/other /tmp/state");
    nothing_left(machine);
}

/// Kills the daemon and the memory holder; a running daemon would replace its memory holder.
const KILL_BOTH: &str = r#"pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' /run/ztier/u.json | head -1)
kill -STOP $pid
for p in /proc/[0-9]*; do
    case $(tr '\0' ' ' <$p/cmdline 2>&-) in "ztier keeper u "*) kill -9 ${p#/proc/};; esac
done
kill -9 $pid; sleep 0.3"#;

/// Makes more of a file in memory go to swap than stays in memory.
const FILL: &str =
    "mkdir /sys/fs/cgroup/little && echo 16M >/sys/fs/cgroup/little/memory.max || exit 1
(echo 0 >/sys/fs/cgroup/little/cgroup.procs; head -c 30000000 /dev/urandom >/mnt/a) || exit 2
awk '/ublk/ { used = $4 } END { exit !(used > 8192) }' /proc/swaps";

#[test]
fn by_force_a_dead_daemon_s_device_goes_whatever_holds_it() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let machine = setup(&lab).memory(768).cgroups().boot().unwrap();
        ok(&machine, "modprobe ublk_drv");
        let mounted = "ztier up u --size 64M --export ublk && mkfs.ext4 -q /dev/ztier/u && \
                   mount /dev/ztier/u /mnt && head -c 9000000 /dev/urandom >/mnt/a";

        // Kept data is given up only with --discard, and the device with it.
        ok(&machine, mounted);
        ok(&machine, KILL);
        refused(&machine, "ztier down u --force", "--discard");
        refused(&machine, "ztier down u --discard", "mounted on /mnt");
        let sync = machine.begin("sync").unwrap();
        std::thread::sleep(Duration::from_millis(700));
        assert!(!sync.ended(), "{}", sync.output());
        ok(&machine, "ztier down u --discard --force");
        sync.wait(SOON).unwrap();
        ok(&machine, "umount /mnt");
        nothing_left(&machine);

        // Where no memory is kept, no daemon can take the device over.
        ok(&machine, mounted);
        ok(&machine, KILL_BOTH);
        refused(&machine, "ztier down u", "mounted on /mnt");
        refused(&machine, "ztier restart u", "mounted on /mnt");
        ok(&machine, "ztier down u --force && umount /mnt");
        nothing_left(&machine);

        // Swap does not outlive its device; its content is lost.
        ok(
            &machine,
            "ztier up u --size 64M --export ublk && ztier swapon u && mount -t tmpfs none /mnt",
        );
        ok(&machine, FILL);
        ok(&machine, KILL_BOTH);
        refused(&machine, "ztier down u", "is in use: swap");
        ok(&machine, "ztier down u --force");
        let gone = "n=0; while grep ublk /proc/swaps; do n=$((n + 1)); [ $n -lt 50 ] || exit 1; \
                sleep 0.2; done";
        ok(&machine, gone);
        refused(&machine, "cat /mnt/a >/tmp/a", "Input/output error");
        ok(&machine, "umount /mnt; rm /tmp/a");
        assert_eq!(
            ok(&machine, "cat /proc/sys/vm/page-cluster /proc/sys/vm/swappiness"),
            "3\n60\n"
        );
        nothing_left(&machine);

        // The same name is free again.
        ok(&machine, "ztier up u --size 64M --export ublk && ztier down u");
        nothing_left(&machine);
        machine.off().unwrap();
    });
}

/// A script in another PID and mount namespace, with a run directory of its own and without the
/// mount of the device, as in a second container.
fn elsewhere(script: &str) -> String {
    format!(
        "unshare --pid --mount --fork --mount-proc sh -c \
         'umount /mnt && mount -t tmpfs -o mode=700 none /run/ztier && {script}'"
    )
}

#[test]
fn another_namespace_leaves_a_device_that_is_served() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        if !lab.image.has("unshare") {
            println!("skipped: no unshare");
            return;
        }
        let machine = setup(&lab).memory(768).boot().unwrap();
        ok(
            &machine,
            "modprobe ublk_drv && ztier up u --size 64M --export ublk && \
             mkfs.ext4 -q /dev/ztier/u && mount /dev/ztier/u /mnt && echo kept >/mnt/a && sync",
        );
        for command in [
            "ztier up u --size 64M --export ublk",
            "ztier down u",
            "ztier down u --discard",
            "ztier down u --discard --force",
        ] {
            refused(&machine, &elsewhere(command), "still served by process");
        }
        ok(&machine, "echo 3 >/proc/sys/vm/drop_caches && echo more >/mnt/b && sync");
        assert_eq!(
            ok(&machine, "cat /mnt/a /mnt/b; readlink /dev/ztier/u"),
            "kept\nmore\n/dev/ublkb0\n"
        );
        ok(&machine, "umount /mnt && ztier down u --discard");
        nothing_left(&machine);
        machine.off().unwrap();
    });
}
