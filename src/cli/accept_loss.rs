//! `ztier accept-loss`: take note of blocks that are lost.

use super::{PATIENCE, client, output};
use crate::config::{Paths, name};
use crate::control::{Noted, Request};
use crate::error::{Error, Result};
use clap::Args;

/// Acknowledge lost blocks, so that commands no longer end with status 6 because of them
///
/// The blocks stay lost: reads of them fail until they are written again. Blocks lost later are
/// reported again.
#[derive(Args)]
pub struct AcceptLoss {
    /// Name of the volume
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl AcceptLoss {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        name::check(&self.name).map_err(Error::usage)?;
        let client = client(&Paths::of_this_user()?, &self.name)?;
        let noted: Noted = client.ask(&Request::AcceptLoss, PATIENCE)?;
        if self.json {
            return output::json(&noted);
        }
        output::print(&match noted.lost_blocks {
            0 => format!("{}: nothing is lost\n", self.name),
            n => format!("{}: {n} lost blocks are taken note of\n", self.name),
        })
    }
}
