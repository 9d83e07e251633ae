//! The source's table: random writes on a disk, on an SSD, and on a log in front of the disk.

use super::drives::{Drives, Source, Spec};
use super::own::OwnLog;
use super::{BLOCK, Plan, SPAN};
use crate::data::{Kind, Pool};
use crate::model::Kind as Model;
use crate::model::job::{self, Action, Job};
use crate::report::{Report, Row, Target as Goal, bars, median, print, say};
use crate::rival::fio;
use crate::rival::served::{Served, ServedNbd};
use crate::sys::command::exists;
use crate::sys::map::AlignedBuf;
use crate::workload::SEED;
use crate::workload::random::{Lane, Op, Order, Target, pools, work};
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::error::{Error, Result};
use ztier::log::disk::format::crc;
use ztier::sync::Mutex;

/// Memory that a modelled log's drive gets in advance, for each second of the measurement and for
/// the time after its end: allocating it during the measurement would stall all threads.
const READY_PER_SECOND: f64 = 280e6;
const READY_REST: u64 = 128 << 20;
const SECTION: &str = "rows";
/// Bytes written to drives without cost: too few to start writeback, and few enough for the memory
/// of a machine.
const FREE: u64 = 2 << 30;
/// The source's figures, 10^6 bytes a second, with its names.
const SOURCE: [(&str, &str, f64); 6] = [
    ("A", "HDD (rand)", 0.883),
    ("B", "SSD (rand)", 202.0),
    ("C", "SSD (seq)", 266.0),
    ("D", "HDD+SSD seg=1M", 259.0),
    ("E", "HDD+SSD seg=32K", 184.0),
    ("F", "HDD+MaxSSD", 1579.0),
];

/// The load of a row.
#[derive(Clone, Copy)]
enum Load {
    /// A drive alone: the backing store or the log's.
    Backing(Job),
    Log(Job),
    /// A log with this segment size, and data of this ratio.
    Logged(u32, f64),
    /// A log of 1 MiB segments behind an export, by fio.
    Exported(Export),
    /// A log in front of and on drives without cost, with data of this ratio.
    Free(f64),
    /// Blocks copied and checksummed, without a drive.
    Memory,
}

/// The export of a log in another process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Export {
    Nbd,
    Fuse,
}

/// A row of the table, filled round by round.
struct Line {
    letter: &'static str,
    load: Load,
    runs: Vec<f64>,
    amplification: Vec<f64>,
}

impl Line {
    fn case(&self) -> String {
        let (_, name, mb) =
            SOURCE.iter().find(|(l, ..)| *l == self.letter).copied().unwrap_or_default();
        let letter = self.letter;
        match self.load {
            Load::Memory => "4 KiB copied and summed, 2 threads".into(),
            Load::Logged(_, ratio) | Load::Free(ratio) => {
                format!("({letter}) {name} {ratio}:1, source {mb}")
            }
            _ => format!("({letter}) {name}, source {mb}"),
        }
    }

    fn system(&self, drives: &Drives) -> String {
        match self.load {
            Load::Backing(_) => drives.backing.to_string(),
            Load::Log(_) => drives.log.to_string(),
            Load::Logged(..) | Load::Free(_) => "ztier, in process".into(),
            Load::Exported(Export::Nbd) => "ztier, NBD".into(),
            Load::Exported(Export::Fuse) => "ztier, FUSE and loop".into(),
            Load::Memory => "memory".into(),
        }
    }
}

fn lines(span: u64) -> Vec<Line> {
    let random = Job {
        action: Action::Write,
        random: true,
        block: BLOCK,
        depth: 64,
        span,
        warm_up: 0,
        count: 0,
    };
    // The SSD's rows use a gigabyte: a model keeps all of it in memory.
    let near = Job { span: span.min(1 << 30), ..random };
    let sequential = Job { random: false, block: 1 << 20, ..near };
    [
        ("A", Load::Backing(random)),
        ("B", Load::Log(near)),
        ("C", Load::Log(sequential)),
        ("D", Load::Logged(1 << 20, 1.0)),
        ("D", Load::Logged(1 << 20, 2.0)),
        ("D", Load::Exported(Export::Nbd)),
        ("D", Load::Exported(Export::Fuse)),
        ("E", Load::Logged(32 << 10, 1.0)),
        ("E", Load::Logged(32 << 10, 2.0)),
        ("F", Load::Free(1.0)),
        ("F", Load::Free(2.0)),
        ("", Load::Memory),
    ]
    .map(|(letter, load)| Line { letter, load, runs: Vec::new(), amplification: Vec::new() })
    .into()
}

