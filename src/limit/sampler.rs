//! Reads what the machine reports about its memory.
//!
//! Files stay open, and one buffer that exists from the start takes their content: a machine that
//! is short of memory may be waiting for this very process.
//!
//! Invariant: a value that can't be read is reported ([`Sampler::missing`]), and never an error.

use super::pressure;
use super::sample::{Machine, Shown};
use crate::config::machine::{self, CgroupLimit};
use crate::system::footprint::{self, field, stalled_us};
use rustix::io::{Errno, pread};
use std::fs::File;
use std::path::Path;

/// Most bytes that are read from a file. In `diskstats` these are about 500 disks; further disks
/// are left out.
const BUFFER: usize = 64 << 10;

/// The files, open.
#[derive(Debug)]
pub struct Sampler {
    buffer: Box<[u8]>,
    meminfo: Option<File>,
    vmstat: Option<File>,
    pressure: Option<File>,
    disks: Option<File>,
    group: Option<Group>,
}

/// The control group that runs short of memory first.
#[derive(Debug)]
struct Group {
    limit: u64,
    usage: Option<File>,
    stat: Option<File>,
    pressure: Option<File>,
}

impl Sampler {
    /// A sampler of this machine, or of the control group of this process that has the lowest
    /// limit.
    pub fn of_this_machine() -> Self {
        Self::open(Path::new("/proc"), machine::cgroup_limit().as_ref())
    }

    /// A sampler of the files in `proc`, a directory such as `/proc`, and of those beside a control
    /// group's limit.
    pub fn open(proc: &Path, limit: Option<&CgroupLimit>) -> Self {
        let open = |path: &str| File::open(proc.join(path)).ok();
        let ram = machine::ram_bytes();
        let group = limit.filter(|limit| limit.bytes < ram).and_then(|limit| {
            let beside = |name: &str| File::open(limit.file.with_file_name(name)).ok();
            Some(Group {
                limit: limit.bytes,
                usage: beside("memory.current").or_else(|| beside("memory.usage_in_bytes")),
                stat: Some(beside("memory.stat")?),
                pressure: beside("memory.pressure"),
            })
        });
        Self {
            buffer: vec![0; BUFFER].into_boxed_slice(),
            meminfo: open("meminfo"),
            vmstat: open("vmstat"),
            pressure: open("pressure/memory"),
            disks: open("diskstats"),
            group,
        }
    }

    /// How much memory there is, and how much is available, without looking at anything else.
    pub fn memory(&mut self) -> Machine {
        let machine = self.meminfo();
        let Self { buffer, group, .. } = self;
        group.as_ref().map_or(machine, |group| group.sample(machine, buffer))
    }

    /// Microseconds in which some task waited for memory, as in [`Machine::stalled_us`].
    pub fn stalled_us(&mut self) -> Option<u64> {
        let own = self.group.as_ref().map_or(self.pressure.as_ref(), |g| g.pressure.as_ref());
        read(own, &mut self.buffer).and_then(stalled_us)
    }

    fn meminfo(&mut self) -> Machine {
        let text = read(self.meminfo.as_ref(), &mut self.buffer);
        let number = |key| text.and_then(|text| field(text, key));
        Machine {
            total_bytes: number("MemTotal").unwrap_or_else(machine::ram_bytes),
            available_bytes: number("MemAvailable"),
            ..Machine::default()
        }
    }

    /// The state of the machine now, for a volume that is `shown` as a device.
    pub fn sample(&mut self, shown: Option<Shown>) -> Machine {
        let machine = self.meminfo();
        let Self { buffer, vmstat, pressure, disks, group, .. } = self;
        let disks = read(disks.as_ref(), buffer).and_then(|text| pressure::disk_reads(text, shown));
        let machine = Machine {
            disk_reads: disks.map(|(reads, _)| reads),
            disk_busy_ns: disks.and_then(|(_, busy)| busy),
            ..machine
        };
        if let Some(group) = group {
            return group.sample(machine, buffer);
        }
        let text = read(vmstat.as_ref(), buffer);
        Machine {
            refaults: text.and_then(pressure::refaults),
            scanned: text.and_then(pressure::scanned),
            stalled_us: read(pressure.as_ref(), buffer).and_then(stalled_us),
            ..machine
        }
    }

