//! The details of one volume, below the table.
//!
//! Invariant: what matters most comes first, since a small screen cuts off the end.

use super::look::{Look, short};
use super::paint::{Line, Style, width};
use super::slow;
use super::state::{Flow, Moment, Rates, Row};
use crate::BLOCK_SIZE;
use crate::cli::{adapting, output, remedy_for, status};
use crate::config::size::{human, ratio};
use crate::control::{Role, Sample};
use crate::escape::escape;
use crate::limit::Change;
use crate::stats::{CacheStats, Health, LogStats};
use std::collections::VecDeque;

/// Columns of a label.
const LABEL: usize = 11;
/// Most columns of a bar.
const BAR: usize = 40;
/// Most columns of the text behind a bar.
const MEANING: usize = 44;

/// The lines of one volume.
pub fn details(row: &Row, unix_s: u64, columns: usize, look: &Look) -> Vec<Line> {
    let mut lines = vec![title(row, columns, look)];
    let Some(sample) = &row.sample else {
        let why = row.why.as_deref().unwrap_or_default();
        lines.extend(text(row.state, &escape(why), Style::Bad, columns));
        return lines;
    };
    let (rates, past) = (row.rates.as_ref(), &row.past);
    let teller = Teller { name: &row.name, sample, rates, past, unix_s, columns, look };
    lines.extend(teller.trouble());
    lines.extend(teller.slow());
    lines.extend(teller.homes());
    lines.extend(teller.past());
    lines.extend(teller.requests());
    lines.extend(teller.progress());
    lines.extend(teller.limit());
    lines.extend(teller.memory());
    lines.extend(teller.daemon());
    lines
}

fn title(row: &Row, columns: usize, look: &Look) -> Line {
    let what = row.sample.as_ref().map_or(row.state.to_owned(), |sample| {
        let role = match sample.role() {
            Role::Ram => "in memory",
            Role::Spill => "in memory, spills",
            Role::Cache => "read cache",
            Role::Log => "write cache",
        };
        let size = human(sample.stats.disk_size_bytes);
        let open =
            sample.endpoints.first().map_or(String::new(), |open| format!(", {}", escape(open)));
        format!("{size} {role}{open}")
    });
    let rule = if look.unicode { "─" } else { "-" };
    let text = format!("{rule}{rule} {}: {what} ", escape(&row.name));
    let rest = columns.saturating_sub(width(&text));
    vec![(Style::Head, text), (Style::Label, rule.repeat(rest))]
}

/// A label and text, wrapped to `columns`.
fn text(label: &str, what: &str, style: Style, columns: usize) -> Vec<Line> {
    let room = columns.saturating_sub(LABEL).max(20);
    let mut lines: Vec<String> = vec![String::new()];
    for word in what.split(' ') {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && width(&lines[last]) + 1 + width(word) > room {
            lines.push(word.to_owned());
            continue;
        }
        if !lines[last].is_empty() {
            lines[last].push(' ');
        }
        lines[last].push_str(word);
    }
    let mut label = label;
    let line = |words: String| {
        let head = format!("{:<LABEL$}", std::mem::take(&mut label));
        vec![(Style::Label, head), (style, words)]
    };
    lines.into_iter().map(line).collect()
}

/// Makes the lines of a volume that is up.
struct Teller<'a> {
    name: &'a str,
    sample: &'a Sample,
    rates: Option<&'a Rates>,
    past: &'a VecDeque<Moment>,
    unix_s: u64,
    columns: usize,
    look: &'a Look,
}

