//! The alerts for Prometheus: promtool accepts them, they fire when they should and only then, they
//! use metrics that exist, and the documentation lists them.
//!
//! promtool is that of PATH, or comes from Debian's package `prometheus`, unpacked once into
//! `~/.cache/ztier/prometheus` (`ZTIER_PROMETHEUS_CACHE` names another directory). Without it the
//! test prints `skipped:` and the reason.
#![allow(clippy::unwrap_used)]

use crate::support::promql::check_expression;
use crate::support::sandbox::{Done, finish_within};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Limit on the time of a download, and on that of promtool.
const PATIENCE: Duration = Duration::from_secs(120);

const RULES: &str = "etc/prometheus/ztier.rules.yml";

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rules() -> String {
    fs::read_to_string(project().join(RULES)).unwrap()
}

/// promtool of this machine, or of the cache.
///
/// # Errors
/// Why there is none.
fn promtool() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) =
        std::env::split_paths(&path).map(|dir| dir.join("promtool")).find(|file| file.exists())
    {
        return Ok(found);
    }
    let cache = match std::env::var_os("ZTIER_PROMETHEUS_CACHE") {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(std::env::var_os("HOME").ok_or("there is no HOME")?)
            .join(".cache/ztier/prometheus"),
    };
    let program = cache.join("promtool");
    if !program.exists() {
        fetch(&cache)?;
    }
    Ok(program)
}

/// Puts promtool into `cache`: whole or not at all, because another run may look meanwhile.
fn fetch(cache: &Path) -> Result<(), String> {
    fs::create_dir_all(cache).map_err(|e| format!("cannot make {}: {e}", cache.display()))?;
    let new = tempfile::Builder::new()
        .prefix("new-")
        .tempdir_in(cache)
        .map_err(|e| format!("cannot make a directory in {}: {e}", cache.display()))?;
    let in_new = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(new.path()).stdin(Stdio::null());
        command
    };
    let mut download = in_new("apt-get");
    download.args(["download", "prometheus"]);
    run(download, "apt-get download prometheus")?;
    let package = fs::read_dir(new.path()).ok().and_then(|mut files| files.next()?.ok());
    let package = package.ok_or("apt-get download prometheus brought nothing")?;
    let mut unpack = in_new("dpkg-deb");
    unpack.arg("-x").arg(package.path()).arg(".");
    run(unpack, "dpkg-deb -x")?;
    fs::rename(new.path().join("usr/bin/promtool"), cache.join("promtool"))
        .map_err(|e| format!("the package prometheus has no promtool: {e}"))
}

fn run(command: Command, what: &str) -> Result<(), String> {
    let program = Path::new(command.get_program()).to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|directory| directory.join(&program).exists()) {
        return Err(format!("there is no {}", program.display()));
    }
    let done = finish_within(command, PATIENCE);
    if done.status == 0 {
        return Ok(());
    }
    Err(format!("{what}: {}", done.err.lines().last().unwrap_or_default()))
}

/// Runs promtool; `None`, with a remark, if there is none.
fn promtool_with(args: &[&str]) -> Option<Done> {
    match promtool() {
        Ok(program) => {
            let mut command = Command::new(program);
            command.args(args).current_dir(project()).stdin(Stdio::null());
            Some(finish_within(command, PATIENCE))
        }
        Err(why) => {
            eprintln!("skipped: no promtool here: {why}");
            None
        }
    }
}

/// Name, expression and minutes of each alert.
fn alerts() -> Vec<(String, String, String)> {
    let text = rules();
    let of = |rule: &str, key: &str| {
        let line = rule.lines().find_map(|line| line.trim().strip_prefix(key));
        line.unwrap_or_default().trim().to_owned()
    };
    let rules = text.split("- alert:").skip(1);
    rules.map(|rule| (of(rule, ""), of(rule, "expr:"), of(rule, "for:"))).collect()
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    let Some(checked) = promtool_with(&["check", "rules", RULES]) else { return };
    assert!(checked.ok().contains(&format!("{} rules found", alerts().len())));
    let tests = "tests/golden/ztier.rules.test.yml";
    promtool_with(&["test", "rules", tests]).unwrap().ok();
    // Each alert is tested with series that fire it, and at a time when they do not.
    let text = fs::read_to_string(project().join(tests)).unwrap();
    for (alert, ..) in alerts() {
        assert!(text.contains(&format!("alertname: {alert}, exp_alerts: []")), "{alert}");
        assert!(text.contains(&format!("alertname: {alert}\n        exp_alerts:\n")), "{alert}");
    }
    // The check can fail.
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.yml");
    let rules = rules().replace("ztier_log_failed == 1", "ztier_log_failed == 0");
    fs::write(&wrong, rules).unwrap();
    let test = dir.path().join("test.yml");
    fs::write(&test, text.replace(&format!("../../{RULES}"), "wrong.yml")).unwrap();
    let done = promtool_with(&["test", "rules", test.to_str().unwrap()]).unwrap();
    assert!(done.status != 0 && done.err.contains("ZtierLogFailed"), "{done:?}");
}

#[test]
fn alerts_use_metrics_that_exist() {
    let alerts = alerts();
    let names: BTreeSet<_> = alerts.iter().map(|(name, ..)| name).collect();
    assert!(names.len() == alerts.len() && names.len() > 10, "{names:?}");
    for (name, expression, _) in &alerts {
        // Prometheus' own metric of the scrapes that docs/metrics.md sets up.
        if name != "ZtierExporterDown" {
            check_expression(expression).unwrap_or_else(|e| panic!("{name}: {e}: {expression}"));
        }
    }
}

#[test]
fn the_documentation_lists_the_alerts() {
    let text = fs::read_to_string(project().join("docs/metrics.md")).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `Ztier")).collect();
    let expected: Vec<_> = alerts()
        .into_iter()
        .map(|(name, expression, lasts)| {
            let expression = expression.replace('|', "\\|");
            let lasts = match lasts.as_str() {
                "" => String::new(),
                "1h" => " for 1 hour".into(),
                minutes => format!(" for {} minutes", minutes.trim_end_matches('m')),
            };
            format!("| `{name}` | `{expression}`{lasts} | ")
        })
        .collect();
    assert_eq!(rows.len(), expected.len());
    for (row, expected) in rows.iter().zip(&expected) {
        assert!(row.starts_with(expected.as_str()), "{row}\nis not\n{expected}");
    }
}
