//! Renders the screen: a pure function of the state, the size and the look.
//!
//! Invariants: no line is wider than the screen, and there are no more lines than rows; the
//! selected volume is always among the visible ones.

use super::details;
use super::help;
use super::look::{Look, bytes, short};
use super::paint::{Line, Style, cut, width};
use super::state::{Flow, Order, Rates, Row, State};
use crate::cli::local_time;
use crate::config::size::{human, ratio};
use crate::control::{Role, Sample};
use crate::escape::escape;
use crate::stats::Health;
use jiff::tz::TimeZone;

/// How large the screen is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub columns: usize,
    /// Rows; `None`: no bound, for text that is printed and not drawn.
    pub rows: Option<usize>,
}

/// A column of the table: its heading, its width, and the text of a cell.
struct Column {
    head: &'static str,
    width: usize,
    cell: fn(&Sample, Option<&Rates>, &Look) -> String,
}

const fn column(
    head: &'static str,
    width: usize,
    cell: fn(&Sample, Option<&Rates>, &Look) -> String,
) -> Column {
    Column { head, width, cell }
}

fn of(rates: Option<&Rates>, flow: fn(&Rates) -> &Flow, value: fn(&Flow) -> String) -> String {
    rates.map_or("-".into(), |rates| value(flow(rates)))
}

const READS: Column = column("R/s", 6, |_, r, _| of(r, |r| &r.read, |f| short(f.requests_per_s)));
const READ: Column = column("RB/s", 6, |_, r, _| of(r, |r| &r.read, |f| bytes(f.bytes_per_s)));
const WRITES: Column = column("W/s", 6, |_, r, _| of(r, |r| &r.write, |f| short(f.requests_per_s)));
const WRITTEN: Column = column("WB/s", 6, |_, r, _| of(r, |r| &r.write, |f| bytes(f.bytes_per_s)));
const P50: Column = column("p50", 6, |_, r, look| look.latency(r.and_then(|r| r.p50_ns)));
const P99: Column = column("p99", 6, |_, r, look| look.latency(r.and_then(|r| r.p99_ns)));
const MEMORY: Column = column("MEM", 5, |s, _, _| bytes(s.stats.mem_used_bytes as f64));
const RATIO: Column = column("RATIO", 5, |s, _, _| s.compression().map_or("-".into(), ratio));

const DEPTH: Column =
    column("QD", 5, |_, r, _| r.map_or("-".into(), |rates| short(rates.queue_depth)));
const BUSY: Column = column("BUSY", 4, |_, r, _| {
    r.map_or("-".into(), |rates| format!("{:.0}%", rates.threads_busy * 100.0))
});

/// The columns that fit into `width`, and the widths of the name and of the bar that shows where
/// blocks are.
fn columns(width: usize) -> (&'static [Column], usize, usize) {
    match width {
        0..52 => (&[READS, WRITES, P99, MEMORY], width.saturating_sub(28).clamp(4, 14), 0),
        52..80 => (&[READS, READ, WRITES, WRITTEN, P99, MEMORY], 10, 0),
        _ => {
            let (all, rest): (&[Column], _) = match width {
                0..100 => (&[READS, READ, WRITES, WRITTEN, P50, P99, MEMORY, RATIO], width - 54),
                _ => {
                    let all = &[READS, READ, WRITES, WRITTEN, P50, P99, DEPTH, BUSY, MEMORY, RATIO];
                    (all, width - 65)
                }
            };
            let name = (rest * 2 / 5).clamp(11, 20);
            (all, name, (rest - name - 1).min(40))
        }
    }
}

