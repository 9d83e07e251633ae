//! The systems that take turns, each as the machine's swap for a while.
//!
//! Invariant: swap is off before its device goes.

use crate::rival::Disk as _;
use crate::rival::ztier::Up;
use crate::workload::scan::swap::{self, SwapOn};
use clap::ValueEnum;
use std::path::Path;
use ztier::error::{Error, Result};

/// The disks of the machine, all with the same limits.
pub const FILES: &str = "/disk/files";
const SWAP: &str = "/disk/swap";
const SPILL: &str = "/disk/spill";
/// The source's limit.
const FIXED: &str = "25%";

/// Where pages go that are not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// Nowhere: there is no swap.
    None,
    /// A disk.
    Disk,
    /// Ours, in at most a quarter of the memory.
    Fixed,
    /// Ours, in as much as it finds right, before a disk.
    Auto,
}

impl System {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no swap",
            Self::Disk => "disk swap",
            Self::Fixed => "ztier, 25 %",
            Self::Auto => "ztier, auto",
        }
    }
}

/// Swap on one of the systems, until dropped.
pub struct Swap {
    _on: Option<SwapOn>,
    up: Option<Up>,
}

impl Swap {
    /// Makes swap with room for `size` bytes, and turns it on.
    ///
    /// # Errors
    /// The error of the system.
    pub fn on(system: System, size: u64) -> Result<Self> {
        let up = match system {
            System::None => return Ok(Self { _on: None, up: None }),
            System::Disk => {
                swap::make(Path::new(SWAP))?;
                return Ok(Self { _on: Some(SwapOn::new(Path::new(SWAP))?), up: None });
            }
            System::Fixed => Up::for_swap(size, Some(FIXED), None)?,
            System::Auto => Up::for_swap(size, Some("auto"), Some(Path::new(SPILL)))?,
        };
        let end = Box::new(up.swapoff(swap::OFF));
        let on = SwapOn::by(up.path(), || up.swapon(swap::PRIORITY), end)?;
        Ok(Self { _on: Some(on), up: Some(up) })
    }

    /// The description of a ztier volume; `None` for other systems.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn about(&self) -> Result<Option<String>> {
        let Some(up) = &self.up else { return Ok(None) };
        let status = up.status()?;
        let mib = |name: &str| {
            let missing = || Error::failure(format!("`ztier status --json` lacks {name}"));
            status["stats"][name].as_f64().map(|b| b / 1_048_576.0).ok_or_else(missing)
        };
        let (now, most) = (mib("mem_used_bytes")?, mib("mem_used_max_bytes")?);
        let mut text = format!("{now:.1} MiB of memory in use, {most:.1} at most");
        if let Some(why) = status["adapting"]["why"].as_str() {
            text += &format!("; {why}");
        }
        Ok(Some(text))
    }
}
