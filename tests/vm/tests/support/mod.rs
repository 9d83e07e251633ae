//! Helpers shared by the tests in machines.
#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)]

use std::time::Duration;
use ztier_vm::cache::Lock;
use ztier_vm::kernel::Flavour;
use ztier_vm::{EMULATION_FAULT, Lab, Machine, Setup};

/// Limit on the time of a step. An emulated CPU is slow, and may have to share a real one.
pub const SOON: Duration = Duration::from_secs(180);

/// The laboratory, and the right to run machines: one test at a time.
pub fn lab() -> Option<(Lab, Lock)> {
    lab_with(&["ztier"])
}

/// As [`lab`], with these programs of the workspace in the machines.
pub fn lab_with(programs: &[&str]) -> Option<(Lab, Lock)> {
    lab_of(Flavour::default(), programs)
}

/// As [`lab_with`], with a kernel of this flavour.
pub fn lab_of(flavour: Flavour, programs: &[&str]) -> Option<(Lab, Lock)> {
    let lab = Lab::for_test(flavour, programs)?;
    let turn = lab.turn(Duration::from_secs(1800)).unwrap();
    Some((lab, turn))
}

/// Runs a test; up to twice again after a fault of the emulator, which ended the machine's kernel.
pub fn in_machines(test: fn()) {
    for _ in 0..2 {
        let Err(why) = std::panic::catch_unwind(test) else { return };
        let said = why.downcast_ref::<String>().map_or("", String::as_str);
        if !said.contains(EMULATION_FAULT) {
            std::panic::resume_unwind(why);
        }
        println!("once more, after a fault of the emulator");
    }
    test();
}

/// The setup of a machine with the scripts of these tests.
pub fn setup(lab: &Lab) -> Setup {
    Setup::new(lab).file("/usr/local/bin/filesystem", include_bytes!("../../scripts/filesystem"))
}

/// Runs a script that has to succeed.
#[track_caller]
pub fn ok(machine: &Machine, script: &str) -> String {
    machine.ok(script, SOON).unwrap_or_else(|e| panic!("{script}: {e}"))
}

/// Runs a script that has to fail, be refused or find a resource busy, with a message that has
/// `part`.
#[track_caller]
pub fn refused(machine: &Machine, script: &str, part: &str) {
    let done = machine.run(script, SOON).unwrap();
    assert!(matches!(done.status, 1 | 4 | 5) && done.text.contains(part), "{script}: {done:?}");
}

/// Asserts that all leftovers of a volume are gone, or go within seconds: memory holders and the
/// kernel need a moment.
#[track_caller]
pub fn nothing_left(machine: &Machine) {
    let look = "ls /run/ztier 2>&- | grep -v lock; ls /dev/ztier 2>&-; ls /dev | grep ublk[bc]; \
         losetup -a; grep ztier /proc/mounts; \
         for p in /proc/[0-9]*; do case $(readlink $p/exe) in */bin/ztier) \
         echo $p $(tr '\\0' ' ' <$p/cmdline) $(grep State $p/status);; esac; done";
    let mut left = String::new();
    for _ in 0..20 {
        left = ok(machine, look);
        if left.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    panic!("left behind: {left}{}", ok(machine, "tail -n 20 /run/ztier/*.log 2>&-; true"));
}

/// Milliseconds of CPU time stolen from the machine that runs the tests, since its start.
pub fn stolen() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    stat.split_whitespace().nth(8).map_or(0, |ticks| ticks.parse::<u64>().unwrap() * 10)
}

/// Number of repetitions of a long test: the value of `variable`, or `short`.
pub fn times(variable: &str, short: u32) -> u32 {
    std::env::var(variable).map_or(short, |text| text.parse().unwrap())
}