/// All lines of the screen.
pub fn render(state: &State, size: Size, look: &Look) -> Vec<Line> {
    let Size { columns, rows } = size;
    if let Some(height) = rows.filter(|_| state.help) {
        return help::lines(columns, height, look);
    }
    let mut lines = vec![summary(state, columns), heads(state, columns)];
    let all = state.rows();
    if all.is_empty() {
        lines.push(vec![(Style::Plain, "no volume is up; `ztier up` makes one".into())]);
    }
    let details_of = |row: &Row| details::details(row, state.unix_s, columns, look);
    let Some(height) = rows else {
        lines.extend(all.iter().map(|row| volume(row, false, columns, look)));
        for row in all {
            lines.push(Line::new());
            lines.extend(details_of(row));
        }
        if columns >= 80 && !all.is_empty() {
            lines.extend([Line::new(), legend(look)]);
        }
        return lines.into_iter().map(|line| cut(line, columns)).collect();
    };
    let chosen = state.selected();
    let details = all.get(chosen).map(details_of).unwrap_or_default();
    // Two lines above, one below.
    let room = height.saturating_sub(3);
    let table = all.len().min(room.saturating_sub(details.len()).max(room.div_ceil(3)).max(1));
    let first = chosen.saturating_sub(table.saturating_sub(1)).min(all.len() - table);
    for (at, row) in all.iter().enumerate().skip(first).take(table) {
        lines.push(volume(row, at == chosen, columns, look));
    }
    lines.extend(details);
    lines.truncate(height.saturating_sub(1));
    lines.resize_with(height.saturating_sub(1), Line::new);
    let more = all.len() - table;
    lines.push(keys(more, columns, look));
    lines.truncate(height);
    lines.into_iter().map(|line| cut(line, columns)).collect()
}

/// The first line: the number of volumes, their memory and requests, and the time.
fn summary(state: &State, columns: usize) -> Line {
    let rows = state.rows();
    let up = rows.iter().filter(|row| row.state == "up").count();
    let samples = || rows.iter().filter_map(|row| row.sample.as_ref());
    let memory: u64 = samples().map(|sample| sample.stats.mem_used_bytes).sum();
    let requests: f64 =
        rows.iter().filter_map(|r| r.rates.as_ref()).map(Rates::requests_per_s).sum();
    let count = match rows.len() {
        1 => "1 volume".to_owned(),
        n => format!("{n} volumes"),
    };
    let not_up = match rows.len() - up {
        0 => String::new(),
        n => format!(", {n} not up"),
    };
    let mut line: Line = vec![(Style::Head, "ztier".into()), (Style::Plain, format!("  {count}"))];
    line.push((Style::Bad, not_up));
    let ill = samples().filter(|sample| sample.stats.health != Health::Ok).count();
    if ill > 0 {
        line.push((Style::Bad, format!(", {ill} not ok")));
    }
    let load = format!("  {} requests/s  {} of memory", short(requests), human(memory));
    line.push((Style::Plain, load));
    let used: usize = line.iter().map(|(_, text)| width(text)).sum();
    let clock = local_time::of_day(state.zone.as_ref().unwrap_or(&TimeZone::UTC), state.unix_s);
    let every =
        state.interval.map(|interval| format!("every {} s  {clock}", interval.as_secs_f64()));
    let fits = |text: &String| used + 1 + text.len() <= columns;
    if let Some(text) = every.into_iter().chain([clock]).find(fits) {
        line.push((Style::Label, format!("{text:>rest$}", rest = columns - used)));
    }
    line
}

fn heads(state: &State, width: usize) -> Line {
    let (all, name, bar) = columns(width);
    let mut text = format!("{:<name$}", "NAME");
    for Column { head, width, .. } in all {
        text += &format!(" {head:>width$}");
    }
    if bar > 0 {
        text += &format!(" {:<bar$}", "WHERE");
    }
    let mut line = vec![(Style::Head, text)];
    if state.order() != Order::Name && bar > 20 {
        line.push((Style::Label, format!("by {}", state.order().name())));
    }
    line
}

/// One volume's row.
fn volume(row: &Row, chosen: bool, width: usize, look: &Look) -> Line {
    let (all, name_width, bar) = columns(width);
    let name: String = escape(&row.name).chars().take(name_width).collect();
    let text = format!("{name:<name_width$}");
    let style = if chosen { Style::Chosen } else { Style::Plain };
    let of_name = if chosen { Style::Chosen } else { mood(row) };
    let Some(sample) = &row.sample else {
        let why = row.why.as_deref().unwrap_or_default();
        return vec![
            (of_name, text + " "),
            (Style::Bad, format!("{:<8} ", row.state)),
            (Style::Plain, escape(why).into_owned()),
        ];
    };
    let mut line = vec![(of_name, text)];
    let mut text = String::new();
    for Column { width, cell, .. } in all {
        text += &format!(" {:>width$}", cell(sample, row.rates.as_ref(), look));
    }
    line.push((style, text));
    if bar > 0 {
        line.push((Style::Plain, " ".into()));
        line.extend(homes(sample, bar, look));
    }
    line
}

