//! `ztier forget`: ends a volume and removes what this machine knows of it.
//!
//! Invariants: data that exists nowhere else is given up only on request; nothing is removed before
//! the volume is down; drives are not written.

use super::down::Down;
use super::{output, service, unknown};
use crate::config::{Paths, Plan, Settings, name};
use crate::daemon::{self, Found};
use crate::device::{self, Known};
use crate::error::{Context, Error, Result};
use crate::remedy;
use clap::Args;
use serde_json::json;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Take a volume down and remove its configuration
///
/// A log is drained first: then the backing store alone has everything. Also disables the volume's
/// service and removes the records of its backing store. Drives stay as they are, and are named.
#[derive(Args)]
pub struct Forget {
    /// Name of the volume
    name: String,
    /// Give up the data that exists only in memory or in the log
    #[arg(long)]
    discard: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The drives of a volume.
#[derive(Default)]
struct Drives {
    backing: Option<PathBuf>,
    log: Option<PathBuf>,
    spill: Option<PathBuf>,
}

impl Drives {
    fn of_plan(plan: &Plan) -> Self {
        Self {
            backing: plan.backing_store().map(Path::to_owned),
            log: plan.log.as_ref().map(|log| log.log.clone()),
            spill: plan.spill.as_ref().map(|spill| spill.device.clone()),
        }
    }

    fn of_settings(settings: &Settings) -> Self {
        Self {
            backing: settings.backing.clone(),
            log: settings.log_drive().map(Path::to_owned),
            spill: settings.spill_drive().map(Into::into),
        }
    }

    /// Each drive with its role.
    fn all(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [("backing store", &self.backing), ("log", &self.log), ("spill", &self.spill)];
        all.into_iter().filter_map(|(role, path)| Some((role, path.as_deref()?)))
    }
}

impl Forget {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        name::check(&self.name).map_err(Error::usage)?;
        let paths = Paths::of_this_user()?;
        let (name, file) = (&self.name, paths.settings(&self.name));
        let found = match paths.exists()? {
            true => daemon::reach(&paths, name),
            false => Found::Nothing,
        };
        let settings = Settings::load(&file)?;
        let drives = match (&found, &settings) {
            (Found::Up(Some(state)) | Found::Dead(state), _) => Drives::of_plan(&state.plan),
            (_, Some(settings)) => Drives::of_settings(settings),
            (Found::Nothing, None) => return Err(unknown(&paths, name)),
            _ => Drives::default(),
        };
        // A daemon that is up drains its log.
        if !matches!(found, Found::Up(_)) {
            self.refuse_unsent(&paths, &drives)?;
        }
        if !matches!(found, Found::Nothing) {
            // Without a state file only the configuration names a log, which was looked at above.
            let drains = drives.log.is_some() && !matches!(found, Found::Broken(_));
            Down::to_forget(name, self.discard, drains, self.json).run()?;
        }
        let mut removed = Vec::new();
        match fs::remove_file(&file) {
            Ok(()) => removed.push(file),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e).context(format!("cannot remove {}", file.display())),
        }
        // After the file: the generator runs again.
        service::disable(name)?;
        let mut left: Vec<(&str, PathBuf)> =
            drives.all().map(|(role, path)| (role, path.to_owned())).collect();
        if let Some(backing) = &drives.backing {
            match device::forget(&paths.state, backing)? {
                Known::Nothing => {}
                Known::Whole(record) => removed.push(record),
                Known::Lacking(record) => left.push(("record of what the log holds", record)),
            }
        }
        let credentials = paths.credentials(name);
        left.extend(credentials.exists().then_some(("credentials", credentials)));
        daemon::look_at(drives.all().map(|(_, path)| path));
        self.print(&removed, &left)
    }

    /// Refuses to forget a log that holds what its backing store lacks.
    fn refuse_unsent(&self, paths: &Paths, drives: &Drives) -> Result<()> {
        let (Some(backing), Some(log)) = (&drives.backing, &drives.log) else { return Ok(()) };
        match device::known(&paths.state, backing)? {
            Known::Lacking(_) if !self.discard => Err(Error::would_lose(format!(
                "the log on {} may hold what {} lacks",
                log.display(),
                backing.display()
            ))
            .hint(remedy::FORGET_HOLDS.of(&self.name))),
            _ => Ok(()),
        }
    }

    fn print(&self, removed: &[PathBuf], left: &[(&str, PathBuf)]) -> Result<()> {
        if self.json {
            let left: Vec<_> =
                left.iter().map(|(what, path)| json!({"what": what, "path": path})).collect();
            return output::json(
                &json!({"name": self.name, "changed": true, "removed": removed, "left": left}),
            );
        }
        let removed: Vec<_> = removed.iter().map(|path| path.display().to_string()).collect();
        let left: Vec<_> =
            left.iter().map(|(what, path)| format!("{what} {}", path.display())).collect();
        let list = |all: Vec<String>| match all.is_empty() {
            true => "nothing".into(),
            false => all.join(", "),
        };
        let (removed, left) = (list(removed), list(left));
        output::print(&format!("{} is forgotten: removed {removed}; left {left}\n", self.name))
    }
}