impl Plan<'_> {
    /// Runs the rows in turn, and prints them beside the source's.
    pub(super) fn rows(&self, report: &mut Report, only: &[String]) -> Result<()> {
        let mut lines = lines(self.span);
        // The divisor of row F is included with it.
        let letter = |line: &Line| if line.letter.is_empty() { "F" } else { line.letter };
        lines.retain(|line| only.is_empty() || only.iter().any(|l| l == letter(line)));
        lines.retain(|line| match line.load {
            Load::Exported(export) => here(export)
                .inspect_err(|reason| report.missing(SECTION, &line.system(self.drives), reason))
                .is_ok(),
            _ => true,
        });
        let mut data = [pools(Kind::Ratio(1.0), 2)?, pools(Kind::Ratio(2.0), 2)?];
        for round in 0..self.rounds {
            for line in &mut lines {
                self.run_line(line, &mut data, round)?;
            }
            say(&format!("round {} of {}", round + 1, self.rounds));
        }
        let mut figures = Vec::new();
        for line in &lines {
            figures.push(report.row(Row {
                section: SECTION.into(),
                system: line.system(self.drives),
                case: line.case(),
                unit: "MB/s",
                runs: line.runs.clone(),
                ..Row::default()
            }));
        }
        print(&chart(&lines, &figures));
        ratios(report, &lines, &figures);
        Ok(())
    }

    fn run_line(&self, line: &mut Line, data: &mut [Vec<Pool>; 2], round: u32) -> Result<()> {
        let drives = self.drives;
        let alone = |source: &Source, job: &Job, ready: u64| -> Result<f64> {
            let opened = source.open_ready(SPAN, ready)?;
            let job = Job { span: job.span.min(opened.drive.size()), ..*job };
            let times = (self.time.min(Duration::from_secs(1)) / 2, self.time);
            Ok(job::measure(&*opened.drive, &job, times, SEED)?.bytes_per_second / 1e6)
        };
        line.runs.push(match &line.load {
            Load::Backing(job) => alone(&drives.backing, job, 0)?,
            Load::Log(job) => alone(&drives.log, job, job.span)?,
            Load::Logged(segment, ratio) => {
                let log = self.ready_log(*segment)?;
                let reached = log.write(of(data, *ratio), self.time, round)?;
                line.amplification.push(log.amplification());
                reached
            }
            Load::Exported(export) => self.exported(*export)?,
            Load::Free(ratio) => {
                let free = Source::new(Spec::Model(Model::SsdNull.into()))?;
                let drive = free.open_ready(4 * FREE, FREE + FREE / 8)?;
                let log = OwnLog::on(&drive, free.open(SPAN)?.drive, 1 << 20)?;
                log.write_bytes(of(data, *ratio), FREE, round)?
            }
            Load::Memory => copy_and_sum(&mut data[0], SPAN, round)?,
        });
        Ok(())
    }

    /// A new log, on a drive with allocated memory if it is a model.
    fn ready_log(&self, segment: u32) -> Result<OwnLog> {
        let ready = (READY_PER_SECOND * self.time.as_secs_f64()) as u64 + READY_REST;
        let drive = self.drives.log.open_ready(self.log_bytes, ready)?;
        OwnLog::on(&drive, self.drives.backing.open(SPAN)?.drive, segment)
    }

    /// Runs fio's job on a device or a server; writes count when a flush has ended.
    fn exported(&self, export: Export) -> Result<f64> {
        let log = self.ready_log(1 << 20)?;
        let run = |target: fio::Target<'_>| {
            let (size, time) = (self.span, Some(self.time));
            fio::measure(&fio::Job { target, size, time, shrinks: false, ..fio::LIKE })
        };
        let reached = match export {
            Export::Nbd => run(fio::Target::Nbd(ServedNbd::new(log.device(), "rows")?.uri()))?,
            Export::Fuse => run(fio::Target::Direct(Served::new(log.device(), "rows")?.path()))?,
        };
        let start = Instant::now();
        log.flush()?;
        let time = self.time.as_secs_f64();
        Ok(reached.bytes_per_second * time / 1e6 / (time + start.elapsed().as_secs_f64()))
    }
}

/// Whether this machine can run the export; otherwise the reason.
fn here(export: Export) -> std::result::Result<(), String> {
    match export {
        _ if !exists("fio") => Err("fio is not installed".into()),
        Export::Nbd => Ok(()),
        Export::Fuse => ztier::export::fuse::available(true),
    }
}

/// The pools of data with this `ratio`.
fn of(data: &mut [Vec<Pool>; 2], ratio: f64) -> &mut [Pool] {
    &mut data[usize::from(ratio > 1.0)]
}

