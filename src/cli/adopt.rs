//! `ztier adopt`: puts a volume before a disk whose file system is in use without ztier.
//!
//! Invariants: without --apply nothing is changed; all that can be checked is checked before the
//! first step; a step that fails undoes those before it.

mod facts;
mod steps;

use super::output;
use crate::config::{Limit, Paths, Settings, name};
use crate::daemon;
use crate::device;
use crate::error::{Error, Result};
use clap::{Args, ValueHint};
use facts::Facts;
use serde_json::json;
use std::path::{Path, PathBuf};
use steps::{Step, Way};

/// Put a cache, and a log, before a disk whose file system is in use without ztier
///
/// Checks what there is, and prints the steps: unmount, `ztier up … --enable`, the lines of
/// /etc/fstab before and after, mount. With --apply does them, and undoes what was done when one
/// fails. The file system stays as it is.
#[derive(Args)]
pub struct Adopt {
    /// The disk or partition
    #[arg(value_hint = ValueHint::AnyPath)]
    device: PathBuf,
    /// Name of the volume [default: that of the directory on which it is mounted, or of the disk]
    #[arg(long)]
    name: Option<String>,
    /// Fast drive or file that takes changes first, as with `ztier up`
    #[arg(long, value_name = "DEV", value_hint = ValueHint::AnyPath)]
    log: Option<PathBuf>,
    /// Overwrite what is on the log's drive, unless it is a log with data
    #[arg(long, requires = "log")]
    wipe: bool,
    /// Limit on compressed copies in memory, as with `ztier up`
    #[arg(long, value_name = "BYTES|%|auto")]
    ram_limit: Option<Limit>,
    /// Do it
    #[arg(long)]
    apply: bool,
    /// Another file than /etc/fstab
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(default_value = steps::FSTAB)]
    fstab: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Adopt {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let facts = Facts::find(&self.device, &self.fstab)?;
        facts.refuse()?;
        let name = self.name(&facts)?;
        self.check(&name, &facts)?;
        let way = Way { name, fstab: self.fstab.clone(), lines: facts.lines() };
        let steps = self.steps(&way, &facts);
        if !self.json {
            self.print(&way, &facts, &steps)?;
        }
        if self.apply {
            if !rustix::process::geteuid().is_root() {
                return Err(Error::failure("only root can do this").hint("run it as root"));
            }
            way.go(&steps)?;
        }
        if self.json {
            let of = |step: &Step| json!({"step": step.kind(), "command": step.text(&way)});
            return output::json(&json!({
                "name": way.name,
                "device": facts.device,
                "content": facts.content.kind,
                "sector_bytes": facts.sector,
                "mounted": facts.points(),
                "steps": steps.iter().map(of).collect::<Vec<_>>(),
                "changed": self.apply,
            }));
        }
        match self.apply {
            true => {
                output::print(&format!("{} is on /dev/ztier/{}\n", facts.content.kind, way.name))
            }
            false => output::print("nothing is changed; --apply does this\n"),
        }
    }

    /// The volume's name: as asked, or that of the mount point, or of the device.
    fn name(&self, facts: &Facts) -> Result<String> {
        let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let found = self.name.clone().or_else(|| {
            let points = facts.points().into_iter().chain(facts.lines_points());
            let names = points.filter_map(|point| last(&point)).chain(last(&facts.device));
            names.into_iter().find(|found| name::check(found).is_ok())
        });
        let found = found
            .ok_or_else(|| Error::usage("the volume needs a name").hint("give one by --name"))?;
        name::check(&found).map_err(Error::usage).map(|()| found)
    }

    /// Checks the volume to be.
    fn check(&self, name: &str, facts: &Facts) -> Result<()> {
        let paths = Paths::of_this_user()?;
        let is_up =
            paths.exists()? && !matches!(daemon::find(&paths, name), daemon::Found::Nothing);
        if is_up || paths.settings(name).exists() {
            return Err(Error::busy(format!("there is a volume `{name}` already"))
                .hint("give another name by --name"));
        }
        let settings = Settings {
            backing: Some(facts.given.clone()),
            log: self.log.clone(),
            ram_limit: self.ram_limit,
            ..Settings::default()
        };
        let chosen = daemon::choose(&settings)?;
        let plan = crate::config::Plan::resolve(name, &settings, chosen.kind, &paths)?;
        if !plan.export.is_block_device() {
            return Err(Error::failure(format!("there is no block device here: {}", chosen.why))
                .hint("`ztier doctor` says what is missing"));
        }
        let Some(log) = &plan.log else { return Ok(()) };
        let (drives, state) = ((log.log.clone(), log.backing.clone()), paths.state);
        let pair = device::Pair::new(drives.0, drives.1, plan.segment_bytes, state);
        device::Pair { wipe: self.wipe, ..pair }.check_log()
    }

    /// What has to be done, in this order.
    fn steps(&self, way: &Way, facts: &Facts) -> Vec<Step> {
        let mut up = vec!["up".to_owned(), way.name.clone(), "--backing".to_owned()];
        up.push(facts.given.display().to_string());
        if let Some(log) = &self.log {
            up.extend(["--log".to_owned(), log.display().to_string()]);
        }
        if let Some(limit) = &self.ram_limit {
            up.extend(["--ram-limit".to_owned(), limit.to_string()]);
        }
        up.extend(self.wipe.then(|| "--wipe".to_owned()));
        up.push("--enable".to_owned());
        let mut steps: Vec<Step> = facts.mounts.iter().rev().cloned().map(Step::Unmount).collect();
        steps.push(Step::Up(up));
        steps.extend((!way.lines.is_empty()).then_some(Step::Fstab));
        steps.extend(facts.mounts.iter().cloned().map(Step::Mount));
        steps
    }

    fn print(&self, way: &Way, facts: &Facts, steps: &[Step]) -> Result<()> {
        let mut text = format!(
            "{} has {}; its sectors stay {} bytes\n",
            facts.given.display(),
            facts.content,
            facts.sector
        );
        for (n, step) in (1..).zip(steps) {
            text.push_str(&format!("{n}. {}\n", step.text(way)));
        }
        if way.lines.is_empty() {
            text.push_str(&format!("{} does not name it\n", self.fstab.display()));
        }
        output::print(&text)
    }
}
