//! Whether the slow drive of a cache is usable alone after the fast drive is pulled out for good.
//!
//! In each round a machine writes files to ext4 on the cache, syncs each and then prints its name.
//! Meanwhile and afterwards the slow drive is copied again and again, and each copy is checked as
//! if it were all that is left. Then the fast drive fails every request; the cache has some seconds
//! to react; and the slow drive is checked a last time, with every file that was named.

use crate::lab;
use clap::{Args, ValueEnum};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};
use ztier_vm::command::run as program;
use ztier_vm::{Drive, Lab, Machine, Setup, Task};

const LIMIT: Duration = Duration::from_secs(300);
const SLOW: u64 = 96 << 20;
const FAST: u64 = 32 << 20;
/// Interval between checks of the slow drive.
const LOOK: Duration = Duration::from_millis(500);

/// What is before the fast drive and the slow one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// A volume with a log.
    Ztier,
    /// The device mapper's write cache.
    DmWritecache,
    /// bcache in writeback mode.
    Bcache,
}

/// What to do, and how often.
#[derive(Args)]
pub struct Options {
    /// Rounds for each system, idle, and as many at work.
    #[arg(long, value_name = "N", default_value_t = 20)]
    times: u32,
    /// Only these.
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    only: Vec<System>,
    /// Seconds of work in a round.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    work: u64,
    /// Seconds without work before the drive is pulled from an idle system.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    idle: u64,
    /// Seconds that a system has after the drive was pulled.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    grace: u64,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Ztier => "ztier",
            Self::DmWritecache => "dm-writecache",
            Self::Bcache => "bcache",
        }
    }

    /// Offset of the file system on the slow drive.
    fn offset(self) -> u64 {
        if self == Self::Bcache { 8192 } else { 0 }
    }

    /// Makes ext4 on the slow drive, so that it is complete from the beginning, puts the cache in
    /// front of it, and mounts the cache.
    fn script(self) -> String {
        let (offset, blocks) = (self.offset(), (SLOW - self.offset()) / 4096);
        let (up, device) = match self {
            Self::Ztier => (ZTIER, "/dev/ztier/v"),
            Self::DmWritecache => (DM_WRITECACHE, "/dev/mapper/v"),
            Self::Bcache => (BCACHE, "/dev/bcache0"),
        };
        format!(
            "set -e\nmkfs.ext4 -q -F -b 4096 -E offset={offset} /disk/slow {blocks}\n{up}\n\
             mount {device} /mnt"
        )
    }
}

const ZTIER: &str = "\
modprobe loop
modprobe ublk_drv
ztier up v --backing /disk/slow --log /disk/fast --segment 64K";

const DM_WRITECACHE: &str = r#"
modprobe dm-writecache
sectors=$(blockdev --getsz /disk/slow)
slow=$(readlink /disk/slow)
fast=$(readlink /disk/fast)
dmsetup create v --table "0 $sectors writecache s $slow $fast 4096 0"
dmsetup mknodes v"#;

/// Makes all writes go to the cache, at any load.
const BCACHE: &str = r#"
modprobe bcache
make-bcache --writeback --wipe-bcache --bucket 16k -C /disk/fast -B /disk/slow >/dev/null
for disk in slow fast; do echo $(readlink /disk/$disk) >/sys/fs/bcache/register_quiet; done
here=/sys/block/bcache0/bcache
while [ "$(cat $here/state 2>&-)" != clean ]; do usleep 50000; done
echo writeback >$here/cache_mode
echo 0 >$here/sequential_cutoff
for file in /sys/fs/bcache/*-*/congested_*_threshold_us; do echo 0 >$file; done"#;

/// The state of the slow drive alone.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    clean: bool,
    /// Files that were durable, and those of them that are missing or incomplete.
    files: u64,
    lost: u64,
}

#[derive(Debug, Default)]
struct Tally {
    rounds: u32,
    clean: u32,
    files: u64,
    lost: u64,
    /// Checks of the slow drive before the fast one was pulled.
    looks: u32,
    looks_clean: u32,
    /// The longest time in seconds in which every check found the drive unclean.
    exposed: f64,
}

/// Runs all rounds, and prints a line for each system and state.
///
/// # Errors
/// A machine fails, or a system does not come up.
#[expect(clippy::print_stdout, reason = "what was asked for")]
pub fn run(options: &Options) -> Result<()> {
    let lab = lab()?;
    let all = [System::Ztier, System::DmWritecache, System::Bcache];
    let systems = if options.only.is_empty() { &all[..] } else { &options.only[..] };
    println!(
        "{} s of work, {} s idle, {} s after the drive was pulled; Linux {} under QEMU",
        options.work,
        options.idle,
        options.grace,
        lab.kernel.release()
    );
    println!(
        "system         state  slow drive alone clean  synced files lost  looks clean  exposed"
    );
    for system in systems {
        for loaded in [false, true] {
            let mut tally = Tally::default();
            for seed in 0..options.times {
                let seed = u64::from(seed) * 2 + u64::from(loaded) + 1;
                let round = Round { lab: &lab, system: *system, loaded, options };
                round.run(seed, &mut tally)?;
                let name = system.name();
                eprintln!("{name}, {}: {tally:?}", if loaded { "loaded" } else { "idle" });
            }
            println!(
                "{:<14} {:<6} {:>13} of {:>3} {:>13} of {:>4} {:>6} of {:>3} {:>5.1} s",
                system.name(),
                if loaded { "loaded" } else { "idle" },
                tally.clean,
                tally.rounds,
                tally.lost,
                tally.files,
                tally.looks_clean,
                tally.looks,
                tally.exposed
            );
        }
    }
    Ok(())
}

