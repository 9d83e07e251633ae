//! `ztier set`: change a running volume.

use super::progress_line::ProgressLine;
use super::{client, files, output, sound, status};
use crate::config::lasting::lasting;
use crate::config::log::LogChange;
use crate::config::paths::full;
use crate::config::plan::{self, size_of};
use crate::config::settings::KEYS;
use crate::config::size::{self, exact, human};
use crate::config::{Bounds, Limit, Paths, Plan, Saved, Settings, machine, name};
use crate::control::{
    AdaptChange, Client, NewSpill, RecompressChange, Request, Sample, Status, VolumeChange,
};
use crate::device::{self, Recompress};
use crate::error::{Error, Result};
use crate::stats::Stats;
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// How long a change may take: memory is cleaned before a lower limit holds.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long what is spilled may take to be elsewhere.
const PATIENCE_TO_MOVE: Duration = Duration::from_secs(24 * 3600);

/// The time between two questions about progress.
const ASK: Duration = Duration::from_millis(50);

/// Change a running volume: ram-limit=1G, size=8G (sizes grow, never shrink)
///
/// ram-limit=auto adapts the limit from then on, between ram-min=BYTES and ram-max=BYTES.
///
/// In memory: spill=DEV|none (another spill device, which what is spilled is copied to; none: it
/// comes back to memory), spill-daily=BYTES (to write there a day; 0: no limit),
/// recompress=now|idle|off (now: everything that was not read lately, once; waits until that is
/// done). With a log: writeback=on|off (off: only for a drain or a nearly full log),
/// writeback-threshold=PERCENT, writeback-window=BYTES, writeback-idle=MILLISECONDS (without a
/// request, until writeback runs), commit-interval=MILLISECONDS (without a change, until changes in
/// memory are committed), log-cache=PERCENT (of the log, for a read cache); before a store
/// max-unsent=BYTES,SECONDS[,wait] (that the store may lack; wait: then writers wait).
#[derive(Args)]
#[command(after_help = size::HELP)]
pub struct Set {
    /// Name of the volume
    name: String,
    /// What to change
    #[arg(required = true, value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Also write what was changed to NAME.toml in the configuration directory, for the next `ztier
    /// up`; all else in it stays
    #[arg(long)]
    save: bool,
    /// With spill=DEV: overwrite what is on it, unless it is a log
    #[arg(long)]
    wipe: bool,
    /// With spill=DEV: accept a file that other users can read or write
    #[arg(long)]
    allow_readable: bool,
    /// With spill=…: give up the blocks that can't be read from the present spill device. Reading
    /// them fails until they are written or discarded
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Set {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        let (asked, recompress) = parse(&self.changes)?;
        let change = change(&asked, recompress, self.new_spill(&asked)?)?;
        let client = client(&paths, &self.name)?;
        if self.save {
            // A file that can't be changed is an error before the volume is.
            changed(&paths, &self.name, &asked)?;
        }
        let before = match self.json {
            true => Some(client.ask::<Sample>(&Request::Sample, super::PATIENCE)?),
            false => None,
        };
        let patience = if asked.spill.is_some() { PATIENCE_TO_MOVE } else { PATIENCE };
        let status: Status = client.ask(&Request::Set(change), patience)?;
        if self.save {
            self.keep(&paths, &asked)?;
        }
        let settings = settings(&status.plan);
        if !self.json {
            let all: Vec<String> =
                settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
            output::print(&format!("{}: {}\n", self.name, all.join(" ")))?;
        }
        let mut recompressed = None;
        if recompress == Some(RecompressChange::Now) {
            let done = wait(&client, &self.name, &status.stats)?;
            if !self.json {
                let together = status::together(&done.after);
                output::print(&format!("{}; now {together}\n", done.text(&self.name)))?;
            }
            recompressed = Some(done);
        }
        if let Some(before) = before {
            let has_recompressed = recompressed.as_ref().is_some_and(|done| done.bytes > 0);
            output::json(&json!({
                "name": self.name,
                "changed": has_recompressed || settings != self::settings(&before.plan),
                "settings": settings.into_iter().collect::<BTreeMap<_, _>>(),
                "recompressed": recompressed,
            }))?;
        }
        sound(&self.name, status.stats.loss().as_deref())
    }

