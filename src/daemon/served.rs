//! A volume as the threads of its daemon see it: the engine, the export, and the content of the
//! state file.

use super::history::History;
use super::log;
use super::phase::{BUSY, taken_down};
use super::ranked::{Guard, Rank, Ranked};
use super::signals::Event;
use super::state::State;
use crate::config::paths::VolumeFiles;
use crate::config::{Paths, Plan, Usage};
use crate::device::Serving;
use crate::error::{Error, Result};
use crate::export::{Export, Leftover};
use crate::system::holders::patience_with;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// How long a client that has hung up may still count as a holder.
const LEAVING: Duration = Duration::from_secs(1);

/// See the module. `None` instead of the export: it is stopped.
pub(super) struct Served {
    pub name: String,
    pub volume: Arc<dyn Serving>,
    pub files: VolumeFiles,
    /// Directory with this machine's records of backing stores.
    pub records: PathBuf,
    /// Wakes the main thread.
    pub events: SyncSender<Event>,
    /// What has happened to the volume.
    pub history: Arc<History>,
    /// Held while a thread changes the volume's sizes.
    pub sizes: Ranked<()>,
    pub export: Ranked<Option<Box<dyn Export>>>,
    /// What users open, beside the export: a thread that changes or stops that holds its lock for
    /// long.
    endpoints: Mutex<Vec<String>>,
    pub state: Ranked<State>,
}

impl Served {
    pub fn new(
        volume: Arc<dyn Serving>,
        export: Box<dyn Export>,
        state: State,
        (files, paths): (&VolumeFiles, &Paths),
        events: SyncSender<Event>,
    ) -> Self {
        Self {
            name: state.plan.name.clone(),
            volume,
            files: files.clone(),
            records: paths.state.clone(),
            events,
            history: History::new(&state.plan.name),
            sizes: Ranked::new(Rank::Sizes, ()),
            endpoints: Mutex::new(export.endpoints()),
            export: Ranked::new(Rank::Export, Some(export)),
            state: Ranked::new(Rank::State, state),
        }
    }

    pub fn plan(&self) -> Plan {
        self.state.lock().plan.clone()
    }

    pub fn usage(&self) -> Option<Usage> {
        self.state.lock().plan.usage.clone()
    }

    /// Writes the plan of the next daemon to the state file.
    pub fn note_plan(&self, next: Plan) {
        let mut state = self.state.lock();
        state.plan = next;
        if let Err(e) = state.write(&self.files) {
            log::line(&e.to_string());
        }
    }

    /// Writes another use of the device to the state file. If that fails, the plan stays, too.
    pub fn note_usage(&self, usage: Option<Usage>) -> Result<()> {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.plan.usage, usage);
        let written = state.write(&self.files);
        if written.is_err() {
            state.plan.usage = before;
        }
        written
    }

    /// Writes the remaining leftovers to the state file.
    pub fn note_left(&self, leftovers: Vec<Leftover>) {
        let mut state = self.state.lock();
        state.leftovers = leftovers;
        // It is too late to go on. The older state file names these leftovers, too, and more.
        if let Err(e) = state.write(&self.files) {
            log::line(&e.to_string());
        }
    }

    /// The export, unless it is stopped, or another thread stops or changes it for longer than
    /// [`BUSY`].
    pub fn export(&self) -> Result<Guard<'_, Option<Box<dyn Export>>>> {
        match self.export.try_lock_for(BUSY) {
            Some(export) if export.is_some() => Ok(export),
            Some(_) => Err(taken_down(&self.name)),
            None => Err(self.being_changed()),
        }
    }

    /// What users open; nothing once the export is stopped. Waits for no other thread.
    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints.lock().clone()
    }

    /// Notes what users open from now on, for [`Self::endpoints`]. The caller holds the export.
    pub fn note_endpoints(&self, now: Vec<String>) {
        *self.endpoints.lock() = now;
    }

    /// The error for a request that comes while another thread changes the volume.
    pub fn being_changed(&self) -> Error {
        Error::busy(format!("volume `{}` is being changed", self.name)).hint("try again soon")
    }

    /// Path of the block device.
    pub fn device(&self) -> Result<PathBuf> {
        let first = self.export()?.as_ref().and_then(|e| e.endpoints().into_iter().next());
        first.map(PathBuf::from).ok_or_else(|| {
            Error::busy(format!("volume `{}` has no device now", self.name))
                .hint("it is coming up or going down: try again soon")
        })
    }

    /// Whether the device can wait for the next daemon.
    pub fn waits(&self) -> bool {
        self.export.lock().as_ref().is_some_and(|export| export.waits())
    }

    /// The holders of the device that do not release it within `LEAVING`.
    pub fn holders_that_stay(&self) -> Result<Vec<String>> {
        self.those_that_stay(|_| true)
    }

    /// The same of those that count.
    fn those_that_stay(&self, counts: impl Fn(&String) -> bool) -> Result<Vec<String>> {
        let until = Instant::now() + LEAVING;
        loop {
            let mut holders = self.export()?.as_ref().map(|e| e.holders()).unwrap_or_default();
            holders.retain(&counts);
            if holders.is_empty() || Instant::now() >= until {
                return Ok(holders);
            }
            std::thread::sleep(LEAVING / 20);
        }
    }

    /// Refuses while the device is held.
    pub fn refuse_holders(&self, hint: impl Into<String>) -> Result<()> {
        self.refuse(&self.holders_that_stay()?, hint)
    }

    /// Refuses while the device is held by more than its use `usage`, which the daemon ends before
    /// it stops the export. Processes that look for longer, as udev's, are waited for there.
    pub fn refuse_holders_beside(&self, usage: &Usage, hint: impl Into<String>) -> Result<()> {
        let own = usage.holder();
        let counts = |holder: &String| *holder != own && patience_with(holder) <= LEAVING;
        self.refuse(&self.those_that_stay(counts)?, hint)
    }

    fn refuse(&self, holders: &[String], hint: impl Into<String>) -> Result<()> {
        if holders.is_empty() {
            return Ok(());
        }
        let (name, holders) = (&self.name, holders.join(", "));
        Err(Error::busy(format!("volume `{name}` is in use: {holders}")).hint(hint))
    }
}
