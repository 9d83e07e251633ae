//! `ztier-bench worst-case`, and the program that only occupies memory.

use super::{finish, name_of};
use crate::report::{Output, Report};
use crate::vm::{Flavour, Inside, Speed};
use crate::workload::worst::{self, Choice, System};
use clap::Args;
use std::path::PathBuf;
use ztier::config::size;
use ztier::error::{Error, Result};

/// Preparation in the machine: mounts control groups, which its first programs do not mount.
const PREPARE: &str = "mkdir -p /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; \
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control; ";
/// Default limits of the disks, in bytes a second: quick and normal runs.
const BANDWIDTH: [u64; 2] = [200_000_000, 80_000_000];
/// Requests a second: sequential access is not limited by them, and swap is, as by the arm of a
/// 7200 rpm disk.
const REQUESTS: [u64; 2] = [1000, 120];
/// Memory of the machine, in MiB: quick and normal runs.
const MEMORY: [u32; 2] = [192, 512];

#[derive(Args)]
pub struct WorstArgs {
    /// End within a few minutes: 192 MiB of memory, one file of 256 MiB, faster disks.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// All of the source's sizes of records, 64 KiB to 16 MiB; takes hours.
    #[arg(long)]
    full: bool,
    /// Memory of the machine, in MiB (512; 192 in a quick run).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(192..=8192))]
    memory: Option<u32>,
    /// Sizes of files, in MiB (half, all and twice the memory).
    #[arg(long, value_name = "MIB", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(16..=65536))]
    files: Vec<u64>,
    /// Rounds (3; 1 in quick and full runs).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// What each disk moves in a second, in bytes (80M; 200M in a quick run).
    #[arg(long, value_name = "BYTES", value_parser = size::parse_bytes)]
    bandwidth: Option<u64>,
    /// Only these systems (all by default).
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    only: Vec<System>,
    /// Write a picture: a panel a test and file size.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    /// In a virtual machine, as always.
    #[arg(long)]
    vm: bool,
    /// This is that machine.
    #[arg(long, value_name = "WHAT", hide = true, conflicts_with = "vm")]
    inside: Option<String>,
}

#[derive(Args)]
pub struct HeapArgs {
    /// Memory, in MiB.
    mib: u64,
}

impl WorstArgs {
    /// Runs the table.
    pub fn run(self) -> Result<()> {
        let memory = self.memory.unwrap_or(MEMORY[usize::from(!self.quick)]);
        if self.inside.is_none() {
            return self.in_machine(memory);
        }
        let choice = Choice {
            quick: self.quick,
            full: self.full,
            memory,
            files: self.files,
            runs: self.runs,
            systems: self.only,
        };
        let mut report = Report::new("worst-case");
        let failed = worst::run(&mut report, &choice, self.svg.as_deref());
        // Results from before a failure are still reported and saved.
        let failed = failed.or_else(|e| {
            report.missing("worst-case", "all", &e);
            Ok::<_, Error>(vec!["worst-case".to_owned()])
        })?;
        finish(&report, &self.output, &failed)
    }

    fn in_machine(&self, memory: u32) -> Result<()> {
        let mut inside = vec!["worst-case".to_owned()];
        inside.extend(self.quick.then(|| "--quick".to_owned()));
        inside.extend(self.full.then(|| "--full".to_owned()));
        let mut add = |option: &str, value: String| inside.extend([option.to_owned(), value]);
        add("--memory", memory.to_string());
        self.files.iter().for_each(|file| add("--files", file.to_string()));
        self.runs.iter().for_each(|runs| add("--runs", runs.to_string()));
        self.only.iter().for_each(|system| add("--only", name_of(system)));
        let bandwidth = self.bandwidth.unwrap_or(BANDWIDTH[usize::from(!self.quick)]);
        crate::report::print(&format!(
            "disks: each held to {} MB a second; that of files to {} requests, those of swap to {}",
            bandwidth / 1_000_000,
            REQUESTS[0],
            REQUESTS[1]
        ));
        let [files, swap] = REQUESTS.map(|requests| (bandwidth, requests));
        let machine = Inside {
            args: inside,
            kernel: Flavour::Cloud,
            memory,
            cpus: 2,
            // Room for the largest file, a journal and tables.
            disks: &[("files", 4 << 30), ("swap", 1 << 30), ("spill", 1 << 30)],
            speed: Speed::Held(&[files, swap, swap]),
            modules: "fuse loop ublk_drv ext4",
            prepare: PREPARE,
            counted: false,
            output: &self.output,
            svg: self.svg.as_deref(),
        };
        machine.run()
    }
}

impl HeapArgs {
    /// Fills the memory and waits.
    pub fn run(self) -> Result<()> {
        worst::idle(self.mib)
    }
}
