//! The rules, tried by tables of situations.
//!
//! Invariant: each situation differs from one that is described by what its row changes.
#![allow(clippy::unwrap_used)]

use super::figures::{
    Compression, Disk, DiskKind, Figures, From, Memory, Named, Paging, Pressure, Requests, Swap,
    SwapKind, Target,
};
use super::rules::{Advice, Role, Verdict, advise, missing, read_again};

const GIB: u64 = 1 << 30;
const KIB: f64 = 1024.0;

fn target(device: &str, point: &str) -> Option<Target> {
    Some(Target { device: device.into(), point: point.into(), free_bytes: 100 * GIB })
}

fn requests(count: u64, bytes: f64, ms: f64) -> Requests {
    let per_second = count as f64 / 10.0;
    Requests { count, per_second, mean_bytes: bytes, mean_ms: ms, merged: 0.1 }
}

/// A machine of 16 GiB at rest, with a slow disk and a fast one.
fn idle() -> Figures {
    let slow = Disk {
        name: "sda".into(),
        kind: DiskKind::Platters,
        target: target("/dev/sda1", "/data"),
        ..Disk::default()
    };
    let fast = Disk {
        name: "nvme0n1".into(),
        kind: DiskKind::Nvme,
        target: target("/dev/nvme0n1p2", "/"),
        ..Disk::default()
    };
    Figures {
        seconds: 10.0,
        memory: Memory {
            total_bytes: 16 * GIB,
            available_bytes: 7 * GIB,
            anonymous_bytes: 6 * GIB,
            ..Memory::default()
        },
        pressure: Pressure { memory: Some(0.0), io: Some(0.0), cpu: Some(0.0) },
        paging: Paging { refaults_file: Some(0.0), scanned: Some(0.0), ..Paging::default() },
        disks: vec![slow, fast],
        of_files: sampled(2.2, From::Paths),
        of_memory: sampled(2.8, From::Programs),
        ..Figures::default()
    }
}

fn sampled(ratio: f64, from: From) -> Compression {
    Compression { from, ratio, low: ratio - 0.1, high: ratio + 0.1 }
}

/// Files that are read again from the slow disk.
fn refaults() -> Figures {
    let mut figures = idle();
    figures.paging.refaults_file = Some(3200.0);
    figures.disks[0].reads = requests(8000, 16.0 * KIB, 8.0);
    figures.disks[0].busy = 0.9;
    figures
}

/// Small writes and flushes on the slow disk.
fn scattered() -> Figures {
    let mut figures = idle();
    figures.disks[0].writes = requests(1800, 5.0 * KIB, 8.1);
    figures.disks[0].flushes = requests(200, 0.0, 12.0);
    figures.disks[0].busy = 0.9;
    figures
}

/// Little memory is available.
fn short() -> Figures {
    let mut figures = idle();
    figures.memory.available_bytes = GIB;
    figures
}

fn area(path: &str, kind: SwapKind, used_bytes: u64) -> Swap {
    Swap { path: path.into(), kind, size_bytes: 4 * GIB, used_bytes }
}

fn changed(mut figures: Figures, change: impl FnOnce(&mut Figures)) -> Figures {
    change(&mut figures);
    figures
}

fn of(figures: &Figures, role: Role, disk: Option<&str>) -> Advice {
    let is_it = |advice: &&Advice| advice.role == role && advice.disk.as_deref() == disk;
    let all = advise(figures);
    all.iter().find(is_it).cloned().unwrap_or_else(|| panic!("{role:?}, {disk:?}: {all:?}"))
}

/// Situations, the verdict about a role, and a part of what is said or to be typed.
fn check(role: Role, disk: Option<&str>, table: &[(&str, Figures, Verdict, &str)]) {
    for (situation, figures, verdict, part) in table {
        let advice = of(figures, role, disk);
        assert_eq!(advice.verdict, *verdict, "{situation}: {advice:?}");
        let short = std::slice::from_ref(&advice.short);
        let said = [short, &advice.why[..], &advice.commands[..]].concat();
        assert!(said.join("\n").contains(part), "{situation}: {part}: {said:#?}");
        assert_eq!(advice.verdict == Verdict::Helps, !advice.commands.is_empty());
        assert!(advice.short.chars().count() <= 50, "{situation}: {}", advice.short);
    }
}

