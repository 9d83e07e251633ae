//! A limit on memory that adapts (`ram-limit = auto`): how much a volume may take while others need
//! memory, too.
//!
//! [`Sampler`] reads what the machine reports, [`Controller`] decides, [`Ramp`] chooses which
//! changes are worth a line in the log. A daemon carries decisions out. `docs/limit.md` has the
//! reasons.
//!
//! Invariant: only [`Sampler`] looks at the machine. Decisions get all inputs, the time included,
//! so that tests can make them on a simulated machine.

mod controller;
pub(crate) mod pressure;
mod ramp;
mod reason;
mod sample;
mod sampler;

pub use controller::{Controller, Decision, STEP};
pub use ramp::Ramp;
pub use reason::Reason;
pub use sample::{Change, DiskReads, Machine, Ours, Report, Role, Sample, Shown, Waits};
pub use sampler::Sampler;
