//! Every volume, in an order in which each can come up or go down.
//!
//! Invariant: a volume may be the drive of another one; what fails is tried again after another
//! volume has come up or gone down, and no more often.

use super::print_all_but_last;
use crate::config::{Paths, Settings};
use crate::error::{Error, Result};

/// Calls `act` for each volume; those where it failed are tried again while others succeed.
///
/// # Errors
/// The last volume's error; those of others are printed.
pub(super) fn each(mut names: Vec<String>, act: impl Fn(&str) -> Result<()>) -> Result<()> {
    let mut wrong = Vec::new();
    loop {
        let before = names.len();
        wrong.clear();
        names.retain(|name| match act(name) {
            Ok(()) => false,
            Err(e) => {
                wrong.push(e);
                true
            }
        });
        if wrong.is_empty() || names.len() == before {
            return print_all_but_last(wrong);
        }
    }
}

/// The volumes that come up with the machine, and an error for each file that can't be used.
pub(super) fn at_boot(paths: &Paths) -> (Vec<String>, Vec<Error>) {
    let (mut names, mut wrong) = (Vec::new(), Vec::new());
    for name in Paths::names_in(&paths.config, &["toml"]) {
        match Settings::load(&paths.settings(&name)) {
            Ok(Some(settings)) if settings.boot.unwrap_or(true) => names.push(name),
            Ok(_) => {}
            Err(e) => wrong.push(e),
        }
    }
    (names, wrong)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_depends_on_another_is_tried_again_and_what_never_works_is_not_tried_for_ever() {
        let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let done = RefCell::new(Vec::new());
        let tried = RefCell::new(0);
        // `a` needs `b`, which needs `c`; `d` never works.
        let act = |name: &str| {
            *tried.borrow_mut() += 1;
            let needs = match name {
                "a" => "b",
                "b" => "c",
                "d" => "x",
                _ => "",
            };
            if needs.is_empty() || done.borrow().iter().any(|one| one == needs) {
                done.borrow_mut().push(name.to_owned());
                return Ok(());
            }
            Err(Error::failure(format!("{name} needs {needs}")))
        };
        let error = each(names, act).unwrap_err();
        assert_eq!(error.to_string(), "d needs x");
        assert_eq!(*done.borrow(), ["c", "b", "a"]);
        assert_eq!(*tried.borrow(), 4 + 3 + 2 + 1);
    }
}
