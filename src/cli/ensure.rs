//! `ztier up --ensure`: whether a volume is up as it was asked for.
//!
//! Invariant: nothing is changed here.

use super::{PATIENCE, output};
use crate::config::{Difference, Paths, Settings};
use crate::control::{Client, Request, Sample};
use crate::daemon::{self, Found};
use crate::error::{Error, Result};
use serde_json::json;
use std::time::{Duration, Instant};

/// How long a daemon may take that is coming up or going down at this moment.
const PATIENCE_TO_COME: Duration = Duration::from_secs(60);
/// The time between two questions.
const GLANCE: Duration = Duration::from_millis(20);

/// The volume, if it is up and has these settings; `None` if it is not up, so that bringing it up
/// is as without this.
///
/// # Errors
/// It has other settings (which are printed, too, if `as_json`), or its daemon does not answer.
pub(super) fn up_as_asked(
    paths: &Paths,
    name: &str,
    settings: &Settings,
    as_json: bool,
) -> Result<Option<Sample>> {
    let Some(sample) = sample(paths, name)? else { return Ok(None) };
    let differences = settings.differing(&sample.plan)?;
    if differences.is_empty() {
        return Ok(Some(sample));
    }
    if as_json {
        let differs = &differences;
        output::json(&json!({"name": name, "changed": false, "differs": differs}))?;
    }
    Err(differing(name, &differences))
}

/// What the daemon of a volume says, once it has come up; `None` if the volume is not up.
pub(super) fn sample(paths: &Paths, name: &str) -> Result<Option<Sample>> {
    let control = paths.volume(name).control;
    let deadline = Instant::now() + PATIENCE_TO_COME;
    loop {
        if !paths.exists()? || !matches!(daemon::settled(paths, name), Found::Up(_)) {
            return Ok(None);
        }
        let answer = Client::new(&control).ask::<Sample>(&Request::Sample, PATIENCE);
        match answer {
            Ok(sample) => return Ok(Some(sample)),
            Err(e) if control.exists() => return Err(e),
            // A daemon has its socket once the volume is usable, and until it goes down.
            Err(_) if Instant::now() < deadline => std::thread::sleep(GLANCE),
            Err(_) => {
                let text = format!("volume `{name}` is coming up or going down");
                return Err(Error::busy(text).hint("look with `ztier list`, then try again"));
            }
        }
    }
}

/// The error for a volume with these differences.
pub(super) fn differing(name: &str, differences: &[Difference]) -> Error {
    let text = |d: &Difference| format!("{} is {} (asked: {})", d.key, d.is, d.asked);
    let all: Vec<String> = differences.iter().map(text).collect();
    let error =
        Error::differs(format!("volume `{name}` is up with other settings: {}", all.join(", ")));
    error.hint(match differences.iter().all(|d| d.live) {
        true => {
            let changes: Vec<String> =
                differences.iter().map(|d| format!("{}={}", d.key, d.asked)).collect();
            format!("`ztier set {name} {}`", changes.join(" "))
        }
        false => format!("they hold from the next `ztier up`, after `ztier down {name}`"),
    })
}