/// The style of a volume's name, by its state and health.
fn mood(row: &Row) -> Style {
    match (row.state, row.sample.as_ref().map(|sample| sample.stats.health)) {
        ("dead", _) | (_, Some(Health::Failed | Health::Lost)) => Style::Bad,
        ("busy", _) | (_, Some(Health::Filling | Health::Degraded)) => Style::Warn,
        _ => Style::Plain,
    }
}

/// Where the blocks of a volume are, as one bar over its size: in memory, in the log, on the spill
/// device, in the backing store alone.
fn homes(sample: &Sample, columns: usize, look: &Look) -> Line {
    let size = sample.stats.disk_size_bytes;
    let homes = sample.homes();
    let backing = match sample.role() {
        Role::Cache | Role::Log => size.saturating_sub(homes.ram).saturating_sub(homes.log),
        Role::Ram | Role::Spill => 0,
    };
    let parts = [
        (Style::Ram, homes.ram),
        (Style::Log, homes.log),
        (Style::Spill, homes.spill),
        (Style::Backing, backing),
    ];
    look.bar(columns, size, &parts)
}

/// The last line: the keys, the number of hidden volumes, and the legend of the bars.
fn keys(more: usize, columns: usize, look: &Look) -> Line {
    let keys = match columns {
        0..52 => "q ends  j k choose  ? help",
        52..80 => "q ends  arrows choose  s order  ? help",
        _ => "q ends  arrows choose  s order  ? help  ",
    };
    let mut line = vec![(Style::Label, keys.to_owned())];
    if columns >= 80 {
        line.extend(legend(look));
    }
    if more > 0 {
        line.push((Style::Warn, format!("  {more} more")));
    }
    line
}

fn legend(look: &Look) -> Line {
    let homes = [
        (Style::Ram, "ram"),
        (Style::Log, "log"),
        (Style::Spill, "spill"),
        (Style::Backing, "backing"),
    ];
    let piece = |(style, name): (Style, &str)| {
        [(style, look.fill(style).to_string()), (Style::Label, format!(" {name}  "))]
    };
    homes.into_iter().flat_map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_into_their_columns() {
        for (value, text) in [
            (0.0, "0"),
            (0.26, "0.3"),
            (7.0, "7"),
            (512.4, "512"),
            (999.6, "1.0k"),
            (12_345.0, "12.3k"),
            (123_456.0, "123k"),
            (9e15, "9000T"),
        ] {
            assert_eq!(short(value), text, "{value}");
        }
        for (value, text) in
            [(0.0, "0"), (512.0, "512"), (1000.0, "1.0K"), (4096.0, "4.0K"), (3.2e9, "3.0G")]
        {
            assert_eq!(bytes(value), text, "{value}");
        }
        let look = Look { colours: false, unicode: true };
        let ascii = Look { colours: false, unicode: false };
        assert_eq!(look.latency(None), "-");
        assert_eq!(look.latency(Some(950)), "950ns");
        assert_eq!(look.latency(Some(2_140)), "2.1µs");
        assert_eq!(ascii.latency(Some(310_000)), "310us");
        assert_eq!(look.latency(Some(999_600_000)), "1.0s");
    }

    #[test]
    fn bars_show_what_there_is_any_of_and_never_more_than_all() {
        let look = Look { colours: false, unicode: false };
        let bar = |columns, whole, parts: &[(Style, u64)]| {
            super::super::paint::plain(&look.bar(columns, whole, parts))
        };
        let (ram, log) = (Style::Ram, Style::Log);
        assert_eq!(bar(10, 100, &[(ram, 50), (log, 25)]), "#####===..");
        assert_eq!(bar(10, 1_000_000, &[(ram, 1), (log, 1)]), "#=........");
        assert_eq!(bar(4, 10, &[(ram, 20), (log, 20)]), "##==");
        assert_eq!(bar(1, 10, &[(ram, 1), (log, 9)]), "#");
        assert_eq!(bar(4, 0, &[(ram, 0)]), "....");
        assert_eq!(bar(0, 5, &[(ram, 5)]), "");
        assert_eq!(bar(3, u64::MAX, &[(ram, u64::MAX), (log, 1)]), "###");
    }
}
