//! Engines and the device before them, in this process: against arrays of bytes, at the tightest
//! limits, with drives that fail.

#[path = "../support/mod.rs"]
mod support;

mod below_page_cache;
mod cached;
mod clusters;
mod damage;
mod kept;
mod large;
mod limit;
mod logged;
mod mempool;
mod model;
mod moments;
mod recompress;
mod respill;
mod spill;
mod stored_model;
mod stored_opening;
mod stress;
mod takeover;
