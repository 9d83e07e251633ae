//! `ztier-bench all` and `ztier-bench report`.

use super::clear;
use crate::report::print;
use crate::suite::{Choice, Folder, Session, Turn, plan};
use crate::summary;
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;
use ztier::error::Result;

#[derive(Args)]
pub struct AllArgs {
    /// End within 15 minutes: the quick form of each table.
    #[arg(long)]
    quick: bool,
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PossibleValuesParser::new(plan::NAMES))]
    only: Vec<String>,
    /// All but these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PossibleValuesParser::new(plan::NAMES))]
    skip: Vec<String>,
    /// Where figures, logs and the report go, a directory that is not there yet; by default
    /// bench-results/ and the time.
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    dir: Option<PathBuf>,
    /// Go on with a run (the newest in bench-results/, if none is named): what ended well, by the
    /// same build with the same arguments, is not run again.
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    resume: Option<Option<PathBuf>>,
    /// Also print what the tables print, which their logs have in any case.
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Args)]
pub struct ReportArgs {
    /// The directory of a run.
    dir: PathBuf,
}

impl AllArgs {
    /// Runs the tables and writes the report, also of a run that was interrupted.
    pub fn run(self, turn: Turn) -> Result<()> {
        let typed: Vec<String> = std::env::args().skip(1).collect();
        let choice = Choice {
            quick: self.quick,
            only: self.only,
            skip: self.skip,
            dir: self.dir,
            resume: self.resume,
            verbose: self.verbose,
            command: format!("./bench {}", typed.join(" ")),
        };
        let mut session = Session::open(&choice, turn)?;
        clear();
        let done = session.work();
        let report = summary::write(&session.folder, &session.run);
        if let Ok(path) = &report {
            print(&format!("report: {}", path.display()));
        }
        done.and(report.map(drop))
    }
}

impl ReportArgs {
    /// Writes the report anew.
    pub fn run(self) -> Result<()> {
        let folder = Folder::of(self.dir);
        let run = folder.load()?;
        print(&format!("report: {}", summary::write(&folder, &run)?.display()));
        Ok(())
    }
}