    /// What a machine does not report, and what is done without it.
    pub fn missing(machine: &Machine) -> Vec<String> {
        [
            (machine.available_bytes.is_none(), "available memory: no floor is held"),
            (machine.refaults.is_none(), "refaults of files: nothing is given up for them"),
            (machine.disk_reads.is_none(), "times of disk reads: 0.1 ms a page is assumed"),
            (machine.stalled_us.is_none(), "pressure of memory: not looked at"),
        ]
        .into_iter()
        .filter(|(is_missing, _)| *is_missing)
        .map(|(_, text)| text.to_owned())
        .collect()
    }
}

impl Group {
    fn sample(&self, machine: Machine, buffer: &mut [u8]) -> Machine {
        let usage = read(self.usage.as_ref(), buffer).and_then(|text| text.trim().parse().ok());
        let stalled_us = read(self.pressure.as_ref(), buffer).and_then(stalled_us);
        let text = read(self.stat.as_ref(), buffer).unwrap_or_default();
        // Child groups count, too; in version 1 these numbers have another name.
        let bytes = |names: [&str; 2]| {
            names.iter().find_map(|name| footprint::number(text, name)).unwrap_or(0)
        };
        let file = bytes(["total_inactive_file", "inactive_file"])
            .saturating_add(bytes(["total_active_file", "active_file"]));
        let free = usage.map(|usage: u64| self.limit.saturating_sub(usage).saturating_add(file));
        Machine {
            total_bytes: self.limit,
            available_bytes: match (free, machine.available_bytes) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            refaults: pressure::refaults(text),
            // A group's refaults are always for want of its own memory.
            scanned: None,
            stalled_us,
            ..machine
        }
    }
}

/// The text of a file from its beginning, as far as it fits into `buffer`; `None` if it is no text.
fn read<'a>(file: Option<&File>, buffer: &'a mut [u8]) -> Option<&'a str> {
    let file = file?;
    let mut len = 0;
    while len < buffer.len() {
        match pread(file, &mut buffer[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    let text = &buffer[..len];
    match std::str::from_utf8(text) {
        Ok(text) => Some(text),
        Err(e) => std::str::from_utf8(&text[..e.valid_up_to()]).ok(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn this_machine_tells_something() {
        let mut sampler = Sampler::open(Path::new("/proc"), None);
        let machine = sampler.sample(None);
        assert!(machine.total_bytes >= 1 << 20);
        assert!(machine.available_bytes.is_some_and(|bytes| bytes <= machine.total_bytes));
    }

    #[test]
    fn what_is_missing_is_said_and_nothing_fails() {
        let empty = tempfile::tempdir().unwrap();
        let machine = Sampler::open(empty.path(), None).sample(None);
        assert!(machine.total_bytes > 0);
        let missing = Sampler::missing(&machine);
        assert_eq!(missing.len(), 4, "{missing:?}");
        fs::write(empty.path().join("meminfo"), b"MemTotal: 8 kB\nMemAvailable: 4 kB\n\xff")
            .unwrap();
        fs::create_dir(empty.path().join("vmstat")).unwrap();
        let machine = Sampler::open(empty.path(), None).sample(None);
        assert_eq!((machine.total_bytes, machine.available_bytes), (8192, Some(4096)));
        assert_eq!(Sampler::missing(&machine).len(), 3);
    }

    #[test]
    fn a_group_is_short_before_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n");
        write("memory.stat", "inactive_file 1000\nactive_file 500\nworkingset_refault_file 7\n");
        write("memory.current", "1000000\n");
        write("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
        let limit = CgroupLimit { bytes: 1 << 20, file: dir.path().join("memory.max") };
        let machine = Sampler::open(dir.path(), Some(&limit)).sample(None);
        assert_eq!(machine.total_bytes, 1 << 20);
        assert_eq!(machine.available_bytes, Some((1 << 20) - 1_000_000 + 1500));
        assert_eq!((machine.refaults, machine.stalled_us), (Some(7), Some(5)));
    }
}
