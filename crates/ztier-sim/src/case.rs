//! A run's name: one word that reproduces the run.
//!
//! `cuts:SEED:CUTS`, `kills:SEED:KILLS`, `corruption:SEED`, `errors:WORKLOAD:DRIVE:KIND:NTH`, and
//! `exhaustive:…`. The meaning of a seed changes with the generators in `program.rs` and `lies.rs`;
//! a recorded run that should survive such a change becomes a test.

use crate::exhaustive::{self, Sequence};
use crate::fault::{Fault, Kind};
use crate::lies;
use crate::program::{self, Program, Side};
use crate::shrink::{Kept, shrink};
use crate::trouble::{Trouble, caught};
use crate::world::{self, Stats};
use std::fmt;
use std::str::FromStr;

/// A run's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Case {
    /// A seed's program: seed, cuts.
    Cuts(u64, u32),
    /// A seed's program in which the process dies: seed, deaths.
    Kills(u64, u32),
    /// A seed's program in which a drive lies.
    Corruption(u64),
    /// A workload whose n-th operation of a drive fails; `None`: without a fault.
    Errors(u32, Option<(Side, Kind, u64)>),
    /// A short sequence with every possible cut.
    Exhaustive(Sequence),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuts(seed, cuts) => write!(f, "cuts:{seed}:{cuts}"),
            Self::Kills(seed, kills) => write!(f, "kills:{seed}:{kills}"),
            Self::Corruption(seed) => write!(f, "corruption:{seed}"),
            Self::Errors(workload, None) => write!(f, "errors:{workload}"),
            Self::Errors(workload, Some((side, kind, nth))) => {
                write!(f, "errors:{workload}:{}:{kind}:{nth}", side.name())
            }
            Self::Exhaustive(sequence) => write!(f, "exhaustive:{sequence}"),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no case: cuts:SEED:CUTS, kills:SEED:KILLS, corruption:SEED, \
                 errors:WORKLOAD:DRIVE:KIND:NTH or exhaustive:OPERATIONS"
            )
        };
        let number = |part: &str| part.parse().map_err(|_| wrong());
        let parts: Vec<&str> = text.split(':').collect();
        Ok(match parts[..] {
            ["cuts", seed, cuts] => Self::Cuts(number(seed)?, cuts.parse().map_err(|_| wrong())?),
            ["kills", seed, kills] => {
                Self::Kills(number(seed)?, kills.parse().map_err(|_| wrong())?)
            }
            ["corruption", seed] => Self::Corruption(number(seed)?),
            ["errors", workload] => Self::Errors(workload.parse().map_err(|_| wrong())?, None),
            ["errors", workload, side, kind, nth] => {
                let side = Side::named(side).ok_or_else(wrong)?;
                let kind = Kind::named(kind).ok_or_else(wrong)?;
                let fault = (side, kind, number(nth)?);
                Self::Errors(workload.parse().map_err(|_| wrong())?, Some(fault))
            }
            ["exhaustive", sequence] => Self::Exhaustive(sequence.parse()?),
            _ => return Err(wrong()),
        })
    }
}

impl Case {
    /// The program; `None` for an exhaustive sequence.
    fn program(&self) -> Option<Program> {
        Some(match self {
            Self::Cuts(seed, cuts) => program::cuts(*seed, *cuts),
            Self::Kills(seed, kills) => program::kills(*seed, *kills),
            Self::Corruption(seed) => lies::corruption(*seed),
            Self::Errors(workload, fault) => {
                let mut program = program::workload(*workload);
                program.faults.extend(fault.map(|(side, kind, nth)| (side, Fault { nth, kind })));
                program
            }
            Self::Exhaustive(_) => return None,
        })
    }

    /// Runs the case: all steps, or only `only`.
    ///
    /// # Errors
    /// The first trouble. A lie that was detected is none.
    pub fn run(&self, only: Option<&Kept>, trace: bool) -> Result<Stats, Trouble> {
        match (self, self.program()) {
            (Self::Exhaustive(sequence), _) => caught(|| exhaustive::check(sequence, trace)),
            (_, None) => Ok(Stats::default()),
            (_, Some(program)) => {
                let program = match only {
                    None => program,
                    Some(kept) => program.only(&kept.0),
                };
                world::run(&program, trace)
            }
        }
    }

    /// The steps that are needed to fail in the same way; `None` for a case without steps.
    pub fn shrunk(&self, trouble: &Trouble) -> Option<Kept> {
        let program = self.program()?;
        let len = program.steps.len();
        // The steps at the end that make everything durable are what makes the rest wrong.
        let end = match self {
            Self::Corruption(_) => len - program::SECURE.len() - 2..len,
            _ => len..len,
        };
        Some(shrink(&Kept::all(len), |kept| {
            if end.clone().any(|step| kept.0.binary_search(&step).is_err()) {
                return None;
            }
            match self.run(Some(kept), false) {
                Err(found) if found.kind == trouble.kind => Some(found.step + 1),
                _ => None,
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for text in [
            "cuts:17:50",
            "kills:8:20",
            "corruption:3",
            "errors:4",
            "errors:4:log:short:77",
            "errors:0:backing:forever:0",
            "exhaustive:0145fl",
        ] {
            assert_eq!(text.parse::<Case>().map(|case| case.to_string()), Ok(text.into()));
        }
        for text in ["", "cuts", "cuts:x:1", "errors:1:log:sunshine:4", "exhaustive:9fl"] {
            text.parse::<Case>().unwrap_err();
        }
    }
}
