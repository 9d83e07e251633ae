//! `ztier-bench object`.

use super::{finish, warn_if_busy};
use crate::report::{Output, Report};
use crate::workload::object::{self, Choice, LATENCY_MAX_MS, Section};
use clap::Args;
use ztier::config::size;
use ztier::error::{Error, Result};

/// Bounds of the volume that is taken over.
const VOLUME: std::ops::RangeInclusive<u64> = 64 << 20..=1 << 40;

#[derive(Args)]
pub struct ObjectArgs {
    /// End within a few minutes: latencies of 0 and 30 ms, short runs, a volume of 1 GiB.
    #[arg(long)]
    quick: bool,
    /// Milliseconds that a request to the store takes more (0,10,30,100).
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=LATENCY_MAX_MS))]
    latency: Vec<u64>,
    /// Bytes in blocks of the volume that is taken over, a power of two (16G; quick: 1G).
    #[arg(long, value_name = "BYTES", value_parser = size::parse_bytes)]
    volume: Option<u64>,
    /// Only these sections (all by default).
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    only: Vec<Section>,
    #[command(flatten)]
    output: Output,
}

impl ObjectArgs {
    /// Runs the table.
    pub fn run(self) -> Result<()> {
        let is_fit = |bytes: &u64| VOLUME.contains(bytes) && bytes.is_power_of_two();
        if let Some(bytes) = self.volume.filter(|bytes| !is_fit(bytes)) {
            return Err(Error::usage(format!("--volume has {bytes} bytes"))
                .hint("give a power of two from 64M to 1T"));
        }
        warn_if_busy()?;
        let choice = Choice {
            quick: self.quick,
            sections: self.only,
            latencies: self.latency,
            volume: self.volume,
        };
        let mut report = Report::new("object");
        let failed = object::run(&mut report, &choice);
        // Results from before a failure are still reported and saved.
        let failed = failed.or_else(|e| {
            report.missing("object", "all", &e);
            Ok::<_, Error>(vec!["object".to_owned()])
        })?;
        finish(&report, &self.output, &failed)
    }
}
