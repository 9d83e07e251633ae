//! The text of a whole scrape.

use super::metric::{Metric, Scrape};
use super::table::GROUPS;
use super::text::Writer;

/// Usual size of a volume's part of the text, at most, in bytes.
const USUAL: usize = 40 << 10;

/// The whole text of a scrape.
pub fn text(scrape: &Scrape<'_>) -> String {
    let mut out = Writer::with_capacity(USUAL * (1 + scrape.volumes.len()));
    for metric in GROUPS.iter().flat_map(|group| &group.metrics) {
        let Metric { name, kind, help, source, .. } = metric;
        out.family((name, kind.name(), help), |family| source.write(scrape, family));
    }
    out.into_text()
}
