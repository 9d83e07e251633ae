//! The texts about a memory limit that adapts.

use crate::config::Plan;
use crate::config::size::human;
use crate::control::Status;
use crate::limit::{Change, Report, Waits};
use std::time::{SystemTime, UNIX_EPOCH};

/// Rows of `status`: bounds, reason, last change, waits, and what the machine does not report.
pub(super) fn rows(status: &Status) -> Vec<(&'static str, String)> {
    let Some(report) = &status.adapting else { return Vec::new() };
    let mut rows = vec![
        ("ram-limit", format!("auto{}", bounds(&status.plan))),
        ("now so", report.why.clone()),
        ("last change", last_change(report)),
        ("waited for", waits(report)),
    ];
    if !report.missing.is_empty() {
        rows.push(("not told", report.missing.join("; ")));
    }
    rows
}

/// The bounds of an adapting limit, as text; empty for a fixed limit.
pub(super) fn bounds(plan: &Plan) -> String {
    plan.ram_auto.map_or(String::new(), |bounds| {
        let (least, most) = (human(bounds.min_bytes), human(bounds.max_bytes));
        format!(", adapts between {least} and {most}")
    })
}

fn last_change(report: &Report) -> String {
    let Some(Change { from_bytes, to_bytes, unix_s, reason }) = report.last_change else {
        return "none".into();
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let age = super::output::duration(now.saturating_sub(unix_s));
    let (from, to) = (human(from_bytes), human(to_bytes));
    let Report { changes, turns, .. } = report;
    format!("{from} -> {to}, {age} ago: {reason} ({changes} changes, {turns} of them turned round)")
}

fn waits(report: &Report) -> String {
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let Waits { files, missed, coldest } = report.waits;
    let mut text = format!(
        "files {} of the time, what had to go {}, the coldest would be {} at most",
        percent(files),
        percent(missed),
        percent(coldest)
    );
    if let Some(available) = report.available_bytes {
        let floor = human(report.floor_bytes);
        text += &format!("; {} are available, {floor} are to stay so", human(available));
    }
    if let Some(stalled) = report.stalled {
        text += &format!("; a process waits for memory {} of the time", percent(stalled));
    }
    text
}
