//! Which changes are worth a line in the log: the first of a ramp, and where it ended.

use super::reason::Reason;
use crate::config::size::human;
use std::time::Duration;

/// A ramp has ended after this long without a change.
const ENDED: Duration = Duration::from_secs(10);

/// Successive changes in the same direction and for the same kind of reason.
#[derive(Debug, Default)]
pub struct Ramp(Option<Run>);

#[derive(Debug)]
struct Run {
    first: u64,
    last: u64,
    changes: u32,
    at: Duration,
    reason: Reason,
}

impl Ramp {
    /// The lines for a change of the limit at the time `now`: about the ramp that it ends, and
    /// about the one that it begins.
    pub fn changed(
        &mut self,
        now: Duration,
        (from, to): (u64, u64),
        reason: Reason,
    ) -> [Option<String>; 2] {
        if let Some(run) = &mut self.0
            && (to < from) == (run.last < run.first)
            && std::mem::discriminant(&run.reason) == std::mem::discriminant(&reason)
        {
            (run.last, run.at) = (to, now);
            run.changes += 1;
            return [None, None];
        }
        let before = self.end();
        self.0 = Some(Run { first: from, last: to, changes: 1, at: now, reason });
        [before, Some(format!("ram-limit {} -> {}: {reason}", human(from), human(to)))]
    }

    /// The line for the time `now` without a change, if a ramp has ended.
    pub fn unchanged(&mut self, now: Duration) -> Option<String> {
        let ended = self.0.as_ref().is_some_and(|run| now.saturating_sub(run.at) >= ENDED);
        if ended { self.end() } else { None }
    }

    fn end(&mut self) -> Option<String> {
        let Run { first, last, changes, .. } = self.0.take()?;
        (changes > 1).then(|| {
            format!(
                "ram-limit stays at {}, {changes} changes from {} on",
                human(last),
                human(first)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_is_two_lines_however_long_it_is() {
        let mut ramp = Ramp::default();
        let mut said = Vec::new();
        let less = |files| Reason::FileCache { files, own: 0.0 };
        for n in 0..100u64 {
            let change = ((900 - n) << 20, (899 - n) << 20);
            let now = Duration::from_secs(n);
            said.extend(ramp.changed(now, change, less(0.5)).into_iter().flatten());
            said.extend(ramp.unchanged(now));
        }
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(ramp.unchanged(Duration::from_secs(108)), None);
        let last = ramp.unchanged(Duration::from_secs(109));
        let text = "ram-limit stays at 800 MiB, 100 changes from 900 MiB on";
        assert_eq!(last.as_deref(), Some(text));
        assert_eq!(ramp.unchanged(Duration::from_secs(1000)), None);

        // A single change makes a single line, and a change in the other direction ends a ramp.
        let at = Duration::from_secs(2000);
        let grow = Reason::Missed { own: 0.1, files: 0.0 };
        assert!(ramp.changed(at, (8, 9), grow)[0].is_none());
        let said = ramp.changed(at, (9, 8), less(0.1));
        assert!(said[0].is_none() && said[1].is_some(), "{said:?}");
    }
}