    /// Writes what was changed to the file as it is now: while a spill device was changed, for
    /// hours perhaps, other commands and users may have written it.
    fn keep(&self, paths: &Paths, asked: &Settings) -> Result<()> {
        let saved = changed(paths, &self.name, asked).and_then(|saved| saved.write());
        let but = format!("volume `{}` is changed, but ", self.name);
        if saved.map_err(|e| e.after(but))? {
            output::remark(&format!("saved {}", paths.settings(&self.name).display()));
        }
        Ok(())
    }

    /// The spill device that `spill=` asks for.
    fn new_spill(&self, asked: &Settings) -> Result<Option<NewSpill>> {
        if asked.spill.is_none() {
            let flags = [
                ("--wipe", self.wipe),
                ("--allow-readable", self.allow_readable),
                ("--accept-loss", self.accept_loss),
            ];
            return match flags.iter().find(|(_, given)| *given) {
                None => Ok(None),
                Some((flag, _)) => Err(Error::usage(format!("{flag} is for a spill device"))
                    .hint(format!("leave out {flag}, or give spill=DEV"))),
            };
        }
        let device = asked.spill_drive().map(full).transpose()?;
        if !self.allow_readable {
            files::refuse_readable(device.as_deref())?;
        }
        Ok(Some(NewSpill { device, wipe: self.wipe, accept_loss: self.accept_loss }))
    }
}

/// What can be set of a volume with this plan, as it is set.
fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    let mut all = vec![("size", exact(plan.size_bytes))];
    match plan.ram_auto {
        None => all.push(("ram-limit", exact(plan.ram_limit_bytes))),
        Some(Bounds { min_bytes, max_bytes }) => all.extend([
            ("ram-limit", "auto".into()),
            ("ram-min", exact(min_bytes)),
            ("ram-max", exact(max_bytes)),
        ]),
    }
    match &plan.log {
        None if plan.backing.is_some() => {}
        None => {
            if let Some(spill) = &plan.spill {
                all.push(("spill", spill.device.display().to_string()));
                all.push(("spill-daily", exact(spill.daily_bytes)));
            }
            all.push(("recompress", status::recompress(plan.recompress).into()));
        }
        Some(log) => {
            all.extend(plan.is_in_store().then(|| ("max-unsent", log.unsent.to_string())));
            all.extend([
                ("writeback", if log.writeback { "on" } else { "off" }.into()),
                ("writeback-threshold", log.writeback_threshold_percent.to_string()),
                ("writeback-window", exact(log.writeback_window_bytes)),
                ("writeback-idle", log.writeback_idle_ms.to_string()),
                ("commit-interval", log.commit_interval_ms.to_string()),
                ("log-cache", log.keep_percent.to_string()),
            ]);
        }
    }
    all
}

/// What a recompression has done.
#[derive(Serialize)]
struct Recompressed {
    bytes: u64,
    saved_bytes: u64,
    /// The counters at its end.
    #[serde(skip)]
    after: Stats,
}

impl Recompressed {
    fn since(before: &Stats, after: Stats) -> Self {
        let blocks = after.blocks_recompressed.saturating_sub(before.blocks_recompressed);
        let saved_bytes =
            after.recompress_saved_bytes.saturating_sub(before.recompress_saved_bytes);
        Self { bytes: blocks * crate::BLOCK_SIZE as u64, saved_bytes, after }
    }

    fn text(&self, name: &str) -> String {
        let (bytes, saved) = (human(self.bytes), human(self.saved_bytes));
        format!("{name}: recompressed {bytes}, which saves {saved}")
    }
}

