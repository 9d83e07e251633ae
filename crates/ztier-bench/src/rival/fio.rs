//! fio, for what it reaches and this program does not: NBD servers.

use crate::sys::command::{exists, run};
use serde_json::Value;
use std::time::Duration;
use ztier::error::{Context, Error, Result};

/// What fio writes, for reports.
pub const DATA: &str = "fio's own data, half of each 4 KiB compressible";

/// One job.
pub struct Job<'a> {
    /// The NBD URI.
    pub target: &'a str,
    /// `read`, `write`, `randread`, `randwrite`.
    pub pattern: &'a str,
    /// Bytes in a request.
    pub block: u64,
    /// Requests under way.
    pub depth: u32,
    /// Bytes from the start that it works on.
    pub size: u64,
    /// `None`: once over `size`. Otherwise again and again for this long.
    pub time: Option<Duration>,
}

/// What a job reached.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Requests a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// CPU of fio itself (user + system), percent.
    pub cpu_percent: f64,
}

/// Runs a job; what it writes is [`DATA`].
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
        "--ioengine=nbd".to_owned(),
        format!("--uri={}", job.target),
        format!("--rw={}", job.pattern),
        format!("--bs={}", job.block),
        format!("--iodepth={}", job.depth),
        format!("--size={}", job.size),
        "--randrepeat=1".to_owned(),
        "--norandommap=1".to_owned(),
        "--refill_buffers=1".to_owned(),
        "--buffer_compress_percentage=50".to_owned(),
        "--buffer_compress_chunk=4k".to_owned(),
        "--thread=1".to_owned(),
    ];
    let mut limit = Duration::from_secs(300);
    if let Some(time) = job.time {
        args.push("--time_based=1".to_owned());
        args.push(format!("--runtime={}ms", time.as_millis()));
        limit = time + Duration::from_secs(60);
    }
    parse(&run("fio", &args, limit)?, job.pattern.contains("write"))
}

/// fio writes notes before its JSON.
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
    Ok(Reached {
        iops: number(&side["iops"], "iops")?,
        bytes_per_second: number(&side["bw_bytes"], "bw_bytes")?,
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
        assert!(parse(&text(0), true).is_err());
        assert!(parse(&text(5), false).is_err());
        assert!(parse("fio: no such engine", false).is_err());
    }
}