#[test]
fn nothing_at_rest() {
    let advice = advise(&idle());
    assert_eq!(advice.len(), 7);
    assert!(advice.iter().all(|advice| advice.verdict == Verdict::No), "{advice:#?}");
    assert!(missing(&idle()).is_empty());
}

#[test]
fn caches() {
    let with = |change: fn(&mut Figures)| changed(refaults(), change);
    check(
        Role::Cache,
        Some("sda"),
        &[
            ("read again", refaults(), Verdict::Helps, "6.40 s of waiting a second"),
            (
                "with a fixed limit",
                with(|f| f.of_files = sampled(5.0, From::Paths)),
                Verdict::Helps,
                "ztier up sda1 --backing /dev/sda1 --ram-limit 2752M",
            ),
            ("at 2:1 with one that adapts", refaults(), Verdict::Helps, "auto watches"),
            ("what it holds", refaults(), Verdict::Helps, "2.69 GiB holds about 5.32 GiB"),
            ("where", refaults(), Verdict::Helps, "mount /dev/ztier/sda1 /data"),
            (
                "data that shrinks little",
                with(|f| f.of_files = sampled(1.6, From::Paths)),
                Verdict::Helps,
                "--ram-limit auto --ram-max 2752M",
            ),
            (
                "no sample",
                with(|f| f.of_files = Compression::default()),
                Verdict::Helps,
                "(assumed)",
            ),
            (
                "a control group",
                with(|f| f.memory.available_bytes = 12 * GIB),
                Verdict::Helps,
                "a control group's limit",
            ),
            (
                "waiting for memory is a part of refaults",
                with(|f| f.pressure.memory = Some(0.9)),
                Verdict::Helps,
                "waiting",
            ),
            (
                "the root",
                with(|f| f.disks[0].target = target("/dev/sda1", "/")),
                Verdict::Helps,
                "cannot be unmounted",
            ),
            (
                "no file system",
                with(|f| f.disks[0].target = None),
                Verdict::Helps,
                "ztier up sda --backing /dev/sda ",
            ),
        ],
    );
}

#[test]
fn caches_that_do_not_help() {
    let with = |change: fn(&mut Figures)| changed(refaults(), change);
    check(
        Role::Cache,
        Some("sda"),
        &[
            (
                "a fast disk",
                with(|f| f.disks[0].reads.mean_ms = 0.1),
                Verdict::Harms,
                "fast already",
            ),
            (
                "noise",
                with(|f| f.of_files = sampled(1.0, From::Paths)),
                Verdict::Harms,
                "does not shrink",
            ),
            (
                "no memory",
                with(|f| f.memory.available_bytes = GIB),
                Verdict::Harms,
                "only 1 GiB of 16 GiB",
            ),
            (
                "nothing read again",
                with(|f| f.paging.refaults_file = Some(1.0)),
                Verdict::No,
                "little is read again",
            ),
            (
                "an old kernel",
                with(|f| f.paging.refaults_file = None),
                Verdict::Unknown,
                "does not count refaults",
            ),
            ("in bursts", with(|f| f.disks[0].busy = 0.03), Verdict::No, "busy 3 % of the time"),
            ("few reads", with(|f| f.disks[0].reads.count = 19), Verdict::No, "19 reads"),
        ],
    );
}

/// Refaults are of the disks that are read.
#[test]
fn refaults_are_shared_out() {
    let mut figures = refaults();
    figures.disks[1].reads = requests(8000, 48.0 * KIB, 2.0);
    assert_eq!(read_again(&figures, &figures.disks[0]), Some(800.0));
    assert_eq!(read_again(&figures, &figures.disks[1]), Some(2400.0));
    figures.disks[0].reads.per_second = 0.0;
    assert_eq!(read_again(&figures, &figures.disks[0]), Some(0.0));
}

