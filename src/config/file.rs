//! `NAME.toml`: the settings of a volume, with the same keys as `ztier up` has flags.
//!
//! Invariant: what [`Settings::save`] writes, [`Settings::load`] reads as the same settings.

use super::lasting::lasting;
use super::limit::Limit;
use super::name;
use super::paths::full;
use super::plan::{Address, Choice};
use super::size::Amount;
use super::usage::{Ballast, SlotNews, Use};
use crate::device::{Algorithm, Marks, Recompress, Sector};
use crate::error::{Context, Error, Result};
use crate::escape::join_lines;
use crate::private;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// What the user asks for, by flags or in a file; `None` means the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Size of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Amount>,
    /// The slow drive behind a log; its size is the volume's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<PathBuf>,
    /// The fast drive to which changes go first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<PathBuf>,
    /// Acknowledge writes when they are durable in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<bool>,
    /// Writeback runs by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writeback: Option<bool>,
    /// Percent of the log that may fill before writeback runs beside foreground work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writeback_threshold: Option<u64>,
    /// Bytes that one pass of writeback takes from a log that is nearly empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writeback_window: Option<Amount>,
    /// Milliseconds without a change after which what is in memory is made durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_interval: Option<u64>,
    /// Percent of the log that may hold clean data. Before version 0.2: `log-keep`.
    #[serde(alias = "log-keep", skip_serializing_if = "Option::is_none")]
    pub log_cache: Option<u64>,
    /// Limit on all memory of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram_limit: Option<Limit>,
    /// Lower bound of a limit that adapts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram_min: Option<Amount>,
    /// Upper bound of a limit that adapts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram_max: Option<Amount>,
    /// The spill device, which takes the coldest data when memory is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<PathBuf>,
    /// Bytes that may be written to the spill device in a day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill_daily: Option<Amount>,
    /// How blocks are compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// When cold data is recompressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recompress: Option<Recompress>,
    /// Bytes in a segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment: Option<Amount>,
    /// The logical sector of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sector: Option<Sector>,
    /// How the volume is offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<Choice>,
    /// TCP addresses on which NBD is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbd_listen: Option<Vec<Address>>,
    /// The Unix socket on which NBD is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Threads that serve requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// How a volume in memory is used: as swap or as a file system.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub usage: Option<Use>,
    /// Where that file system is mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<PathBuf>,
    /// Priority of that swap space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// When that swap space has ballast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ballast: Option<Ballast>,
    /// Whether blocks of its freed slots are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_slots: Option<SlotNews>,
    /// A program that is run when memory and that swap space are nearly full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_full: Option<PathBuf>,
    /// Files for log and spill device may be readable or writable for other users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_readable: Option<bool>,
    /// UUID of the log, as 32 hexadecimal digits; a drive with another log is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_uuid: Option<String>,
    /// Id of the backing store of a volume without a log, as 16 hexadecimal digits; another drive
    /// is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing_id: Option<String>,
}

/// All keys of the file, in the order in which it is written.
pub const KEYS: [&str; 31] = [
    "size",
    "backing",
    "log",
    "sync",
    "writeback",
    "writeback-threshold",
    "writeback-window",
    "commit-interval",
    "log-cache",
    "ram-limit",
    "ram-min",
    "ram-max",
    "spill",
    "spill-daily",
    "algorithm",
    "recompress",
    "segment",
    "sector",
    "export",
    "nbd-listen",
    "socket",
    "threads",
    "use",
    "mount",
    "priority",
    "ballast",
    "freed-slots",
    "on-full",
    "allow-readable",
    "log-uuid",
    "backing-id",
];

/// The largest file that is read, in bytes.
const LARGEST: u64 = 64 << 10;

