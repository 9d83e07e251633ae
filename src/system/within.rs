//! Waits for a program, within a limit.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Interval between looks whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long a killed program may take to end. One that waits for a dead disk does not.
const TO_DIE: Duration = Duration::from_secs(2);

/// Waits until `child` has ended, at most for `limit`; then it is killed, and this returns `None`.
/// Meanwhile `look` is called with the time so far.
///
/// # Errors
/// The system's.
pub fn ended(
    child: &mut Child,
    limit: Duration,
    mut look: impl FnMut(Duration),
) -> std::io::Result<Option<ExitStatus>> {
    let status = watched(child, limit, &mut look)?;
    if status.is_none() {
        child.kill()?;
        watched(child, TO_DIE, &mut |_| {})?;
    }
    Ok(status)
}

/// Waits until it has ended, at most for `limit`.
fn watched(
    child: &mut Child,
    limit: Duration,
    look: &mut impl FnMut(Duration),
) -> std::io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let time = begun.elapsed();
        if time >= limit {
            return Ok(None);
        }
        look(time);
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::Command;

    #[test]
    #[cfg_attr(miri, ignore = "starts programs")]
    fn a_program_ends_or_is_killed() {
        let run = |program: &str, arg: &str, limit| {
            let mut child = Command::new(program).arg(arg).spawn().unwrap();
            let mut looks = 0;
            let status = ended(&mut child, limit, |_| looks += 1).unwrap();
            (status.map(|status| status.success()), looks)
        };
        assert_eq!(run("true", "", Duration::from_secs(60)).0, Some(true));
        let (status, looks) = run("sleep", "60", Duration::from_millis(50));
        assert!(status.is_none() && looks > 0);
    }
}
