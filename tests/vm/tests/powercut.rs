//! Power cuts while processes write to ext4 on a volume with a log, again and again, on drives that
//! lose what was not flushed. All that an fsync has covered is there, and ext4 is intact.
//!
//! `ZTIER_VM_CUTS` sets the number of cuts; by default three.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::sync::Arc;
use std::time::Duration;
use support::{SOON, lab, ok, setup, times};
use ztier_vm::{Drive, Machine, Setup};

/// The content of the file `$1/$2`: its writer and number, repeated; the number gives the length.
const CONTENT: &str = r#"content() { yes "$1 $2" | head -c $(( $2 * 7919 % 61 * 1024 + $2 )); }"#;

/// Two writers print which of their files are durable; a third process only writes.
const WRITER: &str = r#"
n=$FROM
while :; do
    n=$((n + 1))
    content $1 $n | dd of=/mnt/$1/$n bs=64k conv=fsync 2>/dev/null || exit 1
    echo "$1 $n"
    usleep 50000
done
"#;
const NOISE: &str = r#"
while dd if=/dev/urandom of=/mnt/noise bs=64k count=16 seek=$(( RANDOM % 64 * 16 )) \
    conv=notrunc oflag=direct 2>/dev/null
do :; done
"#;

struct Place {
    setup: Setup,
    log: Arc<Drive>,
    backing: Arc<Drive>,
    /// The durable files: writer and number.
    durable: Vec<(String, u32)>,
    /// Blocks that the drives lost.
    forgotten: u64,
}

impl Place {
    /// Brings machine and volume up. Recovers the log if there was any work before.
    fn up(&self) -> Result<Machine, String> {
        let machine = self.setup.clone().boot().unwrap();
        ok(&machine, "modprobe loop; modprobe ublk_drv");
        let up = "ztier up v --backing /disk/slow --log /disk/fast --segment 64K";
        machine.ok(up, SOON).map_err(|e| e.to_string())?;
        Ok(machine)
    }

    /// Checks the file system, and the files that were durable.
    fn check(&self, machine: &Machine) -> Result<(), String> {
        // The kernel replays ext4's own journal; after that nothing may need repair.
        let script = "mount /dev/ztier/v /mnt && umount /mnt && e2fsck -fn /dev/ztier/v \
                      && mount /dev/ztier/v /mnt";
        machine.ok(script, SOON).map_err(|e| e.to_string())?;
        let list: String = self.durable.iter().map(|(who, n)| format!("{who} {n}\n")).collect();
        machine.put("/tmp/durable", list.as_bytes(), SOON).unwrap();
        let script = format!(
            "{CONTENT}\nwhile read -r who n; do content $who $n | cmp - /mnt/$who/$n || exit 1; \
             done </tmp/durable"
        );
        machine.ok(&script, SOON).map_err(|e| e.to_string()).map(drop)
    }

    /// Lets the writers run for a while, and cuts the power.
    fn write_until_cut(&mut self, machine: Machine, round: u32) {
        let last = |who| self.durable.iter().filter(|d| d.0 == who).map(|d| d.1).max();
        let noise = machine.begin(NOISE).unwrap();
        let writers = ["a", "b"].map(|who| {
            let from = last(who).unwrap_or(0);
            let script = format!("{CONTENT}\nFROM={from}\nset {who}\n{WRITER}");
            machine.begin(&script).unwrap()
        });
        std::thread::sleep(Duration::from_millis(3000 + u64::from(round) * 797 % 2000));
        let before = self.durable.len();
        for writer in &writers {
            assert!(!writer.ended(), "a writer failed: {}", writer.output());
            // A line still in transit names a durable file, too; but the test does not know it.
            for line in writer.output().split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let (who, n) = line.trim().split_once(' ').unwrap();
                self.durable.push((who.to_owned(), n.parse().unwrap()));
            }
        }
        assert!(!noise.ended(), "the noise failed: {}", noise.output());
        let cuts = machine.cut().unwrap();
        let written = self.durable.len() - before;
        println!("round {round}: {written} durable files; backing store and log: {cuts:?}");
        self.forgotten += cuts.iter().map(|cut| cut.lost + cut.torn).sum::<u64>();
        assert!(written > 0);
    }
}

#[test]
fn ext4_on_a_log_survives_power_cuts() {
    support::in_machines(|| {
        let Some((lab, _turn)) = lab() else { return };
        let (log, backing) = (Drive::new(48 << 20, 3).unwrap(), Drive::new(192 << 20, 4).unwrap());
        let setup = setup(&lab).drive("slow", &backing).drive("fast", &log);
        let mut place = Place { setup, log, backing, durable: Vec::new(), forgotten: 0 };
        let machine = place.up().unwrap();
        ok(&machine, "mkfs.ext4 -q /dev/ztier/v && mount /dev/ztier/v /mnt && mkdir /mnt/a /mnt/b");
        ok(&machine, "sync");
        place.write_until_cut(machine, 0);
        for round in 1..times("ZTIER_VM_CUTS", 3) {
            let machine = place.up().unwrap_or_else(|e| panic!("round {round}: {e}"));
            place.check(&machine).unwrap_or_else(|e| panic!("round {round}: {e}"));
            place.write_until_cut(machine, round);
        }
        let machine = place.up().unwrap();
        place.check(&machine).unwrap();
        println!("{} files were durable", place.durable.len());
        assert!(place.forgotten > 0, "no cut took anything away");

        // Counter-check: the test notices a drive that reports a flush and does not flush.
        place.log.lie(true);
        place.backing.lie(true);
        place.write_until_cut(machine, 0);
        let lost = place.up().and_then(|machine| place.check(&machine)).unwrap_err();
        println!("drives that lie: {lost}");
    });
}
