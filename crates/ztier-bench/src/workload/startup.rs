//! The time that `ztier up` takes until the device can be read.

use super::Context;
use crate::report::{Row, Target as Goal};
use crate::rival::Disk;
use crate::rival::ztier::Up;
use crate::sys::direct;
use std::time::Instant;
use ztier::error::Result;

/// Runs the section.
pub fn run(context: &mut Context) -> Result<()> {
    let mut runs = Vec::new();
    for _ in 0..context.pick(3, 7) {
        let start = Instant::now();
        let up = Up::new(super::iozone::DEVICE_BYTES, "auto")?;
        direct::probe(up.path())?;
        runs.push(start.elapsed().as_secs_f64());
    }
    let seconds = context.report.row(Row {
        section: "startup".into(),
        system: "ztier".into(),
        case: "up until the device reads".into(),
        unit: "s",
        runs,
        ..Row::default()
    });
    context.report.ratio("startup_s", seconds, Goal::AtMost(1.0));
    Ok(())
}