impl Teller<'_> {
    fn text(&self, label: &str, what: &str) -> Vec<Line> {
        text(label, &escape(what), Style::Plain, self.columns)
    }

    /// A label, a bar, and its text; without the bar where there is no room for both.
    fn bar(&self, label: &str, whole: u64, parts: &[(Style, u64)], what: &str) -> Vec<Line> {
        let room = self.columns.saturating_sub(LABEL + 2 + MEANING);
        if room < 8 {
            return self.text(label, what);
        }
        let mut line: Line = vec![(Style::Label, format!("{label:<LABEL$}"))];
        line.extend(self.look.bar(room.min(BAR), whole, parts));
        line.push((Style::Plain, format!("  {what}")));
        vec![line]
    }

    /// The troubles that the user should act on.
    fn trouble(&self) -> Vec<Line> {
        let stats = &self.sample.stats;
        let mut all: Vec<String> = stats
            .troubles(self.unix_s)
            .into_iter()
            .map(|trouble| {
                let what = escape(&trouble.text).into_owned();
                // The text of a filling volume says what to do.
                match trouble.health > Health::Filling {
                    true => format!("{what}; {}", remedy_for(self.name, &trouble)),
                    false => what,
                }
            })
            .collect();
        let errors = status::errors(stats);
        if errors != "none" {
            all.push(errors);
        }
        all.iter().flat_map(|what| text("TROUBLE", what, Style::Bad, self.columns)).collect()
    }

    /// Where blocks are: one bar for memory, and one for each drive that holds some.
    fn homes(&self) -> Vec<Line> {
        let (stats, homes) = (&self.sample.stats, self.sample.homes());
        let share = |part: u64, whole: u64| format!("{} of {}", human(part), human(whole));
        let used = share(stats.mem_used_bytes, stats.ram_limit_bytes);
        let parts = [(Style::Ram, stats.mem_used_bytes)];
        let what = match self.sample.role() {
            Role::Ram | Role::Spill => format!("{used}, {} of data", human(homes.ram)),
            Role::Cache | Role::Log => format!("{used}, copies of {}", human(homes.ram)),
        };
        let mut lines = self.bar("memory", stats.ram_limit_bytes, &parts, &what);
        if let Some(log) = &stats.log {
            let parts = [(Style::Log, log.segments_used), (Style::Backing, log.segments_clean)];
            let (used, clean, all) = (log.segments_used, log.segments_clean, log.segments);
            let what = format!("{used} of {all} segments, {clean} more are kept");
            lines.extend(self.bar("log", log.segments, &parts, &what));
        }
        if self.sample.role() == Role::Spill {
            let parts = [(Style::Spill, stats.spill_slots_used)];
            let slots = (stats.spill_slots_used, stats.spill_slots);
            let what = format!("{} of {} slots, {} of data", slots.0, slots.1, human(homes.spill));
            lines.extend(self.bar("spill", stats.spill_slots, &parts, &what));
        }
        if matches!(self.sample.role(), Role::Cache | Role::Log) {
            let parts = [(Style::Backing, homes.backing)];
            let what = match homes.dirty {
                0 => "has everything".into(),
                dirty => format!("lacks {}", human(dirty)),
            };
            lines.extend(self.bar("backing", stats.disk_size_bytes, &parts, &what));
        }
        lines
    }

    /// What slows it down.
    fn slow(&self) -> Vec<Line> {
        let reasons = self.rates.map(|rates| slow::reasons(self.sample, rates, self.look));
        let lines = reasons.into_iter().flatten();
        lines.flat_map(|what| text("SLOW", &what, Style::Warn, self.columns)).collect()
    }

    /// The last intervals: throughput and latency; and the load.
    fn past(&self) -> Vec<Line> {
        let Some(rates) = self.rates else { return Vec::new() };
        let most = |of: fn(&Moment) -> f64| self.past.iter().map(of).fold(0.0, f64::max);
        if most(|m| m.bytes_per_s) == 0.0 && most(|m| m.p99_ns) == 0.0 {
            return Vec::new();
        }
        let per_s = |bytes: f64| format!("{}/s", human(bytes as u64));
        let (now, peak) = (per_s(rates.bytes_per_s()), per_s(most(|m| m.bytes_per_s)));
        let speed = format!("{now}, at most {peak}");
        let latency = |ns| self.look.latency(ns);
        let peak = Some(most(|m| m.p99_ns) as u64).filter(|ns| *ns > 0);
        let slow = format!("p99 {}, at most {}", latency(rates.p99_ns), latency(peak));
        let mut lines = self.spark("throughput", |moment| moment.bytes_per_s, &speed);
        lines.extend(self.spark("latency", |moment| moment.p99_ns, &slow));
        let (depth, busy) = (short(rates.queue_depth), rates.threads_busy * 100.0);
        let load = format!("queue depth {depth}, threads {busy:.0} % busy");
        lines.extend(self.text("load", &load));
        lines
    }

    /// A label, a sparkline, and its text; without the line where there is no room for both.
    fn spark(&self, label: &str, of: fn(&Moment) -> f64, what: &str) -> Vec<Line> {
        let room = self.columns.saturating_sub(LABEL + 2 + MEANING);
        if room < 8 {
            return self.text(label, what);
        }
        let line = self.look.sparkline(room.min(BAR), self.past.iter().map(of));
        vec![vec![
            (Style::Label, format!("{label:<LABEL$}")),
            (Style::Ram, line),
            (Style::Plain, format!("  {what}")),
        ]]
    }

    /// Requests by kind.
    fn requests(&self) -> Vec<Line> {
        let Some(rates) = self.rates else { return Vec::new() };
        let quiet = |flow: &Flow| flow.requests_per_s == 0.0;
        let kinds = [
            ("read", &rates.read),
            ("write", &rates.write),
            ("flush", &rates.flush),
            ("discard", &rates.discard),
            ("zeroes", &rates.write_zeroes),
        ];
        // Reads and writes are always shown.
        let shown = kinds.iter().enumerate().filter(|(at, (_, flow))| *at < 2 || !quiet(flow));
        let of = |flow: &Flow| {
            if quiet(flow) {
                return "none".to_owned();
            }
            let latency = |ns| self.look.latency(ns);
            let mut text = format!("{}/s", short(flow.requests_per_s));
            if flow.bytes_per_s > 0.0 {
                text += &format!("  {}/s", human(flow.bytes_per_s as u64));
            }
            text += &format!("  p50 {}  p99 {}", latency(flow.p50_ns), latency(flow.p99_ns));
            // A wait of less than a microsecond counts as none.
            match flow.waiting_p99_ns.filter(|ns| *ns >= 1000) {
                Some(ns) => format!("{text}  before that p99 {}", latency(Some(ns))),
                None => text,
            }
        };
        shown.flat_map(|(_, (kind, flow))| self.text(kind, &of(flow))).collect()
    }

    /// Work in the background (writeback, spilling, recompression), the cache's hits, and
    /// compression.
    fn progress(&self) -> Vec<Line> {
        let stats = &self.sample.stats;
        let mut lines = Vec::new();
        if let Some(log) = &stats.log {
            lines.extend(self.text("writeback", &self.writeback(log)));
        }
        if let Some(cache) = stats.cache.filter(|cache| cache.limit_bytes > 0) {
            lines.extend(self.text("hits", &self.hits(&cache)));
        }
        let compression = self.sample.compression().map(ratio);
        let same = stats.blocks_same * BLOCK_SIZE as u64;
        let same = (same > 0).then(|| format!("{} same-filled besides", human(same)));
        let clusters = stats.blocks_clustered * BLOCK_SIZE as u64;
        let clusters = (clusters > 0).then(|| format!("{} in clusters", human(clusters)));
        let now = stats.recompressing.then(|| "recompressing now".to_owned());
        let all: Vec<String> = [compression, clusters, same, now].into_iter().flatten().collect();
        if !all.is_empty() {
            lines.extend(self.text("compressed", &all.join(", ")));
        }
        if self.sample.role() == Role::Spill {
            let rate = |of: fn(&Rates) -> f64| self.rates.map_or(0.0, of);
            let text = format!(
                "{}/s down, {}/s read; {} written so far",
                human(rate(|r| r.spill_written_bytes_per_s) as u64),
                human(rate(|r| r.spill_read_bytes_per_s) as u64),
                human(stats.spill_written_bytes)
            );
            lines.extend(self.text("spilling", &text));
        }
        lines
    }

    fn writeback(&self, log: &LogStats) -> String {
        let dirty = self.sample.homes().dirty;
        if dirty == 0 {
            return "nothing to do".into();
        }
        let mut text = format!("{} to go", human(dirty));
        let Some(rates) = self.rates.filter(|rates| rates.written_back_bytes_per_s > 0.0) else {
            let paused = log.windows_failed > 0;
            return text + if paused { ", waits after a failure" } else { ", waits" };
        };
        text += &format!(", {}/s", human(rates.written_back_bytes_per_s as u64));
        if rates.cleaned_bytes_per_s > 0.0 {
            let left = (dirty as f64 / rates.cleaned_bytes_per_s).min(1e9) as u64;
            text += &format!(", about {} left", output::duration(left.max(1)));
        }
        text
    }

    fn hits(&self, cache: &CacheStats) -> String {
        let asked = cache.hit_blocks + cache.missed_blocks;
        let ever = (100 * cache.hit_blocks).checked_div(asked);
        let ever = ever.map_or("nothing read yet".into(), |hit| format!("{hit} % since it is up"));
        match self.rates.and_then(|rates| rates.hit_ratio) {
            Some(ratio) => format!("{:.0} % of the blocks read now, {ever}", ratio * 100.0),
            None => ever,
        }
    }

    /// The reason for the adapting limit, and its last change.
    fn limit(&self) -> Vec<Line> {
        let Some(report) = &self.sample.adapting else { return Vec::new() };
        let bounds = adapting::bounds(&self.sample.plan);
        let mut lines = self.text("limit", &format!("auto{bounds}: {}", report.why));
        if let Some(Change { from_bytes, to_bytes, unix_s, reason }) = report.last_change {
            let age = output::duration(self.unix_s.saturating_sub(unix_s));
            let change = format!("{} -> {}, {age} ago", human(from_bytes), human(to_bytes));
            lines.extend(self.text("changed", &format!("{change}: {reason}")));
        }
        lines
    }

    fn memory(&self) -> Vec<Line> {
        let stats = &self.sample.stats;
        if !matches!(self.sample.role(), Role::Ram | Role::Spill) {
            return Vec::new();
        }
        let text = format!(
            "{} frames, {} metadata, {} buffers, {} at most so far",
            human(stats.frames_bytes),
            human(stats.metadata_bytes),
            human(stats.buffers_bytes),
            human(stats.mem_used_max_bytes)
        );
        self.text("made of", &text)
    }

    fn daemon(&self) -> Vec<Line> {
        let Sample { pid, version, restarts, started_unix_s, .. } = self.sample;
        let up = output::duration(self.unix_s.saturating_sub(*started_unix_s));
        let again = match restarts {
            0 => String::new(),
            1 => ", went on once".into(),
            n => format!(", went on {n} times"),
        };
        self.text("daemon", &format!("process {pid}, ztier {version}, up for {up}{again}"))
    }
}
