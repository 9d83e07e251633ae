//! The settings of a volume: read from flags and TOML, checked, resolved.
//!
//! Invariant: a [`Plan`] exists only if every limit in [`plan`] and [`name`] holds; the daemon and
//! the engine do not check again what a user typed.

pub mod compare;
pub mod exclusive;
pub mod export;
pub mod file;
pub mod lasting;
pub mod limit;
pub mod log;
pub mod machine;
pub mod name;
pub mod paths;
pub mod plan;
pub mod saved;
pub mod settings;
pub mod size;
pub mod tunable;
pub mod unsent;
pub mod usage;

pub use compare::Difference;
pub use exclusive::Exclusive;
pub use export::Choice;
pub use limit::Bounds;
pub use paths::Paths;
pub use plan::Plan;
pub use saved::Saved;
pub use settings::{Settings, Use};
pub use size::{Amount, Limit};
pub use tunable::Tunable;
pub use usage::{Ballast, Job, SlotNews, Usage};
