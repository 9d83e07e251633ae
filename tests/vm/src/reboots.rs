//! A machine with systemd that reboots again and again with file systems, LVM and LUKS on volumes:
//! no written data is lost, and no job waits in vain.

use crate::debian::Debian;
use crate::lab::Lab;
use crate::programs::{copy_stripped, ours};
use crate::{Cache, Machine, Setup};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// The script of the first boot, and that of each other one.
const PREPARE: &str = include_str!("../systemd/prepare");
const ROUND: &str = include_str!("../systemd/round");
/// Limit on the time of a boot or a shutdown, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);
/// Volumes with a log in front of a backing store.
const LOGGED: [&str; 3] = ["plain", "lvm", "luks"];
const SLOW: u64 = 160 << 20;
const FAST: u64 = 64 << 20;

/// Reboots `rounds` times, and prints each result to `out`.
///
/// # Errors
/// Data was lost, a step failed, or took too long.
pub fn reboots(lab: &Lab, rounds: u32, export: &str, mut out: impl Write) -> Result<()> {
    let place = tempfile::Builder::new().prefix("ztier-vm-reboots-").tempdir();
    let place = place.context("cannot make a directory for disks")?;
    let machine = start(lab, place.path(), export)?;
    let told = "cannot say how it went";
    writeln!(out, "first boot: Linux {}", lab.kernel.release()).context(told)?;
    machine.put("/usr/local/sbin/round", ROUND.as_bytes(), PATIENCE)?;
    machine.ok(PREPARE, PATIENCE)?;
    for round in 1..=rounds {
        let begun = Instant::now();
        // The reboot's end is not reported, as the agent ends before.
        machine.begin("systemctl reboot")?;
        machine.wait_for_boots(round + 1, PATIENCE)?;
        // On a busy machine most of the time may be the emulated kernel's own boot.
        let seconds = begun.elapsed().as_secs();
        writeln!(out, "reboot {round}: {seconds} s").context(told)?;
        let done = machine.run("round", PATIENCE)?;
        for line in done.text.lines() {
            writeln!(out, "  {line}").context(told)?;
        }
        if done.status != 0 {
            return Err(Error::failure(format!("reboot {round} went wrong")));
        }
    }
    machine.off()
}

fn start(lab: &Lab, place: &Path, export: &str) -> Result<Machine> {
    let program = place.join("ztier");
    copy_stripped(&ours("ztier")?, &program)?;
    let debian = Debian::new(&lab.cache, &lab.kernel, &ours("ztier-vm-agent")?)?;
    install(&program, &debian.tree())?;
    let export = format!("export = \"{export}\"\n");
    let mut setup = Setup::new(lab).memory(768).reboots().root("root").patience(PATIENCE);
    // The end of a shutdown is in no journal.
    setup = setup.append("loglevel=7 printk.devkmsg=on");
    let root = place.join("root");
    for name in LOGGED {
        let drive = |kind| format!("/dev/disk/by-id/virtio-{name}-{kind}");
        let (backing, log) = (drive("slow"), drive("fast"));
        let text = format!("backing = \"{backing}\"\nlog = \"{log}\"\n{export}");
        debian.file(&format!("etc/ztier/{name}.toml"), &text)?;
    }
    let swap = format!("size = \"64M\"\nuse = \"swap\"\n{export}");
    debian.file("etc/ztier/swap.toml", &swap)?;
    let scratch = format!("size = \"64M\"\nuse = \"ext4\"\nmount = \"/mnt/scratch\"\n{export}");
    debian.file("etc/ztier/scratch.toml", &scratch)?;
    debian.image(&root, 512)?;
    setup = setup.file_disk("root", &root, Cache::Writeback);
    for name in LOGGED {
        for (kind, size) in [("slow", SLOW), ("fast", FAST)] {
            let name = format!("{name}-{kind}");
            let path = place.join(&name);
            let file = File::create(&path).context("cannot make a disk")?;
            file.set_len(size).context("cannot size a disk")?;
            setup = setup.file_disk(&name, &path, Cache::Writeback);
        }
    }
    setup.boot()
}

/// Installs a program and its files as a package would.
fn install(program: &Path, tree: &Path) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let done = Command::new(root.join("scripts/install"))
        .env("PROGRAM", program)
        .env("DESTDIR", tree)
        .env_remove("PREFIX")
        .status()
        .context("cannot run scripts/install")?;
    if done.success() { Ok(()) } else { Err(Error::failure("scripts/install failed")) }
}
