//! The threads that work for a volume, and the memory holder's.
//!
//! Invariant: the lock is never held while a thread is waited for.

use super::evicted::Evicted;
use super::freed_slots::FreedSlots;
use super::limiter::Limiter;
use super::log;
use super::memory_holder::MemoryHolder;
use super::ranked::{Rank, Ranked, none_held};
use super::served::Served;
use super::swap_thread::SwapThread;
use crate::config::{Exclusive, Usage};
use crate::error::Result;
use crate::limit::Report;
use crate::system::usage::SlotNews;
use std::path::Path;
use std::sync::Arc;

/// See the module.
pub(super) struct Threads {
    now: Ranked<Now>,
}

struct Now {
    /// Adapts the memory limit; `None` if the limit is fixed.
    limiter: Option<Limiter>,
    /// Fits the volume to carrying swap; `None` if it carries none.
    swap: Option<SwapThread>,
    /// Drops blocks of freed swap slots; `None` if the volume carries no swap.
    freed_slots: Option<FreedSlots>,
    /// Gives the read cache what the page cache drops; `None` if it has what that has, too.
    evicted: Option<Evicted>,
    /// `None` once the daemon has ended.
    memory_holder: Option<Arc<MemoryHolder>>,
}

impl Threads {
    pub fn new(memory_holder: MemoryHolder) -> Self {
        let memory_holder = Some(Arc::new(memory_holder));
        let now =
            Now { limiter: None, swap: None, freed_slots: None, evicted: None, memory_holder };
        Self { now: Ranked::new(Rank::Threads, now) }
    }

    /// Starts or stops adapting the limit, as the plan says. To be called whenever the plan may say
    /// something else.
    ///
    /// # Errors
    /// See [`Limiter::start`].
    pub fn follow_limit(&self, served: &Arc<Served>) -> Result<()> {
        none_held();
        let adapts = served.state.lock().plan.ram_auto.is_some();
        let before = {
            let mut now = self.now.lock();
            let works = now.limiter.as_ref().is_some_and(|limiter| !limiter.has_ended());
            match (adapts, works) {
                (true, true) => return Ok(()),
                (true, false) => {
                    let next = Limiter::start(Arc::downgrade(served))?;
                    now.limiter.replace(next)
                }
                (false, _) => now.limiter.take(),
            }
        };
        drop(before);
        Ok(())
    }

    /// Begins to fit the volume, whose `device` is swap, to carrying swap. Without that, swap
    /// works, but takes more memory.
    pub fn follow_swap(&self, served: &Arc<Served>, usage: &Usage, device: &Path) {
        let Usage::Swap { ballast, freed_slots, on_full, .. } = usage else { return };
        match SwapThread::start(served, device.to_owned(), *ballast, on_full.as_deref()) {
            Ok(thread) => self.now.lock().swap = Some(thread),
            Err(e) => log::line(&e.to_string()),
        }
        if *freed_slots == SlotNews::Off {
            return;
        }
        match FreedSlots::start(Arc::downgrade(served), device.to_owned()) {
            Ok(thread) => self.now.lock().freed_slots = Some(thread),
            Err(e) => log::line(&e.to_string()),
        }
    }

    /// Has the read cache of a volume follow the page cache of its `device`, if the plan says so.
    /// Without that, the cache works, and also holds what the page cache has.
    pub fn follow_page_cache(&self, served: &Arc<Served>) {
        let wanted = served.state.lock().plan.exclusive != Exclusive::Off;
        let (Some(cache), true) = (served.volume.read_cache(), wanted) else { return };
        let begun = served
            .device()
            .and_then(|device| Evicted::start(Arc::downgrade(served), Arc::clone(cache), device));
        match begun {
            Ok(thread) => self.now.lock().evicted = Some(thread),
            Err(e) => log::line(&e.to_string()),
        }
    }

    /// Ends what [`Threads::follow_swap`] began, and first the ballast, which must not come back to
    /// memory.
    pub fn end_swap(&self) {
        none_held();
        let swap = self.now.lock().swap.take();
        drop(swap);
        let freed_slots = self.now.lock().freed_slots.take();
        drop(freed_slots);
    }

    /// Ends all but the memory holder's.
    pub fn end(&self) {
        none_held();
        let limiter = self.now.lock().limiter.take();
        drop(limiter);
        let evicted = self.now.lock().evicted.take();
        drop(evicted);
        self.end_swap();
    }

    /// Stops watching the memory holder, which stays.
    pub fn leave_memory_holder(&self) {
        none_held();
        let memory_holder = self.now.lock().memory_holder.take();
        drop(memory_holder);
    }

    /// Starts another memory holder if the socket of the present one was removed, so that no daemon
    /// could find it.
    pub fn renew_memory_holder(&self) {
        let memory_holder = self.now.lock().memory_holder.clone();
        if let Some(Err(e)) = memory_holder.map(|memory_holder| memory_holder.renew()) {
            log::line(&e.to_string());
        }
    }

    /// How the limit adapts; `None` if it is fixed, and before the first step.
    pub fn adapting(&self) -> Option<Report> {
        self.now.lock().limiter.as_ref().and_then(Limiter::report)
    }

    /// Bytes of the swap area that are ballast.
    pub fn ballast_bytes(&self) -> u64 {
        self.now.lock().swap.as_ref().map_or(0, SwapThread::ballast_bytes)
    }

    /// Bytes of pages for which the machine has room, and whether it is nearly full; `None` while
    /// the volume is no swap.
    pub fn swap_room(&self) -> Option<(u64, bool)> {
        self.now.lock().swap.as_ref().and_then(SwapThread::room)
    }
}
