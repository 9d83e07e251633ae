//! A read cache that holds what the page cache drops, below file systems of another kernel than
//! this machine's, while memory is short.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use support::{SOON, lab, nothing_left, ok, setup};
use ztier_vm::Machine;

/// Programs and page cache have a control group that is reclaimed above this many MiB (a hard limit
/// ends programs of a file system that writes slowly), the cache as many, files half as many more.
const SHORT: u32 = 16;

/// A number in what `ztier status` says of the cache.
fn count(machine: &Machine, name: &str) -> u64 {
    let text = ok(machine, &format!("ztier status c --json | grep -m 1 '\"{name}\"' | tr -dc 0-9"));
    text.trim().parse().unwrap_or_else(|e| panic!("{name}: {e}: {text:?}"))
}

/// Waits until the cache follows the page cache.
fn follows(machine: &Machine) {
    ok(
        machine,
        "for i in $(seq 100); do ztier status c --json >/tmp/s; \
             grep -q '\"exclusive\": true' /tmp/s && exit 0; \
             grep not_exclusive /tmp/s && exit 1; sleep 0.2; done; cat /tmp/s; exit 1",
    );
}

/// Files are written, changed and read in no order through the page cache of a small group; fio
/// compares all that it reads.
fn files_live_on_it(machine: &Machine, kind: &str) {
    ok(
        machine,
        &format!(
            "ztier up c --backing /disk/slow --ram-limit {SHORT}M --export ublk --exclusive on"
        ),
    );
    follows(machine);
    // Small file systems of ext4 have blocks of 1 KiB, of which a page has four from anywhere.
    let force = if kind == "ext4" { "-F -b 4096" } else { "-f" };
    ok(
        machine,
        &format!(
            "modprobe {kind} 2>&-; mkfs.{kind} -q {force} /dev/ztier/c && \
             mount /dev/ztier/c /mnt && sleep 3"
        ),
    );
    let size = SHORT + SHORT / 2;
    let fio = format!(
        "fio --name=v --directory=/mnt --size={size}M --bs=4k --ioengine=psync \
             --buffer_compress_percentage=50 --verify=crc32c --verify_fatal=1 --output=/tmp/fio"
    );
    let in_group = "echo 0 >/sys/fs/cgroup/load/cgroup.procs";
    for how in [
        "--rw=write --do_verify=0",
        "--rw=randread --verify_only",
        "--rw=randrw --rwmixread=50 --io_size=8M --fsync=64",
        "--rw=randwrite --io_size=2M",
        "--rw=randread --io_size=12M --verify=0",
    ] {
        let script = format!("{in_group}; {fio} {how} || {{ cat /tmp/fio; exit 1; }}");
        // Thousands of requests, each through the emulated kernel and the daemon.
        machine.ok(&script, SOON * 3).unwrap_or_else(|e| panic!("{kind}: {how}: {e}"));
    }
    let names = [
        "seen_pages",
        "lost_pages",
        "dropped_pages",
        "given_blocks",
        "hit_blocks",
        "missed_blocks",
    ];
    let [seen, lost, dropped, given, hit, missed] = names.map(|name| count(machine, name));
    println!(
        "{kind}: {seen} pages dropped, {lost} not copied, {dropped} kept, {given} given back; \
         {hit} hit, {missed} missed"
    );
    let damaged = count(machine, "damaged_copies");
    ok(machine, "umount /mnt; ztier down c");
    assert!(dropped > 1000 && given > 250, "{dropped} {given}");
    assert_eq!(damaged, 0);
    nothing_left(machine);
}

#[test]
fn dropped_pages_serve_file_systems_on_another_kernel() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let machine = setup(&lab).memory(512).disk("slow", 400 << 20).cgroups().boot().unwrap();
        ok(
            &machine,
            &format!(
                "modprobe ublk_drv && ztier doctor | grep 'dropped pages: the kernel can' && \
             mkdir /sys/fs/cgroup/load && echo {SHORT}M >/sys/fs/cgroup/load/memory.high"
            ),
        );
        for kind in ["ext4", "xfs", "btrfs"] {
            if lab.image.has(&format!("mkfs.{kind}")) {
                files_live_on_it(&machine, kind);
            } else {
                println!("skipped: no mkfs.{kind}");
            }
        }
        ok(&machine, "rmdir /sys/fs/cgroup/load");
        machine.off().unwrap();
    });
}
