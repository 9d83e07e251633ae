//! `ztier set`: change a running volume.

use super::{client, output};
use crate::config::size::{exact, parse_bytes};
use crate::config::{Amount, Paths, machine, name};
use crate::control::{LogChange, Request, Status};
use crate::error::{Error, Result};
use clap::Args;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a change may take: a lower limit has memory cleaned first.
const PATIENCE: Duration = Duration::from_secs(60);

/// What can be changed while a volume is up.
const KEYS: [&str; 6] = [
    "ram-limit",
    "size",
    "writeback",
    "writeback-threshold",
    "writeback-window",
    "commit-interval",
];

/// Change a running volume: ram-limit=1G, size=8G (sizes grow, never shrink)
///
/// With a log: writeback=on|off (off: only when it is drained or nearly full),
/// writeback-threshold=PERCENT, writeback-window=BYTES, commit-interval=MILLISECONDS (after which
/// idle data is made durable).
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
        let status: Status = client(&paths, &self.name)?.ask(&request, PATIENCE)?;
        let plan = &status.plan;
        let size = exact(plan.size_bytes);
        let rest = match &plan.log {
            None if plan.backing.is_some() => String::new(),
            None => format!("ram-limit={}", exact(plan.ram_limit_bytes)),
            Some(log) => format!(
                "writeback={} writeback-threshold={} writeback-window={} commit-interval={}",
                if log.writeback { "on" } else { "off" },
                log.writeback_threshold_percent,
                exact(log.writeback_window_bytes),
                log.commit_interval_ms
            ),
        };
        output::print(&format!("{}: size={size} {rest}\n", self.name))
    }
}

fn parse(changes: &[String]) -> Result<Request> {
    let (mut size, mut ram_limit, mut log) = (None, None, LogChange::default());
    let mut given = BTreeSet::new();
    for change in changes {
        let Some((key, value)) = change.split_once('=') else {
            return Err(Error::usage(format!("`{change}` is not KEY=VALUE"))
                .mend("write it like ram-limit=1G"));
        };
        let wrong = |e: String| Error::usage(format!("{key}: {e}"));
        let number = || {
            let parsed = value.parse::<u64>();
            parsed.map_err(|_| wrong(format!("`{value}` is not a whole number")))
        };
        match key {
            "size" => size = Some(parse_bytes(value).map_err(wrong)?),
            "ram-limit" => {
                let amount: Amount = value.parse().map_err(wrong)?;
                ram_limit = Some(amount.of(machine::memory_bytes()));
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
            _ => {
                return Err(
                    Error::usage(format!("unknown key `{key}`")).mend(name::suggest(key, &KEYS))
                );
            }
        }
        if !given.insert(key) {
            return Err(Error::usage(format!("`{key}` is given twice")).mend("give it once"));
        }
    }
    Ok(Request::Set { size_bytes: size, ram_limit_bytes: ram_limit, log })
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
                log: LogChange::default()
            }
        );
        for (change, error) in [
            ("ramlimit=1G", "unknown key `ramlimit`; did you mean `ram-limit`?"),
            ("size", "`size` is not KEY=VALUE; write it like ram-limit=1G"),
            ("size=3X", "size: unknown unit `X` in `3X`; use K, M, G or T (powers of 1024)"),
        ] {
            assert_eq!(parse(&[change]).unwrap_err().to_string(), error);
        }
        assert!(parse(&["size=1G", "size=2G"]).is_err());
        let log = LogChange {
            writeback: Some(false),
            writeback_threshold_percent: Some(70),
            writeback_window_bytes: Some(1 << 20),
            commit_interval_ms: Some(20),
        };
        let changes = [
            "writeback=off",
            "writeback-threshold=70",
            "writeback-window=1M",
            "commit-interval=20",
        ];
        let request = Request::Set { size_bytes: None, ram_limit_bytes: None, log };
        assert_eq!(parse(&changes).unwrap(), request);
        assert!(
            parse(&["writeback=maybe"]).unwrap_err().to_string().contains("neither on nor off")
        );
    }
}
