//! `ztier up`: a volume from flags or its file, by a daemon of its own or in this process.

use super::files::{self, Made, Wanted};
use super::progress_line::ProgressLine;
use super::service::{self, Manager};
use super::{adapting, all, ensure, output, print_all_but_last, sound, status, take_over};
use crate::config::export::Export;
use crate::config::plan;
use crate::config::saved::{BOOT, Change};
use crate::config::size::{self, exact, human};
use crate::config::usage::{on_event, on_full};
use crate::config::{Amount, Paths, Plan, Saved, Settings, Usage, machine, name};
use crate::control::Sample;
use crate::daemon::{self, Chosen, Found, Ready};
use crate::device::{self, Algorithm, Known};
use crate::error::{Error, Result};
use crate::remedy;
use crate::system::usage;
use clap::Args;
use serde_json::json;
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

/// No heading of its own, after those of the settings.
const PLAIN: Option<&str> = None;
/// The heading of flags about what is on drives.
const DRIVES: &str = "Drives that hold something";

/// Flags for one volume alone.
const ALONE: [&str; 16] = [
    "name",
    "log_size",
    "spill_size",
    "wipe",
    "moved",
    "accept_loss",
    "accept_changed_backing",
    "accept_older_log",
    "discard_log",
    "force",
    "foreground",
    "adopt",
    "ensure",
    "save",
    "enable",
    "json",
];

/// Make a volume and offer it as a block device or over NBD
///
/// Without --size, --backing and --log the settings come from NAME.toml in the configuration
/// directory. Once the volume is usable, prints what to open, one a line.
#[derive(Args, Clone)]
#[command(after_help = size::HELP)]
pub struct Up {
    /// Name of the volume
    #[arg(required_unless_present = "all")]
    name: Option<String>,
    /// Every volume with a NAME.toml that is not up, except where that says `boot = false`
    #[arg(long, help_heading = PLAIN, conflicts_with_all = ALONE)]
    all: bool,
    #[command(flatten, next_help_heading = "Settings, also keys of NAME.toml")]
    settings: Settings,
    /// With --log FILE: make the file with this size if it is missing
    #[arg(long, help_heading = PLAIN, value_name = "BYTES")]
    log_size: Option<Amount>,
    /// With --log or --spill: overwrite what is on the drive, unless it is a log with data
    #[arg(long, help_heading = DRIVES)]
    wipe: bool,
    /// With a log that holds data: accept another drive as backing store, a copy with the same
    /// content
    #[arg(long, help_heading = DRIVES)]
    moved: bool,
    /// With a damaged log: go on without the damaged parts; their data is lost
    #[arg(long, help_heading = DRIVES)]
    accept_loss: bool,
    /// With a log that holds data: write it over a backing store that was changed without the log;
    /// those changes are lost or mixed with the log's
    #[arg(long, help_heading = DRIVES)]
    accept_changed_backing: bool,
    /// With a log older than the one that this machine has seen (a copy, a snapshot): go on with
    /// it; what was written since is lost
    #[arg(long, help_heading = DRIVES)]
    accept_older_log: bool,
    /// With a log that is gone or damaged: go on from the backing store's own state, which `up`
    /// reports; data that only the log held is lost
    #[arg(long, alias = "abandon-log", help_heading = DRIVES)]
    discard_log: bool,
    /// With a store: take the volume from an owner that may be alive; what that one has not sent
    /// to the store yet is lost
    #[arg(long, help_heading = DRIVES)]
    force: bool,
    /// With --spill FILE: make the file with this size if it is missing
    #[arg(long, help_heading = PLAIN, value_name = "BYTES")]
    spill_size: Option<Amount>,
    /// Wait this long for the drives (--backing, --log, --spill) to appear
    #[arg(long, help_heading = PLAIN, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    wait: u32,
    /// Stay in the foreground until a signal or `ztier down`. After a signal, data that is only in
    /// memory is kept for `ztier restart`
    #[arg(long, help_heading = PLAIN)]
    foreground: bool,
    /// If the volume is up with these settings, change nothing and succeed; if it is up with other
    /// ones, change nothing, name them and end with status 7. What is not given is not compared,
    /// except that without --backing, --log, --spill or --nbd-listen there is to be none
    #[arg(long, help_heading = PLAIN, conflicts_with = "foreground")]
    ensure: bool,
    /// With --foreground: if the volume is up with these settings, take it over from its daemon, as
    /// `ztier restart` does
    #[arg(long, help_heading = PLAIN, requires = "foreground")]
    adopt: bool,
    /// Only say what would be made and where data would be durable
    #[arg(long, help_heading = PLAIN)]
    dry_run: bool,
    /// Write the settings to NAME.toml in the configuration directory, with absolute paths, stable
    /// names of drives, and marks that identify the drives. Of a file that is there, comments and
    /// order stay; settings that the volume does not have go, and are named
    #[arg(long, help_heading = PLAIN)]
    save: bool,
    /// As --save; and the volume comes up with the machine from now on, as the service ztier@NAME.
    /// If it is up with these settings, that goes on. `ztier disable` undoes it
    #[arg(long, help_heading = PLAIN, conflicts_with = "foreground")]
    enable: bool,
    /// Print JSON
    #[arg(long, help_heading = PLAIN)]
    json: bool,
}

