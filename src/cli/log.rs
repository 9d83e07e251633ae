//! `ztier log`: make a log, check one, or list what is in it.

use super::output;
use super::progress_line::ProgressLine;
use crate::config::plan::DEFAULT_SEGMENT;
use crate::config::size::{self, human};
use crate::config::{Amount, Paths};
use crate::device::{self, Pair, cannot_use};
use crate::error::{Error, Result};
use crate::log::disk::format::{Entry, Header, Superblock};
use crate::log::{self, Inspection};
use crate::media::{Access, Drive, FileDrive};
use crate::remedy;
use crate::stats::time::rfc3339;
use clap::{Args, Subcommand, ValueHint};
use serde_json::json;
use std::path::{Path, PathBuf};

/// What to do with a log.
#[derive(Subcommand)]
pub enum Log {
    Format(Format),
    Check(Check),
    Dump(Dump),
    Branch(Branch),
}

/// Make an empty log for a backing store
///
/// `ztier up` does this by itself on a drive that holds nothing known.
#[derive(Args)]
#[command(after_help = size::HELP)]
pub struct Format {
    /// Drive or file that becomes the log; what is on it is lost
    #[arg(value_hint = ValueHint::AnyPath)]
    log: PathBuf,
    /// Slow drive or file that the log is for
    #[arg(long, value_name = "DEV", value_hint = ValueHint::AnyPath)]
    backing: PathBuf,
    /// Bytes in a segment: a power of two, 32K to 16M [default: 1M]
    #[arg(long, value_name = "BYTES")]
    segment: Option<Amount>,
    /// Overwrite what is on the drive, unless it is a log with data
    #[arg(long)]
    wipe: bool,
    /// Overwrite a log with data, too
    #[arg(long)]
    force: bool,
}

/// Verify a log that no volume uses, without changing it
///
/// Reads all of it. Exit status 6 if anything is damaged.
#[derive(Args)]
pub struct Check {
    /// The log
    #[arg(value_hint = ValueHint::AnyPath)]
    log: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List the chunks of a log, without changing it
#[derive(Args)]
pub struct Dump {
    /// The log
    #[arg(value_hint = ValueHint::AnyPath)]
    log: PathBuf,
    /// Also list every change in each chunk
    #[arg(long)]
    entries: bool,
}

/// Copy a volume in a store to where its overtaken log can be opened
///
/// When another host has written to the volume, a log that still holds changes does not fit it any
/// more. This copies the volume as that log had last sent it to an empty place; there `ztier up`
/// opens the log. The volume and the log stay as they are.
#[derive(Args)]
pub struct Branch {
    /// The log
    #[arg(value_hint = ValueHint::AnyPath)]
    log: PathBuf,
    /// The store of its volume
    #[arg(long, value_name = "PLACE", value_hint = ValueHint::AnyPath)]
    backing: PathBuf,
    /// An empty place for the copy
    #[arg(long, value_name = "PLACE", value_hint = ValueHint::AnyPath)]
    to: PathBuf,
}

impl Log {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self {
            Self::Format(format) => format.run(),
            Self::Check(check) => check.run(),
            Self::Dump(dump) => dump.run(),
            Self::Branch(branch) => branch.run(),
        }
    }
}

impl Format {
    fn run(self) -> Result<()> {
        let segment = match self.segment {
            None => DEFAULT_SEGMENT,
            Some(Amount::Bytes(bytes)) => u32::try_from(bytes).unwrap_or(u32::MAX),
            Some(Amount::Percent(_)) => {
                return Err(Error::usage("a segment is a number of bytes, like 1M"));
            }
        };
        let (wipe, force) = (self.wipe, self.force);
        let state = Paths::of_this_user()?.state;
        let pair = Pair { wipe, force, ..Pair::new(self.log, self.backing, segment, state) };
        pair.format()?;
        output::print(&format!(
            "{} is an empty log for {}\n",
            pair.log.display(),
            pair.backing.display()
        ))
    }
}

