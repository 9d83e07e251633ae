//! Costs of processes and counters of the system, from `/proc`.
//!
//! Invariant: a missing field is an error or `None`, never a zero that looks measured.

use serde::{Deserialize, Serialize};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;
use ztier::error::{Context, Error, Result};

/// Resources used by a process since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode, usually in ticks of 10 ms.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Faults that needed no I/O.
    pub minor_faults: u64,
    /// Faults that needed I/O.
    pub major_faults: u64,
}

impl Usage {
    /// The usage of a process with all its threads.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let text = std::fs::read_to_string(&path).context(format_args!("cannot read {path}"))?;
        parse_stat(&text, rustix::param::clock_ticks_per_second())
            .ok_or_else(|| Error::failure(format!("{path} is not understood: {text:?}")))
    }

    /// User and system time together.
    pub fn cpu(self) -> Duration {
        self.user + self.system
    }
}

/// Fields 10, 12, 14 and 15; the second may contain anything, so counting begins behind it.
fn parse_stat(text: &str, ticks_per_second: u64) -> Option<Usage> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64);
    Some(Usage {
        minor_faults: field(10)?,
        major_faults: field(12)?,
        user: time(field(14)?),
        system: time(field(15)?),
    })
}

/// Bytes of memory of a process and its children, with their parts of what they share (PSS).
///
/// # Errors
/// There is no such process.
pub fn pss_of_family(pid: u32) -> Result<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|task| {
        let list = std::fs::read_to_string(task.path().join("children")).ok()?;
        Some(list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>())
    });
    // A child may have ended meanwhile.
    let of_children: u64 = children.flatten().filter_map(|child| pss(child).ok()).sum();
    Ok(pss(pid)? + of_children)
}

fn pss(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).context(format_args!("cannot read {path}"))?;
    let kib = labelled(&text, "Pss");
    kib.map(|kib| kib << 10).ok_or_else(|| Error::failure(format!("{path} has no Pss")))
}

/// Faults with I/O of the calling thread.
pub fn own_major_faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes to the structure that it is given, all of whose fields are numbers.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_majflt).unwrap_or(0)
}

/// Resources used by this process, as `time -v` reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time in user mode, in seconds.
    pub user_s: f64,
    /// CPU time in the kernel, in seconds.
    pub system_s: f64,
    /// Faults that needed I/O.
    pub major_faults: u64,
    /// Faults without I/O.
    pub minor_faults: u64,
    /// Maximum resident memory in KiB, mapped files included, since the process began.
    pub resident_max_kib: u64,
    /// Number of waits.
    pub voluntary_switches: u64,
    /// Number of preemptions.
    pub involuntary_switches: u64,
    /// Bytes read from disks for this process.
    pub read_bytes: u64,
    /// Bytes written to disks for this process.
    pub written_bytes: u64,
}

impl Cost {
    /// The resources used by this process so far.
    ///
    /// # Errors
    /// The kernel does not report them.
    pub fn own() -> Result<Self> {
        let usage = Usage::of(std::process::id())?;
        let read =
            |path: &str| std::fs::read_to_string(path).context(format!("cannot read {path}"));
        let (status, io) = (read("/proc/self/status")?, read("/proc/self/io")?);
        let field = |text: &str, name: &str| {
            labelled(text, name).ok_or_else(|| Error::failure(format!("/proc/self has no {name}")))
        };
        Ok(Self {
            user_s: usage.user.as_secs_f64(),
            system_s: usage.system.as_secs_f64(),
            major_faults: usage.major_faults,
            minor_faults: usage.minor_faults,
            resident_max_kib: field(&status, "VmHWM")?,
            voluntary_switches: field(&status, "voluntary_ctxt_switches")?,
            involuntary_switches: field(&status, "nonvoluntary_ctxt_switches")?,
            read_bytes: field(&io, "read_bytes")?,
            written_bytes: field(&io, "write_bytes")?,
        })
    }

    /// The resources used since `before`; the maximum memory is that since the process began.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            user_s: self.user_s - before.user_s,
            system_s: self.system_s - before.system_s,
            major_faults: self.major_faults - before.major_faults,
            minor_faults: self.minor_faults - before.minor_faults,
            resident_max_kib: self.resident_max_kib,
            voluntary_switches: self.voluntary_switches - before.voluntary_switches,
            involuntary_switches: self.involuntary_switches - before.involuntary_switches,
            read_bytes: self.read_bytes - before.read_bytes,
            written_bytes: self.written_bytes - before.written_bytes,
        }
    }
}

