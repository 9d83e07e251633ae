//! `ztier completions`: a shell's completions from the same definitions as the parser, with the
//! names of volumes where a command takes one.
//!
//! Invariant: what is hidden from the help is not completed.

use super::{Cli, output};
use crate::error::Result;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use std::fmt::Write;

/// Print completions for a shell
#[derive(Args)]
#[command(hide = true)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        output::print(&script(self.shell))
    }
}

/// The functions that zsh calls for names.
const OF_ZSH: &str = r#"
(( $+functions[_ztier_names] )) ||
_ztier_names() {
    compadd -- ${(f)"$(ztier names 2>/dev/null)"}
}
(( $+functions[_ztier_saved] )) ||
_ztier_saved() {
    compadd -- ${(f)"$(ztier names --saved 2>/dev/null)"}
}
"#;

fn script(shell: Shell) -> String {
    let mut command = shown();
    let named: Vec<String> = names_volumes(&command).map(|c| c.get_name().to_owned()).collect();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "ztier", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => for_bash(&script, &named),
        Shell::Zsh => for_zsh(&script, &named),
        Shell::Fish => for_fish(script, &named),
        _ => script,
    }
}

/// The command line without what is hidden.
fn shown() -> Command {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|c| !c.is_hide_set()).cloned();
    Command::new("ztier").version(env!("CARGO_PKG_VERSION")).subcommands(shown)
}

/// The commands whose first argument is a volume.
fn names_volumes(all: &Command) -> impl Iterator<Item = &Command> {
    all.get_subcommands().filter(|c| c.get_positionals().any(|arg| arg.get_id() == "name"))
}

/// What prints the names that `command` can take, after the program.
fn asked(command: &str) -> &'static str {
    if command == "up" { "names --saved" } else { "names" }
}

/// Adds the names to the words of each of the commands `named`.
fn for_bash(script: &str, named: &[String]) -> String {
    let mut out = String::new();
    let mut inside: Option<&String> = None;
    for line in script.lines() {
        let label = line.trim().strip_prefix("ztier__subcmd__").and_then(|l| l.strip_suffix(')'));
        if let Some(label) = label {
            inside = named.iter().find(|name| name.replace('-', "__subcmd__") == label);
        }
        match (inside, line.trim().strip_prefix("opts=\"").and_then(|l| l.strip_suffix('"'))) {
            (Some(name), Some(words)) => {
                let asked = asked(name);
                let _ = writeln!(out, "opts=\"{words} $(\"$1\" {asked} 2>/dev/null)\"");
            }
            _ => out = out + line + "\n",
        }
    }
    out
}

/// Has the argument `name` of each of the commands `named` completed by one of our functions.
fn for_zsh(script: &str, named: &[String]) -> String {
    let mut out = String::new();
    let mut inside: Option<&String> = None;
    for line in script.lines() {
        if let Some(label) = line.trim().strip_prefix('(').and_then(|l| l.strip_suffix(')')) {
            inside = named.iter().find(|name| **name == label);
        }
        let marks = ["':name -- ", "'::name -- ", "'*::name -- "];
        let is_name = marks.iter().any(|mark| line.starts_with(mark));
        match (inside, is_name) {
            (Some(name), true) => {
                let function = if name == "up" { "_ztier_saved" } else { "_ztier_names" };
                out += &line.replace(":_default'", &format!(":{function}'"));
            }
            _ => out += line,
        }
        out.push('\n');
        if line == "#compdef ztier" {
            out += OF_ZSH;
        }
    }
    out
}

fn for_fish(mut script: String, named: &[String]) -> String {
    for name in named {
        let (asked, when) = (asked(name), format!("__fish_ztier_using_subcommand {name}"));
        let _ = writeln!(
            script,
            "complete -c ztier -n \"{when}\" -f -a \"(ztier {asked} 2>/dev/null)\""
        );
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_with_a_name_completes_it() {
        let all = shown();
        let named: Vec<&str> = names_volumes(&all).map(Command::get_name).collect();
        assert!(["up", "down", "status", "accept-loss"].iter().all(|name| named.contains(name)));
        let signs = [
            (Shell::Bash, "$(\"$1\" names 2>", "$(\"$1\" names --saved 2>"),
            (Shell::Zsh, ":_ztier_names'", ":_ztier_saved'"),
            (Shell::Fish, "(ztier names 2>", "(ztier names --saved 2>"),
        ];
        for (shell, up, saved) in signs {
            let script = script(shell);
            let number = |sign: &str| script.matches(sign).count();
            assert_eq!((number(up), number(saved)), (named.len() - 1, 1), "{shell}: {script}");
            for hidden in ["keeper", "udev", "ballast"] {
                assert!(!script.contains(&format!(",{hidden})")), "{shell}: {hidden}");
            }
        }
    }
}
