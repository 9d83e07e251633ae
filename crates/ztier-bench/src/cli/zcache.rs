//! `ztier-bench zcache`.

use super::{finish, warn_if_busy};
use crate::data::Kind;
use crate::report::{Output, Report};
use crate::workload::zcache::{self, Choice, Section, System};
use clap::Args;
use std::path::PathBuf;
use ztier::config::size;
use ztier::error::{Error, Result};

#[derive(Args)]
pub struct ZcacheArgs {
    /// End within about two minutes: a file and a memory of 128 MiB, one size of records.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// All 13 sizes of records with all data, and 1 GiB in all sections: takes hours.
    #[arg(long)]
    full: bool,
    /// Memory, and size of the file, of all sections, in MiB (1024, and 128 but for `nine`).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=16384))]
    memory: Option<u64>,
    /// Sizes of records, powers of two (4K to 16M; 1M but for `nine` with IOzone's data).
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = size::parse_bytes)]
    records: Vec<u64>,
    /// Limits of the sweep, in percent of the memory (5,10,20,40).
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=80))]
    limits: Vec<u32>,
    /// Runs of each series (1).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// What the disk of this machine is held to, in bytes a second.
    #[arg(long, value_name = "BYTES", default_value = "100M", value_parser = size::parse_bytes)]
    bandwidth: u64,
    /// Only these sections (all by default; in a quick run, `nine`).
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    only: Vec<Section>,
    /// Systems of `nine` and `sweep` (all by default); the one without ztier is always there.
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    systems: Vec<System>,
    /// Data of `nine` (iozone and 2:1); with the first, a log is compared, too.
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    data: Vec<Kind>,
    /// Write pictures: FILE, and FILE with `sweep` in its name.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

impl ZcacheArgs {
    /// Runs the table.
    pub fn run(self) -> Result<()> {
        let valid = |&bytes: &u64| (4096..=16 << 20).contains(&bytes) && bytes.is_power_of_two();
        if let Some(bytes) = self.records.iter().find(|bytes| !valid(bytes)) {
            return Err(Error::usage(format!("--records has {bytes} bytes"))
                .hint("give powers of two from 4K to 16M"));
        }
        warn_if_busy()?;
        let choice = Choice {
            quick: self.quick,
            full: self.full,
            memory: self.memory,
            records: self.records.iter().map(|&bytes| bytes as usize).collect(),
            limits: self.limits,
            runs: self.runs,
            bandwidth: self.bandwidth,
            sections: self.only,
            systems: self.systems,
            data: self.data,
            svg: self.svg,
        };
        let mut report = Report::new("zcache");
        let failed = zcache::run(&mut report, &choice);
        // Results from before a failure are still reported and saved.
        let failed = failed.or_else(|e| {
            report.missing("zcache", "all", &e);
            Ok::<_, Error>(vec!["zcache".to_owned()])
        })?;
        finish(&report, &self.output, &failed)
    }
}
