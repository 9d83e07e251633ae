//! `ztier man` and `ztier completions`: made from the same definitions as the parser.

use super::{Cli, output};
use crate::error::{Context, Result};
use clap::{Args, CommandFactory, ValueHint};
use clap_complete::Shell;
use std::path::PathBuf;

/// Write the manual pages
#[derive(Args)]
#[command(hide = true)]
pub struct Man {
    /// Directory for ztier.1 and a page for each command [default: print ztier.1]
    #[arg(value_hint = ValueHint::DirPath)]
    directory: Option<PathBuf>,
}

impl Man {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.directory {
            Some(directory) => {
                let what = format!("cannot write to {}", directory.display());
                std::fs::create_dir_all(&directory).context(&what)?;
                clap_mangen::generate_to(Cli::command(), &directory).context(&what)
            }
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(Cli::command())
                    .render(&mut page)
                    .context("cannot make the manual page")?;
                output::print(&String::from_utf8_lossy(&page))
            }
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
