//! Compares settings with the plan of a volume that is up.
//!
//! Invariant: a setting that is not given differs from nothing, so a default that adapts to the
//! machine does not count. Without `backing`, `log`, `spill` and `nbd-listen` there is to be none.

use super::export::{Choice, Export};
use super::machine;
use super::paths::full;
use super::plan::{Plan, size_of};
use super::settings::{KEYS, Settings, Use};
use super::size::{Amount, Limit, exact};
use super::tunable::Tunable;
use super::usage::Usage;
use crate::error::Result;
use crate::system::usage;
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// In place of a setting that the volume does not have.
const NONE: &str = "none";

/// A setting that a volume has not as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The key.
    pub key: &'static str,
    /// The value that the volume has, as `ztier set` takes it.
    pub is: String,
    /// The value that was asked for.
    pub asked: String,
    /// Whether `ztier set` changes it.
    pub live: bool,
}

/// The differences found so far.
#[derive(Default)]
struct Differences(Vec<Difference>);

impl Differences {
    fn add(&mut self, key: &'static str, is: impl Into<String>, asked: impl Into<String>) {
        let live = KEYS.iter().any(|known| known.live && known.name == key);
        self.0.push(Difference { key, is: is.into(), asked: asked.into(), live });
    }

    /// Compares a value; `is` is `None` if the volume has nothing of the kind.
    fn value<T: PartialEq + Serialize>(
        &mut self,
        key: &'static str,
        asked: Option<T>,
        is: Option<T>,
    ) {
        if let Some(asked) = asked
            && is.as_ref() != Some(&asked)
        {
            self.add(key, is.map_or_else(|| NONE.into(), |is| shown(&is)), shown(&asked));
        }
    }

    /// Compares a number of bytes.
    fn bytes(&mut self, key: &'static str, asked: Option<Amount>, is: Option<u64>) {
        if let Some(asked) = asked
            && is != Some(asked.of(machine::memory_bytes()))
        {
            self.add(key, is.map_or_else(|| NONE.into(), exact), asked.to_string());
        }
    }

    /// Compares a drive, file or store; `None` is none.
    fn drive(&mut self, key: &'static str, asked: Option<&Path>, is: Option<&Path>) -> Result<()> {
        let asked = asked.map(full).transpose()?;
        let same = match (&asked, is) {
            (Some(asked), Some(is)) => is_same(asked, is),
            (asked, is) => asked.is_none() && is.is_none(),
        };
        if !same {
            let text =
                |path: Option<&Path>| path.map_or(NONE.into(), |path| path.display().to_string());
            self.add(key, text(is), text(asked.as_deref()));
        }
        Ok(())
    }
}

