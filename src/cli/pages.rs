//! `ztier man` and `ztier completions`: made from the same definitions as the parser.

use super::{Cli, manual, output};
use crate::error::Result;
use clap::{Args, CommandFactory, ValueHint};
use clap_complete::Shell;
use std::path::PathBuf;

/// Write the manual pages
#[derive(Args)]
#[command(hide = true)]
pub struct Man {
    /// Directory for ztier.1, a page for each command, and ztier.toml.5 [default: print ztier.1]
    #[arg(value_hint = ValueHint::DirPath)]
    directory: Option<PathBuf>,
}

impl Man {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.directory {
            Some(directory) => manual::write(&directory),
            None => output::print(&manual::main_page()?),
        }
    }
}

/// Print completions for a shell
#[derive(Args)]
#[command(hide = true)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "ztier", &mut script);
        output::print(&String::from_utf8_lossy(&script))
    }
}
