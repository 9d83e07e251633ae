//! The machines themselves: scripts, files, ends of all kinds, power cuts, pulled drives.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};
use ztier_vm::kernel::Flavour;
use ztier_vm::{Drive, Lab, Machine, Setup};

const SOON: Duration = Duration::from_secs(60);

fn ok(machine: &Machine, script: &str) -> String {
    machine.ok(script, SOON).unwrap_or_else(|e| panic!("{script}: {e}"))
}

/// The laboratory, and the right to run machines, after at most 20 minutes of other tests.
fn lab() -> Option<(Lab, ztier_vm::cache::Lock)> {
    let lab = Lab::for_test(Flavour::default(), &[])?;
    let turn = lab.turn(Duration::from_secs(1200)).unwrap();
    Some((lab, turn))
}

fn scripts_and_files(machine: &Machine) {
    assert!(ok(machine, "uname -r").starts_with("6.12."));
    let failed = machine.run("echo out; echo err >&2; exit 7", SOON).unwrap();
    assert_eq!((failed.status, failed.text.as_str()), (7, "out\nerr\n"));
    let error = failed.ok().unwrap_err().to_string();
    assert!(error.contains("status 7") && error.contains("err"), "{error}");
    // Processes that a script leaves running go on, and do not delay the script's end.
    let began = Instant::now();
    ok(machine, "(sleep 9; echo late >/tmp/late) & echo $!");
    assert!(began.elapsed() < Duration::from_secs(9));
    let content: Vec<u8> = (0..3_000_000u32).map(|n| ((n * 7) >> 5) as u8).collect();
    machine.put("/tmp/file", &content, SOON).unwrap();
    assert_eq!(machine.get("/tmp/file", SOON).unwrap(), content);
    let error = machine.get("/no/such/file", SOON).unwrap_err().to_string();
    assert!(error.contains("/no/such/file"), "{error}");
    machine.put("/no/such/file", &content, SOON).unwrap_err();
    // Several tasks at a time, and one that is killed.
    let tasks: Vec<_> =
        (0..4).map(|n| machine.begin(&format!("sleep 1; echo {n}")).unwrap()).collect();
    let endless = machine.begin("echo begun; while :; do :; done").unwrap();
    endless.wait_for("begun", SOON).unwrap();
    for (n, task) in tasks.iter().enumerate() {
        assert_eq!(task.wait(SOON).unwrap().text, format!("{n}\n"));
    }
    assert!(!endless.ended());
    let error = endless.wait(Duration::from_millis(200)).unwrap_err().to_string();
    assert!(error.contains("begun"), "{error}");
    endless.kill().unwrap();
    assert_eq!(endless.wait(SOON).unwrap().status, 128 + 9);
    let script = "for n in $(seq 80); do cat /tmp/late 2>&- && break; sleep 0.5; done";
    assert_eq!(ok(machine, script), "late\n");
}

#[test]
fn machines_do_what_they_are_told_and_forget_what_was_not_flushed() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let drive = Drive::new(64 << 20, 7).unwrap();
        let began = Instant::now();
        let setup = Setup::new(&lab).disk("plain", 32 << 20).drive("fast", &drive);
        let machine = setup.clone().file("/etc/given", b"given\n").boot().unwrap();
        println!("up after {:.1} s", began.elapsed().as_secs_f64());
        assert_eq!(ok(&machine, "cat /etc/given; ls /disk"), "given\nfast\nplain\nprograms\n");
        assert_eq!(ok(&machine, "blockdev --getsize64 $(readlink /disk/plain)"), "33554432\n");
        scripts_and_files(&machine);

        // A drive's content survives a cut if it was flushed.
        ok(
            &machine,
            "tr '\\0' a </dev/zero | dd of=/disk/fast bs=1M count=16 iflag=fullblock oflag=direct conv=fsync",
        );
        ok(
            &machine,
            "tr '\\0' b </dev/zero | dd of=/disk/fast bs=64k count=64 iflag=fullblock oflag=direct",
        );
        assert_eq!(ok(&machine, "head -c 3 /disk/fast"), "bbb");
        let pid = machine.pid();
        let cut = machine.cut().unwrap().remove(0);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "QEMU is left");
        println!("{cut:?} {:?}", drive.counts());
        assert!(cut.lost > 0 && cut.kept > 0, "{cut:?}");

        let machine = setup.boot().unwrap();
        let count = |byte: char, skip: u32, blocks: u32| -> u64 {
            let script = format!(
                "dd if=/disk/fast bs=1M skip={skip} count={blocks} 2>/dev/null | tr -dc {byte} | wc -c"
            );
            ok(&machine, &script).trim().parse().unwrap()
        };
        assert_eq!(count('a', 4, 12), 12 << 20, "what was flushed");
        let (old, new) = (count('a', 0, 4), count('b', 0, 4));
        assert_eq!(old + new, 4 << 20);
        assert!(old >= cut.lost * 4096 && new >= cut.kept * 4096, "{old} {new} {cut:?}");

        // A pulled drive fails, and nothing else does.
        drive.pull();
        let script = "dd if=/disk/fast of=/dev/null bs=4k count=1 iflag=direct";
        assert_ne!(machine.run(script, SOON).unwrap().status, 0);
        ok(&machine, "dd if=/disk/plain of=/dev/null bs=4k count=1 iflag=direct");
        drive.plug();
        ok(&machine, script);

        // The death of a machine is noticed, with its last console output.
        let began = Instant::now();
        let error = machine.run("echo c >/proc/sysrq-trigger", SOON).unwrap_err().to_string();
        assert!(error.contains("gone") && error.contains("panic"), "{error}");
        assert!(began.elapsed() < SOON / 2 && machine.console().contains("sysrq triggered crash"));
    });
}

#[test]
fn a_machine_ends_with_order_and_in_time() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        std::fs::File::create(&disk).unwrap().set_len(32 << 20).unwrap();
        let setup = Setup::new(&lab).memory(256).cpus(1);
        let setup = setup.file_disk("data", &disk, ztier_vm::Cache::Writeback);
        let machine = setup.clone().boot().unwrap();
        assert_eq!(ok(&machine, "nproc"), "1\n");
        ok(&machine, "mkfs.ext4 -q /disk/data && mount /disk/data /mnt && echo kept >/mnt/file");
        ok(&machine, "umount /mnt");
        machine.off().unwrap();
        // A machine whose kernel hangs does not block the test.
        let machine = setup.boot().unwrap();
        assert_eq!(ok(&machine, "mount /disk/data /mnt && cat /mnt/file"), "kept\n");
        let began = Instant::now();
        machine
            .run(
                "echo 1 >/proc/sys/kernel/sysrq; cat /proc/version; sleep 100",
                Duration::from_secs(1),
            )
            .unwrap_err();
        let pid = machine.pid();
        drop(machine);
        assert!(began.elapsed() < Duration::from_secs(20));
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "QEMU is left");
    });
}
