//! Exports under a kernel other than this machine's: FUSE with a loop device, and NBD with the
//! kernel's own client.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use support::{lab, nothing_left, ok, refused, setup};
use ztier_vm::Machine;

/// Partitions of the volume are found, hold data, come back after a kill, and go with the volume.
fn partitions(machine: &Machine) {
    // A partition of 62 MiB from 1 MiB on.
    let part = "ztier up f --size 64M --export fuse && cd /dev/ztier && \
                printf '\\203\\0\\0\\0\\0\\001\\0\\0\\0\\076\\0\\0' >/tmp/p && \
                dd if=/tmp/p of=f bs=1 seek=450 && \
                printf '\\125\\252' | dd of=f bs=1 seek=510 && sync && \
                blockdev --rereadpt /dev/loop0 && sleep 1 && mkfs.ext4 -q /dev/loop0p1 && \
                mount /dev/loop0p1 /mnt && echo kept >/mnt/a";
    ok(machine, part);
    refused(machine, "ztier down f --discard", "mounted on /mnt");
    ok(machine, "umount /mnt && kill -9 $(pidof ztier:f) && sleep 0.3 && ztier restart f");
    ok(machine, "mount /dev/loop0p1 /mnt");
    assert_eq!(ok(machine, "cat /mnt/a"), "kept\n");
    ok(machine, "umount /mnt && ztier down f --discard");
    assert_eq!(ok(machine, "ls /sys/block/loop0 | grep loop0p; true"), "");
    nothing_left(machine);
}

#[test]
fn fuse_and_nbd_carry_file_systems_on_another_kernel() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let machine = setup(&lab).boot().unwrap();
        ok(&machine, "modprobe loop && modprobe nbd nbds_max=4");

        ok(&machine, "ztier up f --size 256M --export fuse");
        print!("fuse: {}", ok(&machine, "filesystem ext4 /dev/ztier/f 24"));
        ok(&machine, "mount /dev/ztier/f /mnt");
        refused(&machine, "ztier down f", "mounted");
        ok(&machine, "umount /mnt && ztier down f --discard");
        nothing_left(&machine);
        partitions(&machine);

        if !lab.image.has("nbd-client") {
            println!("skipped: no nbd-client");
            return;
        }
        ok(&machine, "ztier up n --size 256M --export nbd");
        // Several connections, as fast clients use them.
        ok(&machine, "nbd-client -unix /run/ztier/n.nbd /dev/nbd0 -N n -b 4096 -C 3");
        assert_eq!(ok(&machine, "blockdev --getsize64 /dev/nbd0"), "268435456\n");
        assert_eq!(ok(&machine, "cat /sys/block/nbd0/queue/write_cache"), "write back\n");
        print!("nbd: {}", ok(&machine, "filesystem ext4 /dev/nbd0 24"));
        refused(&machine, "ztier down n", "NBD client");
        ok(
            &machine,
            "fio --name=v --filename=/dev/nbd0 --size=64M --io_size=24M --rw=randwrite --bs=4k \
                  --ioengine=libaio --iodepth=16 --direct=1 --verify=crc32c --output=/dev/null",
        );
        ok(&machine, "nbd-client -d /dev/nbd0 && sleep 0.2 && ztier down n --discard");
        nothing_left(&machine);
        machine.off().unwrap();
    });
}
