//! `ztier set`: change a running volume.

use super::progress_line::ProgressLine;
use super::{client, output, sound, status};
use crate::config::size::{exact, human, parse_bytes};
use crate::config::{Amount, Bounds, Limit, Paths, machine, name};
use crate::control::{AdaptChange, Client, LogChange, RecompressChange, Request, Status};
use crate::error::{Error, Result};
use crate::stats::Stats;
use clap::Args;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a change may take: memory is cleaned before a lower limit holds.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time between two questions about progress.
const ASK: Duration = Duration::from_millis(50);

/// The keys that can be changed while a volume is up.
const KEYS: [&str; 10] = [
    "ram-limit",
    "ram-min",
    "ram-max",
    "recompress",
    "size",
    "writeback",
    "writeback-threshold",
    "writeback-window",
    "commit-interval",
    "log-cache",
];

/// Change a running volume: ram-limit=1G, size=8G (sizes grow, never shrink)
///
/// ram-limit=auto adapts the limit from then on, between ram-min=BYTES and ram-max=BYTES.
///
/// In memory: recompress=now|idle|off (now: everything that was not read lately, once; waits until
/// that is done). With a log: writeback=on|off (off: only for a drain or a nearly full log),
/// writeback-threshold=PERCENT, writeback-window=BYTES, commit-interval=MILLISECONDS (without a
/// change, until changes in memory are committed), log-cache=PERCENT (of the log, for a read
/// cache).
#[derive(Args)]
pub struct Set {
    /// Name of the volume
    name: String,
    /// What to change
    #[arg(required = true, value_name = "KEY=VALUE")]
    changes: Vec<String>,
}

impl Set {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        let request = parse(&self.changes)?;
        let client = client(&paths, &self.name)?;
        let status: Status = client.ask(&request, PATIENCE)?;
        let plan = &status.plan;
        let size = exact(plan.size_bytes);
        let limit = match plan.ram_auto {
            None => format!("ram-limit={}", exact(plan.ram_limit_bytes)),
            Some(Bounds { min_bytes, max_bytes }) => {
                format!("ram-limit=auto ram-min={} ram-max={}", exact(min_bytes), exact(max_bytes))
            }
        };
        let rest = match &plan.log {
            None if plan.backing.is_some() => limit,
            None => format!("{limit} recompress={}", status::recompress(plan.recompress)),
            Some(log) => format!(
                "{limit} writeback={} writeback-threshold={} writeback-window={} \
                 commit-interval={} log-cache={}",
                if log.writeback { "on" } else { "off" },
                log.writeback_threshold_percent,
                exact(log.writeback_window_bytes),
                log.commit_interval_ms,
                log.keep_percent
            ),
        };
        output::print(&format!("{}: size={size} {rest}\n", self.name))?;
        if let Request::Set { recompress: Some(RecompressChange::Now), .. } = request {
            wait(&client, &self.name, &status.stats)?;
        }
        sound(&self.name, status.stats.loss().as_deref())
    }
}

/// Waits until recompression ends, and prints what it saved since `before`.
fn wait(client: &Client, name: &str, before: &Stats) -> Result<()> {
    let progress_line = ProgressLine::new();
    loop {
        let stats: Stats = client.ask(&Request::Stats, super::PATIENCE)?;
        let blocks = stats.blocks_recompressed.saturating_sub(before.blocks_recompressed);
        let saved = stats.recompress_saved_bytes.saturating_sub(before.recompress_saved_bytes);
        let bytes = human(blocks * crate::BLOCK_SIZE as u64);
        let done = format!("{name}: recompressed {bytes}, which saves {}", human(saved));
        if !stats.recompressing {
            progress_line.end();
            let together = status::together(&stats);
            return output::print(&format!("{done}; now {together}\n"));
        }
        progress_line.show(&done);
        std::thread::sleep(ASK);
    }
}

