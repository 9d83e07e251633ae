//! What `-h`, `--help` and `help` print: what the parser knows, and examples of the manual page.
//!
//! Invariants: `-h` has one statement about each flag, `--help` everything. Only a command line
//! that asks for help has this built.

use super::{Cli, manual};
use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory};
use std::ffi::OsString;

/// The help that the words of a command line ask for, which the parser answered with `e`; `None` if
/// they ask for none.
pub(super) fn asked(e: &clap::Error, args: &[OsString]) -> Option<clap::Error> {
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            with_help(Cli::command(), "").try_get_matches_from(args).err()
        }
        _ => None,
    }
}

/// The command of these words, with its own commands.
fn with_help(command: Command, words: &str) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    let command = below.into_iter().fold(command, |command, name| {
        let all = format!("{words} {name}");
        command.mut_subcommand(name, |found| with_help(found, all.trim_start()))
    });
    let Some(examples) = manual::examples(words) else { return command };
    let mut after: Vec<String> =
        command.get_after_help().map(ToString::to_string).into_iter().collect();
    let lines = examples.iter().map(|(purpose, typed)| format!("  {purpose}\n    {typed}"));
    after.push(format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n")));
    command.mut_args(shortened).after_help(after.join("\n\n"))
}

/// The flag with its first statement for `-h`, and everything for `--help`.
fn shortened(arg: Arg) -> Arg {
    let all = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
    match all {
        Some(all) => arg.help(first_statement(&all)).long_help(all),
        None => arg,
    }
}

/// A text up to its first `.`, `;` or `:` before a blank, outside of parentheses, and its default.
/// What it begins with may be a condition (`With --log:`), which says nothing alone.
fn first_statement(text: &str) -> String {
    let (said, rest) = text.split_at(text.find(" [default").unwrap_or(text.len()));
    let default = rest.split_inclusive(']').next().unwrap_or_default();
    let conditions = usize::from(["With ", "As --"].iter().any(|word| said.starts_with(word)));
    let mut open = 0;
    let next = said.chars().skip(1).chain([' ']);
    let ends = said.char_indices().zip(next).filter(|((_, c), next)| {
        open += i32::from(*c == '(') - i32::from(*c == ')');
        ['.', ';', ':'].contains(c) && next.is_whitespace() && open == 0
    });
    let end = ends.map(|((at, _), _)| at).nth(conditions).unwrap_or(said.len());
    format!("{}{default}", &said[..end])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    fn help(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let e = Cli::try_parse_from(&args).err().unwrap();
        asked(&e, &args).unwrap().render().to_string()
    }

    #[test]
    fn each_command_shows_its_examples() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let name = command.get_name();
            for line in [format!("ztier {name} -h"), format!("ztier help {name}")] {
                let text = help(&line);
                let examples = text.split("Examples:\n").nth(1).unwrap_or_default();
                assert!(command.has_subcommands() || examples.contains("ztier "), "{line}: {text}");
            }
        }
        assert!(help("ztier log check -h").contains("Examples:\n"));
        assert!(help("ztier --help").contains("ztier up scratch --size 3G"));
        let args = ["ztier".into(), "list".into(), "--wrong".into()];
        assert!(asked(&Cli::try_parse_from(&args).err().unwrap(), &args).is_none());
    }

    #[test]
    fn the_short_help_is_short() {
        let (short, long) = (help("ztier up -h"), help("ztier up --help"));
        assert!(short.lines().count() <= 132, "{short}");
        assert!(long.lines().count() >= 240, "{long}");
        assert!(long.contains("name them and end"), "{long}");
        assert!(!short.contains("name them and end"), "{short}");
    }

    #[test]
    fn a_statement_ends_before_the_next() {
        for (text, first) in [
            ("Do this. Or that", "Do this"),
            ("Size, like 3G (or 3.5G; more): a number", "Size, like 3G (or 3.5G; more)"),
            ("Write NAME.toml", "Write NAME.toml"),
            ("On or off; no more [default: on]. Or more", "On or off [default: on]"),
            ("With --log: write at once. It is slow", "With --log: write at once"),
        ] {
            assert_eq!(first_statement(text), first);
        }
    }
}
