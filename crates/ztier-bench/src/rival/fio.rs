//! fio, for targets that this program does not reach: NBD servers, and the source's own job.

use crate::sys::command::{exists, run};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use ztier::error::{Context, Error, Result};

/// fio's write data, for reports.
pub const DATA: &str = "fio's own data, half of each 4 KiB compressible";

/// The target of fio.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// An NBD URI.
    Nbd(&'a str),
    /// A block device or a file, bypassing the page cache.
    Direct(&'a Path),
    /// A file, through the page cache, one request at a time.
    File(&'a Path),
}

/// One job.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// The target.
    pub target: Target<'a>,
    /// `read`, `write`, `randread`, `randwrite`.
    pub pattern: &'a str,
    /// Bytes in a request.
    pub block: u64,
    /// Requests in flight.
    pub depth: u32,
    /// Bytes from the start that the job covers.
    pub size: u64,
    /// `None`: once over `size`. Otherwise repeated for this long.
    pub time: Option<Duration>,
    /// Whether half of each 4 KiB is compressible ([`DATA`]), or none of it.
    pub shrinks: bool,
    /// Number of writes before a flush; 0: no flushes.
    pub flush_after: u64,
}

/// The defaults of a job.
pub const LIKE: Job<'_> = Job {
    target: Target::Nbd(""),
    pattern: "randwrite",
    block: 4096,
    depth: 64,
    size: 0,
    time: None,
    shrinks: true,
    flush_after: 0,
};

/// The result of a job.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Requests a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// CPU time of fio itself (user + system), in percent.
    pub cpu_percent: f64,
    /// Median of the time of requests, or of flushes if there are some, in milliseconds; NaN if fio
    /// reports none.
    pub p50_ms: f64,
    /// 99.9th percentile of the same.
    pub p999_ms: f64,
}

/// Runs a job; it writes [`DATA`], or random bytes.
///
/// # Errors
/// fio is not installed or fails, or the device does.
pub fn measure(job: &Job<'_>) -> Result<Reached> {
    if !exists("fio") {
        return Err(Error::failure("fio is not installed"));
    }
    let mut args = vec![
        "--name=bench".to_owned(),
        "--output-format=json".to_owned(),
        format!("--rw={}", job.pattern),
        format!("--bs={}", job.block),
        format!("--iodepth={}", job.depth),
        format!("--size={}", job.size),
        "--randrepeat=1".to_owned(),
        "--norandommap=1".to_owned(),
        "--refill_buffers=1".to_owned(),
        "--thread=1".to_owned(),
    ];
    if matches!(job.target, Target::Direct(_)) {
        args.push("--direct=1".to_owned());
    }
    args.extend(match job.target {
        Target::Nbd(uri) => ["--ioengine=nbd".to_owned(), format!("--uri={uri}")],
        Target::Direct(path) => {
            ["--ioengine=libaio".to_owned(), format!("--filename={}", path.display())]
        }
        Target::File(path) => {
            ["--ioengine=psync".to_owned(), format!("--filename={}", path.display())]
        }
    });
    if job.shrinks {
        args.push("--buffer_compress_percentage=50".to_owned());
        args.push("--buffer_compress_chunk=4k".to_owned());
    }
    if job.flush_after > 0 {
        args.push(format!("--fsync={}", job.flush_after));
    }
    let mut limit = Duration::from_secs(300);
    if let Some(time) = job.time {
        args.push("--time_based=1".to_owned());
        args.push(format!("--runtime={}ms", time.as_millis()));
        limit = time + Duration::from_secs(60);
    }
    parse(&run("fio", &args, limit)?, job.pattern.contains("write"))
}

/// A percentile in milliseconds, by fio's name of it.
fn percentile(times: &Value, name: &str) -> Option<f64> {
    times["percentile"][name].as_f64().map(|ns| ns / 1e6)
}

/// Parses fio's output, which has notes before its JSON.
fn parse(text: &str, write: bool) -> Result<Reached> {
    let json = text.find('{').map_or("", |at| &text[at..]);
    let json: Value = serde_json::from_str(json).context("cannot read what fio prints")?;
    let job = &json["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return Err(Error::failure(format!("fio ended with error {}", job["error"])));
    }
    let side = &job[if write { "write" } else { "read" }];
    let number = |value: &Value, name: &str| {
        value.as_f64().ok_or_else(|| Error::failure(format!("fio's output has no {name}")))
    };
    let time = |name: &str| {
        let found = percentile(&job["sync"]["lat_ns"], name);
        found.or(percentile(&side["clat_ns"], name)).unwrap_or(f64::NAN)
    };
    Ok(Reached {
        iops: number(&side["iops"], "iops")?,
        bytes_per_second: number(&side["bw_bytes"], "bw_bytes")?,
        p50_ms: time("50.000000"),
        p999_ms: time("99.900000"),
        cpu_percent: number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn notes_before_the_json_are_skipped_and_errors_found() {
        let text = |error: i32| {
            format!(
                "note: x\n{{\"jobs\":[{{\"error\":{error},\"usr_cpu\":1.5,\"sys_cpu\":2,\
                 \"read\":{{\"iops\":10.5,\"bw_bytes\":43008}},\"write\":{{}}}}]}}"
            )
        };
        let result = parse(&text(0), false).unwrap();
        assert!((result.iops - 10.5).abs() < 1e-9 && (result.cpu_percent - 3.5).abs() < 1e-9);
        assert!(result.p999_ms.is_nan());
        let times = |ns| serde_json::json!({"percentile": {"99.000000": 1, "99.900000": ns}});
        assert_eq!(percentile(&times(2_500_000), "99.900000"), Some(2.5));
        assert!(parse(&text(0), true).is_err());
        assert!(parse(&text(5), false).is_err());
        assert!(parse("fio: no such engine", false).is_err());
    }
}
