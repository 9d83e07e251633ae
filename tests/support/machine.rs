//! Settings of the machine, restored also if the test fails.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use ztier::kernel_text::kernel_text;

/// Swap and its settings belong to the whole machine, so one test at a time uses them.
static TURN: Mutex<()> = Mutex::new(());

/// The right to use swap and change its settings; dropping it restores the settings.
pub struct Turn {
    before: [(&'static str, u64); 2],
    _turn: MutexGuard<'static, ()>,
}

impl Turn {
    pub fn wait() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ["page-cluster", "swappiness"].map(|key| (key, setting(key)));
        Self { before, _turn: turn }
    }

    /// The settings before the test.
    pub fn before(&self) -> [u64; 2] {
        self.before.map(|(_, value)| value)
    }

    /// Whether the settings are as before the test.
    pub fn is_as_before(&self) -> bool {
        settings() == self.before()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        for (key, value) in self.before {
            if setting(key) != value {
                set(key, value);
            }
        }
    }
}

/// `vm.page-cluster` and `vm.swappiness`.
pub fn settings() -> [u64; 2] {
    ["page-cluster", "swappiness"].map(setting)
}

pub fn setting(key: &str) -> u64 {
    fs::read_to_string(format!("/proc/sys/vm/{key}")).unwrap().trim().parse().unwrap()
}

pub fn set(key: &str, value: u64) {
    fs::write(format!("/proc/sys/vm/{key}"), value.to_string()).unwrap();
}

/// The line of `/proc/swaps` for a device or for the target of a link.
pub fn swap_line(device: &str) -> Option<String> {
    let device = fs::canonicalize(device).ok()?;
    let text = kernel_text("/proc/swaps").unwrap();
    text.lines().find(|line| line.split_whitespace().next() == device.to_str()).map(str::to_owned)
}