/// Waits until recompression ends. Returns what it did since `before`.
fn wait(client: &Client, name: &str, before: &Stats) -> Result<Recompressed> {
    let progress_line = ProgressLine::new();
    loop {
        let stats: Stats = client.ask(&Request::Stats, super::PATIENCE)?;
        let done = Recompressed::since(before, stats);
        if !done.after.recompressing {
            progress_line.end();
            return Ok(done);
        }
        progress_line.show(&done.text(name));
        std::thread::sleep(ASK);
    }
}

/// The configuration of a volume with these changes, which are not written yet.
///
/// # Errors
/// There is no configuration, or the next `ztier up` would not take it.
fn changed(paths: &Paths, name: &str, asked: &Settings) -> Result<Saved> {
    if *asked == Settings::default() {
        return Err(Error::usage("recompress=now is done once, and nothing to save")
            .hint("leave out --save"));
    }
    let mut saved = Saved::of(paths, name)?;
    if matches!(asked.ram_limit, Some(Limit::At(_))) {
        // Bounds are for a limit that adapts.
        for bound in ["ram-min", "ram-max"] {
            saved.remove(bound);
        }
    }
    if asked.spill.is_some() && asked.spill_drive().is_none() {
        saved.remove("spill-daily");
    }
    saved.put(&Settings {
        spill: asked.spill_drive().map(lasting).transpose()?.or_else(|| asked.spill.clone()),
        ..asked.clone()
    })?;
    // Also finds an old error in the file, which otherwise a boot would find.
    let store = |backing: &PathBuf| device::is_store(backing);
    if saved.settings()?.backing.as_ref().is_some_and(store) {
        // It knows its size, see `Settings::to_keep`.
        saved.remove("size");
    }
    Ok(saved)
}

/// The changes, `KEY=VALUE` each: settings, and what is done with cold data.
fn parse(changes: &[String]) -> Result<(Settings, Option<RecompressChange>)> {
    let (mut settings, mut recompress) = (Settings::default(), None);
    let mut given = BTreeSet::new();
    for change in changes {
        let Some((key, value)) = change.split_once('=') else {
            return Err(Error::usage(format!("`{change}` is not KEY=VALUE"))
                .hint("write it like ram-limit=1G"));
        };
        let named = live(key)?;
        if !given.insert(named) {
            return Err(Error::usage(format!("`{key}` is given twice")).hint("give it once"));
        }
        if (named, value) == ("recompress", "now") {
            recompress = Some(RecompressChange::Now);
            continue;
        }
        let typed = Settings::typed(key, value).map_err(|e| match named {
            "recompress" => Error::usage(format!("{key}: `{value}` is none of now, idle and off")),
            _ => e,
        })?;
        settings = typed.over(settings);
    }
    let recompress = recompress.or(settings.recompress.map(|when| match when {
        Recompress::Idle => RecompressChange::Idle,
        Recompress::Off => RecompressChange::Off,
    }));
    Ok((settings, recompress))
}

/// The present name of a key, if it can be changed while a volume is up.
fn live(key: &str) -> Result<&'static str> {
    let found = KEYS.iter().find(|known| known.name == key || known.formerly.contains(&key));
    let names = KEYS.iter().filter(|key| key.live).map(|key| key.name).collect::<Vec<_>>();
    match found {
        Some(found) if found.live => Ok(found.name),
        Some(_) => Err(Error::usage(format!("`{key}` is fixed while the volume is up"))
            .hint(format!("what can change: {}", names.join(", ")))),
        None => Err(Error::usage(format!("unknown key `{key}`")).hint(name::suggest(key, &names))),
    }
}