impl Settings {
    /// What these settings ask for and the volume with `plan` has not. Says nothing of
    /// `allow-readable` and of the marks of drives, which no plan has.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub fn differing(&self, plan: &Plan) -> Result<Vec<Difference>> {
        let mut found = Differences::default();
        let size = self.size.map(size_of);
        found.bytes("size", size.map(Amount::Bytes), Some(plan.size_bytes));
        let shrinks = size.is_some_and(|size| size < plan.size_bytes);
        found.0.iter_mut().for_each(|size| size.live = !shrinks);
        found.drive("backing", self.backing.as_deref(), plan.backing_store())?;
        let log = plan.log.as_ref().map(|log| log.log.as_path());
        found.drive("log", self.log_drive(), log)?;
        self.compare_log(plan, &mut found);
        self.compare_limit(plan, &mut found);
        found.value("exclusive", self.exclusive, Some(plan.exclusive));
        let spill = plan.spill.as_ref();
        found.drive("spill", self.spill_drive(), spill.map(|spill| spill.device.as_path()))?;
        found.bytes("spill-daily", self.spill_daily, spill.map(|spill| spill.daily_bytes));
        found.value("algorithm", self.algorithm, Some(plan.algorithm));
        found.value("recompress", self.recompress, Some(plan.recompress));
        found.bytes("segment", self.segment, Some(plan.segment_bytes.into()));
        found.value("sector", self.sector, plan.sector_bytes);
        found.value("threads", self.threads, Some(plan.threads));
        self.compare_export(&plan.export, &mut found)?;
        found.value("on-event", self.on_event.clone(), plan.on_event.clone());
        self.compare_usage(plan.usage.as_ref(), &mut found)?;
        Ok(found.0)
    }

    fn compare_log(&self, plan: &Plan, found: &mut Differences) {
        let log = plan.log.as_ref();
        // A volume without a log may be told that nothing is synchronous.
        found.value("sync", self.sync, Some(log.is_some_and(|log| log.sync)));
        let remote = log.is_some_and(|log| log.sync_remote);
        found.value("sync-remote", self.sync_remote, Some(remote));
        found.value("writeback", self.writeback, log.map(|log| log.writeback));
        let threshold = log.map(|log| log.writeback_threshold_percent);
        found.value("writeback-threshold", self.writeback_threshold, threshold);
        let window = log.map(|log| log.writeback_window_bytes);
        found.bytes("writeback-window", self.writeback_window, window);
        found.value("writeback-idle", self.writeback_idle, log.map(|log| log.writeback_idle_ms));
        let unsent = log.filter(|_| plan.is_in_store()).map(|log| log.unsent);
        found.value("max-unsent", self.max_unsent, unsent);
        let interval = log.map(|log| log.commit_interval_ms);
        found.value("commit-interval", self.commit_interval, interval);
        found.value("log-cache", self.log_cache, log.map(|log| log.keep_percent));
    }

    fn compare_limit(&self, plan: &Plan, found: &mut Differences) {
        match (self.ram_limit, plan.ram_auto) {
            (Some(Limit::At(asked)), None) => {
                found.bytes("ram-limit", Some(asked), Some(plan.ram_limit_bytes));
            }
            (Some(Limit::At(asked)), Some(_)) => found.add("ram-limit", "auto", asked.to_string()),
            (Some(Limit::Auto), None) => {
                found.add("ram-limit", exact(plan.ram_limit_bytes), "auto");
            }
            (Some(Limit::Auto), Some(_)) | (None, _) => {}
        }
        found.bytes("ram-min", self.ram_min, plan.ram_auto.map(|bounds| bounds.min_bytes));
        found.bytes("ram-max", self.ram_max, plan.ram_auto.map(|bounds| bounds.max_bytes));
    }

    fn compare_export(&self, export: &Export, found: &mut Differences) -> Result<()> {
        if let Some(asked) = self.export.filter(|choice| *choice != Choice::Auto) {
            found.value("export", Some(shown(&asked)), Some(export.kind().to_owned()));
        }
        let (socket, tcp) = match export {
            Export::Nbd { socket, tcp, .. } => (socket.clone(), &tcp[..]),
            Export::Ublk | Export::Fuse => (None, &[][..]),
        };
        found.value("socket", self.socket.as_deref().map(full).transpose()?, socket);
        let asked: Vec<_> = self.nbd_listen.iter().flatten().map(|address| address.0).collect();
        if asked != tcp {
            let list = |all: &[std::net::SocketAddr]| match all {
                [] => NONE.to_owned(),
                all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            };
            found.add("nbd-listen", list(tcp), list(&asked));
        }
        Ok(())
    }

    fn compare_usage(&self, usage: Option<&Usage>, found: &mut Differences) -> Result<()> {
        let now = usage.map(|usage| match usage {
            Usage::Swap { .. } => Use::Swap,
            Usage::Ext4 { .. } => Use::Ext4,
        });
        found.value("use", self.usage, now);
        let mut mounted: Option<PathBuf> = None;
        let mut swap = None;
        match usage {
            Some(Usage::Ext4 { mount }) => mounted = Some(mount.clone()),
            Some(Usage::Swap { priority, ballast, freed_slots, on_full, .. }) => {
                swap = Some((*priority, *ballast, *freed_slots, on_full.clone()));
            }
            None => {}
        }
        found.value("mount", self.mount.as_deref().map(full).transpose()?, mounted);
        found.value("priority", self.priority, swap.as_ref().map(|swap| swap.0));
        found.value("ballast", self.ballast, swap.as_ref().map(|swap| swap.1));
        found.value("freed-slots", self.freed_slots, swap.as_ref().map(|swap| swap.2));
        found.value("on-full", self.on_full.clone(), swap.and_then(|swap| swap.3));
        let is = |value: Option<u64>| value.map_or(Tunable::Keep, Tunable::To);
        let tuned = usage.filter(|usage| matches!(usage, Usage::Swap { .. })).map(usage::wanted);
        found.value("page-cluster", self.page_cluster, tuned.map(|[(_, pages), _]| is(pages)));
        found.value("swappiness", self.swappiness, tuned.map(|[_, (_, value)]| is(value)));
        Ok(())
    }
}

/// A value as `ztier set` and the settings file have it.
fn shown(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => text,
        Ok(Value::Bool(is_on)) => if is_on { "on" } else { "off" }.into(),
        Ok(other) => other.to_string(),
        Err(e) => e.to_string(),
    }
}

