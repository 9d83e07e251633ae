//! A read cache that holds what the page cache drops, below file systems of another kernel than
//! this machine's, while memory is short.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::Duration;
use support::{SOON, lab_with, nothing_left, ok, setup, times};
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

/// Where a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// On the volume.
    Volume,
    /// On a device that maps the volume's sectors, as LVM makes them.
    Mapped,
    /// On one that encrypts them: no page is what a block holds.
    Encrypted,
}

impl On {
    /// Makes the device above the volume, and returns its path.
    fn make(self, machine: &Machine) -> &'static str {
        let table = match self {
            Self::Volume => return "/dev/ztier/c",
            Self::Mapped => "linear /dev/ztier/c 0",
            Self::Encrypted => "crypt aes-xts-plain64 $(printf %064d 7) 0 /dev/ztier/c 0",
        };
        ok(
            machine,
            &format!(
                "for m in dm-mod dm-crypt xts; do modprobe $m 2>&-; done; \
                 dmsetup create --noudevsync above \
                     --table \"0 $(blockdev --getsz /dev/ztier/c) {table}\" && \
                 dmsetup mknodes above"
            ),
        );
        "/dev/mapper/above"
    }

    fn remove(self, machine: &Machine) {
        if self != Self::Volume {
            ok(machine, "dmsetup remove --noudevsync --retry above");
        }
    }
}

/// Files are written, changed, cut, removed and read in no order, by all ways into a file, through
/// the page cache of a small group; all that is read is compared.
fn files_live_on_it(machine: &Machine, kind: &str, on: On) {
    ok(
        machine,
        &format!(
            "ztier up c --backing /disk/slow --ram-limit {SHORT}M --export ublk --exclusive on"
        ),
    );
    follows(machine);
    let device = on.make(machine);
    // Small file systems of ext4 have blocks of 1 KiB, of which a page has four from anywhere.
    let force = if kind == "ext4" { "-F -b 4096" } else { "-f" };
    ok(
        machine,
        &format!(
            "modprobe {kind} 2>&-; mkfs.{kind} -q {force} {device} && \
             mount {device} /mnt && sleep 3"
        ),
    );
    for step in steps(on) {
        let script = format!("echo 0 >/sys/fs/cgroup/load/cgroup.procs; {step}");
        // Thousands of requests, each through the emulated kernel and the daemon.
        let said = machine.ok(&script, SOON * 3 + Duration::from_secs(u64::from(seconds())));
        let said = said.unwrap_or_else(|e| panic!("{kind}, {on:?}: {step}: {e}"));
        print!("{}", said.lines().filter(|line| line.contains("steps")).collect::<String>());
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
        "\n{kind}, {on:?}: {seen} pages dropped, {lost} not copied, {dropped} kept, {given} given \
         back; {hit} hit, {missed} missed"
    );
    let damaged = count(machine, "damaged_copies");
    ok(machine, "umount /mnt");
    on.remove(machine);
    ok(machine, "ztier down c");
    assert!(seen > 1000, "{seen}");
    match on {
        On::Encrypted => assert!(dropped * 4 < seen, "{dropped} of {seen}"),
        _ => assert!(dropped > 1000 && given > 250, "{dropped} {given}"),
    }
    assert_eq!(damaged, 0);
    nothing_left(machine);
}

/// How long files are exercised: seconds.
fn seconds() -> u32 {
    times("ZTIER_VM_FILES", 5)
}

/// What is done with a file system.
fn steps(on: On) -> Vec<String> {
    let size = SHORT + SHORT / 2;
    let fio = format!(
        "fio --name=v --directory=/mnt --size={size}M --bs=4k --ioengine=psync \
             --buffer_compress_percentage=50 --verify=crc32c --verify_fatal=1 --output=/tmp/fio"
    );
    let fio = |how: &str| format!("{fio} {how} || {{ cat /tmp/fio; exit 1; }}");
    let seconds = seconds();
    let mut steps: Vec<_> = [
        "--rw=write --do_verify=0",
        "--rw=randread --verify_only",
        "--rw=randrw --rwmixread=50 --io_size=8M --fsync=64",
        "--rw=randwrite --io_size=2M",
        "--rw=randread --io_size=12M --verify=0",
    ]
    .map(fio)
    .into();
    if on == On::Encrypted {
        steps.clear();
    } else {
        steps.push("rm /mnt/v*".into());
    }
    steps.push(format!("ztier-vm-files /mnt --seconds {seconds}"));
    // Directories, names and metadata, as fsstress uses them.
    steps.push(format!(
        "stress-ng --quiet --temp-path /mnt --timeout {seconds} --verify \
             --dentry 1 --rename 1 --link 1 --chdir 1 --fallocate 1 \
             --fallocate-bytes 8M"
    ));
    steps
}

/// Daemons are replaced while they find out where the kernel has pages. They read their own device
/// then: a read that was left to the next daemon would have both wait for each other.
fn replaced_while_it_begins(machine: &Machine) {
    ok(machine, "ztier up c --backing /disk/slow --ram-limit 16M --export ublk --exclusive on");
    for n in 0..times("ZTIER_VM_RESTARTS", 8) {
        // At other moments each time.
        ok(machine, &format!("sleep 0.{:02}; ztier restart c", n * 7 % 100));
    }
    follows(machine);
    // After a signal the device waits for the daemon that comes then.
    let pid = r#"$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' /run/ztier/c.json | head -1)"#;
    ok(machine, &format!("ztier restart c && kill -TERM {pid} && sleep 1 && ztier restart c"));
    follows(machine);
    ok(machine, "ztier down c");
    nothing_left(machine);
}

#[test]
fn dropped_pages_serve_file_systems_on_another_kernel() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab_with(&["ztier", "ztier-vm-files"]) else { return };
        let machine = setup(&lab).memory(512).disk("slow", 400 << 20).cgroups().boot().unwrap();
        ok(
            &machine,
            &format!(
                "modprobe ublk_drv && ztier doctor | grep 'dropped pages: the kernel can' && \
             mkdir /sys/fs/cgroup/load && echo {SHORT}M >/sys/fs/cgroup/load/memory.high"
            ),
        );
        replaced_while_it_begins(&machine);
        let cases = [
            ("ext4", On::Mapped),
            ("xfs", On::Volume),
            ("btrfs", On::Volume),
            ("ext4", On::Encrypted),
        ];
        for (kind, on) in cases {
            if lab.image.has(&format!("mkfs.{kind}")) {
                files_live_on_it(&machine, kind, on);
            } else {
                println!("skipped: no mkfs.{kind}");
            }
        }
        ok(&machine, "rmdir /sys/fs/cgroup/load");
        machine.off().unwrap();
    });
}
