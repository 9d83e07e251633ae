//! `ztier up --foreground --adopt`: a service goes on with a volume that was brought up by hand.
//!
//! Invariant: the present daemon is asked to leave only when all that could refuse was looked at;
//! if this process fails after that, the volume's memory is kept for the next start.

use super::{ensure, output};
use crate::config::{Paths, Plan, Settings};
use crate::control::{Client, Request, Sample};
use crate::daemon::{self, Found, Order, Ready};
use crate::error::{Error, Result};
use std::time::Duration;

/// How long the present daemon may take to leave.
const PATIENCE_TO_LEAVE: Duration = Duration::from_secs(60);
/// How long it may take to end after that.
const PATIENCE_TO_END: Duration = Duration::from_secs(60);
/// Keys of what a volume is used as.
const OF_USE: [&str; 8] =
    ["use", "mount", "priority", "ballast", "freed-slots", "on-full", "page-cluster", "swappiness"];

/// Takes the volume `name` over from its daemon and serves it until it is told to end; `print` is
/// called when the volume is usable again. Returns `false` if the volume is not up.
///
/// # Errors
/// It has other settings, another supervisor has it, or its device can't be handed over.
pub(super) fn adopt(
    paths: &Paths,
    name: &str,
    settings: &Settings,
    print: impl FnOnce(&Ready) -> Result<()>,
) -> Result<bool> {
    let Some(sample) = ensure::sample(paths, name)? else { return Ok(false) };
    if let Found::Up(Some(state)) = daemon::find(paths, name)
        && state.foreground
    {
        return Err(Error::busy(format!(
            "volume `{name}` is up in the foreground, as process {}",
            state.pid
        ))
        .hint("end that first"));
    }
    let plan = plan(name, settings, &sample)?;
    let client = Client::new(&paths.volume(name).control);
    client.ask::<()>(&Request::Restart { force: false, log: None }, PATIENCE_TO_LEAVE)?;
    let progress = |what: &str| output::remark(&format!("{name}: {what}"));
    let order = Order {
        plan,
        paths,
        patience: PATIENCE_TO_END,
        foreground: true,
        follows: true,
        wanted: &|| true,
    };
    let end = daemon::run(order, &progress, |ready| {
        ready.notes.iter().for_each(|note| output::remark(note));
        print(ready)
    })?;
    daemon::follow(end, name).map(|()| true)
}

/// The plan to go on with: that of the volume, with the use of `settings` if it has none yet.
fn plan(name: &str, settings: &Settings, sample: &Sample) -> Result<Plan> {
    let plan = &sample.plan;
    let begins = plan.usage.is_none() && settings.usage.is_some();
    let mut differences = settings.differing(plan)?;
    differences.retain(|difference| !(begins && OF_USE.contains(&difference.key)));
    if !differences.is_empty() {
        return Err(ensure::differing(name, &differences));
    }
    if !begins {
        return Ok(plan.clone());
    }
    if sample.stats.blocks_stored + sample.stats.blocks_same > 0 {
        return Err(Error::would_lose(format!("volume `{name}` holds data, and has no use yet"))
            .hint("a use makes it anew: take the volume down first"));
    }
    plan.with_use(settings)
}