fn chart(lines: &[Line], figures: &[f64]) -> String {
    let mut groups = Vec::new();
    for (letter, name, source) in SOURCE {
        if !lines.iter().any(|line| line.letter == letter) {
            continue;
        }
        let mut group = vec![("source".to_owned(), source)];
        for (line, figure) in lines.iter().zip(figures).filter(|(l, _)| l.letter == letter) {
            let what = match line.load {
                Load::Logged(_, ratio) | Load::Free(ratio) => format!("here, {ratio}:1"),
                Load::Exported(Export::Nbd) => "here, NBD".into(),
                Load::Exported(Export::Fuse) => "here, FUSE".into(),
                _ => "here".into(),
            };
            group.push((what, *figure));
        }
        groups.push((format!("({letter}) {name}"), group));
    }
    format!("\nMB/s\n{}", bars(&groups, 50))
}

fn ratios(report: &mut Report, lines: &[Line], figures: &[f64]) {
    let find = |wanted: &str, ratio: f64| {
        let fits = |line: &&Line| match line.load {
            Load::Logged(_, r) | Load::Free(r) => line.letter == wanted && r == ratio,
            Load::Exported(_) => false,
            _ => line.letter == wanted,
        };
        lines.iter().zip(figures).find(|(line, _)| fits(line))
    };
    let figure = |letter, ratio| find(letter, ratio).map(|(_, figure)| *figure);
    let (sequential, memory) = (figure("C", 1.0), figure("", 1.0));
    let mut ratio = |name: &str, ours: Option<f64>, other: Option<f64>, goal| {
        if let (Some(ours), Some(other)) = (ours, other) {
            report.ratio(name, ours / other, goal);
        }
    };
    for (name, letter, shrinks, goal) in [
        ("randwrite_vs_ssd_seq", "D", 1.0, Goal::AtLeast(0.97)),
        ("randwrite_compressible_vs_ssd_seq", "D", 2.0, Goal::AtLeast(1.5)),
        ("randwrite_32k_vs_ssd_seq", "E", 1.0, Goal::AtLeast(0.9)),
        ("randwrite_32k_compressible_vs_ssd_seq", "E", 2.0, Goal::None),
    ] {
        ratio(name, figure(letter, shrinks), sequential, goal);
    }
    for (export, name) in [(Export::Nbd, "nbd"), (Export::Fuse, "fuse")] {
        let found = lines.iter().zip(figures);
        let wanted = |load| matches!(load, Load::Exported(other) if other == export);
        let figure = found.into_iter().find(|(line, _)| wanted(line.load)).map(|(_, f)| *f);
        ratio(&format!("randwrite_{name}_vs_ssd_seq"), figure, sequential, Goal::None);
    }
    ratio("maxssd_vs_memcpy_crc", figure("F", 1.0), memory, Goal::AtLeast(0.5));
    ratio("maxssd_compressible_vs_memcpy_crc", figure("F", 2.0), memory, Goal::None);
    if let Some((line, _)) = find("D", 1.0) {
        report.ratio("write_amplification", median(&line.amplification), Goal::AtMost(1.05));
    }
}

/// Memory without a log: each block is checksummed and copied behind the block before it.
struct Memory(Mutex<Vec<AlignedBuf>>);

impl Memory {
    /// `bytes` of memory for each of `threads`.
    fn new(threads: usize, bytes: u64) -> Result<Self> {
        let parts = (0..threads).map(|_| AlignedBuf::ready(bytes as usize));
        Ok(Self(Mutex::new(parts.collect::<Result<_>>()?)))
    }
}

struct MemoryLane {
    to: AlignedBuf,
    at: usize,
    sum: u32,
}

impl Target for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn lane(&self) -> Result<Box<dyn Lane + '_>> {
        let to = self
            .0
            .lock()
            .pop()
            .ok_or_else(|| Error::failure("more threads than parts of the memory"))?;
        Ok(Box::new(MemoryLane { to, at: 0, sum: 0 }))
    }
}

impl Lane for MemoryLane {
    fn run(&mut self, _: Op, blocks: &[u64], pool: &mut Pool) -> Result<()> {
        for block in blocks {
            let block = pool.record(block * BLOCK, 0, BLOCK_SIZE);
            self.sum ^= std::hint::black_box(crc(block));
            let end = self.at + BLOCK_SIZE;
            self.to[self.at..end].copy_from_slice(block);
            self.at = if end < self.to.len() { end } else { 0 };
        }
        Ok(())
    }
}

/// Copies and checksums random blocks with a thread for each pool, into allocated memory for all of
/// them; returns 10^6 bytes a second.
fn copy_and_sum(pools: &mut [Pool], span: u64, round: u32) -> Result<f64> {
    let memory = Memory::new(pools.len(), FREE / pools.len() as u64)?;
    let start = Instant::now();
    let order = Order::Some(FREE / BLOCK);
    work(&memory, Op::Write(round), order, span / BLOCK, pools, SEED + u64::from(round))?;
    Ok(FREE as f64 / 1e6 / start.elapsed().as_secs_f64())
}
