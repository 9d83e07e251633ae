//! `NAME.toml`: the settings of a volume, with the same keys as `ztier up` has flags.
//!
//! Invariant: what `Saved` writes, [`Settings::load`] reads as the same settings.

use super::lasting::lasting;
use super::name;
use super::paths::full;
use super::settings::Settings;
use crate::device;
use crate::device::Marks;
use crate::error::{Context, Error, Result};
use crate::escape::join_lines;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The largest file that is read, in bytes.
const LARGEST: u64 = 64 << 10;

/// In place of a log's drive or a spill device: there is to be none.
const NONE: &str = "none";

impl Settings {
    /// The drive of the log, if there is to be one.
    pub fn log_drive(&self) -> Option<&Path> {
        self.log.as_deref().filter(|log| log.as_os_str() != NONE)
    }

    /// The spill device, if there is to be one.
    pub fn spill_drive(&self) -> Option<&Path> {
        self.spill.as_deref().filter(|spill| spill.as_os_str() != NONE)
    }

    /// Reads `path`; `Ok(None)` if there is no such file.
    ///
    /// # Errors
    /// One line with the file, the line number, what is wrong, and the nearest known word.
    pub fn load(path: &Path) -> Result<Option<Self>> {
        read(path)?.map(|text| Self::parse(&text, path)).transpose()
    }

    /// One setting, as a user types it: text without quotes, `on` and `off` for truth.
    ///
    /// # Errors
    /// One line (usage) with the key and what is wrong with its value.
    pub fn typed(key: &str, value: &str) -> Result<Self> {
        use toml::Value;
        let text = Value::String(value.into());
        let other = match value {
            "on" => Some(Value::Boolean(true)),
            "off" => Some(Value::Boolean(false)),
            _ => value.parse().ok().map(Value::Integer),
        };
        let read = |value: Value| toml::Table::from_iter([(key.to_owned(), value)]).try_into();
        let refused = |e: toml::de::Error| match e.message() {
            what if what.contains("expected a boolean") => {
                format!("`{value}` is neither on nor off")
            }
            what if what.contains("expected u") => format!("`{value}` is not a whole number"),
            what => match explain(what) {
                (what, Some(hint)) => format!("{what}; {hint}"),
                (what, None) => what,
            },
        };
        other
            .and_then(|value| read(value).ok())
            .map_or_else(|| read(text), Ok)
            .map_err(|e| Error::usage(format!("{key}: {}", refused(e))))
    }

    /// Parses the text of the file `path`, which is only named in errors.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        toml::from_str(text).map_err(|e| refused(path, text, e.span(), e.message()))
    }

    /// These settings for a file: with names of drives that survive a reboot, absolute paths, and
    /// marks of the drives.
    ///
    /// # Errors
    /// A drive or file is gone, or its path is not UTF-8.
    pub fn to_keep(&self) -> Result<Self> {
        let drive = |path: &Option<PathBuf>| path.as_deref().map(lasting).transpose();
        let backing = self.backing.as_deref().filter(|place| !device::is_store(place));
        let marks = Marks::of(self.log_drive(), backing);
        // A store knows its size. With one in the file, a directory that is not mounted would be
        // taken for a new store.
        let in_store = self.backing.as_deref().is_some_and(device::is_store);
        Ok(Self {
            size: self.size.filter(|_| !in_store),
            backing: drive(&self.backing)?,
            log: self.log_drive().map(lasting).transpose()?.or_else(|| self.log.clone()),
            spill: self.spill_drive().map(lasting).transpose()?.or_else(|| self.spill.clone()),
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
}

/// The text of the file `path`; `None` if there is none.
///
/// # Errors
/// The file can't be read, or is too large or not regular.
pub(super) fn read(path: &Path) -> Result<Option<String>> {
    let shown = path.display();
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).context(format!("cannot read {shown}")),
    };
    if !meta.is_file() || meta.len() > LARGEST {
        return Err(Error::usage(format!(
            "{shown} is not a regular file of at most {LARGEST} bytes"
        )));
    }
    fs::read_to_string(path).context(format!("cannot read {shown}")).map(Some)
}

/// The error of a parser of the file `path`, at its place in `text`.
pub(super) fn refused(path: &Path, text: &str, span: Option<Range<usize>>, message: &str) -> Error {
    let line = span.map_or(1, |span| {
        let before = &text.as_bytes()[..span.start.min(text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    });
    let (what, hint) = explain(message);
    let error = Error::usage(format!("{}:{line}: {what}", path.display()));
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
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
    use super::super::export::Choice;
    use super::super::saved::Saved;
    use super::super::settings::Use;
    use super::super::settings::{KEYS, describe};
    use super::super::size::{Amount, Limit};
    use super::super::usage::{Ballast, SlotNews};
    use super::*;
    use crate::config::exclusive::Exclusive;
    use crate::config::tunable::Tunable;
    use crate::config::unsent::Unsent;
    use crate::device::{Algorithm, Recompress, Sector};

    fn full() -> Settings {
        Settings {
            size: Some(Amount::Bytes(3 << 30)),
            backing: Some("/dev/slow".into()),
            log: Some("/dev/fast".into()),
            sync: Some(true),
            writeback: Some(false),
            writeback_threshold: Some(70),
            writeback_window: Some(Amount::Bytes(64 << 20)),
            writeback_idle: Some(60_000),
            commit_interval: Some(20),
            max_unsent: Some(Unsent::default()),
            sync_remote: Some(true),
            log_cache: Some(10),
            ram_limit: Some(Limit::At(Amount::Percent(12.5))),
            ram_min: Some(Amount::Bytes(4 << 20)),
            ram_max: Some(Amount::Percent(40.0)),
            exclusive: Some(Exclusive::On),
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
            on_event: Some("/bin/true".into()),
            page_cluster: Some(Tunable::To(3)),
            swappiness: Some(Tunable::Keep),
            allow_readable: Some(true),
            log_uuid: Some("0123456789abcdef0123456789abcdef".into()),
            backing_id: Some("0123456789abcdef".into()),
            boot: Some(false),
        }
    }

    #[test]
    fn saved_settings_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/x.toml");
        assert_eq!(Settings::load(&path).unwrap(), None);
        let mut saved = Saved::open(&path).unwrap();
        assert_eq!(saved.replace(&full()).unwrap(), [""; 0]);
        assert!(saved.write().unwrap());
        assert_eq!(Settings::load(&path).unwrap(), Some(full()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn the_former_name_of_a_key_is_read() {
        let settings: Settings = toml::from_str("log-keep = 10").unwrap();
        assert_eq!(settings.log_cache, Some(10));
    }

    #[test]
    fn keys_are_those_that_are_written() {
        let written: toml::Table = toml::from_str(&toml::to_string(&full()).unwrap()).unwrap();
        let mut written: Vec<&str> = written.keys().map(String::as_str).collect();
        let mut keys: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        written.sort_unstable();
        keys.sort_unstable();
        assert_eq!(written, keys);
    }

    #[test]
    fn the_documentation_has_the_declared_table() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/config.md");
        let doc = fs::read_to_string(file).unwrap();
        let begin = doc.find("| Key | Values |").unwrap();
        let end = begin + doc[begin..].find("\n## ").unwrap();
        if std::env::var_os("ZTIER_GOLDEN").is_some() {
            fs::write(file, [&doc[..begin], &describe(), &doc[end..]].concat()).unwrap();
            return;
        }
        let again = "ZTIER_GOLDEN=write cargo test --lib declared_table";
        assert_eq!(&doc[begin..end], describe(), "write it anew: {again}");
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