#[test]
fn logs() {
    let with = |change: fn(&mut Figures)| changed(scattered(), change);
    let both = changed(scattered(), |f| {
        f.paging.refaults_file = Some(3200.0);
        f.disks[0].reads = requests(8000, 16.0 * KIB, 8.0);
    });
    check(
        Role::Log,
        Some("sda"),
        &[
            ("scattered writes", scattered(), Verdict::Helps, "1.70 s of waiting a second"),
            (
                "in a file",
                scattered(),
                Verdict::Helps,
                "ztier up sda1 --backing /dev/sda1 --log /ztier-sda1.log --log-size 1G",
            ),
            ("with a cache", both, Verdict::Helps, "--log-size 1G --ram-limit auto"),
            ("no room", with(|f| f.disks[1].target = None), Verdict::Helps, "--log PARTITION"),
            (
                "flushes alone",
                with(|f| f.disks[0].writes.mean_ms = 0.1),
                Verdict::Helps,
                "20 flushes/s, 12.00 ms each",
            ),
            (
                "a fast disk",
                with(|f| {
                    f.disks[0].writes.mean_ms = 0.1;
                    f.disks[0].flushes.mean_ms = 0.5;
                }),
                Verdict::Harms,
                "only adds a copy",
            ),
            (
                "large writes",
                with(|f| {
                    f.disks[0].writes.mean_bytes = 512.0 * KIB;
                    f.disks[0].flushes = Requests::default();
                }),
                Verdict::No,
                "writes are large",
            ),
            (
                "no SSD",
                with(|f| f.disks[1].kind = DiskKind::Platters),
                Verdict::No,
                "no faster drive",
            ),
            (
                "an SSD as slow",
                with(|f| f.disks[1].writes = requests(100, 4.0 * KIB, 9.0)),
                Verdict::No,
                "no faster drive",
            ),
            ("in bursts", with(|f| f.disks[0].busy = 0.03), Verdict::No, "busy 3 % of the time"),
            (
                "few writes",
                with(|f| {
                    f.disks[0].writes = requests(30, 5.0 * KIB, 8.0);
                    f.disks[0].flushes = Requests::default();
                }),
                Verdict::No,
                "little is waited for",
            ),
        ],
    );
}

#[test]
fn compressed_swap() {
    let with = |change: fn(&mut Figures)| changed(short(), change);
    check(
        Role::Swap,
        None,
        &[
            ("short", short(), Verdict::Helps, "only 1 GiB of 16 GiB"),
            ("how much", short(), Verdict::Helps, "room for 1.93 GiB more"),
            ("zswap ends first", with(|f| f.zswap = true), Verdict::Helps, "echo N >"),
            (
                "waiting",
                changed(idle(), |f| f.pressure.memory = Some(0.12)),
                Verdict::Helps,
                "waited for memory 12 % of the time",
            ),
            (
                "waiting in a control group",
                changed(idle(), |f| {
                    f.pressure.memory = Some(0.12);
                    f.memory.available_bytes = 12 * GIB;
                }),
                Verdict::No,
                "in a control group",
            ),
            (
                "an old kernel",
                with(|f| f.pressure = Pressure::default()),
                Verdict::Helps,
                "available",
            ),
            ("zram", with(|f| f.zram = true), Verdict::No, "costs less a page"),
            (
                "zram at work",
                with(|f| f.swaps = vec![area("/dev/zram0", SwapKind::Zram, 0)]),
                Verdict::No,
                "/dev/zram0 is that already",
            ),
            (
                "noise",
                with(|f| f.of_memory = sampled(1.1, From::Programs)),
                Verdict::Harms,
                "shrink only 1.10x",
            ),
        ],
    );
}