impl Settings {
    /// Reads `path`; `Ok(None)` if there is no such file.
    ///
    /// # Errors
    /// One line with the file, the line number, what is wrong, and the nearest known word.
    pub fn load(path: &Path) -> Result<Option<Self>> {
        let shown = path.display();
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context(format!("cannot read {shown}")),
        };
        if !meta.is_file() || meta.len() > LARGEST {
            return Err(Error::usage(format!(
                "{shown} is not a regular file of at most {LARGEST} bytes"
            )));
        }
        let text = fs::read_to_string(path).context(format!("cannot read {shown}"))?;
        Self::parse(&text, path).map(Some)
    }

    /// Parses the text of the file `path`, which is only named in errors.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(1, |span| {
                text.as_bytes()[..span.start.min(text.len())]
                    .iter()
                    .filter(|byte| **byte == b'\n')
                    .count()
                    + 1
            });
            let (what, hint) = explain(e.message());
            let error = Error::usage(format!("{}:{line}: {what}", path.display()));
            match hint {
                Some(hint) => error.hint(hint),
                None => error,
            }
        })
    }

    /// Writes the settings to `path` in one step, making its directory if need be.
    ///
    /// # Errors
    /// When the directory or file can't be written; then the old file is still there.
    pub fn save(&self, path: &Path) -> Result<()> {
        let what = || format!("cannot write {}", path.display());
        let text = toml::to_string(self).context(what())?;
        if let Some(dir) = path.parent() {
            private::make_directory(dir).context(what())?;
        }
        let new = path.with_extension("toml.new");
        private::replace(path, &new, text.as_bytes(), true).context(what())
    }

    /// These settings for a file: with names of drives that survive a reboot, absolute paths, and
    /// marks of the drives.
    ///
    /// # Errors
    /// A drive or file is gone, or its path is not UTF-8.
    pub fn to_keep(&self) -> Result<Self> {
        let drive = |path: &Option<PathBuf>| path.as_deref().map(lasting).transpose();
        let marks = Marks::of(self.log.as_deref(), self.backing.as_deref());
        Ok(Self {
            backing: drive(&self.backing)?,
            log: drive(&self.log)?,
            spill: drive(&self.spill)?,
            socket: self.socket.as_deref().map(full).transpose()?,
            log_uuid: marks.log,
            backing_id: marks.backing,
            ..self.clone()
        })
    }

    /// The marks of the drives, as far as the settings have them.
    pub fn marks(&self) -> Marks {
        Marks { log: self.log_uuid.clone(), backing: self.backing_id.clone() }
    }

    /// These settings, with those of `base` where these say nothing.
    #[must_use]
    pub fn over(self, base: Self) -> Self {
        Self {
            size: self.size.or(base.size),
            backing: self.backing.or(base.backing),
            log: self.log.or(base.log),
            sync: self.sync.or(base.sync),
            writeback: self.writeback.or(base.writeback),
            writeback_threshold: self.writeback_threshold.or(base.writeback_threshold),
            writeback_window: self.writeback_window.or(base.writeback_window),
            commit_interval: self.commit_interval.or(base.commit_interval),
            log_cache: self.log_cache.or(base.log_cache),
            ram_limit: self.ram_limit.or(base.ram_limit),
            ram_min: self.ram_min.or(base.ram_min),
            ram_max: self.ram_max.or(base.ram_max),
            spill: self.spill.or(base.spill),
            spill_daily: self.spill_daily.or(base.spill_daily),
            algorithm: self.algorithm.or(base.algorithm),
            recompress: self.recompress.or(base.recompress),
            segment: self.segment.or(base.segment),
            sector: self.sector.or(base.sector),
            export: self.export.or(base.export),
            nbd_listen: self.nbd_listen.or(base.nbd_listen),
            socket: self.socket.or(base.socket),
            threads: self.threads.or(base.threads),
            usage: self.usage.or(base.usage),
            mount: self.mount.or(base.mount),
            priority: self.priority.or(base.priority),
            ballast: self.ballast.or(base.ballast),
            freed_slots: self.freed_slots.or(base.freed_slots),
            on_full: self.on_full.or(base.on_full),
            allow_readable: self.allow_readable.or(base.allow_readable),
            log_uuid: self.log_uuid.or(base.log_uuid),
            backing_id: self.backing_id.or(base.backing_id),
        }
    }
}

