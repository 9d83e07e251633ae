//! `ztier names`: names of volumes, for the completion of a shell.
//!
//! Invariant: no daemon is asked, so the shell waits for none.

use super::output;
use crate::config::Paths;
use crate::daemon;
use crate::error::Result;
use clap::Args;

/// Print names of volumes, one a line, for a shell's completion
#[derive(Args)]
#[command(hide = true)]
pub struct Names {
    /// Those with saved settings that are not up, in place of those that are
    #[arg(long)]
    saved: bool,
}

impl Names {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        let up = if paths.exists()? { daemon::names(&paths) } else { Vec::new() };
        if !self.saved {
            return output::list(&up);
        }
        let mut saved = Paths::names_in(&paths.config, &["toml"]);
        saved.retain(|name| !up.contains(name));
        output::list(&saved)
    }
}
