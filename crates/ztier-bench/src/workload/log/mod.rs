//! The write log: the source's rows A to F, synced writes, a full log, opening, growth, exports and
//! everyday work, on modelled drives or on real ones.
//!
//! Invariants: rivals take turns in each round; each run on a model gets a new one; a figure is the
//! median of its rounds.

mod compact;
mod drives;
mod everyday;
mod export;
mod full;
mod kernel;
mod large;
mod own;
mod recovery;
mod rows;
mod synced;
mod watched;
mod window;

pub use drives::{Drives, REAL_DIR, Source, Spec};

use super::Context;
use crate::data::Kind;
use crate::model::Kind as Model;
use clap::ValueEnum;
use std::path::PathBuf;
use std::time::Duration;
use ztier::error::{Error, Result};

const BLOCK: u64 = ztier::BLOCK_SIZE as u64;
/// The source's `size=16GB`.
const SPAN: u64 = 16 << 30;

/// The parts of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Rows A to F, with a chart.
    Rows,
    /// One flush after 1, 8, 64 writes by 1, 4, 16 writers.
    Synced,
    /// Large writes that shrink: what neighbours that are compressed together bring.
    Large,
    /// Random writes when the log is full, against the backing store's sorted speed.
    Full,
    /// Opening a log that was left by a cut of power, by its size and what filled it.
    Recovery,
    /// How the work of filling, opening and draining grows with what the log holds.
    Window,
    /// The source's job through `ztier up` on files: NBD, FUSE and a loop device, in process.
    Export,
    /// The kernel's caches, dm-writecache and bcache, on the same two devices (not on models).
    Kernel,
    /// SQLite commits and a tar that is unpacked, on ext4 on the exported device.
    Everyday,
}

/// Options of the command line.
#[derive(Clone, Debug)]
pub struct Choice {
    /// `--log`.
    pub log: Option<Spec>,
    /// `--backing`.
    pub backing: Option<Spec>,
    /// `--real`: files in this directory.
    pub real: Option<PathBuf>,
    /// `--data`.
    pub data: Kind,
    /// `--segment`.
    pub segment: u32,
    /// `--rows`; empty for all.
    pub rows: Vec<String>,
}

impl Choice {
    /// Opens, checks or makes the drives.
    ///
    /// # Errors
    /// A drive is refused; a file can't be made.
    pub fn drives(&self, quick: bool) -> Result<Drives> {
        if let Some(dir) = &self.real {
            let (log, backing) = if quick { (1 << 30, 2 << 30) } else { (4 << 30, SPAN) };
            return Ok(Drives {
                log: Source::make(dir, "log", log)?,
                backing: Source::make(dir, "backing", backing)?,
            });
        }
        if let (Some(Spec::Path(log)), Some(Spec::Path(backing))) = (&self.log, &self.backing)
            && std::fs::canonicalize(log).ok() == std::fs::canonicalize(backing).ok()
        {
            let text = format!("{} can't be log and backing store at once", log.display());
            return Err(Error::usage(text).hint("give two drives"));
        }
        let or = |spec: &Option<Spec>, kind: Model| {
            Source::new(spec.clone().unwrap_or_else(|| Spec::Model(kind.into())))
        };
        Ok(Drives {
            log: or(&self.log, Model::Ssd840Pro)?,
            backing: or(&self.backing, Model::Hdd7200)?,
        })
    }
}

/// Durations and repetitions.
struct Plan<'a> {
    drives: &'a Drives,
    /// Bytes of the volume.
    span: u64,
    rounds: u32,
    time: Duration,
    log_bytes: u64,
    /// Data and segment size of all sections except the rows.
    data: Kind,
    segment: u32,
}

impl<'a> Plan<'a> {
    fn new(context: &Context, choice: &Choice, drives: &'a Drives) -> Result<Self> {
        Ok(Self {
            data: choice.data,
            segment: choice.segment,
            span: drives.span()?,
            drives,
            rounds: context.pick(1, 3),
            time: Duration::from_millis(context.pick(1000, 6000)),
            log_bytes: context.pick(2 << 30, 4 << 30),
        })
    }
}

impl Section {
    /// Measures the section.
    ///
    /// # Errors
    /// A drive fails; interrupted.
    pub fn run(self, context: &mut Context, choice: &Choice, drives: &Drives) -> Result<()> {
        let plan = Plan::new(context, choice, drives)?;
        let text = format!("log {}, backing {}", plan.drives.log, plan.drives.backing);
        let (name, report) = (format!("{self:?}").to_lowercase(), &mut context.report);
        // The other sections have their own drives.
        if !matches!(self, Self::Export | Self::Recovery | Self::Window | Self::Kernel) {
            report.note(&name, "drives", text);
        }
        match self {
            Self::Rows => plan.rows(report, &choice.rows),
            Self::Synced => plan.synced(report),
            Self::Large => plan.large(report),
            Self::Full => plan.full(report, context.quick),
            Self::Recovery => plan.recovery(report, context.quick),
            Self::Window => plan.window(report, context.quick),
            Self::Export => plan.export(report, context.quick),
            Self::Kernel => plan.kernel(report, context.quick),
            Self::Everyday => plan.everyday(report, context.quick),
        }
    }
}