/// The number in a line `name: number`.
fn labelled(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Time that this process's first thread has run, and time that it was ready without a CPU.
pub fn own_schedule() -> Option<(Duration, Duration)> {
    parse_schedule(&std::fs::read_to_string("/proc/self/schedstat").ok()?)
}

fn parse_schedule(text: &str) -> Option<(Duration, Duration)> {
    let mut fields = text.split_whitespace().map(|f| f.parse().ok().map(Duration::from_nanos));
    Some((fields.next()??, fields.next()??))
}

/// Pages swapped out and in since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swapped {
    /// Read from swap devices.
    pub pages_in: u64,
    /// Written to swap devices, without pages kept by zswap.
    pub pages_out: u64,
}

/// The machine's swap traffic so far.
///
/// # Errors
/// A kernel without swap.
pub fn swapped() -> Result<Swapped> {
    let text = std::fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
    parse_vmstat(&text).ok_or_else(|| Error::failure("/proc/vmstat has no pswpin and pswpout"))
}

fn parse_vmstat(text: &str) -> Option<Swapped> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    };
    Some(Swapped { pages_in: field("pswpin")?, pages_out: field("pswpout")? })
}

/// Bytes that a block device has read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes read from the device.
    pub read: u64,
    /// Bytes written to the device.
    pub written: u64,
}

impl Moved {
    /// The traffic of a device since it came up.
    ///
    /// # Errors
    /// The path is no block device.
    pub fn of(device: &Path) -> Result<Self> {
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        let path = format!("/sys/class/block/{name}/stat");
        let text = std::fs::read_to_string(&path).context(format_args!("cannot read {path}"))?;
        parse_device(&text)
            .ok_or_else(|| Error::failure(format!("{path} is not understood: {text:?}")))
    }

    /// The traffic since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { read: self.read - before.read, written: self.written - before.written }
    }
}

/// Fields 3 and 7, sectors of 512 bytes.
fn parse_device(text: &str) -> Option<Moved> {
    let mut fields = text.split_whitespace().map(|field| field.parse::<u64>().ok());
    let read = fields.nth(2)?? * 512;
    let written = fields.nth(3)?? * 512;
    Some(Moved { read, written })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let text = "7 (a ) b(c) S 1 7 7 0 -1 4194304 100 0 5 0 250 75 0 0 20 0 1 0 300 0 0";
        let usage = parse_stat(text, 100).unwrap();
        assert_eq!((usage.minor_faults, usage.major_faults), (100, 5));
        assert_eq!((usage.user.as_millis(), usage.system.as_millis()), (2500, 750));
        assert_eq!(usage.cpu().as_millis(), 3250);
        assert_eq!(parse_stat("7 (a) S 1", 100), None);
    }

    #[test]
    fn counters_are_matched_by_their_whole_name() {
        let text = "pswpin_more 9\nzswpin 8\npswpin 3\npswpout 4\n";
        assert_eq!(parse_vmstat(text), Some(Swapped { pages_in: 3, pages_out: 4 }));
        assert_eq!(parse_vmstat("pswpin 3\n"), None);
    }

    #[test]
    fn schedules_are_two_numbers() {
        let both = (Duration::from_nanos(5), Duration::from_nanos(6));
        assert_eq!(parse_schedule("5 6 7\n"), Some(both));
        assert_eq!(parse_schedule("5"), None);
    }

    #[test]
    fn sectors_of_a_device_are_counted_in_bytes() {
        let text = "  10  1  16  5  20  2  40  9  0  14  14 0 0 0 0 0 0\n";
        let moved = parse_device(text).unwrap();
        assert_eq!(moved, Moved { read: 8192, written: 20480 });
        assert_eq!(moved.since(Moved { read: 4096, written: 0 }).read, 4096);
        assert_eq!(parse_device("1 2 3"), None);
    }

    #[test]
    fn labels_are_matched_whole_and_this_process_has_them_all() {
        let text = "xVmHWM:\t 1 kB\nVmHWM:\t  2468 kB\nread_bytes: 7\n";
        assert_eq!(labelled(text, "VmHWM"), Some(2468));
        assert_eq!(labelled(text, "read_bytes"), Some(7));
        assert_eq!(labelled(text, "bytes"), None);
        let own = Cost::own().unwrap();
        assert!(own.resident_max_kib > 0 && own.minor_faults > 0);
        assert_eq!(
            own.since(own),
            Cost { resident_max_kib: own.resident_max_kib, ..Cost::default() }
        );
    }

    #[test]
    fn children_count_with_their_parts() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (family, alone) = (pss_of_family(std::process::id()), pss(std::process::id()));
        let of_child = pss(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(of_child.unwrap() > 0 && alone.unwrap() > 0 && family.unwrap() > 0);
        assert!(pss_of_family(u32::MAX).is_err());
    }

    #[test]
    fn this_process_has_a_usage() {
        assert!(Usage::of(std::process::id()).unwrap().minor_faults > 0);
        assert!(Usage::of(u32::MAX).is_err());
    }
}
