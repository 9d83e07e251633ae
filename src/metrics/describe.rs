//! The table for people: what `docs/metrics.md` holds, in Markdown.

use super::metric::{Group, Metric};
use super::table::GROUPS;
use std::fmt::Write;

/// All metrics, a table a group. A name shows its labels except for `volume`. `_total` marks
/// counters; the meanings of histograms and summaries say what they are. The last column names what
/// is one number of `ztier stats --format json`, too.
pub fn describe() -> String {
    let mut out = String::new();
    for Group { title, metrics } in GROUPS.iter() {
        // Writing to a string can't fail.
        let _ = write!(out, "\n### {title}\n\n| Metric | Meaning | JSON |\n|---|---|---|\n");
        for Metric { name, help, key, labels, .. } in metrics {
            let labels = match labels.join(", ") {
                none if none.is_empty() => none,
                some => format!("{{{some}}}"),
            };
            let key = key.map(|key| format!(" `{key}`")).unwrap_or_default();
            let help = help.replace('|', "\\|");
            let _ = writeln!(out, "| `{name}{labels}` | {help} |{key} |");
        }
    }
    out
}