impl Branch {
    fn run(self) -> Result<()> {
        for place in [&self.backing, &self.to] {
            if !device::is_store(place) {
                return Err(Error::usage(format!("{} is no place of a store", place.display()))
                    .hint("write it like file:///mnt/nfs/volume"));
            }
        }
        let line = ProgressLine::new();
        let progress = |done: &str, count| line.show(&format_args!("{done} {count} objects"));
        let copied = device::branch(&self.log, (&self.backing, &self.to), &progress)?;
        drop(line);
        output::print(&format!(
            "{} has the volume as {} left it ({copied} objects); bring it up with both\n",
            self.to.display(),
            self.log.display()
        ))
    }
}

fn look(path: &Path, payloads: bool) -> Result<Inspection> {
    let drive = FileDrive::open(path, Access::Still)?;
    let progress_line = ProgressLine::new();
    let progress = |step| progress_line.show(&step);
    log::inspect_telling(&drive as &dyn Drive, true, payloads, &progress)
        .map_err(|e| cannot_use(path, &e))
}

impl Check {
    fn run(self) -> Result<()> {
        let found = look(&self.log, true)?;
        if self.json {
            output::json(&json!({
                "segments": found.superblock.segments,
                "segment_bytes": found.superblock.segment,
                "size_bytes": found.superblock.blocks * crate::BLOCK_SIZE as u64,
                "generation": found.superblock.generation,
                "written_unix_s": found.superblock.at_s,
                "closed": found.report.closed,
                "torn": found.report.torn,
                "superblock_damaged": found.report.mended,
                "chunks": found.report.chunks,
                "entries": found.report.entries,
                "missing": found.report.missing,
                "unread": found.report.unread,
                "damaged": found.damaged,
            }))?;
        } else {
            output::print(&(superblock(&found.superblock) + &format!("{}\n", found.report)))?;
            for (block, chunk) in &found.damaged {
                output::print(&format!("block {block} in chunk {chunk} is damaged\n"))?;
            }
        }
        let report = &found.report;
        if found.damaged.is_empty() && report.missing.is_empty() && report.unread == 0 {
            return Ok(());
        }
        let log = self.log.display();
        Err(Error::degraded(format!("{log} is damaged")).hint(remedy::LOG_CHECKED))
    }
}

fn superblock(sb: &Superblock) -> String {
    output::pairs(&[
        ("volume", human(sb.blocks * crate::BLOCK_SIZE as u64)),
        ("segments", format!("{} of {}", sb.segments, human(sb.segment.into()))),
        ("tail", format!("segment {}, chunk {}", sb.written.segment, sb.written.chunk)),
        ("durable", format!("up to chunk {}", sb.durable)),
        ("superblock", format!("generation {}{}", sb.generation, written(sb.at_s))),
    ])
}

/// When a superblock was written, if that is known.
fn written(at_s: u64) -> String {
    if at_s == 0 { String::new() } else { format!(", written at {}", rfc3339(at_s)) }
}

impl Dump {
    fn run(self) -> Result<()> {
        let found = look(&self.log, false)?;
        output::print(&superblock(&found.superblock))?;
        for (header, entries) in &found.chunks {
            output::print(&chunk(header))?;
            for entry in entries.iter().filter(|_| self.entries) {
                output::print(&line(entry))?;
            }
        }
        Ok(())
    }
}

fn chunk(header: &Header) -> String {
    format!(
        "chunk {} segment {} at {} length {} entries {} durable-before {} epoch {:016x}\n",
        header.chunk,
        header.segment,
        header.offset,
        header.len,
        header.entries,
        header.durable,
        header.epoch
    )
}

fn line(entry: &Entry) -> String {
    match entry {
        Entry::Data(d) => format!(
            "  block {} {:?}{} length {} at {} check {:08x}\n",
            d.block,
            d.kind,
            if d.copy { " copy" } else { "" },
            d.len,
            d.offset,
            d.check
        ),
        Entry::Range { kind, block, count } => format!("  blocks {block}+{count} {kind:?}\n"),
    }
}
