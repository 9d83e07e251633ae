//! `ztier doctor`: what works on this machine, why not, and how to get it.
//!
//! Invariants: it only looks, and changes nothing on the machine; in a store it makes objects, and
//! removes them. No line is wider than 80 columns, unless a word is.

use super::output;
use crate::config::machine;
use crate::config::size::human;
use crate::device;
use crate::error::{Error, Result};
use crate::kernel_text::kernel_text;
use crate::media::swap_areas::parse_swaps;
use crate::system::reclaim;
use clap::{Args, ValueHint};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Say which exports and features work on this machine, and how to get the others
///
/// Ends with status 6 if no block device works here.
#[derive(Args)]
pub struct Doctor {
    /// A store, file:///DIR or s3://BUCKET/PREFIX: race writers in it, and say whether a volume
    /// would be safe there
    #[arg(value_hint = ValueHint::AnyPath)]
    store: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How checks of exports begin, and the exports that are block devices.
const EXPORT: &str = "export ";
const DEVICES: [&str; 2] = ["export ublk", "export fuse"];
/// The first check that is about no export of ours.
const FIRST_OF_REST: &str = "kernel NBD client";

/// One check and its result.
#[derive(Debug, Serialize)]
struct Check {
    what: String,
    works: bool,
    found: String,
    /// How to get it; empty when it works or nothing needs to be done.
    #[serde(rename = "mend")]
    hint: String,
}

impl Check {
    /// The hint of the error comes before `hint`.
    fn of(what: &str, found: Result<String>, hint: &str) -> Self {
        let known = found.as_ref().err().and_then(Error::remedy).map(str::to_owned);
        let found = found.map_err(|e| e.text().to_owned());
        Self::new(what, found, known.as_deref().unwrap_or(hint))
    }

    fn new(what: &str, found: std::result::Result<String, String>, hint: &str) -> Self {
        let works = found.is_ok();
        Self {
            what: what.into(),
            works,
            found: found.unwrap_or_else(|why| why),
            hint: if works { String::new() } else { hint.into() },
        }
    }
}

impl From<crate::system::Check> for Check {
    fn from(check: crate::system::Check) -> Self {
        let crate::system::Check { what, works, found, hint } = check;
        Self { what: what.into(), works, found, hint: hint.into() }
    }
}

#[derive(Serialize)]
struct Report {
    /// The export that `--export auto` chooses.
    export: &'static str,
    checks: Vec<Check>,
}

impl Doctor {
    fn probe(&self, store: &Path) -> Result<()> {
        device::probe_store(store)?;
        if self.json {
            return output::json(&serde_json::json!({ "store": store, "works": true }));
        }
        output::print(&format!(
            "{}: of racing writers one succeeds; a volume is safe there\n",
            store.display()
        ))
    }

    /// Runs the command.
    pub fn run(self) -> Result<()> {
        if let Some(store) = &self.store {
            return self.probe(store);
        }
        let report = Report { export: best_export(), checks: checks() };
        if self.json {
            return output::json(&report);
        }
        output::print(&report.text(output::has_unicode()))?;
        report.result()
    }
}

impl Report {
    /// A block for each export, with what it needs, and one for the rest.
    fn text(&self, unicode: bool) -> String {
        let mut out = String::new();
        for (n, block) in self.checks.chunk_by(|_, next| !next.is_head()).enumerate() {
            if n > 0 {
                out.push('\n');
            }
            if block[0].what == FIRST_OF_REST {
                out.push_str("this machine\n");
            }
            for check in block {
                check.write(&mut out, unicode);
            }
        }
        let export = self.export;
        out + &format!("\n--export auto takes {export} here\n")
    }

    /// # Errors
    /// No export that is a block device works.
    fn result(&self) -> Result<()> {
        let is_device = |check: &&Check| DEVICES.contains(&check.what.as_str());
        if self.checks.iter().filter(is_device).any(|check| check.works) {
            return Ok(());
        }
        Err(Error::degraded("no block device works here")
            .hint("see above what ublk and FUSE need, or use --export nbd"))
    }
}

impl Check {
    /// Whether a block begins with it.
    fn is_head(&self) -> bool {
        self.what.starts_with(EXPORT) || self.what == FIRST_OF_REST
    }

