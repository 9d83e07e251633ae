//! The state of all volumes that is shown: their last samples, and the rates since the samples
//! before.
//!
//! Invariant: nothing here looks at the machine; an unknown value (first sample, restarted daemon)
//! is absent, and never 0.

use crate::control::Sample;
use crate::daemon::survey::{Seen, Volumes};
use crate::stats::{Distribution, Requests, Spent};
use jiff::tz::TimeZone;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Intervals that a sparkline can show.
const PAST: usize = 64;

/// Rates of one kind of request in the last interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Flow {
    /// Requests a second.
    pub requests_per_s: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Median time of service in nanoseconds; absent without requests.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the time of service, in nanoseconds.
    pub p99_ns: Option<u64>,
    /// 99th percentile of the wait before service, in nanoseconds.
    pub waiting_p99_ns: Option<u64>,
}

/// Waits of reads for a drive in the last interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Wait {
    /// Mean time of one, in nanoseconds.
    pub mean_ns: u64,
    /// Share of the time of all reads.
    pub share: f64,
}

impl Wait {
    /// `count` waits of `ns` in total, of reads that took `all_ns`; `None` without any.
    fn of(count: u64, ns: u64, all_ns: u64) -> Option<Self> {
        let mean_ns = ns.checked_div(count)?;
        Some(Self { mean_ns, share: (ns as f64 / all_ns.max(1) as f64).min(1.0) })
    }
}

/// What a sparkline shows of an interval.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Bytes read and written a second.
    pub bytes_per_s: f64,
    /// 99th percentile of the time of service, in nanoseconds; 0 without requests.
    pub p99_ns: f64,
}

/// Rates of a volume in the last interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Read requests.
    pub read: Flow,
    /// Write requests.
    pub write: Flow,
    /// Flush requests.
    pub flush: Flow,
    /// Discard requests.
    pub discard: Flow,
    /// Write-zeroes requests.
    pub write_zeroes: Flow,
    /// Median time of service of reads and writes together, in nanoseconds.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the same.
    pub p99_ns: Option<u64>,
    /// Bytes a second that writeback brought to the backing store.
    pub written_back_bytes_per_s: f64,
    /// Bytes a second by which the dirty data shrank; negative if it grew.
    pub cleaned_bytes_per_s: f64,
    /// Bytes a second to the spill device.
    pub spill_written_bytes_per_s: f64,
    /// Bytes a second from the spill device.
    pub spill_read_bytes_per_s: f64,
    /// Requests in flight on average: waiting, or in service.
    pub queue_depth: f64,
    /// Share of the time of its threads in which they served requests.
    pub threads_busy: f64,
    /// Writes a second that waited for room or memory.
    pub stalls_per_s: f64,
    /// Writes a second that were refused for lack of space.
    pub refused_per_s: f64,
    /// Waits of reads for the backing store; absent without any.
    pub backing_wait: Option<Wait>,
    /// Waits of reads for the spill device; absent without any.
    pub spill_wait: Option<Wait>,
    /// Share of the blocks read that had a copy in memory; absent when none were read.
    pub hit_ratio: Option<f64>,
}

/// One volume.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// `up`, `starting`, `busy` or `dead`.
    pub state: &'static str,
    /// Why the volume is not up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The last sample of its daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Box<Sample>>,
    /// The rates since the sample before; absent until its daemon has answered twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    /// The last intervals, oldest first.
    #[serde(skip)]
    pub past: VecDeque<Moment>,
    #[serde(skip)]
    at: Option<Instant>,
}

/// The sort order of volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By name.
    #[default]
    Name,
    /// Volumes with the most requests come first.
    Requests,
    /// Volumes that use the most memory come first.
    Memory,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Name => Self::Requests,
            Self::Requests => Self::Memory,
            Self::Memory => Self::Name,
        }
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Requests => "requests",
            Self::Memory => "memory",
        }
    }
}

/// All that is shown.
#[derive(Debug, Default)]
pub struct State {
    rows: Vec<Row>,
    selected: Option<String>,
    order: Order,
    /// Now, in seconds since 1970.
    pub unix_s: u64,
    /// The user's time zone; `None`: UTC.
    pub zone: Option<TimeZone>,
    /// The interval, if it is shown.
    pub interval: Option<Duration>,
    /// Whether the keys and columns are shown in place of volumes.
    pub help: bool,
}

impl State {
    /// One that shows times of this zone.
    pub fn in_zone(zone: TimeZone) -> Self {
        Self { zone: Some(zone), ..Self::default() }
    }

