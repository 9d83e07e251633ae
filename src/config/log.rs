//! The durable log of a plan: its settings and their limits.

use super::machine;
use super::settings::Settings;
use super::size::{Amount, exact};
use super::unsent::Unsent;
use crate::device;
use crate::error::{Error, Result};
use crate::log::{Accepted, Options};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The longest time until idle data is made durable, in milliseconds: a day.
const LONGEST_INTERVAL_MS: u64 = 86_400_000;

/// Changes that are not durable take at most an eighth of memory, a window of writeback in a log
/// that is nearly empty at most a sixteenth.
const WAITING_PART: u64 = 8;
const WINDOW_PART: u64 = 16;

/// The durable log of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPlan {
    /// The log's drive.
    pub log: PathBuf,
    /// The backing store.
    pub backing: PathBuf,
    /// Acknowledge writes when they are durable.
    pub sync: bool,
    /// A flush waits until the store has it.
    #[serde(default)]
    pub sync_remote: bool,
    /// Percent of the log that may fill before writeback runs beside foreground work.
    pub writeback_threshold_percent: u64,
    /// Bytes of a window of writeback while the log is nearly empty.
    pub writeback_window_bytes: u64,
    /// Milliseconds without a request after which writeback runs.
    #[serde(default = "half_a_second")]
    pub writeback_idle_ms: u64,
    /// Writeback runs by itself.
    #[serde(default = "on")]
    pub writeback: bool,
    /// Milliseconds without a change after which what is in memory is made durable.
    #[serde(default = "one_second")]
    pub commit_interval_ms: u64,
    /// Percent of the log that may hold clean data: 0 to 50.
    #[serde(default = "quarter")]
    pub keep_percent: u64,
    /// What a store may lack.
    #[serde(default)]
    pub unsent: Unsent,
    /// Overwrite what is on the log's drive, if it is no log.
    pub wipe: bool,
    /// Accept a copy of the backing store in its place.
    pub moved: bool,
    /// Go on without durable chunks that are missing.
    pub accept_loss: bool,
    /// The losses that were accepted when the log was opened. A daemon that opens it again accepts
    /// these, and no others.
    #[serde(default, skip_serializing_if = "Accepted::is_empty")]
    pub accepted: Accepted,
    /// Go on without the data of a log that cannot be used any more.
    #[serde(default)]
    pub abandon: bool,
    /// Put the log over a backing store that was changed meanwhile.
    #[serde(default)]
    pub accept_changed: bool,
    /// Go on with a log that is older than this machine has seen it.
    #[serde(default)]
    pub accept_older: bool,
}

/// A change of a log's settings; fields left out stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogChange {
    /// Whether writeback runs by itself.
    pub writeback: Option<bool>,
    /// Percent of the log that may fill before writeback runs beside foreground work.
    pub writeback_threshold_percent: Option<u64>,
    /// Bytes of a window of writeback while the log is nearly empty.
    pub writeback_window_bytes: Option<u64>,
    /// Milliseconds without a request after which writeback runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writeback_idle_ms: Option<u64>,
    /// Milliseconds without a change after which the log commits what is in memory.
    pub commit_interval_ms: Option<u64>,
    /// Percent of the log that may hold copies of what the backing store has, too.
    pub keep_percent: Option<u64>,
    /// What a store may lack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsent: Option<Unsent>,
}

impl LogChange {
    /// What `settings` say of these.
    ///
    /// # Errors
    /// The window is a share (usage).
    pub fn of(settings: &Settings) -> Result<Self> {
        Ok(Self {
            writeback: settings.writeback,
            writeback_threshold_percent: settings.writeback_threshold,
            writeback_window_bytes: match settings.writeback_window {
                Some(Amount::Percent(_)) => {
                    return Err(Error::usage("writeback-window is a number of bytes, like 64M"));
                }
                Some(Amount::Bytes(bytes)) => Some(bytes),
                None => None,
            },
            writeback_idle_ms: settings.writeback_idle,
            commit_interval_ms: settings.commit_interval,
            keep_percent: settings.log_cache,
            unsent: settings.max_unsent,
        })
    }
}

impl LogPlan {
    /// A log with default settings.
    pub(super) fn new(log: PathBuf, backing: PathBuf) -> Self {
        Self {
            log,
            backing,
            sync: false,
            sync_remote: false,
            writeback_threshold_percent: 50,
            writeback_window_bytes: 64 << 20,
            writeback_idle_ms: half_a_second(),
            writeback: on(),
            commit_interval_ms: one_second(),
            keep_percent: quarter(),
            unsent: Unsent::default(),
            wipe: false,
            moved: false,
            accept_loss: false,
            accepted: Accepted::default(),
            abandon: false,
            accept_changed: false,
            accept_older: false,
        }
    }

