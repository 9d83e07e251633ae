//! Volumes in stores of objects: no document of the original systems has them.

use super::{Given, Measured, Source};
use crate::report::Target::{AtMost, None as No};
use crate::summary::found::Table;
use crate::summary::general::{Wanted, conditions, figures, other_ratios, ratios, wanted};
use crate::summary::model::{Bar, Bars, Chart, Charts, Item};

/// ztier's figures.
pub const SOURCE: Source = Source {
    id: "object",
    title: "Volumes in a store of objects",
    part: "object",
    cited: "none; targets are this project’s own, and rivals run on the same store",
    main: &[Measured::of("object", &MAIN)],
    texts: &[],
    items,
    figures: Vec::new,
};

const MAIN: [Wanted; 9] = [
    wanted(
        "log_flush_time_vs_local_30ms",
        "4 KiB written and flushed, a log before a store of 30 ms a request ÷ before a local file, \
         time",
        AtMost(1.1),
        None,
    ),
    wanted(
        "sync_remote_flush_time_vs_local_30ms",
        "the same with --sync-remote ÷ a log before a local file, time",
        No,
        None,
    ),
    wanted("uploaded_vs_written_30ms", "bytes uploaded ÷ bytes written", AtMost(0.9), None),
    wanted("puts_a_gib_30ms", "PUTs a GiB written", AtMost(130.0), None),
    wanted(
        "cpu_s_a_gib_beside_log_30ms",
        "CPU seconds a GiB uploaded, beside those of the log",
        AtMost(1.0),
        None,
    ),
    wanted(
        "bound_lost_s_vs_max_unsent_30ms",
        "age of what is lost when the host dies ÷ max-unsent, worst case",
        AtMost(1.0),
        None,
    ),
    wanted(
        "sync_remote_flushed_lost_30ms",
        "flushed batches lost when the host dies, --sync-remote",
        AtMost(0.0),
        None,
    ),
    wanted(
        "takeover_s_30ms",
        "up on another host until a write is answered, seconds (meant for 1 TiB)",
        AtMost(3.0),
        None,
    ),
    wanted(
        "idle_mib_beside_local",
        "memory of an empty volume beside one on a local file, MiB",
        AtMost(1.0),
        None,
    ),
];

/// The cases with a chart: section, title, and the beginning of their names.
const CHARTS: [(&str, &str, &str, &str); 2] = [
    ("flush", "4 KiB written and flushed", "writes and flushes, ", "IOPS"),
    ("rivals", "Beside rivals: 4 KiB written and flushed", "writes and flushes, ", "IOPS"),
];

fn items(given: Given<'_>) -> Vec<Item> {
    let table = given.tables.get("object");
    let mut items: Vec<Item> = table.map(charts).into_iter().flatten().collect();
    items.push(Item::Grid(ratios("Ours beside a local backing store, and targets", table, &MAIN)));
    let Some(table) = table else { return items };
    for section in table.sections() {
        items.extend(figures(table, section, title(section)));
    }
    items.extend(other_ratios(table, &MAIN));
    items.extend(conditions(table));
    items
}

fn title(section: &str) -> &str {
    match section {
        "flush" => "4 KiB written and flushed",
        "upload" => "What is uploaded, and what it costs",
        "loss" => "What is lost when a host dies",
        "takeover" => "Takeover by another host",
        "memory" => "Memory of a daemon at rest",
        "rivals" => "Rivals on the same store",
        other => other,
    }
}

/// For each chart a group of bars for each store.
fn charts(table: &Table) -> Vec<Item> {
    let of = |(section, caption, what, unit): (&str, &str, &str, &str)| {
        let mut all: Vec<Bars> = Vec::new();
        for row in table.figures(section) {
            let Some(store) = row.case.strip_prefix(what) else { continue };
            let at = all.iter().position(|bars| bars.title == store).unwrap_or_else(|| {
                all.push(Bars { title: store.into(), unit: unit.into(), bars: Vec::new() });
                all.len() - 1
            });
            let (name, value) = (row.system.clone(), row.value.unwrap_or_default());
            all[at].bars.push(Bar { name, value, note: row.note(), source: false });
        }
        let charts: Vec<Chart> = all.into_iter().map(Chart::Bars).collect();
        let caption = caption.to_owned();
        (!charts.is_empty()).then_some(Item::Charts(Charts { caption, legend: Vec::new(), charts }))
    };
    CHARTS.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn stores_have_a_chart_each() {
        let row = |system: &str, store: &str, value: f64| {
            serde_json::json!({
                "section": "flush", "system": system, "unit": "IOPS", "value": value,
                "case": format!("writes and flushes, {store}"), "runs": [value],
            })
        };
        let table = serde_json::json!({ "rows": [
            row("log", "s3 0 ms", 10.0), row("--log none", "s3 0 ms", 4.0),
            row("log", "s3 30 ms", 9.0),
        ]});
        let table: Table = serde_json::from_value(table).unwrap();
        let items = charts(&table);
        let [Item::Charts(group)] = &items[..] else { panic!("{}", items.len()) };
        let [Chart::Bars(first), Chart::Bars(second)] = &group.charts[..] else { panic!() };
        assert_eq!((first.bars.len(), second.title.as_str()), (2, "s3 30 ms"));
        assert_eq!(first.bars[1].name, "--log none");
    }
}
