//! One process for each volume: it makes the volume, exports it, answers on the control socket, and
//! takes everything down again.
//!
//! Invariants: the state file names everything that the process puts into the system before it
//! exists; the process holds `NAME.lock` while it serves the volume, and when the volume goes down,
//! until its drives are closed; a held device is taken away only by force.

mod answering;
pub mod ballast;
mod changing;
mod companion;
mod credentials;
mod draining;
mod event_hook;
mod events;
pub mod evicted;
pub mod freed_slots;
mod heap;
mod history;
mod homes;
pub mod hook;
mod itself;
mod leaving;
mod lifetime;
mod limiter;
mod log;
mod making;
pub mod memory_holder;
mod notify;
mod opening;
mod phase;
mod presence;
pub mod process;
mod ranked;
mod relog;
mod resident;
mod respill;
mod restoring;
mod room;
mod running;
mod serve;
mod served;
mod shortage;
mod signals;
pub mod silent;
mod spawn;
pub mod state;
pub mod survey;
mod swap_high;
mod swap_thread;
mod swappable;
mod swapping;
mod takeover;
mod threads;
mod troubles;
mod unsent;
mod using;
mod watching;

pub use events::look_at;
pub use itself::outlive_file_limit;
pub use lifetime::{LOOKERS, Order, Ready, run};
pub use phase::End;
pub use serve::{Chosen, choose, planned};
pub use spawn::{Starting, again_main, detached_main, follow, spawn};
pub use state::{Found, find, names, reach, settled};