fn parse(changes: &[String]) -> Result<Request> {
    let (mut size, mut ram_limit, mut log) = (None, None, LogChange::default());
    let (mut recompress, mut adapt) = (None, AdaptChange::default());
    let mut given = BTreeSet::new();
    for change in changes {
        let Some((key, value)) = change.split_once('=') else {
            return Err(Error::usage(format!("`{change}` is not KEY=VALUE"))
                .hint("write it like ram-limit=1G"));
        };
        let wrong = |e: String| Error::usage(format!("{key}: {e}"));
        let number = || {
            let parsed = value.parse::<u64>();
            parsed.map_err(|_| wrong(format!("`{value}` is not a whole number")))
        };
        let share = || {
            let parsed = value.parse::<Amount>();
            parsed.map(|amount| amount.of(machine::memory_bytes())).map_err(wrong)
        };
        match key {
            "size" => size = Some(parse_bytes(value).map_err(wrong)?),
            "ram-limit" => match value.parse().map_err(wrong)? {
                Limit::Auto => adapt.auto = true,
                Limit::At(amount) => ram_limit = Some(amount.of(machine::memory_bytes())),
            },
            "ram-min" => adapt.min_bytes = Some(share()?),
            "ram-max" => adapt.max_bytes = Some(share()?),
            "recompress" => {
                recompress = Some(match value {
                    "now" => RecompressChange::Now,
                    "idle" => RecompressChange::Idle,
                    "off" => RecompressChange::Off,
                    _ => return Err(wrong(format!("`{value}` is none of now, idle and off"))),
                });
            }
            "writeback" => {
                log.writeback = Some(match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(wrong(format!("`{value}` is neither on nor off"))),
                });
            }
            "writeback-threshold" => log.writeback_threshold_percent = Some(number()?),
            "writeback-window" => {
                log.writeback_window_bytes = Some(parse_bytes(value).map_err(wrong)?);
            }
            "commit-interval" => log.commit_interval_ms = Some(number()?),
            "log-cache" | "log-keep" => log.keep_percent = Some(number()?),
            _ => {
                return Err(
                    Error::usage(format!("unknown key `{key}`")).hint(name::suggest(key, &KEYS))
                );
            }
        }
        if !given.insert(key) {
            return Err(Error::usage(format!("`{key}` is given twice")).hint("give it once"));
        }
    }
    Ok(Request::Set { size_bytes: size, ram_limit_bytes: ram_limit, adapt, log, recompress })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn changes() {
        let parse =
            |changes: &[&str]| parse(&changes.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            parse(&["size=8G", "ram-limit=1G"]).unwrap(),
            Request::Set {
                size_bytes: Some(8 << 30),
                ram_limit_bytes: Some(1 << 30),
                adapt: AdaptChange::default(),
                log: LogChange::default(),
                recompress: None
            }
        );
        let request = Request::Set {
            size_bytes: None,
            ram_limit_bytes: None,
            adapt: AdaptChange::default(),
            log: LogChange::default(),
            recompress: Some(RecompressChange::Now),
        };
        assert_eq!(parse(&["recompress=now"]).unwrap(), request);
        for (change, error) in [
            ("ramlimit=1G", "unknown key `ramlimit`; did you mean `ram-limit`?"),
            ("recompress=soon", "recompress: `soon` is none of now, idle and off"),
            ("recompress=", "recompress: `` is none of now, idle and off"),
            ("size", "`size` is not KEY=VALUE; write it like ram-limit=1G"),
            ("size=3X", "size: unknown unit `X` in `3X`; use K, M, G or T (powers of 1024)"),
        ] {
            assert_eq!(parse(&[change]).unwrap_err().to_string(), error);
        }
        assert!(parse(&["size=1G", "size=2G"]).is_err());
        let adapt = AdaptChange { auto: true, min_bytes: Some(1 << 20), max_bytes: Some(1 << 30) };
        let (size_bytes, ram_limit_bytes, recompress) = (None, None, None);
        let log = LogChange::default();
        let request = Request::Set { size_bytes, ram_limit_bytes, adapt, log, recompress };
        assert_eq!(parse(&["ram-limit=auto", "ram-min=1M", "ram-max=1G"]).unwrap(), request);
        assert!(parse(&["ram-min=auto"]).is_err() && parse(&["ram-limit=automatic"]).is_err());
        let log = LogChange {
            writeback: Some(false),
            writeback_threshold_percent: Some(70),
            writeback_window_bytes: Some(1 << 20),
            commit_interval_ms: Some(20),
            keep_percent: Some(10),
        };
        let changes = [
            "writeback=off",
            "writeback-threshold=70",
            "writeback-window=1M",
            "commit-interval=20",
            "log-cache=10",
        ];
        let (size_bytes, ram_limit_bytes, recompress) = (None, None, None);
        let adapt = AdaptChange::default();
        let request = Request::Set { size_bytes, ram_limit_bytes, adapt, log, recompress };
        assert_eq!(parse(&changes).unwrap(), request);
        assert!(
            parse(&["writeback=maybe"]).unwrap_err().to_string().contains("neither on nor off")
        );
    }
}
