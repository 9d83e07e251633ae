//! The traces that `ztier-bench policy --record` made, kept with the sources.

use super::trace::Trace;
use ztier::error::Result;

/// Names and files.
const FILES: [(&str, &[u8]); 8] = [
    ("sqlite", include_bytes!("../../traces/sqlite.trace")),
    ("compile", include_bytes!("../../traces/compile.trace")),
    ("untar", include_bytes!("../../traces/untar.trace")),
    ("iozone", include_bytes!("../../traces/iozone.trace")),
    ("zipf-cached", include_bytes!("../../traces/zipf-cached.trace")),
    ("zipf-direct", include_bytes!("../../traces/zipf-direct.trace")),
    ("mixed-cached", include_bytes!("../../traces/mixed-cached.trace")),
    ("mixed-direct", include_bytes!("../../traces/mixed-direct.trace")),
];

/// Those that also have what the page cache dropped.
const WITH_DROPS: [(&str, &[u8]); 6] = [
    ("sqlite", include_bytes!("../../traces/drops/sqlite.trace")),
    ("compile", include_bytes!("../../traces/drops/compile.trace")),
    ("untar", include_bytes!("../../traces/drops/untar.trace")),
    ("iozone", include_bytes!("../../traces/drops/iozone.trace")),
    ("zipf-cached", include_bytes!("../../traces/drops/zipf-cached.trace")),
    ("mixed-cached", include_bytes!("../../traces/drops/mixed-cached.trace")),
];

/// All recorded traces.
///
/// # Errors
/// One is damaged.
pub fn all() -> Result<Vec<Trace>> {
    decode(&FILES)
}

/// All traces that have what the page cache dropped.
///
/// # Errors
/// One is damaged.
pub fn with_drops() -> Result<Vec<Trace>> {
    decode(&WITH_DROPS)
}

fn decode(files: &[(&str, &[u8])]) -> Result<Vec<Trace>> {
    files.iter().map(|(name, bytes)| Trace::decode(name, bytes)).collect()
}
