//! Checks PromQL expressions against the table of metrics.

use std::collections::{BTreeMap, BTreeSet};
use ztier::metrics::{GROUPS, Kind, Metric};

/// All metrics by name.
pub fn table() -> BTreeMap<&'static str, &'static Metric> {
    GROUPS.iter().flat_map(|group| &group.metrics).map(|metric| (metric.name, metric)).collect()
}

/// The metrics in a PromQL expression; an error if a metric does not exist, a label belongs to none
/// of them, or a rate is taken of a metric that is no counter.
pub fn check_expression(expression: &str) -> Result<BTreeSet<&'static str>, String> {
    let table = table();
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        if expression.matches(open).count() != expression.matches(close).count() {
            return Err(format!("{open} and {close} do not match"));
        }
    }
    let (mut used, mut allowed) = (BTreeSet::new(), BTreeSet::from(["volume", "instance", "job"]));
    for (at, _) in expression.match_indices("ztier_") {
        let rest = &expression[at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        let suffixes = ["_bucket", "_sum", "_count"];
        let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        let metric = table.get(name).or_else(|| table.get(base));
        let metric = metric.ok_or_else(|| format!("there is no {name}"))?;
        let distribution = matches!(metric.kind, Kind::Histogram | Kind::Summary);
        if (base == name) == distribution && metric.kind != Kind::Summary {
            return Err(format!("{name} is a {}", metric.kind.name()));
        }
        let rated = ["rate(", "increase("].iter().any(|f| expression[..at].ends_with(f));
        if rated && !(metric.kind == Kind::Counter || distribution) {
            return Err(format!("a rate of {name}, which is a gauge"));
        }
        let own: BTreeSet<&str> = metric.labels.iter().copied().chain(["volume", "le"]).collect();
        if let Some(selector) = after.strip_prefix('{') {
            let selector = selector.split('}').next().unwrap_or_default();
            for label in selector.split(',').filter_map(|part| part.split(['=', '!']).next()) {
                if !own.contains(label.trim()) {
                    return Err(format!("{name} has no label {label}"));
                }
            }
        }
        allowed.extend(own);
        used.insert(metric.name);
    }
    for (at, _) in expression.match_indices("by (") {
        let labels = expression[at + 4..].split(')').next().unwrap_or_default();
        for label in labels.split(',').map(str::trim) {
            if !allowed.contains(label) {
                return Err(format!("nothing has a label {label}"));
            }
        }
    }
    if used.is_empty() { Err("no metric".into()) } else { Ok(used) }
}
