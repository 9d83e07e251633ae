//! What the parser refuses, in one line that says what to type instead.
//!
//! Invariants: words that other tools use for a command lead to ours; what is advised can be typed.

use super::{Cli, help, output};
use crate::config::name;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

/// What users of other tools type, what they want by it, and what to type here.
const SYNONYMS: &[(&[&str], &str, &str)] = &[
    (
        &[
            "add", "attach", "create", "device", "init", "make", "map", "mount", "new", "open",
            "serve", "setup", "start",
        ],
        "make a volume",
        "ztier up NAME --size 3G",
    ),
    (
        &[
            "close", "delete", "destroy", "detach", "kill", "remove", "reset", "rm", "stop",
            "teardown", "umount", "unmap", "unmount",
        ],
        "take a volume down",
        "ztier down NAME",
    ),
    (&["ls", "lsblk", "ps", "volumes"], "list volumes", "ztier list"),
    (&["describe", "info", "inspect", "query", "show"], "show a volume", "ztier status NAME"),
    (&["counters", "iostat"], "print the counters of a volume", "ztier stats NAME"),
    (&["monitor", "watch"], "watch all volumes", "ztier top"),
    (&["exporter", "prometheus"], "print metrics", "ztier metrics --once"),
    (&["extend", "grow", "resize"], "make a volume larger", "ztier set NAME size=8G"),
    (
        &["change", "configure", "edit", "limit", "tune"],
        "change a volume",
        "ztier set NAME ram-limit=1G",
    ),
    (&["compact", "recompress"], "compress cold data again", "ztier set NAME recompress=now"),
    (&["flush", "sync", "writeback"], "bring a log to its backing store", "ztier drain NAME"),
    (&["recover", "reload", "resume", "upgrade"], "replace a daemon", "ztier restart NAME"),
    (&["mkswap", "swap"], "use a volume as swap", "ztier swapon NAME"),
    (&["exec"], "run a program with little memory", "ztier run --mem 512M -- PROGRAM"),
    (&["diagnose", "probe"], "see what works on this machine", "ztier doctor"),
    (&["advice", "recommend", "suggest", "why"], "see what would help", "ztier advise"),
    (&["analyze", "predict"], "predict the size of data", "ztier estimate PATH"),
    (&["mkfs", "format"], "make an empty log", "ztier log format DEV --backing DISK"),
    (&["check", "fsck", "scrub", "verify"], "verify a log", "ztier log check DEV"),
    (&["dump"], "list the chunks of a log", "ztier log dump DEV"),
    (
        &["branch", "clone", "copy"],
        "copy a volume in a store",
        "ztier log branch DEV --backing PLACE --to PLACE",
    ),
    (&["manual"], "write the manual pages", "ztier man DIRECTORY"),
    (&["version"], "print the version", "ztier --version"),
];

/// Prints help and version as they are, and errors in one line.
pub(super) fn report(e: &clap::Error) -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let help = help::asked(e, &args);
    if help.is_some() || !e.use_stderr() {
        let _ = help.as_ref().unwrap_or(e).print(); // without a reader there is nothing to report
        return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
    }
    output::remark(&format!("ztier: {}", explain(e, &args)));
    ExitCode::from(2)
}

/// A parser's error of `args` in one line.
fn explain(e: &clap::Error, args: &[OsString]) -> String {
    let rendered = e.render().to_string();
    if let Some(ContextValue::String(word)) = e.get(ContextKind::InvalidSubcommand) {
        return unknown_command(word, &rendered);
    }
    program_too_early(e, args).unwrap_or_else(|| one_line(&rendered))
}

/// About an unknown command: what it is called here, or the nearest known one.
fn unknown_command(word: &str, rendered: &str) -> String {
    let all = Cli::command();
    // Of a command with commands of its own, the usage tells which one was given.
    let mut groups = all.get_subcommands().filter(|c| c.has_subcommands());
    let group = groups.find(|c| rendered.contains(&format!("Usage: ztier {} ", c.get_name())));
    let synonym = SYNONYMS.iter().find(|(words, ..)| group.is_none() && words.contains(&word));
    if let Some((_, purpose, typed)) = synonym {
        return format!("there is no command `{word}`; to {purpose}: `{typed}`");
    }
    let shown = group.unwrap_or(&all).get_subcommands().filter(|c| !c.is_hide_set());
    let known: Vec<&str> = shown.map(clap::Command::get_name).collect();
    format!("unknown command `{word}`; {}", name::suggest(word, &known))
}