    /// A log with these settings.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(super) fn of(settings: &Settings, log: PathBuf, backing: PathBuf) -> Result<Self> {
        let sync = settings.sync.unwrap_or(false);
        let sync_remote = settings.sync_remote.unwrap_or(false);
        Self { sync, sync_remote, ..Self::new(log, backing) }.with(&LogChange::of(settings)?)
    }

    /// This plan with a change.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn with(self, change: &LogChange) -> Result<Self> {
        let threshold = change.writeback_threshold_percent;
        let window = change.writeback_window_bytes;
        let plan = Self {
            writeback: change.writeback.unwrap_or(self.writeback),
            writeback_threshold_percent: threshold.unwrap_or(self.writeback_threshold_percent),
            writeback_window_bytes: window.unwrap_or(self.writeback_window_bytes),
            writeback_idle_ms: change.writeback_idle_ms.unwrap_or(self.writeback_idle_ms),
            commit_interval_ms: change.commit_interval_ms.unwrap_or(self.commit_interval_ms),
            keep_percent: change.keep_percent.unwrap_or(self.keep_percent),
            unsent: change.unsent.unwrap_or(self.unsent),
            ..self
        };
        plan.check().map(|()| plan)
    }

    /// Most bytes of changes that wait in memory to become durable.
    pub fn waiting_bytes() -> u64 {
        Options::default().memory.min(machine::memory_bytes() / WAITING_PART)
    }

    /// Most bytes that the log takes besides its index and the copies in memory: changes that wait,
    /// and a window of writeback at its largest.
    pub fn memory_bytes(&self) -> u64 {
        Self::waiting_bytes() + self.policy().largest_window()
    }

    /// The policy of writeback. With little memory, a window is smaller than the setting.
    pub fn policy(&self) -> device::Policy {
        device::Policy {
            threshold_percent: self.writeback_threshold_percent,
            window: self.writeback_window_bytes.min(machine::memory_bytes() / WINDOW_PART),
            idle: Duration::from_millis(self.writeback_idle_ms),
            enabled: self.writeback,
            unsent: device::is_store(&self.backing).then(|| device::Unsent {
                bytes: self.unsent.bytes,
                age: Duration::from_secs(self.unsent.seconds),
                waits: self.unsent.waits,
            }),
        }
    }

    /// Clears the settings that were meant once, for the drives as they were when the log was
    /// opened, and notes the losses that were `accepted`.
    pub(super) fn opened(&mut self, accepted: Accepted) {
        (self.wipe, self.moved, self.accept_loss, self.abandon) = (false, false, false, false);
        (self.accept_changed, self.accept_older) = (false, false);
        self.accepted = accepted;
    }

    /// Checks every number.
    ///
    /// # Errors
    /// One line (usage) that names the first number that is too large, and what to give instead.
    pub fn check(&self) -> Result<()> {
        let percent = self.writeback_threshold_percent;
        if percent > 100 {
            return Err(Error::usage(format!(
                "writeback-threshold {percent} is more than 100 percent"
            ))
            .hint("give 0 to 100"));
        }
        // The window is multiplied as a log fills, and the product must fit.
        let window = self.writeback_window_bytes;
        if window > device::SIZE_MAX {
            return Err(Error::usage(format!(
                "writeback-window {} is more than any device has",
                exact(window)
            ))
            .hint("give less, like 64M"));
        }
        let times = [
            ("commit-interval", self.commit_interval_ms),
            ("writeback-idle", self.writeback_idle_ms),
        ];
        if let Some((key, ms)) = times.iter().find(|(_, ms)| *ms > LONGEST_INTERVAL_MS) {
            return Err(Error::usage(format!("{key} {ms} is more than a day"))
                .hint(format!("give milliseconds, 0 to {LONGEST_INTERVAL_MS}")));
        }
        let keep = self.keep_percent;
        if keep > 50 {
            return Err(Error::usage(format!("log-cache {keep} is more than half of the log"))
                .hint("give 0 to 50 percent"));
        }
        Ok(())
    }
}

fn on() -> bool {
    true
}

fn half_a_second() -> u64 {
    500
}

fn one_second() -> u64 {
    1000
}

fn quarter() -> u64 {
    25
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_not_more_than_any_device() {
        let plan = |bytes| {
            let window = Some(Amount::Bytes(bytes));
            let settings = Settings { writeback_window: window, ..Settings::default() };
            LogPlan::of(&settings, "/dev/a".into(), "/dev/b".into())
        };
        let refused = plan(1 << 57).map_err(|e| e.to_string()).map(|_| ());
        let why = "writeback-window 131072T is more than any device has; give less, like 64M";
        assert_eq!(refused, Err(why.to_owned()));
        assert!(plan(u64::MAX).is_err() && plan(device::SIZE_MAX + 1).is_err());
        assert!(plan(device::SIZE_MAX).is_ok_and(|p| p.writeback_window_bytes == device::SIZE_MAX));
        // The largest factor while the log fills is 100.
        assert!(device::SIZE_MAX.checked_mul(100).is_some());
    }
}
