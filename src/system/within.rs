//! Runs programs, within a limit.

use crate::error::{Context, Error, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval between looks whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long a killed program may take to end. One that waits for a dead disk does not.
const TO_DIE: Duration = Duration::from_secs(2);

/// Bytes of what a program says that are of use.
const SAID: u64 = 64 << 10;

/// What a program that ended has said.
pub struct Output {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

/// Runs a program to its end, without input, at most for `limit`; then it is killed. `shown` is
/// what errors call it. Meanwhile `look` is called with the time so far.
///
/// # Errors
/// It can't be started, or takes too long.
pub fn output(
    command: &mut Command,
    shown: &str,
    limit: Duration,
    look: impl FnMut(Duration),
) -> Result<Output> {
    let what = || format!("cannot run {shown}");
    // Files, because a full pipe would stop the program.
    let file = || memfd_create("ztier:said", MemfdFlags::CLOEXEC).map(File::from);
    let (mut out, mut err) = (file().context(what())?, file().context(what())?);
    let copy = |file: &File| file.try_clone().map(Stdio::from).context(what());
    command.stdin(Stdio::null()).stdout(copy(&out)?).stderr(copy(&err)?);
    let mut child = command.spawn().context(what())?;
    let Some(status) = ended(&mut child, limit, look).context(what())? else {
        let seconds = limit.as_secs();
        return Err(Error::failure(format!("{shown} takes longer than {seconds} s")));
    };
    Ok(Output {
        status,
        out: text(&mut out).context(what())?,
        err: text(&mut err).context(what())?,
    })
}

fn text(file: &mut File) -> std::io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(SAID).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

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
        killed(child)?;
    }
    Ok(status)
}

/// Waits until `child`, which was killed, has ended; not for long, if a dead disk keeps it.
///
/// # Errors
/// The system's.
pub fn killed(child: &mut Child) -> std::io::Result<()> {
    watched(child, TO_DIE, &mut |_| {}).map(drop)
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

    #[test]
    #[cfg_attr(miri, ignore = "starts programs")]
    fn what_it_says_may_be_more_than_a_pipe_holds() {
        let run = |script: &str, limit| {
            output(Command::new("sh").args(["-c", script]), "`sh`", limit, |_| {})
        };
        let long = Duration::from_secs(60);
        let done = run("head -c 200000 /dev/zero | tr '\\0' x; echo no >&2; exit 3", long).unwrap();
        assert_eq!((done.status.code(), done.out.len()), (Some(3), SAID as usize));
        assert_eq!(done.err, "no\n");
        // What it has started does not keep the caller.
        assert!(run("sleep 60 & exit 0", long).unwrap().status.success());
        let late = run("sleep 60", Duration::from_millis(50)).err().unwrap();
        assert_eq!(late.to_string(), "`sh` takes longer than 0 s");
    }
}
