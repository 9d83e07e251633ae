//! Shrinks a failing run to a short one that fails in the same way.
//!
//! Shrinking removes steps in ever smaller pieces. The result names the kept steps by their
//! positions in the whole program, so the case and that list replay it.

use std::fmt;
use std::str::FromStr;

/// Positions that are kept, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept(pub Vec<usize>);

impl Kept {
    /// All of `len` positions.
    pub fn all(len: usize) -> Self {
        Self((0..len).collect())
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        if rest.is_empty() {
            return f.write_str("none");
        }
        let mut comma = "";
        while let Some(first) = rest.first() {
            let run = rest.iter().enumerate().take_while(|(i, at)| **at == first + i).count();
            write!(f, "{comma}{first}")?;
            if run > 1 {
                write!(f, "-{}", first + run - 1)?;
            }
            comma = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

impl FromStr for Kept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut kept = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty() && *part != "none") {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                text.parse::<usize>().map_err(|_| format!("{text:?} in {part:?} is no position"))
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last > 1 << 32 || kept.last().is_some_and(|at| *at >= first) {
                return Err(format!("{part:?} is not an ascending range"));
            }
            kept.extend(first..=last);
        }
        Ok(Self(kept))
    }
}

/// Limit on the runs of a shrink.
const RUNS_MAX: usize = 3000;

/// The shortest list found that still fails. `fails` runs only these positions; if that run fails
/// as before, it returns the number of positions that it took.
pub fn shrink(all: &Kept, mut fails: impl FnMut(&Kept) -> Option<usize>) -> Kept {
    let mut kept = all.clone();
    let mut runs = 0;
    if let Some(used) = fails(&kept) {
        kept.0.truncate(used);
    } else {
        return kept;
    }
    loop {
        let before = kept.0.len();
        let mut piece = before.div_ceil(2);
        while piece > 0 {
            let mut at = 0;
            while at < kept.0.len() && runs < RUNS_MAX {
                let mut candidate = kept.clone();
                candidate.0.drain(at..(at + piece).min(kept.0.len()));
                runs += 1;
                match fails(&candidate) {
                    Some(used) => {
                        candidate.0.truncate(used);
                        kept = candidate;
                    }
                    None => at += piece,
                }
            }
            piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
        }
        if kept.0.len() == before || runs >= RUNS_MAX {
            return kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_back() {
        for list in [vec![], vec![3], vec![0, 1, 2], vec![0, 2, 3, 9, 11, 12, 13]] {
            let kept = Kept(list);
            assert_eq!(kept.to_string().parse(), Ok(kept));
        }
        assert_eq!(Kept(vec![0, 2, 3, 4]).to_string(), "0,2-4");
        for wrong in ["x", "3-1", "4,2", "1-", "1,1"] {
            wrong.parse::<Kept>().unwrap_err();
        }
    }

    #[test]
    fn what_is_needed_is_what_is_left() {
        let needed = [5usize, 40, 41, 77];
        let mut runs = 0;
        let shortest = shrink(&Kept::all(500), |kept| {
            runs += 1;
            let last = kept.0.iter().position(|at| *at == 77)?;
            needed.iter().all(|n| kept.0.contains(n)).then_some(last + 1)
        });
        assert_eq!(shortest.0, needed);
        assert!(runs < 300, "{runs}");
    }

    #[test]
    fn what_does_not_fail_is_not_shrunk() {
        assert_eq!(shrink(&Kept::all(9), |_| None), Kept::all(9));
    }
}
