//! The kernel's log and counters.

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs;
use std::os::fd::OwnedFd;
use ztier::error::{Context, Result};

/// Names of processes that the OOM killer may end: those of the load.
const LOADS: [&str; 2] = ["stress-ng", "load"];

/// The kernel's messages from now on.
pub struct Log {
    file: OwnedFd,
}

impl Log {
    /// Begins to listen to the kernel's log.
    ///
    /// # Errors
    /// This user may not read the log.
    pub fn begin() -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let what = "cannot read the kernel's log";
        let file = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).context(what)?;
        rustix::fs::seek(&file, SeekFrom::End(0)).context(what)?;
        Ok(Self { file })
    }

    /// All lines since the beginning.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut record = [0; 8192];
        loop {
            match rustix::io::read(&self.file, &mut record) {
                // Some messages were overwritten before they were read; the next are readable.
                Err(Errno::PIPE | Errno::INTR) => {}
                // No message is left.
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    let text = String::from_utf8_lossy(&record[..n]).into_owned();
                    // `PRIORITY,NUMBER,TIME,FLAGS;TEXT`, and lines of details.
                    let text = text.split_once(';').map_or("", |(_, text)| text);
                    lines.extend(text.lines().next().map(str::to_owned));
                }
            }
        }
        lines
    }
}

/// The messages of the kernel that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Processes of a load that the OOM killer ended.
    pub loads_ended: usize,
    /// Pages whose swap-out failed; they stay in memory, and the kernel tries again.
    pub refused: usize,
    /// Messages that must not occur.
    pub wrong: Vec<String>,
}

impl Said {
    /// Classifies lines of the log.
    pub fn of(lines: &[String]) -> Self {
        let mut said = Self::default();
        for line in lines {
            if let Some(name) = ended(line) {
                if LOADS.iter().any(|load| name.starts_with(load)) {
                    said.loads_ended += 1;
                } else {
                    said.wrong.push(line.clone());
                }
            } else if line.contains("Write-error on swap-device") {
                said.refused += 1;
            } else if WRONG.iter().any(|words| line.contains(words)) {
                said.wrong.push(line.clone());
            }
        }
        said
    }
}

/// Messages of an unhealthy kernel: hung tasks, stalled CPUs, device errors, kernel errors.
const WRONG: [&str; 8] = [
    "blocked for more than",
    "detected stall",
    "self-detected stall",
    "soft lockup",
    "I/O error",
    "Read-error on swap-device",
    "BUG:",
    "Oops",
];

/// The process that the OOM killer ended, according to a line.
fn ended(line: &str) -> Option<&str> {
    let process = line.contains("ut of memory").then(|| line.split_once(": Killed process "))??.1;
    Some(process.split_once('(')?.1.split_once(')')?.0)
}

/// Counters of the whole machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Bytes read from swap.
    pub swapped_in: u64,
    /// Bytes written to swap.
    pub swapped_out: u64,
    /// Microseconds in which some, and all, tasks waited for memory.
    pub memory: Option<(u64, u64)>,
    /// Microseconds in which some, and all, tasks waited for I/O.
    pub io: Option<(u64, u64)>,
}

impl Counters {
    /// The present counters.
    pub fn now() -> Self {
        let text = read("/proc/vmstat");
        let pages = |key| word_after(&text, key).unwrap_or(0) * 4096;
        Self {
            swapped_in: pages("pswpin"),
            swapped_out: pages("pswpout"),
            memory: pressure(&read("/proc/pressure/memory")),
            io: pressure(&read("/proc/pressure/io")),
        }
    }

    /// The increase since `before`.
    pub fn since(self, before: Self) -> Self {
        let pair = |now: Option<(u64, u64)>, then: Option<(u64, u64)>| {
            now.zip(then).map(|(now, then)| (now.0 - then.0, now.1 - then.1))
        };
        Self {
            swapped_in: self.swapped_in - before.swapped_in,
            swapped_out: self.swapped_out - before.swapped_out,
            memory: pair(self.memory, before.memory),
            io: pair(self.io, before.io),
        }
    }
}

/// Bytes of swap in use.
pub fn swap_in_use() -> u64 {
    let text = read("/proc/meminfo");
    let kib = |key| word_after(&text, key).unwrap_or(0);
    kib("SwapTotal:").saturating_sub(kib("SwapFree:")) << 10
}

/// Bytes of memory that are available without swapping.
pub fn available() -> u64 {
    word_after(&read("/proc/meminfo"), "MemAvailable:").unwrap_or(0) << 10
}

/// Bytes of the machine's memory.
pub fn memory() -> u64 {
    word_after(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0) << 10
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn word_after(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The `some` and `full` totals of a pressure file.
fn pressure(text: &str) -> Option<(u64, u64)> {
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        line.rsplit_once("total=")?.1.trim().parse().ok()
    };
    Some((total("some ")?, total("full ")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_load_may_be_ended() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let said = Said::of(&lines(
            "stress-ng-vm invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0\n\
             oom-kill:constraint=CONSTRAINT_MEMCG,task=load,pid=9,uid=0\n\
             Memory cgroup out of memory: Killed process 9 (load) total-vm:1kB, anon-rss:1kB\n\
             Out of memory: Killed process 12 (stress-ng-vm) total-vm:1kB\n\
             Out of memory (oom_kill_allocating_task): Killed process 13 (stress-ng-vm) x\n\
             Write-error on swap-device (259:0:4096)\n\
             loop0: detected capacity change from 0 to 32768",
        ));
        assert_eq!(said, Said { loads_ended: 3, refused: 1, wrong: vec![] });
        for wrong in [
            "Out of memory: Killed process 7 (sshd) total-vm:1kB",
            "INFO: task jbd2/vda-8:99 blocked for more than 30 seconds.",
            "rcu: INFO: rcu_preempt self-detected stall on CPU",
            "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
            "Read-error on swap-device (252:0:8)",
            "Buffer I/O error on dev ublkb0, logical block 0",
        ] {
            let said = Said::of(&lines(wrong));
            assert_eq!(said, Said { wrong: vec![wrong.to_owned()], ..Said::default() });
        }
    }

    #[test]
    fn pressure_of_a_machine() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 total=3\n";
        assert_eq!(pressure(text), Some((77, 3)));
        assert_eq!(pressure(""), None);
        assert!(memory() > available());
    }
}