/// The change to these settings.
fn change(
    settings: &Settings,
    recompress: Option<RecompressChange>,
    spill: Option<NewSpill>,
) -> Result<VolumeChange> {
    let memory = machine::memory_bytes();
    let size_bytes = settings.size.map(size_of);
    let adapt = AdaptChange {
        auto: settings.ram_limit == Some(Limit::Auto),
        min_bytes: settings.ram_min.map(|amount| amount.of(memory)),
        max_bytes: settings.ram_max.map(|amount| amount.of(memory)),
    };
    Ok(VolumeChange {
        size_bytes,
        ram_limit_bytes: match settings.ram_limit {
            Some(Limit::At(amount)) => Some(amount.of(memory)),
            Some(Limit::Auto) | None => None,
        },
        adapt,
        log: LogChange::of(settings)?,
        recompress,
        spill,
        spill_daily_bytes: plan::spill_daily(settings)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::unsent::Unsent;

    #[test]
    fn the_help_names_what_can_change() {
        let help = Set::augment_args(clap::Command::new("set")).render_long_help().to_string();
        for key in KEYS.iter().filter(|key| key.live) {
            assert!(help.contains(&format!("{}=", key.name)), "{}: {help}", key.name);
        }
    }

    /// What `ztier set NAME` asks for with these changes.
    fn asked(changes: &[&str]) -> Result<VolumeChange> {
        let changes = changes.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        parse(&changes).and_then(|(settings, recompress)| change(&settings, recompress, None))
    }

    #[test]
    fn changes() {
        let none = VolumeChange::default;
        let (size_bytes, ram_limit_bytes) = (Some(8 << 30), Some(1 << 30));
        assert_eq!(
            asked(&["size=8G", "ram-limit=1G"]).unwrap(),
            VolumeChange { size_bytes, ram_limit_bytes, ..none() }
        );
        let spill_daily_bytes = Some(20 << 30);
        let daily = VolumeChange { spill_daily_bytes, ..none() };
        assert_eq!(asked(&["spill-daily=20G"]).unwrap(), daily);
        let recompress = Some(RecompressChange::Now);
        let now = VolumeChange { recompress, ..none() };
        assert_eq!(asked(&["recompress=now"]).unwrap(), now);
        let adapt = AdaptChange { auto: true, min_bytes: Some(1 << 20), max_bytes: Some(1 << 30) };
        assert_eq!(
            asked(&["ram-limit=auto", "ram-min=1M", "ram-max=1G"]).unwrap(),
            VolumeChange { adapt, ..none() }
        );
        let log = LogChange {
            writeback: Some(false),
            writeback_threshold_percent: Some(70),
            writeback_window_bytes: Some(1 << 20),
            writeback_idle_ms: Some(60_000),
            commit_interval_ms: Some(20),
            keep_percent: Some(10),
            unsent: Some(Unsent { bytes: 16 << 20, seconds: 5, waits: true }),
        };
        let changes = [
            "writeback=off",
            "writeback-threshold=70",
            "writeback-window=1M",
            "writeback-idle=60000",
            "commit-interval=20",
            "log-cache=10",
            "max-unsent=16M,5s,wait",
        ];
        assert_eq!(asked(&changes).unwrap(), VolumeChange { log, ..none() });
    }

    #[test]
    fn impossible_changes() {
        for (change, error) in [
            ("ramlimit=1G", "unknown key `ramlimit`; did you mean `ram-limit`?"),
            ("recompress=soon", "recompress: `soon` is none of now, idle and off"),
            ("recompress=", "recompress: `` is none of now, idle and off"),
            ("size", "`size` is not KEY=VALUE; write it like ram-limit=1G"),
            ("size=3X", "size: unknown unit `X` in `3X`; use K, M, G or T (powers of 1024)"),
            ("spill-daily=5%", "spill-daily is a number of bytes, like 20G"),
        ] {
            assert_eq!(asked(&[change]).unwrap_err().to_string(), error);
        }
        assert!(asked(&["size=1G", "size=2G"]).is_err());
        assert!(asked(&["ram-min=auto"]).is_err() && asked(&["ram-limit=automatic"]).is_err());
        let writeback = asked(&["writeback=maybe"]).unwrap_err().to_string();
        assert!(writeback.contains("neither on nor off"), "{writeback}");
    }
}
