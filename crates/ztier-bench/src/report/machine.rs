//! The machine that a run was made on.

use serde_json::{Value, json};

/// CPUs, memory and kernel.
pub fn describe() -> Value {
    let uname = rustix::system::uname();
    json!({
        "cpus": std::thread::available_parallelism().map_or(1, usize::from),
        "cpu_model": cpu_model(),
        "ram_kib": meminfo_kib("MemTotal"),
        "kernel": uname.release().to_string_lossy(),
        "architecture": uname.machine().to_string_lossy(),
    })
}

/// The line with which IOzone's `-M` prints the machine.
pub fn uname_line() -> String {
    let u = rustix::system::uname();
    [u.sysname(), u.release(), u.version(), u.machine()].map(|s| s.to_string_lossy()).join(" ")
}

/// Bytes of memory available without eviction (`MemAvailable`).
pub fn available_bytes() -> u64 {
    meminfo_kib("MemAvailable").unwrap_or(0) * 1024
}

/// A field of `/proc/meminfo`, in KiB.
fn meminfo_kib(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