/// Whether two names lead to the same device, file or store.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let meta = fs::metadata(path).ok()?;
        let device = meta.file_type().is_block_device();
        Some(if device { (true, meta.rdev(), 0) } else { (false, meta.dev(), meta.ino()) })
    };
    one == other || identity(one).is_some_and(|one| Some(one) == identity(other))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::export::Kind;
    use super::super::paths::Paths;
    use super::*;

    fn settings(text: &str) -> Settings {
        Settings::parse(text, Path::new("x.toml")).unwrap()
    }

    fn paths() -> Paths {
        Paths { run: "/run/x".into(), config: "/etc/x".into(), state: "/var/x".into() }
    }

    fn plan(text: &str) -> Plan {
        Plan::resolve("x", &settings(text), Kind::Nbd, &paths()).unwrap()
    }

    fn keys(found: &[Difference]) -> Vec<&'static str> {
        found.iter().map(|difference| difference.key).collect()
    }

    /// Another value of this key than [`plan`] of a volume in memory has.
    fn other(key: &str) -> &'static str {
        match key {
            "size" | "spill-daily" | "writeback-window" | "ram-min" | "ram-max" => "\"32M\"",
            "ram-limit" => "\"auto\"",
            "backing" | "log" | "spill" | "socket" | "mount" | "on-full" | "on-event" => {
                "\"/dev/other\""
            }
            "sync" | "sync-remote" | "writeback" => "true",
            "exclusive" => "\"on\"",
            "max-unsent" => "\"16M,5s\"",
            "segment" => "\"64K\"",
            "algorithm" => "\"zstd\"",
            "recompress" | "ballast" | "freed-slots" => "\"off\"",
            "sector" => "512",
            "export" => "\"fuse\"",
            "nbd-listen" => "[\"10809\"]",
            "use" => "\"swap\"",
            _ => "77",
        }
    }

    /// The keys of a plan, which lacks some: files' modes and marks of drives are looked at when it
    /// is made, and `boot` before that.
    fn compared() -> impl Iterator<Item = &'static str> {
        let beside = ["allow-readable", "log-uuid", "backing-id", "boot"];
        KEYS.iter().map(|key| key.name).filter(move |key| !beside.contains(key))
    }

    #[test]
    fn each_key_is_compared() {
        let plan = plan("size = \"64M\"");
        for key in compared() {
            let asked = settings(&format!("{key} = {}", other(key)));
            assert_eq!(keys(&asked.differing(&plan).unwrap()), [key]);
        }
    }

    /// `up --ensure` would end with 7 for ever with a key that no plan takes over.
    #[test]
    fn each_key_is_refused_or_taken_over() {
        let slow = tempfile::NamedTempFile::new().unwrap();
        slow.as_file().set_len(64 << 20).unwrap();
        let cache = format!("backing = \"{}\"", slow.path().display());
        for (base, given) in [("size = \"64M\"", "size"), (cache.as_str(), "backing")] {
            // The export is chosen before.
            for key in compared().filter(|&key| key != given && key != "export") {
                let text = format!("{base}\n{key} = {}", other(key));
                let asked = settings(&text);
                if let Ok(plan) = Plan::resolve("x", &asked, Kind::Nbd, &paths()) {
                    assert_eq!(asked.differing(&plan).unwrap(), [], "{text}");
                }
            }
        }
    }

    #[test]
    fn what_a_volume_was_made_from_does_not_differ() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        for file in ["log", "slow", "below"] {
            fs::File::create(dir.path().join(file)).unwrap().set_len(64 << 20).unwrap();
        }
        let place = |name: &str| dir.path().join(name).display().to_string();
        for text in [
            "size = \"64M\"".to_owned(),
            "size = 67108864\nram-limit = \"50%\"\nthreads = 3\nalgorithm = \"none\"".into(),
            "size = \"64M\"\nram-limit = \"auto\"\nram-max = \"60M\"\nexport = \"auto\"".into(),
            "size = \"64M\"\nnbd-listen = [\"10809\"]\nsync = false\nexport = \"nbd\"".into(),
            format!("size = \"64M\"\nspill = \"{}\"\nspill-daily = \"1G\"", place("below")),
            format!("backing = \"{}\"\nram-limit = \"1%\"", place("slow")),
            format!(
                "backing = \"{}\"\nlog = \"{}\"\nwriteback = false\nwriteback-window = \"1M\"",
                place("slow"),
                place("log")
            ),
        ] {
            assert_eq!(settings(&text).differing(&plan(&text)).unwrap(), [], "{text}");
        }
        let logged = format!("backing = \"{}\"\nlog = \"{}\"", place("slow"), place("log"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&log, &link).unwrap();
        let by_link = logged.replace(&place("log"), &place("link"));
        assert_eq!(settings(&by_link).differing(&plan(&logged)).unwrap(), [], "the same drive");
    }

    #[test]
    fn what_is_not_given_is_not_compared_unless_it_is_to_be_none() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let path = dir.path().join(name);
            fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
            path.display().to_string()
        };
        let (slow, fast, below) = (place("slow"), place("fast"), place("below"));
        let is = plan("size = \"64M\"\nram-limit = \"40M\"\nthreads = 3\nalgorithm = \"zstd\"");
        assert_eq!(settings("size = \"64M\"").differing(&is).unwrap(), []);
        let is = plan(&format!("backing = \"{slow}\"\nlog = \"{fast}\""));
        let found = settings(&format!("backing = \"{slow}\"")).differing(&is).unwrap();
        assert_eq!(found, [Difference { key: "log", is: fast, asked: "none".into(), live: false }]);
        let found = settings("size = \"64M\"").differing(&is).unwrap();
        assert_eq!(keys(&found), ["backing", "log"]);
        let text = format!("size = \"64M\"\nspill = \"{below}\"\nnbd-listen = [\"10809\"]");
        let found = settings("size = \"64M\"").differing(&plan(&text)).unwrap();
        assert_eq!(keys(&found), ["spill", "nbd-listen"]);
        assert_eq!(found[1].is, "127.0.0.1:10809");
    }
}