    /// Writes its lines: what there is, and below it what to do.
    fn write(&self, out: &mut String, unicode: bool) {
        let mark = match (self.works, unicode) {
            (true, true) => "✓",
            (false, true) => "✗",
            (true, false) => "yes",
            (false, false) => "no ",
        };
        let depth = if self.what.starts_with(EXPORT) { 0 } else { 2 };
        let indent = " ".repeat(depth);
        let Self { what, found, hint, .. } = self;
        let line = output::wrapped(&format!("{indent}{mark} {what}: {found}"), depth + 4);
        out.push_str(&line);
        out.push('\n');
        if !hint.is_empty() {
            let inside = " ".repeat(depth + 4);
            let line = output::wrapped(&format!("{inside}{hint}"), depth + 4);
            out.push_str(&line);
            out.push('\n');
        }
    }
}

fn best_export() -> &'static str {
    match crate::daemon::choose(&crate::config::Settings::default()) {
        Ok(chosen) => chosen.kind.name(),
        Err(_) => "nbd",
    }
}

fn checks() -> Vec<Check> {
    let mut checks =
        vec![Check::new("export nbd", Ok("always works, also without root".into()), "")];
    let available = crate::export::ublk::available().map(|()| "works".to_owned());
    checks.push(Check::new("export ublk", available, "see what it needs, below"));
    checks.extend(crate::export::ublk::probe().into_iter().map(Check::from));
    #[cfg(feature = "fuse")]
    {
        let available = crate::export::fuse::available(true).map(|()| "works".to_owned());
        checks.push(Check::new("export fuse", available, "see what it needs, below"));
        checks.extend(crate::export::fuse::probe().into_iter().map(Check::from));
    }
    #[cfg(not(feature = "fuse"))]
    checks.push(Check::new(
        "export fuse",
        Err("this ztier was built without it".into()),
        "build with the feature `fuse`",
    ));
    checks.extend([
        Check::new(
            FIRST_OF_REST,
            nbd_client(),
            "modprobe nbd, then `nbd-client -unix SOCKET /dev/nbd0` makes a block device of NBD",
        ),
        Check::new(
            "io_uring",
            io_uring(),
            "sysctl kernel.io_uring_disabled=0, or a kernel and container that allow it",
        ),
        Check::new(
            "huge pages for memory",
            huge_pages(),
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        Check::new("locking memory", memlock(), "raise `ulimit -l` (LimitMEMLOCK=infinity)"),
        Check::new(
            "carrying swap",
            carries_swap(),
            "run as root; in a container, add these capabilities",
        ),
        Check::of(
            "freed swap slots",
            crate::daemon::freed_slots::available().map(|()| "the kernel can tell which".into()),
            "a kernel with zswap, BTF and BPF; without, swap takes more memory",
        ),
        Check::of(
            "news of dropped pages",
            crate::daemon::evicted::available()
                .map(|()| "the kernel can tell, for --exclusive auto".into()),
            "Linux 6.6 or newer with BTF and BPF; without, a cache also holds what the page cache has",
        ),
        Check::new("memory", Ok(memory()), ""),
        Check::new("swap", swap(), ""),
    ]);
    checks
}

fn nbd_client() -> std::result::Result<String, String> {
    if Path::new("/sys/block/nbd0").exists() {
        return Ok("/dev/nbd0 is there".into());
    }
    Err("nbd is neither loaded nor built in".into())
}

fn io_uring() -> std::result::Result<String, String> {
    let mut params = rustix::io_uring::io_uring_params::default();
    // SAFETY: one entry and parameters that ask for nothing: the kernel only fills `params` in and
    // returns a descriptor, which is closed here; nothing is mapped.
    let ring = unsafe { rustix::io_uring::io_uring_setup(1, &mut params) };
    ring.map(|_| "works".into()).map_err(|e| e.to_string())
}

fn huge_pages() -> std::result::Result<String, String> {
    let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let chosen = text.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("?");
    match chosen {
        "never" | "deny" | "?" => Err(format!("shmem_enabled is `{chosen}`")),
        _ => Ok(format!("shmem_enabled is `{chosen}`")),
    }
}

fn memlock() -> std::result::Result<String, String> {
    match getrlimit(Resource::Memlock).current {
        None => Ok("no limit".into()),
        Some(_) if reclaim::has(CapabilitySet::IPC_LOCK) => Ok("has CAP_IPC_LOCK".into()),
        Some(bytes) if bytes >= machine::memory_bytes() => Ok(human(bytes)),
        Some(bytes) => Err(format!("at most {}", human(bytes))),
    }
}

/// Whether this process has what a daemon needs to carry swap when memory is short.
fn carries_swap() -> std::result::Result<String, String> {
    match reclaim::lacking()[..] {
        [] => Ok(reclaim::NEEDED.map(|(name, _)| name).join(", ")),
        ref lacking => Err(format!("lacks {}", lacking.join(", "))),
    }
}

fn memory() -> String {
    let ram = human(machine::ram_bytes());
    match machine::cgroup_limit() {
        Some(limit) if limit.bytes < machine::ram_bytes() => {
            format!("{} by {}, of {ram} of RAM", human(limit.bytes), limit.file.display())
        }
        _ => format!("{ram} of RAM, no lower cgroup limit"),
    }
}

fn swap() -> std::result::Result<String, String> {
    let text = kernel_text("/proc/swaps").map_err(|e| format!("/proc/swaps: {e}"))?;
    Ok(swap_in(&text))
}

fn swap_in(text: &str) -> String {
    let areas = parse_swaps(text).into_iter();
    let areas: Vec<String> =
        areas.map(|(path, area)| format!("{} {}", path.display(), human(area.size))).collect();
    match areas[..] {
        [] => "none: memory is never swapped out".into(),
        _ => areas.join(", "),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn report(fuse: bool) -> Report {
        let check = |what: &str, works: bool| {
            let found = if works { Ok("works".to_owned()) } else { Err("is not there ".repeat(9)) };
            Check::new(what, found, "modprobe it, or take another kernel that has it built in")
        };
        let checks = vec![
            check("export nbd", true),
            check("export ublk", false),
            check("ublk driver", false),
            check("export fuse", fuse),
            check("/dev/fuse", fuse),
            check(FIRST_OF_REST, true),
            check("io_uring", true),
        ];
        Report { export: if fuse { "fuse" } else { "nbd" }, checks }
    }

    #[test]
    fn swap_areas_have_their_own_names() {
        let head = "Filename  Type  Size  Used  Priority\n";
        assert_eq!(swap_in(head), "none: memory is never swapped out");
        let text = format!("{head}/swap\\040file file 4096 0 -2\n/dev/sda2 partition 2048 0 -3\n");
        assert_eq!(swap_in(&text), "/swap file 4 MiB, /dev/sda2 2 MiB");
    }

    #[test]
    fn a_block_an_export_within_80_columns() {
        let text = report(true).text(true);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let blocks: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(blocks.len(), 5, "{text}");
        assert_eq!(blocks[0], "✓ export nbd: works");
        assert!(blocks[1].starts_with("✗ export ublk: is not there is not there"), "{text}");
        assert!(blocks[1].contains("\n  ✗ ublk driver: is not there"), "{text}");
        assert!(
            blocks[1].ends_with("\n      modprobe it, or take another kernel that has it built in")
        );
        assert_eq!(blocks[2], "✓ export fuse: works\n  ✓ /dev/fuse: works");
        assert_eq!(blocks[3], "this machine\n  ✓ kernel NBD client: works\n  ✓ io_uring: works");
        let ascii = report(true).text(false);
        assert!(ascii.is_ascii() && ascii.contains("no  export ublk: "), "{ascii}");
    }

    #[test]
    fn without_a_block_device_the_status_says_so() {
        assert!(report(true).result().is_ok());
        let none = report(false).result().unwrap_err();
        assert_eq!(none.exit_status(), 6);
        assert!(none.to_string().contains("no block device works here"), "{none}");
    }
}