    /// The volumes in their order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The present sort order.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The index of the selected volume; by default the first.
    pub fn selected(&self) -> usize {
        let chosen = self.selected.as_deref();
        self.rows.iter().position(|row| Some(row.name.as_str()) == chosen).unwrap_or(0)
    }

    /// Moves the selection by `by` rows: down, or up if negative.
    pub fn go(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        let to = self.selected().saturating_add_signed(by).min(last);
        self.selected = self.rows.get(to).map(|row| row.name.clone());
    }

    /// Changes to the next sort order.
    pub fn sort(&mut self) {
        if self.selected.is_none() {
            self.go(0);
        }
        self.order = self.order.next();
        self.put_in_order();
    }

    /// Takes in the present answers of all volumes.
    pub fn update(&mut self, volumes: &Volumes, now: Instant, unix_s: u64) {
        let mut before: BTreeMap<String, Row> =
            std::mem::take(&mut self.rows).into_iter().map(|r| (r.name.clone(), r)).collect();
        let rows = volumes.iter().map(|(name, seen)| row(name, seen, before.remove(name), now));
        self.rows = rows.collect();
        self.unix_s = unix_s;
        self.put_in_order();
    }

    fn put_in_order(&mut self) {
        let load = |row: &Row| row.rates.as_ref().map_or(0.0, Rates::requests_per_s);
        let memory = |row: &Row| row.sample.as_ref().map_or(0, |s| s.stats.mem_used_bytes);
        self.rows.sort_by(|a, b| {
            let larger = match self.order {
                Order::Name => std::cmp::Ordering::Equal,
                Order::Requests => load(b).total_cmp(&load(a)),
                Order::Memory => memory(b).cmp(&memory(a)),
            };
            larger.then_with(|| a.name.cmp(&b.name))
        });
    }
}

fn row(name: &str, seen: &Seen, before: Option<Row>, now: Instant) -> Row {
    let blank = Row {
        name: name.to_owned(),
        state: seen.state(),
        why: why(name, seen, now),
        sample: None,
        rates: None,
        past: VecDeque::new(),
        at: None,
    };
    let Seen::Up { sample, at } = seen else { return blank };
    let Some(mut before) = before else {
        return Row { sample: Some(sample.clone()), at: Some(*at), ..blank };
    };
    let mut past = std::mem::take(&mut before.past);
    let rates = match before.at {
        // No new sample: the daemon has not answered the last question yet.
        Some(then) if then == *at => before.rates,
        Some(then) => {
            let s = (*at - then).as_secs_f64();
            let rates = before.sample.and_then(|old| Rates::between(&old, sample, s));
            past.extend(rates.as_ref().map(Rates::moment));
            past.drain(..past.len().saturating_sub(PAST));
            rates
        }
        None => None,
    };
    Row { sample: Some(sample.clone()), rates, past, at: Some(*at), ..blank }
}

/// Why a volume is not up.
fn why(name: &str, seen: &Seen, now: Instant) -> Option<String> {
    match seen {
        Seen::Up { .. } => None,
        Seen::Starting { step: Some(step) } => Some(format!("coming up: {step}")),
        Seen::Starting { step: None } => Some("its daemon is coming up, or ending".into()),
        Seen::Silent { why: Some(why), .. } => Some(why.clone()),
        Seen::Silent { since, why: None, .. } => {
            let seconds = now.saturating_duration_since(*since).as_secs_f64();
            Some(format!("its daemon has not answered for {seconds:.0} s"))
        }
        Seen::Dead { kept: true, .. } => {
            Some(format!("its daemon is gone; `ztier restart {name}` goes on with its data"))
        }
        Seen::Dead { .. } => Some(format!("its daemon is gone; `ztier down {name}` removes it")),
        Seen::Broken { why } => Some(why.clone()),
    }
}

impl Flow {
    fn between(before: (&Requests, &Spent), after: (&Requests, &Spent), s: f64) -> Option<Self> {
        let serving = after.1.serving.since(&before.1.serving)?;
        let waiting = after.1.waiting.since(&before.1.waiting)?;
        Some(Self {
            requests_per_s: after.0.requests.checked_sub(before.0.requests)? as f64 / s,
            bytes_per_s: after.0.bytes.checked_sub(before.0.bytes)? as f64 / s,
            p50_ns: serving.percentile(500),
            p99_ns: serving.percentile(990),
            waiting_p99_ns: waiting.percentile(990),
        })
    }
}

