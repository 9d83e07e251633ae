//! `ztier-bench scan`, and the load that it starts.

use super::{MachineArgs, finish, name_of, warn_if_busy};
use crate::report::{Output, Report, print};
use crate::vm::{Flavour, Inside, Speed};
use crate::workload::log::REAL_DIR;
use crate::workload::scan::load::{self, Load};
use crate::workload::scan::{self, Choice, Place, System};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use ztier::error::{Context, Error, Result};

/// Preparation in the machine: mounts control groups, which its first programs do not mount.
const PREPARE: &str = "mkdir -p /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; \
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control; ";
/// Limit on the `--seconds` of a load.
const SECONDS_MAX: f64 = 1e6;

#[derive(Args)]
pub struct ScanArgs {
    /// End within 60 seconds: little memory, few passes, one modelled drive.
    #[arg(long)]
    quick: bool,
    /// Memory that the load goes over, in MiB (480, as in the source).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(8..=65536))]
    mib: Option<u64>,
    /// How often it does (10).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    passes: Option<u32>,
    /// Runs of each system, of which the first is told apart (5).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Memory that the load may have, in MiB (5/8 of what it goes over); 0 for all of the
    /// machine's.
    #[arg(long, value_name = "MIB")]
    limit: Option<u64>,
    /// vm.page-cluster, the same for all systems; with several, ratios of the first are held
    /// against targets (5,0, or 5).
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(..=10))]
    page_cluster: Vec<u32>,
    /// The part of the machine's memory that zswap may have, in percent (its own setting).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    zswap_percent: Option<u32>,
    /// Only these systems (all by default; a quick run leaves out modelled eMMCs and SD cards).
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    only: Vec<System>,
    /// Where disk swap, zswap's and the spill go: files in a directory, or a block device for
    /// each, in this order, that holds nothing. They are overwritten. With --vm only a model, like
    /// sim:emmc-5.1: each has a drive of its own of that kind.
    #[arg(long, value_name = "DIR|DEVICE,…", value_delimiter = ',', default_value = REAL_DIR)]
    disk: Vec<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Args)]
pub struct LoadArgs {
    /// Memory, in MiB.
    mib: u64,
    /// How often to go over it.
    passes: u32,
    /// Stop after this time, wherever it is.
    #[arg(long)]
    seconds: Option<f64>,
    /// The file of a control group that takes process ids.
    #[arg(long, value_name = "FILE")]
    join: Option<PathBuf>,
}

impl ScanArgs {
    /// Runs the table.
    pub fn run(self) -> Result<()> {
        if self.machine.vm {
            return self.in_machine();
        }
        let inside = self.machine.inside.is_some();
        warn_if_busy()?;
        let place = match &self.disk[..] {
            [dir] if dir.is_dir() => Place::Directory(dir.clone()),
            _ => Place::Devices(self.disk),
        };
        let choice = Choice {
            quick: self.quick,
            inside,
            mib: self.mib,
            passes: self.passes,
            runs: self.runs,
            limit: self.limit,
            clusters: self.page_cluster,
            zswap_percent: self.zswap_percent,
            systems: self.only,
        };
        let mut report = Report::new("scan");
        let failed = scan::run(&mut report, &choice, &place);
        // Results from before a failure are still reported and saved.
        let failed = failed.or_else(|e| {
            report.missing("scan", "all", &e);
            Ok::<_, Error>(vec!["scan".to_owned()])
        })?;
        finish(&report, &self.output, &failed)
    }

    /// How fast the disks of the machine are: as files, unless a model is named.
    fn speed(&self) -> Result<Speed<'static>> {
        match &self.disk[..] {
            [dir] if dir.as_os_str() == REAL_DIR => Ok(Speed::AsFiles),
            [one] => Ok(Speed::Modelled(one.to_string_lossy().parse()?)),
            _ => Err(Error::usage("a machine's disks are all of one model, like sim:emmc-5.1")),
        }
    }

    /// Runs the table in a virtual machine as small as the source's.
    fn in_machine(&self) -> Result<()> {
        let disks = "/disk/swap,/disk/zswap,/disk/spill";
        let mut inside: Vec<String> = ["scan", "--disk", disks].map(str::to_owned).into();
        inside.extend(self.quick.then(|| "--quick".to_owned()));
        let numbers = [
            ("--mib", self.mib),
            ("--passes", self.passes.map(u64::from)),
            ("--runs", self.runs.map(u64::from)),
            ("--limit", self.limit),
            ("--zswap-percent", self.zswap_percent.map(u64::from)),
        ];
        for (option, number) in numbers {
            inside.extend(number.into_iter().flat_map(|n| [option.to_owned(), n.to_string()]));
        }
        for cluster in &self.page_cluster {
            inside.extend(["--page-cluster".to_owned(), cluster.to_string()]);
        }
        for system in &self.only {
            inside.extend(["--only".to_owned(), name_of(system)]);
        }
        let machine = Inside {
            args: inside,
            // The only flavour with zswap.
            kernel: Flavour::Full,
            memory: 512,
            cpus: 1,
            disks: &[("swap", 1 << 30), ("zswap", 1 << 30), ("spill", 1 << 30)],
            speed: self.speed()?,
            modules: "fuse loop lz4 ublk_drv zram",
            prepare: PREPARE,
            counted: self.machine.instructions,
            output: &self.output,
            svg: None,
        };
        machine.run()
    }
}

impl LoadArgs {
    /// Runs the load, and prints its results as JSON.
    pub fn run(self) -> Result<()> {
        let limit = match self.seconds {
            Some(s) if (0.0..=SECONDS_MAX).contains(&s) => Some(Duration::from_secs_f64(s)),
            None => None,
            Some(_) => return Err(Error::usage("--seconds must be a number from 0 to 1000000")),
        };
        let Self { mib, passes, join, .. } = self;
        let outcome = load::child(&Load { mib, passes, limit, join })?;
        print(&serde_json::to_string(&outcome).context("cannot make JSON")?);
        Ok(())
    }
}
