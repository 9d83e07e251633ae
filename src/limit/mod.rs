//! A limit on memory that adapts (`ram-limit = auto`): how much a volume may take while others need
//! memory, too.
//!
//! [`Sampler`] reads what the machine says, [`Controller`] decides, [`Ramp`] says what is worth a
//! line in the log. A daemon carries it out. `docs/limit.md` has the reasons.
//!
//! Invariant: only [`Sampler`] looks at the machine. Whatever decides is told everything, the time
//! included, so that it can be tried out on a simulated one.

mod controller;
mod pressure;
mod ramp;
mod reason;
mod sample;
mod sampler;

pub use controller::{Controller, Decision, STEP};
pub use ramp::Ramp;
pub use reason::Reason;
pub use sample::{Change, DiskReads, Machine, Ours, Report, Role, Sample, Shown, Waits};
pub use sampler::Sampler;
