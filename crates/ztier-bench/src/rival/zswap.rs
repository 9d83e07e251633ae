//! The kernel's zswap: compressed pages in memory in front of a swap device.
//!
//! Invariant: its settings are the machine's; they are restored in the reverse order of their
//! change, so that zswap is off before any other setting changes.

use crate::sys::knob::{Knob, read};
use std::fs;
use std::path::Path;
use ztier::error::{Context, Error, Result};

/// Name in reports.
pub const NAME: &str = "zswap, disk";
const PARAMETERS: &str = "/sys/module/zswap/parameters";
/// The algorithm of ztier and zram in the comparison.
const WANTED: &str = "lz4";

/// zswap, on while this lives. Fields are dropped in order.
#[derive(Debug)]
pub struct Zswap {
    _enabled: Knob,
    _compressor: Option<Knob>,
    _percent: Option<Knob>,
}

impl Zswap {
    /// Turns zswap on, with LZ4 if the kernel has that, limited to `percent` of the machine's
    /// memory.
    ///
    /// # Errors
    /// A kernel without it; no root; zswap is on already, for the machine's own swap.
    pub fn new(percent: Option<u32>) -> Result<Self> {
        let parameters = Path::new(PARAMETERS);
        let enabled = parameters.join("enabled");
        if !parameters.exists() {
            return Err(Error::failure("this kernel has no zswap"));
        }
        if read(&enabled)? == "Y" {
            let text = "zswap is on already, and may hold pages of the machine's own swap";
            return Err(Error::failure(text).hint(format!("echo N > {}", enabled.display())));
        }
        // A kernel without this compressor keeps its own, and the report names it.
        let compressor = Knob::set(parameters.join("compressor"), WANTED).ok();
        let percent = percent
            .map(|n| Knob::set(parameters.join("max_pool_percent"), &n.to_string()))
            .transpose()?;
        let enabled = Knob::set(enabled, "Y")?;
        Ok(Self { _enabled: enabled, _compressor: compressor, _percent: percent })
    }

    /// The note about it in the report.
    pub fn about() -> String {
        let value = |name: &str| read(&Path::new(PARAMETERS).join(name)).unwrap_or_default();
        let compressor = value("compressor");
        let lacks = if compressor == WANTED { "" } else { " (this kernel's has no lz4)" };
        format!(
            "{compressor}{lacks}, at most {} % of memory, shrinker {}",
            value("max_pool_percent"),
            value("shrinker_enabled")
        )
    }
}

/// Bytes of memory in use by zswap.
///
/// # Errors
/// A kernel without it.
pub fn memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    parse(&text).ok_or_else(|| Error::failure("/proc/meminfo has no line Zswap"))
}

fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Zswap:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_memory_is_not_what_it_holds() {
        let text = "MemFree: 1 kB\nZswap:              12 kB\nZswapped:           40 kB\n";
        assert_eq!(parse(text), Some(12 * 1024));
        assert_eq!(parse("Zswapped: 40 kB\n"), None);
    }
}
