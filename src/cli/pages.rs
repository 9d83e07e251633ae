//! `ztier man`: prints the manual page, or writes all of them.
//!
//! Invariant: they are made from the same definitions as the parser ([`super::manual`]).

use super::{manual, output};
use crate::error::Result;
use clap::{Args, ValueHint};
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