struct Round<'a> {
    lab: &'a Lab,
    system: System,
    loaded: bool,
    options: &'a Options,
}

impl Round<'_> {
    fn run(&self, seed: u64, tally: &mut Tally) -> Result<()> {
        // Other processes poll for the lock; the pause lets them have it.
        std::thread::sleep(LOOK);
        let _turn = self.lab.turn(Duration::from_secs(3600))?;
        let (slow, fast) = (Drive::new(SLOW, seed)?, Drive::new(FAST, seed + 1)?);
        let setup = Setup::new(self.lab).drive("slow", &slow).drive("fast", &fast);
        let machine = setup.boot()?;
        machine.ok(&self.system.script(), LIMIT)?;
        let work = tempfile::tempdir().context("cannot make a directory")?;
        let image = work.path().join("image");
        let mut watch =
            Watch { slow: &slow, image: &image, system: self.system, tally, since: None };
        let noise = machine.begin(NOISE)?;
        let writer = machine.begin(WRITER)?;
        writer.wait_for("\n", LIMIT)?;
        watch.look_for(Duration::from_secs(self.options.work))?;
        let durable = if self.loaded {
            durable(&writer)
        } else {
            Self::quiet(&machine, &[&writer, &noise])?;
            watch.look_for(Duration::from_secs(self.options.idle))?;
            durable(&writer)
        };
        fast.pull();
        std::thread::sleep(Duration::from_secs(self.options.grace));
        machine.stop();
        slow.settle()?;
        slow.save(&image, self.system.offset())?;
        drop(machine);
        let found = check(&image, durable)?;
        tally.rounds += 1;
        tally.clean += u32::from(found.clean);
        (tally.files, tally.lost) = (tally.files + found.files, tally.lost + found.lost);
        Ok(())
    }

    /// Ends the work.
    fn quiet(machine: &Machine, work: &[&Task]) -> Result<()> {
        machine.ok("touch /tmp/end", LIMIT)?;
        while !work.iter().all(|task| task.ended()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        machine.ok("sync", LIMIT).map(drop)
    }
}

/// Writes files, each durable when its number is printed; a file repeats one line.
const WRITER: &str = r#"
n=0
mkdir /mnt/files
while [ ! -e /tmp/end ]; do
    n=$((n + 1))
    yes $n | head -c $((n * 7919 % 61 * 1024 + 1)) |
        dd of=/mnt/files/$n bs=64k conv=fsync 2>/dev/null || exit 1
    echo $n
    [ $((n % 3)) = 0 ] && rm /mnt/files/$((n / 3))
done
"#;

/// Fills the fast drive again and again, with files that come and go.
const NOISE: &str = r#"
n=0
mkdir /mnt/noise
while [ ! -e /tmp/end ]; do
    n=$((n + 1))
    mkdir /mnt/noise/$n
    for part in a b c d; do
        dd if=/dev/urandom of=/mnt/noise/$n/$part bs=256k count=2 oflag=direct 2>/dev/null || exit 1
    done
    [ $n -gt 6 ] && rm -r /mnt/noise/$((n - 6))
done
"#;

/// The number of the last file that is durable.
fn durable(writer: &Task) -> u64 {
    let text = writer.output();
    let mut whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.next_back().and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}

/// Checks the slow drive as if it were all that is left.
struct Watch<'a> {
    slow: &'a Arc<Drive>,
    image: &'a Path,
    system: System,
    tally: &'a mut Tally,
    /// Time since which it is unclean.
    since: Option<Instant>,
}

impl Watch<'_> {
    fn look_for(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let began = Instant::now();
            self.slow.save(self.image, self.system.offset())?;
            let clean = clean(self.image)?;
            self.tally.looks += 1;
            if clean {
                self.tally.looks_clean += 1;
                self.since = None;
            } else {
                let since = *self.since.get_or_insert(began);
                self.tally.exposed = self.tally.exposed.max(since.elapsed().as_secs_f64());
            }
            std::thread::sleep(LOOK.saturating_sub(began.elapsed()));
        }
        Ok(())
    }
}

/// Whether a file system needs only a replay of its journal.
fn clean(image: &Path) -> Result<bool> {
    let e2fsck = |args: &[&str]| {
        let done = Command::new("timeout")
            .args(["-k", "2", "60", "e2fsck"])
            .args(args)
            .arg(image)
            .stdin(Stdio::null())
            .output()
            .context("cannot run e2fsck")?;
        Ok::<_, Error>(done.status.code())
    };
    // Replaying the journal is no repair: a mount does it, too.
    Ok(e2fsck(&["-y", "-E", "journal_only"])?.is_some_and(|status| status <= 1)
        && e2fsck(&["-fn"])? == Some(0))
}

/// The state of a copy of the slow drive, if the files up to `durable` were durable.
fn check(image: &Path, durable: u64) -> Result<Found> {
    let clean = clean(image)?;
    let place = image.with_extension("files");
    fs::create_dir(&place).context("cannot make a directory")?;
    // A file that debugfs cannot read counts as missing.
    let request = format!("rdump /files {}", place.display());
    let _ = program(120, "debugfs", &["-R", &request, &image.to_string_lossy()]);
    let mut found = Found { clean, ..Found::default() };
    // The removed files are a third of all, the first ones; one more may have been removed.
    for n in durable / 3 + 2..=durable {
        let line = format!("{n}\n");
        let len = usize::try_from(n * 7919 % 61 * 1024 + 1).unwrap_or(0);
        let content: Vec<u8> = line.bytes().cycle().take(len).collect();
        let there = fs::read(place.join("files").join(n.to_string()));
        found.files += 1;
        found.lost += u64::from(there.ok() != Some(content));
    }
    Ok(found)
}
