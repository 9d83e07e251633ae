//! `ztier-bench cache`.

use super::warn_if_busy;
use crate::data::Kind;
use crate::report::{Output, Report, print};
use crate::workload::cached;
use clap::Args;
use ztier::error::Result;

#[derive(Args)]
pub struct CacheArgs {
    /// End within 60 seconds: few reads.
    #[arg(long)]
    quick: bool,
    /// Data on the drive: 2:1 (the default), mix-2:1, runs-2:1, files or iozone.
    #[arg(long, value_name = "DATA", default_value = "2:1")]
    data: Kind,
    #[command(flatten)]
    output: Output,
}

/// Runs the command.
pub fn run(args: &CacheArgs) -> Result<()> {
    warn_if_busy()?;
    let mut report = Report::new("cache");
    let done = cached::run(&mut report, args.data, args.quick);
    print("\n== ratios");
    print(&report.ratio_table());
    // Results from before a failure are still saved.
    report.save(&args.output)?;
    done
}
