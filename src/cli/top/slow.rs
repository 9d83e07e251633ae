//! What slows a volume down, from its rates: drives below it, a full log or memory, its threads.
//!
//! Invariant: each reason is one line with the number that shows it.

use super::look::{Look, short};
use super::state::{Rates, Wait};
use crate::config::size::human;
use crate::control::{Role, Sample};
use crate::device::Algorithm;

/// Reads wait for a drive if that is this share of their time, and a wait takes this long, in
/// nanoseconds.
const SHARE: f64 = 0.5;
const WAIT_NS: u64 = 100_000;
/// The share of their time from which threads count as busy.
const BUSY: f64 = 0.8;
/// The time before service that counts as a wait, and that of a flush that counts as slow.
const QUEUED_NS: u64 = 1_000_000;
const FLUSH_NS: u64 = 20_000_000;

/// The reasons, the most certain first.
pub fn reasons(sample: &Sample, rates: &Rates, look: &Look) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(memory(sample, rates));
    all.extend(log(sample, rates));
    let waits = |what: &str, wait: Option<Wait>| {
        let wait = wait.filter(|wait| wait.share >= SHARE && wait.mean_ns >= WAIT_NS)?;
        let (time, share) = (look.latency(Some(wait.mean_ns)), wait.share * 100.0);
        Some(format!("reads wait for the {what}, {time} each: {share:.0} % of their time"))
    };
    all.extend(waits("backing store", rates.backing_wait));
    all.extend(waits("spill device", rates.spill_wait));
    if sample.stats.log.is_some()
        && let Some(ns) = rates.flush.p99_ns.filter(|ns| *ns >= FLUSH_NS)
    {
        let time = look.latency(Some(ns));
        all.push(format!("flushes wait for the log's drive, p99 {time}"));
    }
    if all.is_empty() {
        all.extend(threads(sample, rates));
    }
    let queued = [&rates.read, &rates.write].into_iter().filter_map(|flow| flow.waiting_p99_ns);
    let served = rates.p99_ns.unwrap_or(0);
    if let Some(ns) = queued.max().filter(|ns| *ns >= QUEUED_NS && *ns > served) {
        let time = look.latency(Some(ns));
        all.push(format!("requests wait p99 {time} until they are served"));
    }
    all
}

/// A full memory.
fn memory(sample: &Sample, rates: &Rates) -> Option<String> {
    if rates.refused_per_s > 0.0 {
        let refused = short(rates.refused_per_s);
        return Some(format!("memory is full: {refused} writes/s are refused"));
    }
    if rates.stalls_per_s == 0.0 {
        return None;
    }
    let stalls = short(rates.stalls_per_s);
    let what = match sample.role() {
        Role::Spill => {
            let taken = human(rates.spill_written_bytes_per_s as u64);
            format!("the spill device takes {taken}/s")
        }
        _ => "memory is nearly full".to_owned(),
    };
    Some(format!("{stalls} writes/s wait for room: {what}"))
}

/// A full log, behind which writes are as slow as the backing store.
fn log(sample: &Sample, rates: &Rates) -> Option<String> {
    let log = sample.stats.log.filter(|log| log.segments_used * 10 >= log.segments * 9)?;
    let speed = human(rates.written_back_bytes_per_s as u64);
    let full = format!("{} of {} segments", log.segments_used, log.segments);
    Some(format!("the log is full, {full}: writes wait for writeback, {speed}/s"))
}

/// Busy threads: compression is what takes their time, unless a drive does.
fn threads(sample: &Sample, rates: &Rates) -> Option<String> {
    let busy = Some(rates.threads_busy).filter(|busy| *busy >= BUSY)? * 100.0;
    let with = match sample.plan.algorithm {
        Algorithm::None => "copies",
        Algorithm::Lz4 => "LZ4 and copies",
        Algorithm::Zstd => "zstd and copies; lz4 takes less time",
    };
    Some(format!("its threads are busy for {busy:.0} % of the time, with {with}"))
}