impl Up {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let name = self.name().to_owned();
        self.act().map_err(|e| e.of(&name))
    }

    fn act(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        if self.all {
            return self.run_all(&paths);
        }
        name::check(self.name()).map_err(Error::usage)?;
        let settings = self.settings(&paths)?;
        if self.saves() {
            // A file that can't be changed is an error before anything is made.
            Saved::open(&paths.settings(self.name()))?;
        }
        if (self.ensure || self.enable)
            && let Some(sample) = ensure::up_as_asked(&paths, self.name(), &settings, self.json)?
        {
            return self.go_on(&settings, &sample, &paths);
        }
        let adopted = |ready: &Ready| self.print_adopted(ready);
        if self.adopt && take_over::adopt(&paths, self.name(), &settings, adopted)? {
            return Ok(());
        }
        let wanted = self.wanted(&settings)?;
        self.await_drives(&settings)?;
        self.refuse_others(&settings, &paths)?;
        if !settings.allow_readable.unwrap_or(false) {
            let files = [settings.log_drive(), settings.spill_drive()];
            files::refuse_readable(files.into_iter().flatten())?;
        }
        let chosen = daemon::choose(&settings)?;
        let plan = self.plan(&settings, &chosen, &paths)?;
        self.refuse_vain(&plan)?;
        self.refuse_second(&paths)?;
        plan.usage.as_ref().map_or(Ok(()), usage::refuse_unmounted)?;
        if self.dry_run {
            return self.print_plan(&plan, &chosen, &paths, &wanted);
        }
        self.bring_up(&settings, (plan, chosen), &paths, &wanted)
    }

    /// The command for each volume that comes up with the machine.
    fn run_all(self, paths: &Paths) -> Result<()> {
        if self.settings != Settings::default() {
            return Err(Error::usage("with --all each volume has the settings of its file")
                .hint("leave the settings out, or name a volume"));
        }
        let (names, wrong) = all::at_boot(paths);
        let done = all::each(names, |name| {
            let is_up = paths.exists()? && matches!(daemon::settled(paths, name), Found::Up(_));
            let one = Self { name: Some(name.to_owned()), all: false, ..self.clone() };
            if is_up { Ok(()) } else { one.run() }
        });
        print_all_but_last(wrong.into_iter().chain(done.err()).collect())
    }

    /// What is left to do for a volume that is up as asked.
    fn go_on(&self, settings: &Settings, sample: &Sample, paths: &Paths) -> Result<()> {
        self.refuse_others(settings, paths)?;
        if self.dry_run {
            return self.print_unchanged(sample, false);
        }
        let saved = self.saves() && self.save_settings(settings, paths)?;
        if !self.enable {
            return self.print_unchanged(sample, saved);
        }
        service::enable(self.name())?;
        let now = ensure::sample(paths, self.name())?;
        self.print_unchanged(now.as_ref().unwrap_or(sample), saved)
    }

    /// Makes the volume, by a daemon or in this process.
    fn bring_up(
        &self,
        settings: &Settings,
        (mut plan, chosen): (Plan, Chosen),
        paths: &Paths,
        wanted: &[Wanted],
    ) -> Result<()> {
        if self.foreground {
            inherit_sockets(&mut plan, settings.socket.is_some());
        }
        if self.enable && Manager::find() == Manager::Runs {
            // Its service begins the use: a device in use may not be able to wait for that.
            plan.usage = None;
        }
        let made = Cell::new(wanted.iter().map(Wanted::make).collect::<Result<Vec<Made>>>()?);
        let progress_line = ProgressLine::new();
        let progress = |what: &str| progress_line.show(&format_args!("{}: {what}", self.name()));
        let loss = Cell::new(None);
        let after = |ready: &Ready| {
            progress_line.end();
            made.take().into_iter().for_each(Made::keep);
            match self.enable {
                true => self.print_ready(&chosen, &self.enabled(settings, ready, paths)?)?,
                false => self.print_ready(&chosen, ready)?,
            }
            // A discarded log has been replaced by another one.
            if self.save || self.discard_log && settings.log_uuid.is_some() {
                self.save_settings(settings, paths)?;
            }
            match sound(self.name(), ready.loss.as_deref()) {
                Err(e) if self.foreground => output::remark(&e.to_string()),
                _ => loss.set(ready.loss.clone()),
            }
            Ok(())
        };
        if self.foreground {
            let (patience, foreground, follows) = (daemon::LOOKERS, true, false);
            let wanted = &|| true;
            let order = daemon::Order { plan, paths, patience, foreground, follows, wanted };
            daemon::run(order, &progress, after).and_then(|end| daemon::follow(end, self.name()))
        } else {
            after(&daemon::spawn(&plan, paths, &progress)?)?;
            sound(self.name(), loss.take().as_deref())
        }
    }

    /// Saves and enables a volume that has just come up. Returns it as it is then.
    fn enabled(&self, settings: &Settings, ready: &Ready, paths: &Paths) -> Result<Ready> {
        self.save_settings(settings, paths)?;
        service::enable(self.name())?;
        let mut ready = ready.clone();
        if let Some(now) = ensure::sample(paths, self.name())? {
            (ready.pid, ready.plan) = (now.pid, now.plan);
        }
        Ok(ready)
    }

    /// Whether the settings are written to a file.
    fn saves(&self) -> bool {
        self.save || self.enable
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The plan, with the flags that are meant once.
    fn plan(&self, settings: &Settings, chosen: &Chosen, paths: &Paths) -> Result<Plan> {
        let mut plan = Plan::resolve(self.name(), settings, chosen.kind, paths)?;
        if let Some(log) = &mut plan.log {
            (log.wipe, log.moved, log.accept_loss) = (self.wipe, self.moved, self.accept_loss);
            log.abandon = self.discard_log;
            log.accept_changed = self.accept_changed_backing;
            log.accept_older = self.accept_older_log;
        }
        if let Some(spill) = &mut plan.spill {
            spill.wipe = self.wipe;
        }
        plan.take_over = self.force;
        plan.abandon_log = self.discard_log && plan.log.is_none();
        Ok(plan)
    }

    /// The files that have to be made first.
    fn wanted(&self, settings: &Settings) -> Result<Vec<Wanted>> {
        let log = files::wanted("--log-size", settings.log_drive(), self.log_size)?;
        let spill = files::wanted("--spill-size", settings.spill_drive(), self.spill_size)?;
        Ok(log.into_iter().chain(spill).collect())
    }

    /// Refuses other drives than those that the settings were saved with.
    fn refuse_others(&self, settings: &Settings, paths: &Paths) -> Result<()> {
        let (log, backing) = (settings.log_drive(), settings.backing.as_deref());
        let log = log.filter(|_| !self.discard_log);
        settings.marks().check(log, backing).map_err(|e| {
            if let (Some(log), Some(backing)) = (log, backing)
                && let Ok(Known::Lacking(_)) = device::known(&paths.state, backing)
            {
                return e.hint(remedy::LOG_REPLACED.on(backing, Some(log)));
            }
            let log = log.map_or(String::new(), |log| format!(" --log {}", log.display()));
            let backing = backing.map_or(String::new(), |drive| drive.display().to_string());
            e.hint(format!(
                "look for the right one with `lsblk`, or if this is it: `ztier up {} --backing \
                 {backing}{log} --save`",
                self.name()
            ))
        })
    }

    /// Refuses flags for a log or a spill device if the volume has none.
    fn refuse_vain(&self, plan: &Plan) -> Result<()> {
        let of_log = [
            ("--moved", self.moved),
            ("--accept-loss", self.accept_loss),
            ("--discard-log", self.discard_log && (plan.backing.is_none() || plan.is_in_store())),
            ("--accept-changed-backing", self.accept_changed_backing),
            ("--accept-older-log", self.accept_older_log),
        ];
        let vain = of_log.iter().find(|(_, given)| *given && plan.log.is_none());
        if let Some((flag, _)) = vain {
            return Err(Error::usage(format!("{flag} is for a volume with a log"))
                .hint(format!("leave out {flag}, or give --backing and --log")));
        }
        if self.force && !plan.is_in_store() {
            return Err(
                Error::usage("--force is for a volume in a store").hint("leave out --force")
            );
        }
        if self.wipe && plan.log.is_none() && plan.spill.is_none() {
            return Err(Error::usage("--wipe is for the drive of a log or of --spill")
                .hint("leave out --wipe: nothing is overwritten"));
        }
        Ok(())
    }

    /// Writes the settings once they have proven to work. In the foreground a failure ends nothing.
    /// Returns whether the file changed.
    fn save_settings(&self, settings: &Settings, paths: &Paths) -> Result<bool> {
        let file = paths.settings(self.name());
        match settings.to_keep().and_then(|settings| self.keep(settings, &file)) {
            Ok(Change { is_other, gone }) => {
                if is_other {
                    output::remark(&format!("saved {}{}", file.display(), without(&gone)));
                }
                Ok(is_other)
            }
            Err(e) if self.foreground => {
                output::remark(&format!("ztier: not saved: {e}"));
                Ok(false)
            }
            Err(e) => Err(e
                .after(format_args!("volume `{}` is up, but ", self.name()))
                .and("then give --save again, with --ensure")),
        }
    }

    fn keep(&self, settings: Settings, file: &Path) -> Result<Change> {
        let mut saved = Saved::open(file)?;
        if self.enable {
            saved.remove(BOOT);
        }
        let gone = saved.replace(&Settings { boot: None, ..settings })?;
        Ok(Change { is_other: saved.write()?, gone })
    }

    /// The settings from the flags; if no flag says what the volume is, completed from its file.
    fn settings(&self, paths: &Paths) -> Result<Settings> {
        let on_full = on_full(self.settings.on_full.as_deref())?;
        let on_event = on_event(self.settings.on_event.as_deref())?;
        let flags = Settings { on_full, on_event, ..self.settings.clone() };
        if flags.size.is_some() || flags.backing.is_some() || flags.log.is_some() {
            return Ok(flags);
        }
        let file = paths.settings(self.name());
        if let Some(saved) = Settings::load(&file)? {
            return Ok(flags.over(saved));
        }
        let saved = Paths::names_in(&paths.config, &["toml"]);
        let near = name::nearest(self.name(), saved.iter().map(String::as_str));
        let error = Error::usage(format!(
            "volume `{}` has no --size and no {}",
            self.name(),
            file.display()
        ));
        Err(match near {
            Some(near) => error.hint(format!("add --size, or did you mean `{near}`?")),
            None => error.hint("add --size, like --size 3G"),
        })
    }

    /// Waits until the drives are there.
    fn await_drives(&self, settings: &Settings) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(self.wait.into());
        let log = settings.log_drive().filter(|_| self.log_size.is_none());
        let spill = settings.spill.as_deref().filter(|_| self.spill_size.is_none());
        let backing = settings.backing.as_deref().filter(|place| !device::is_store(place));
        for drive in [backing, log, spill].into_iter().flatten() {
            while self.wait > 0 && !drive.exists() {
                if Instant::now() >= end {
                    if Some(drive) == log {
                        // Opening it says what it held, and what to do without it.
                        break;
                    }
                    let (drive, seconds) = (drive.display(), self.wait);
                    return Err(Error::failure(format!("{drive} is not there after {seconds} s"))
                        .hint("look for it with `lsblk`: it may have another name now"));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    fn refuse_second(&self, paths: &Paths) -> Result<()> {
        let name = self.name();
        if !paths.exists()? || !matches!(daemon::settled(paths, name), Found::Up(_)) {
            return Ok(());
        }
        Err(Error::busy(format!("volume `{name}` is already up"))
            .hint(format!("use another name, or `ztier down {name}` first")))
    }

    /// The result as JSON; `why` the export was chosen, unless the volume was up before.
    fn brought_up(
        &self,
        plan: &Plan,
        endpoints: &[String],
        pid: u32,
        why: Option<&str>,
    ) -> serde_json::Value {
        json!({
            "name": self.name(),
            "changed": why.is_some(),
            "endpoints": endpoints,
            "pid": pid,
            "export": plan.export.kind(),
            "export_reason": why.unwrap_or("it is up already"),
            "size_bytes": plan.size_bytes,
            "ram_limit_bytes": plan.ram_limit_bytes,
            "durable": !plan.is_volatile(),
        })
    }

    /// The result for a volume that was up as asked.
    fn print_unchanged(&self, sample: &Sample, saved: bool) -> Result<()> {
        if self.json {
            let mut all = self.brought_up(&sample.plan, &sample.endpoints, sample.pid, None);
            all["changed"] = saved.into();
            output::json(&all)?;
        } else {
            output::remark(&format!("{}: is up with these settings already", self.name()));
            output::list(&sample.endpoints)?;
        }
        sound(self.name(), sample.stats.loss().as_deref())
    }

    /// The result for a volume that this process has taken over from its daemon.
    fn print_adopted(&self, ready: &Ready) -> Result<()> {
        match self.json {
            true => output::json(&self.brought_up(&ready.plan, &ready.endpoints, ready.pid, None)),
            false => output::list(&ready.endpoints),
        }
    }

    fn print_ready(&self, chosen: &Chosen, ready: &Ready) -> Result<()> {
        let plan = &ready.plan;
        for what in &ready.removed {
            output::remark(&format!("removed {what}, left by an earlier daemon"));
        }
        for note in &ready.notes {
            output::remark(note);
        }
        if self.json {
            let why = Some(chosen.why.as_str());
            return output::json(&self.brought_up(plan, &ready.endpoints, ready.pid, why));
        }
        let (size, export) = (human(plan.size_bytes), plan.export.kind());
        output::remark(&match (&plan.log, &plan.backing) {
            (Some(log), _) => format!(
                "{}: {size} of {} behind the log on {}{}, by {export} ({}); durable when flushed",
                plan.name,
                log.backing.display(),
                log.log.display(),
                copies(plan),
                chosen.why
            ),
            (None, Some(backing)) => format!(
                "{}: {size} of {}{}, by {export} ({}); durable when flushed",
                plan.name,
                backing.display(),
                copies(plan),
                chosen.why
            ),
            (None, None) => format!(
                "{}: {size} in at most {} of memory{}{}, by {export} ({}); gone after a reboot",
                plan.name,
                human(plan.ram_limit_bytes),
                if plan.ram_auto.is_some() { ", as it adapts" } else { "" },
                plan.spill.as_ref().map_or(String::new(), |spill| format!(
                    " and what is cold on {}",
                    spill.device.display()
                )),
                chosen.why
            ),
        });
        // Standard output belongs to the client, which has handed its socket over:
        // `nbdcopy [ ztier up … ] - | …`.
        if let Export::Nbd { inherited: true, .. } = plan.export {
            ready.endpoints.iter().for_each(|endpoint| output::remark(endpoint));
            return Ok(());
        }
        output::list(&ready.endpoints)
    }

    /// What would be made, in words.
    fn makes(&self, plan: &Plan, paths: &Paths, wanted: &[Wanted]) -> Vec<String> {
        let mut makes: Vec<String> =
            daemon::planned(plan, paths).iter().map(|leftover| leftover.describe()).collect();
        if let Export::Nbd { tcp, .. } = &plan.export {
            makes.extend(tcp.iter().map(|address| format!("TCP listener {address}")));
        }
        makes.extend(wanted.iter().map(Wanted::describe));
        makes.push(format!("control socket {}", paths.volume(&plan.name).control.display()));
        if self.saves() {
            makes.push(format!("file {}", paths.settings(&plan.name).display()));
        }
        makes.extend(self.enable.then(|| service::unit(self.name())));
        makes
    }

    fn print_plan(
        &self,
        plan: &Plan,
        chosen: &Chosen,
        paths: &Paths,
        wanted: &[Wanted],
    ) -> Result<()> {
        let makes = self.makes(plan, paths, wanted);
        let (role, durable) = role(plan);
        let (sector, why) = plan.sector()?;
        let log = plan.log.as_ref().map(|log| &log.log);
        let spill = plan.spill.as_ref().map(|spill| &spill.device);
        let overwrites: Vec<_> = log.into_iter().chain(spill).collect();
        if self.json {
            return output::json(&json!({
                "plan": plan,
                "sector_bytes": sector,
                "sector_reason": why,
                "role": role,
                "export_reason": chosen.why,
                "would_make": makes,
                "would_overwrite": overwrites,
                "durable": !plan.is_volatile(),
                "durable_where": durable,
            }));
        }
        let memory = match (&plan.log, &plan.backing) {
            (None, Some(_)) if plan.ram_limit_bytes == 0 => "none".into(),
            (None, _) => format!(
                "at most {} of {}{}",
                human(plan.ram_limit_bytes),
                human(machine::memory_bytes()),
                adapting::bounds(plan)
            ),
            (Some(_), _) => format!(
                "what is not durable yet, 24 bytes a block in the log, and at most {} for copies \
                 of what the backing store has{}",
                human(plan.ram_limit_bytes),
                adapting::bounds(plan)
            ),
        };
        let writeback = plan.log.as_ref().map(|log| {
            let idle = log.commit_interval_ms;
            format!("{}; idle data is durable after {idle} ms", status::writeback(log))
        });
        let mut rows = vec![
            ("volume", plan.name.clone()),
            ("role", role.into()),
            ("size", format!("{} ({} bytes)", human(plan.size_bytes), plan.size_bytes)),
            ("sector", format!("{sector} bytes ({why})")),
            ("memory", memory),
            ("compression", compression(plan)),
            ("export", format!("{} ({})", plan.export.kind(), chosen.why)),
            ("would make", makes.join(", ")),
            ("would overwrite", overwritten(plan)?),
            ("durable", durable.into()),
        ];
        rows.extend(plan.spill.as_ref().map(|spill| ("spill", status::spill_limit(spill))));
        rows.extend(writeback.map(|text| ("writeback", text)));
        rows.extend(plan.usage.as_ref().map(|usage| ("use", used_as(usage))));
        output::print(&output::pairs(&rows))
    }
}

/// The text about settings that a file had, and the volume has not.
fn without(gone: &[&str]) -> String {
    match gone {
        [] => String::new(),
        gone => format!(", without its {}", gone.join(", ")),
    }
}

/// The text about copies in memory.
fn copies(plan: &Plan) -> String {
    match plan.ram_limit_bytes {
        0 => String::new(),
        limit => format!(" with copies in at most {} of memory", human(limit)),
    }
}

/// What a volume is, and where its data is durable.
fn role(plan: &Plan) -> (&'static str, &'static str) {
    match (&plan.log, &plan.backing) {
        (None, Some(place)) if device::is_store(place) => (
            "compressed, in a store of objects that hosts can share",
            "in the store when a flush returns",
        ),
        (None, Some(_)) => (
            match plan.ram_limit_bytes {
                0 => "a backing store alone",
                _ => "compressed read cache of a backing store",
            },
            "in the backing store when a flush returns",
        ),
        (None, None) if plan.spill.is_some() => (
            "compressed memory above a spill device",
            "nowhere: what was spilled means nothing without the memory, which is gone after `ztier down` or a reboot",
        ),
        (None, None) => (
            "compressed RAM disk (all data in memory)",
            "nowhere: the data is in the daemon's memory and gone after `ztier down` or a reboot",
        ),
        (Some(log), _) if device::is_store(&log.backing) => (
            "durable log before a store of objects that hosts can share",
            match log.sync_remote {
                true => "in the store when a flush returns",
                false => {
                    "in the log when a flush returns, later in the store, as `max-unsent` says"
                }
            },
        ),
        (Some(_), _) => (
            "durable log before a backing store",
            "in the log when a flush returns, later in the backing store",
        ),
    }
}

/// What would be overwritten on existing drives and files.
fn overwritten(plan: &Plan) -> Result<String> {
    Ok(match (&plan.log, &plan.spill) {
        (Some(log), _) if !log.log.exists() => "nothing".into(),
        (Some(log), _) if log.wipe => format!("{} unless it holds a log", log.log.display()),
        (Some(log), _) => format!("{} if nothing known is on it", log.log.display()),
        (None, Some(spill)) if spill.device.exists() => spilled_over(plan, spill)?,
        (None, _) => "nothing".into(),
    })
}

/// What would be overwritten on a spill device.
fn spilled_over(plan: &Plan, spill: &plan::SpillPlan) -> Result<String> {
    let device = crate::device::SpillDevice {
        path: spill.device.clone(),
        volume: plan.name.clone(),
        segment: plan.segment_bytes,
        daily: spill.daily_bytes,
        wipe: spill.wipe,
    };
    Ok(match device.check()? {
        Some(found) => format!("{}, which holds {found}", spill.device.display()),
        None => format!("{}, on which nothing known is", spill.device.display()),
    })
}

fn used_as(usage: &Usage) -> String {
    match usage {
        Usage::Swap { priority, .. } => format!("swap space of priority {priority}, made anew"),
        Usage::Ext4 { mount } => format!("ext4, made anew, mounted on {}", mount.display()),
    }
}

fn compression(plan: &Plan) -> String {
    let algorithm = match plan.algorithm {
        Algorithm::Lz4 => "lz4",
        Algorithm::Zstd => "zstd",
        Algorithm::None => "none",
    };
    format!("{algorithm}, segments of {}", exact(plan.segment_bytes.into()))
}

/// Serves the sockets that a service manager hands over, if any, in place of the default one.
fn inherit_sockets(plan: &mut Plan, own_socket: bool) {
    let for_us = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    if let Export::Nbd { socket, inherited, .. } = &mut plan.export
        && for_us
        && std::env::var_os("LISTEN_FDS").is_some()
    {
        *inherited = true;
        if !own_socket {
            *socket = None;
        }
    }
}
