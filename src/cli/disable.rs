//! `ztier disable`: a volume no longer comes up with the machine.

use super::{output, service};
use crate::config::saved::BOOT;
use crate::config::{Paths, Saved, Settings, name};
use crate::error::{Error, Result};
use clap::Args;
use serde_json::json;

/// Have a volume come up with the machine no more
///
/// Writes `boot = false` to NAME.toml and disables its service. The volume stays up, and `ztier up
/// NAME` brings it up. `ztier up NAME --enable` undoes this.
#[derive(Args)]
pub struct Disable {
    /// Name of the volume
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Disable {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        name::check(&self.name).map_err(Error::usage)?;
        let paths = Paths::of_this_user()?;
        let mut saved = Saved::of(&paths, &self.name)?;
        saved.put(&Settings { boot: Some(false), ..Settings::default() })?;
        let changed = saved.write()?;
        service::disable(&self.name)?;
        if self.json {
            return output::json(&json!({"name": self.name, "changed": changed}));
        }
        let file = paths.settings(&self.name);
        output::print(&format!(
            "{} does not come up with the machine ({BOOT} = false in {})\n",
            self.name,
            file.display()
        ))
    }
}
