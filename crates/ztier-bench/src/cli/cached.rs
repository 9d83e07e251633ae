//! `ztier-bench cache`.

use super::warn_if_busy;
use crate::data::Kind;
use crate::report::{Report, print};
use crate::workload::cached;
use clap::Args;
use std::path::PathBuf;
use ztier::error::Result;

#[derive(Args)]
pub struct CacheArgs {
    /// End within 60 seconds: few reads.
    #[arg(long)]
    quick: bool,
    /// Data on the drive: 2:1 (the default), mix-2:1, runs-2:1, files or iozone.
    #[arg(long, value_name = "DATA", default_value = "2:1")]
    data: Kind,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write all figures as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &CacheArgs) -> Result<()> {
    warn_if_busy()?;
    let mut report = Report::new("cache");
    let done = cached::run(&mut report, args.data, args.quick);
    print("\n== ratios");
    print(&report.ratio_table());
    // What was found before a failure is still saved.
    report.save(args.json.as_deref(), args.csv.as_deref())?;
    done
}