impl Rates {
    /// The rates between two samples that are `seconds` apart; `None` if they come from different
    /// daemons.
    pub fn between(before: &Sample, after: &Sample, seconds: f64) -> Option<Self> {
        if before.pid != after.pid || before.started_unix_s != after.started_unix_s {
            return None;
        }
        let (old, new) = (before.stats.kinds(), after.stats.kinds());
        let (old_spent, new_spent) = (before.latencies.kinds(), after.latencies.kinds());
        let flow = |kind: usize| {
            let (old, new) = ((old[kind].1, old_spent[kind].1), (new[kind].1, new_spent[kind].1));
            Flow::between(old, new, seconds)
        };
        let both = |sample: &Sample| -> Distribution {
            sample.latencies.read.serving.with(&sample.latencies.write.serving)
        };
        let served = both(after).since(&both(before))?;
        let per_s = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
        let (a, b) = (&before.stats, &after.stats);
        let written_back = |s: &Sample| s.stats.log.map_or(0, |log| log.written_back_bytes);
        let dirty = |s: &Sample| s.homes().dirty as f64;
        let hits = |s: &Sample| s.stats.cache.map_or(0, |cache| cache.hit_blocks);
        let missed = |s: &Sample| s.stats.cache.map_or(0, |cache| cache.missed_blocks);
        let hit = hits(after).saturating_sub(hits(before)) as f64;
        let asked = hit + missed(after).saturating_sub(missed(before)) as f64;
        let (serving_ns, waiting_ns) = spent_ns(before, after)?;
        let of_threads = f64::from(after.plan.threads.max(1)) * seconds * 1e9;
        let ns = |sample: &Sample| sample.latencies.read.serving.sum_ns;
        let read_ns = ns(after).saturating_sub(ns(before));
        let missed_ns = |s: &Sample| s.stats.cache.map_or(0, |cache| cache.missed_ns);
        let of_backing = missed_ns(after).saturating_sub(missed_ns(before));
        let of_spill = b.spill_reading_ns.saturating_sub(a.spill_reading_ns);
        let spill_reads = b.spill_device_reads.saturating_sub(a.spill_device_reads);
        let misses = missed(after).saturating_sub(missed(before));
        Some(Self {
            queue_depth: (serving_ns + waiting_ns) as f64 / seconds / 1e9,
            threads_busy: (serving_ns as f64 / of_threads).min(1.0),
            stalls_per_s: per_s(a.stalls, b.stalls),
            refused_per_s: per_s(a.no_space, b.no_space),
            backing_wait: Wait::of(misses, of_backing, read_ns),
            spill_wait: Wait::of(spill_reads, of_spill, read_ns),
            read: flow(0)?,
            write: flow(1)?,
            flush: flow(2)?,
            discard: flow(3)?,
            write_zeroes: flow(4)?,
            p50_ns: served.percentile(500),
            p99_ns: served.percentile(990),
            written_back_bytes_per_s: per_s(written_back(before), written_back(after)),
            cleaned_bytes_per_s: (dirty(before) - dirty(after)) / seconds,
            spill_written_bytes_per_s: per_s(a.spill_written_bytes, b.spill_written_bytes),
            spill_read_bytes_per_s: per_s(a.spill_read_bytes, b.spill_read_bytes),
            hit_ratio: (asked > 0.0).then(|| hit / asked),
        })
    }

    /// What a sparkline shows.
    fn moment(&self) -> Moment {
        Moment { bytes_per_s: self.bytes_per_s(), p99_ns: self.p99_ns.map_or(0.0, |ns| ns as f64) }
    }

    /// Bytes read and written a second.
    pub fn bytes_per_s(&self) -> f64 {
        self.read.bytes_per_s + self.write.bytes_per_s
    }

    /// Requests of all kinds a second.
    pub fn requests_per_s(&self) -> f64 {
        [&self.read, &self.write, &self.flush, &self.discard, &self.write_zeroes]
            .iter()
            .map(|flow| flow.requests_per_s)
            .sum()
    }
}

/// Nanoseconds that requests were in service, and that they waited, between two samples of one
/// daemon.
fn spent_ns(before: &Sample, after: &Sample) -> Option<(u64, u64)> {
    let sum = |sample: &Sample, of: fn(&Spent) -> u64| -> u64 {
        sample.latencies.kinds().iter().map(|(_, spent)| of(spent)).sum()
    };
    let since = |of: fn(&Spent) -> u64| sum(after, of).checked_sub(sum(before, of));
    Some((since(|spent| spent.serving.sum_ns)?, since(|spent| spent.waiting.sum_ns)?))
}
