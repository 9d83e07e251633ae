//! A daemon's volume that is up: what is served, the phase that it is in, and its threads.

use super::draining::Drains;
use super::memory_holder::MemoryHolder;
use super::phase::Phase;
use super::room::room;
use super::served::Served;
use super::threads::Threads;
use super::unsent::Unsent;
use crate::config::Plan;
use crate::stats::{Stats, time};
use std::sync::Arc;

/// See the module.
pub(super) struct Running {
    pub served: Arc<Served>,
    pub phase: Phase,
    pub threads: Threads,
    /// Control requests that wait for the log to be drained.
    pub drains: Drains,
    /// What a store has not got when a signal ends the daemon.
    pub unsent: Unsent,
    /// Why the device must not be swap; `None` if it may.
    pub unsafe_for_swap: Option<String>,
}

impl Running {
    pub fn new(
        served: Served,
        memory_holder: MemoryHolder,
        unsafe_for_swap: Option<String>,
    ) -> Arc<Self> {
        Arc::new(Self {
            phase: Phase::up(served.name.clone()),
            served: Arc::new(served),
            threads: Threads::new(memory_holder),
            drains: Drains::default(),
            unsent: Unsent::default(),
            unsafe_for_swap,
        })
    }

    /// The volume's statistics. The caller must not hold the state.
    pub fn stats(&self) -> Stats {
        self.stats_by(&self.served.plan())
    }

    /// The volume's statistics, of a volume with this plan.
    pub fn stats_by(&self, plan: &Plan) -> Stats {
        let stats = self.served.volume.stats();
        let swap = self.threads.swap_room();
        let stats = Stats {
            room_bytes: room(&stats, plan),
            swap_room_bytes: swap.map(|(room, _)| room),
            swap_nearly_full: swap.is_some_and(|(_, full)| full),
            ..stats
        };
        Stats { health: stats.health_at(time::now()), ..stats }
    }
}
