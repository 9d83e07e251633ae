//! The table for people: what `docs/metrics.md` holds, in Markdown.

use super::metric::{Group, Metric};
use super::table::GROUPS;
use std::fmt::Write;

/// All metrics, a table a group.
pub fn describe() -> String {
    let mut out = String::new();
    for Group { title, metrics } in GROUPS {
        // Writing to a string can't fail.
        let _ = write!(
            out,
            "\n### {title}\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n"
        );
        let own: &[&str] = if title.contains("exporter") { &[] } else { &["volume"] };
        for Metric { name, kind, help, labels, .. } in *metrics {
            let labels: Vec<String> =
                own.iter().chain(*labels).map(|label| format!("`{label}`")).collect();
            let _ = writeln!(
                out,
                "| `{name}` | {} | {} | {} |",
                kind.name(),
                labels.join(", "),
                help.replace('|', "\\|")
            );
        }
    }
    out
}
