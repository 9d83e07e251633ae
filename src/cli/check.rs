//! `ztier status --check`: nothing while volumes are healthy, else a line for each trouble.
//!
//! Invariants: what is a trouble is judged in [`crate::stats::health`], as for all other commands;
//! beyond `status`, a volume that is filling or coming up is one, because it may need attention.

use super::{PATIENCE, gone, named, print_all_but_last, remedy_for};
use crate::config::{Paths, name};
use crate::daemon::survey::{Seen, Survey};
use crate::error::{Error, Result};
use crate::stats::{Health, Trouble, time};

/// Checks the volumes `names`, or all.
///
/// # Errors
/// The last trouble, after the others were printed; an unknown volume counts only where there is no
/// other trouble.
pub(super) fn check(paths: Paths, names: &[String]) -> Result<()> {
    names.iter().try_for_each(|volume| name::check(volume).map_err(Error::usage))?;
    let mut survey = Survey::new(paths.clone());
    survey.look_around(PATIENCE)?;
    let (known, mut wrong) = named(&paths, &survey, names);
    wrong.extend(known.into_iter().flat_map(|(name, seen)| troubles(name, seen)));
    print_all_but_last(wrong)
}

/// The troubles of one volume.
fn troubles(name: &str, seen: &Seen) -> Vec<Error> {
    let one = |text: String| Error::degraded(format!("volume `{name}`{text}"));
    match seen {
        Seen::Up { sample, .. } => {
            let row = |trouble: Trouble| {
                let error = one(format!(": {}", trouble.text));
                match trouble.health {
                    // Its text says what to do.
                    Health::Filling => error,
                    _ => error.hint(remedy_for(name, &trouble)),
                }
            };
            sample.stats.troubles(time::now()).into_iter().map(row).collect()
        }
        Seen::Starting { step: None } => vec![one(" is coming up".into())],
        Seen::Starting { step: Some(step) } => vec![one(format!(" is coming up: {step}"))],
        Seen::Silent { why, .. } => {
            let why = why.clone().unwrap_or_else(|| "its daemon does not answer".into());
            vec![one(format!(": {why}")).hint("see `ztier list`")]
        }
        Seen::Dead { .. } => vec![gone(name)],
        Seen::Broken { why } => vec![one(format!(": {why}"))],
    }
}