#[test]
fn swap_that_spills() {
    let with = |swap: Swap| changed(short(), |f| f.swaps = vec![swap]);
    check(
        Role::SpilledSwap,
        None,
        &[
            ("memory first", short(), Verdict::No, "memory is enough"),
            (
                "a disk",
                with(area("/dev/sdb2", SwapKind::Partition, 3 * GIB)),
                Verdict::Helps,
                "swapoff /dev/sdb2\nwipefs --all /dev/sdb2\nztier up swap --size 6G \
                 --ram-limit 25% --spill /dev/sdb2 --use swap",
            ),
            (
                "zram is full",
                with(area("/dev/zram0", SwapKind::Zram, 4 * GIB)),
                Verdict::Helps,
                "keeps the oldest pages",
            ),
            (
                "zram is not",
                with(area("/dev/zram0", SwapKind::Zram, GIB)),
                Verdict::No,
                "memory is enough",
            ),
            (
                "swapping",
                changed(idle(), |f| {
                    f.paging.swapped_in = 100.0;
                    f.swaps = vec![area("/dev/sdb2", SwapKind::Partition, GIB)];
                }),
                Verdict::Helps,
                "100 in",
            ),
            (
                "very short",
                changed(short(), |f| f.memory.available_bytes = GIB / 2),
                Verdict::Helps,
                "--spill-size 3G",
            ),
            (
                "already",
                with(area("/dev/ublkb0", SwapKind::Ztier, GIB)),
                Verdict::No,
                "/dev/ublkb0 is swap of ztier",
            ),
        ],
    );
}

#[test]
fn ram_disks() {
    let named = |data_bytes, change: fn(&mut Figures)| {
        changed(idle(), |f| {
            f.named = Some(Named { data_bytes, complete: true, disk: Some("sda".into()) });
            f.disks[0].reads = requests(100, 16.0 * KIB, 8.0);
            change(f);
        })
    };
    check(
        Role::RamDisk,
        None,
        &[
            ("fits", named(GIB, |_| {}), Verdict::Helps, "holds them in 573 MiB"),
            (
                "what to type",
                named(GIB, |_| {}),
                Verdict::Helps,
                "ztier up scratch --size 1280M --ram-limit 768M --use ext4 --mount /mnt",
            ),
            ("too large", named(9 * GIB, |_| {}), Verdict::Harms, "more than half"),
            ("noise", named(GIB, |f| f.of_files = sampled(1.0, From::Paths)), Verdict::No, "tmpfs"),
            (
                "a fast disk",
                named(GIB, |f| f.disks[0].reads.mean_ms = 0.1),
                Verdict::No,
                "fast already",
            ),
            (
                "a quiet disk",
                named(GIB, |f| f.disks[0].reads.count = 0),
                Verdict::Unknown,
                "too quiet",
            ),
            (
                "more than was found",
                named(GIB, |f| f.named.iter_mut().for_each(|named| named.complete = false)),
                Verdict::Unknown,
                "more files",
            ),
        ],
    );
}

/// Each command can be typed, but for words in capitals.
#[test]
fn commands_can_be_typed() {
    use clap::Parser;
    let mut both = refaults();
    both.disks[0].writes = scattered().disks[0].writes;
    both.disks[0].target = target("/dev/sda1", "/a b");
    both.disks[1].target = target("/dev/nvme0n1p2", "/");
    let mut swaps = short();
    swaps.memory.available_bytes = GIB / 2;
    let mut typed = 0;
    for advice in advise(&both).into_iter().chain(advise(&swaps)) {
        for command in advice.commands.iter().filter(|c| c.starts_with("ztier ")) {
            let parsed = crate::cli::Cli::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "`{command}`: {:?}", parsed.err());
            typed += 1;
        }
        if advice.role == Role::Cache && advice.verdict == Verdict::Helps {
            assert_eq!(advice.commands[0], "umount '/a b'");
        }
    }
    assert_eq!(typed, 4);
}
