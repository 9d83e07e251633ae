//! `ztier set`: change a running volume.

use super::{client, output};
use crate::config::size::{exact, parse_bytes};
use crate::config::{Amount, Paths, machine, name};
use crate::control::{Request, Status};
use crate::error::{Error, Result};
use clap::Args;
use std::time::Duration;

/// How long a change may take: a lower limit has memory cleaned first.
const PATIENCE: Duration = Duration::from_secs(60);

/// What can be changed while a volume is up.
const KEYS: [&str; 2] = ["ram-limit", "size"];

/// Change a running volume: ram-limit=1G, size=8G (sizes grow, never shrink)
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
        output::print(&format!(
            "{}: size={} ram-limit={}\n",
            self.name,
            exact(status.plan.size_bytes),
            exact(status.plan.ram_limit_bytes)
        ))
    }
}

fn parse(changes: &[String]) -> Result<Request> {
    let (mut size, mut ram_limit) = (None, None);
    for change in changes {
        let Some((key, value)) = change.split_once('=') else {
            return Err(Error::usage(format!("`{change}` is not KEY=VALUE"))
                .mend("write it like ram-limit=1G"));
        };
        let wrong = |e| Error::usage(format!("{key}: {e}"));
        let slot = match key {
            "size" => {
                let bytes = parse_bytes(value).map_err(wrong)?;
                size.replace(bytes)
            }
            "ram-limit" => {
                let amount: Amount = value.parse().map_err(wrong)?;
                ram_limit.replace(amount.of(machine::memory_bytes()))
            }
            _ => {
                return Err(
                    Error::usage(format!("unknown key `{key}`")).mend(name::suggest(key, &KEYS))
                );
            }
        };
        if slot.is_some() {
            return Err(Error::usage(format!("`{key}` is given twice")).mend("give it once"));
        }
    }
    Ok(Request::Set { size_bytes: size, ram_limit_bytes: ram_limit })
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
            Request::Set { size_bytes: Some(8 << 30), ram_limit_bytes: Some(1 << 30) }
        );
        for (change, error) in [
            ("ramlimit=1G", "unknown key `ramlimit`; did you mean `ram-limit`?"),
            ("size", "`size` is not KEY=VALUE; write it like ram-limit=1G"),
            ("size=3X", "size: unknown unit `X` in `3X`; use K, M, G or T (powers of 1024)"),
        ] {
            assert_eq!(parse(&[change]).unwrap_err().to_string(), error);
        }
        assert!(parse(&["size=1G", "size=2G"]).is_err());
    }
}