/// About a program for `run` that is given without `--` before it: the line as it should be.
fn program_too_early(e: &clap::Error, args: &[OsString]) -> Option<String> {
    let is_run = args.get(1).is_some_and(|word| word == "run");
    if !is_run || args.iter().any(|word| word == "--") {
        return None;
    }
    let word = match (e.kind(), e.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => word.as_str(),
        (ErrorKind::MissingRequiredArgument, _) => "-",
        _ => return None,
    };
    if word.starts_with('-') {
        let said = one_line(&e.render().to_string());
        let said = said.split("; to pass ").next().unwrap_or_default();
        return Some(format!("{said}; the program comes after `--`"));
    }
    let places = (2..args.len()).filter(|at| args[*at] == *word);
    let (mut fixed, kind) = places.into_iter().find_map(|at| {
        let mut fixed = args.to_vec();
        fixed.insert(at, "--".into());
        let kind = Cli::try_parse_from(&fixed).err().map(|e| e.kind());
        matches!(kind, None | Some(ErrorKind::MissingRequiredArgument)).then_some((fixed, kind))
    })?;
    if kind.is_some() {
        fixed.splice(2..2, ["--mem".into(), "512M".into()]);
    }
    let line: Vec<String> = fixed[1..].iter().map(|word| quoted(word)).collect();
    Some(format!("the program `{word}` needs `--` before it: `ztier {}`", line.join(" ")))
}

/// A word as a shell takes it.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The parser's error without its heading and usage, with its tips after semicolons.
fn one_line(rendered: &str) -> String {
    let lines = rendered.lines().take_while(|line| !line.starts_with("Usage:"));
    let mut text = String::new();
    for line in lines.map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("For more")) {
        let line = line.strip_prefix("error: ").unwrap_or(line);
        match line.strip_prefix("tip: ") {
            Some(tip) => text = format!("{text}; {tip}"),
            None if text.is_empty() => line.clone_into(&mut text),
            None => text = format!("{text} {line}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(args: &[&str]) -> String {
        match Cli::try_parse_from(args) {
            Ok(_) => String::new(),
            Err(e) => explain(&e, &args.iter().map(OsString::from).collect::<Vec<_>>()),
        }
    }

    #[test]
    fn parse_errors_are_one_line() {
        assert_eq!(error(&["ztier", "lst"]), "unknown command `lst`; did you mean `list`?");
        assert_eq!(error(&["ztier", "dwon", "x"]), "unknown command `dwon`; did you mean `down`?");
        assert!(error(&["ztier", "xyz"]).contains("known are up, down, drain, restart, list"));
        let found = error(&["ztier", "up", "x", "--algorithm", "lz5"]);
        assert!(found.contains("[possible values: lz4, zstd, none]; a similar value"), "{found}");
        let found = error(&["ztier", "up", "x", "--size", "3X"]);
        assert!(found.ends_with("unknown unit `X` in `3X`; use K, M, G or T (powers of 1024)"));
        let found = error(&["ztier", "up", "x", "--spyll", "/dev/sdb"]);
        assert!(found.starts_with("unexpected argument '--spyll' found"), "{found}");
        assert!(!error(&["ztier", "up"]).contains('\n'));
    }

    #[test]
    fn words_of_other_tools_lead_to_the_command() {
        assert_eq!(
            error(&["ztier", "stop", "x"]),
            "there is no command `stop`; to take a volume down: `ztier down NAME`"
        );
        assert!(error(&["ztier", "help", "stop"]).ends_with("`ztier down NAME`"));
        let mut seen = std::collections::BTreeSet::new();
        for (words, _, typed) in SYNONYMS {
            for word in *words {
                assert!(seen.insert(word), "{word} is there twice");
                assert!(error(&["ztier", word]).contains(typed), "{word}");
            }
            if let Err(e) = Cli::try_parse_from(typed.split(' ')) {
                assert_eq!(e.kind(), ErrorKind::DisplayVersion, "{typed}: {e}");
            }
        }
    }

    #[test]
    fn commands_of_a_command_are_told_apart() {
        let found = error(&["ztier", "log", "formt"]);
        assert_eq!(found, "unknown command `formt`; did you mean `format`?");
        let found = error(&["ztier", "log", "stop"]);
        assert!(found.ends_with("known are format, check, dump, branch"), "{found}");
    }

    #[test]
    fn help_takes_a_command() {
        for args in
            [&["ztier", "help"][..], &["ztier", "help", "up"], &["ztier", "help", "log", "dump"]]
        {
            let kind = Cli::try_parse_from(args).err().map(|e| e.kind());
            assert_eq!(kind, Some(ErrorKind::DisplayHelp), "{args:?}");
        }
    }

    #[test]
    fn a_program_without_dashes_is_shown_with_them() {
        let line = |args: &str| {
            let args: Vec<&str> = ["ztier", "run"].into_iter().chain(args.split(' ')).collect();
            error(&args)
        };
        assert_eq!(
            line("--mem 1G make -j4"),
            "the program `make` needs `--` before it: `ztier run --mem 1G -- make -j4`"
        );
        assert!(line("make").ends_with("`ztier run --mem 512M -- make`"), "{}", line("make"));
        let found = line("--name make --mem 1G make a;b");
        assert!(found.ends_with("`ztier run --name make --mem 1G -- make 'a;b'`"), "{found}");
        let found = line("--swap 1G make -j4");
        assert!(found.ends_with("'--swap-size'; the program comes after `--`"), "{found}");
        let found = line("--mem 1G");
        assert!(found.ends_with("<PROGRAM>...; the program comes after `--`"), "{found}");
        assert!(!line("--mem 1G --swap 1G -- make").contains("comes after"));
    }
}