/// Turns the parser's message into ours: what is wrong, and a suggestion if a word is unknown.
fn explain(message: &str) -> (String, Option<String>) {
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let unknown = if message.starts_with("unknown field") {
        "key"
    } else if message.starts_with("unknown variant") {
        "value"
    } else {
        return (join_lines(message), None);
    };
    match words.split_first() {
        Some((word, known)) => {
            (format!("unknown {unknown} `{word}`"), Some(name::suggest(word, known)))
        }
        None => (join_lines(message), None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn full() -> Settings {
        Settings {
            size: Some(Amount::Bytes(3 << 30)),
            backing: Some("/dev/slow".into()),
            log: Some("/dev/fast".into()),
            sync: Some(true),
            writeback: Some(false),
            writeback_threshold: Some(70),
            writeback_window: Some(Amount::Bytes(64 << 20)),
            commit_interval: Some(20),
            log_cache: Some(10),
            ram_limit: Some(Limit::At(Amount::Percent(12.5))),
            ram_min: Some(Amount::Bytes(4 << 20)),
            ram_max: Some(Amount::Percent(40.0)),
            spill: Some("/dev/below".into()),
            spill_daily: Some(Amount::Bytes(20 << 30)),
            algorithm: Some(Algorithm::Zstd),
            recompress: Some(Recompress::Off),
            segment: Some(Amount::Bytes(64 << 10)),
            sector: Some(Sector::Small),
            export: Some(Choice::Nbd),
            nbd_listen: Some(vec!["127.0.0.1:10809".parse().unwrap()]),
            socket: Some("/run/x.nbd".into()),
            threads: Some(3),
            usage: Some(Use::Ext4),
            mount: Some("/mnt".into()),
            priority: Some(7),
            ballast: Some(Ballast::Off),
            freed_slots: Some(SlotNews::Off),
            on_full: Some("/bin/true".into()),
            allow_readable: Some(true),
            log_uuid: Some("0123456789abcdef0123456789abcdef".into()),
            backing_id: Some("0123456789abcdef".into()),
        }
    }

    #[test]
    fn saved_settings_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/x.toml");
        assert_eq!(Settings::load(&path).unwrap(), None);
        full().save(&path).unwrap();
        assert_eq!(Settings::load(&path).unwrap(), Some(full()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn the_former_name_of_a_key_is_read() {
        let settings: Settings = toml::from_str("log-keep = 10").unwrap();
        assert_eq!(settings.log_cache, Some(10));
    }

    #[test]
    fn keys_are_those_that_are_accepted_and_documented() {
        let written: toml::Table = toml::from_str(&toml::to_string(&full()).unwrap()).unwrap();
        let mut written: Vec<&str> = written.keys().map(String::as_str).collect();
        let mut keys = KEYS;
        written.sort_unstable();
        keys.sort_unstable();
        assert_eq!(written, keys);

        let doc = include_str!("../../docs/config.md");
        let mut documented: Vec<&str> = doc
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
            .map(|(key, _)| key)
            .collect();
        documented.sort_unstable();
        assert_eq!(documented, keys, "docs/config.md lists other keys than are accepted");
    }

    #[test]
    fn errors_name_file_line_and_mend() {
        for (text, error) in [
            (
                "size = 4096\nram-limt = 1\n",
                "x.toml:2: unknown key `ram-limt`; did you mean `ram-limit`?",
            ),
            ("\n\nalgorithm = \"lz5\"", "x.toml:3: unknown value `lz5`; did you mean `lz4`?"),
            (
                "size = \"3X\"",
                "x.toml:1: unknown unit `X` in `3X`; use K, M, G or T (powers of 1024)",
            ),
            ("size = -1", "x.toml:1: a size can't be negative"),
        ] {
            let found = Settings::parse(text, Path::new("x.toml")).unwrap_err();
            assert_eq!(found.to_string(), error);
            assert_eq!(found.exit_status(), 2);
        }
        for text in
            ["size = ", "size = 1\nsize = 2", "size = [1]", "[size]", "\u{0}", "threads = -1"]
        {
            let found = Settings::parse(text, Path::new("x.toml")).unwrap_err().to_string();
            assert!(found.starts_with("x.toml:") && !found.contains('\n'), "{text}: {found}");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let flags = Settings { threads: Some(9), ..Settings::default() };
        assert_eq!(flags.over(full()), Settings { threads: Some(9), ..full() });
    }
}
