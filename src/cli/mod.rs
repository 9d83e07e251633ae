//! The command line: each command parses its flags, does one thing, and prints the result.
//!
//! Invariants: results go to standard output, errors and remarks to standard error; an error is one
//! line; the exit status is 0 or that of [`crate::error::Status`].

mod accept_loss;
mod adapting;
mod adopt;
mod advise;
mod all;
mod check;
mod completions;
mod disable;
mod doctor;
mod down;
mod drain;
mod ensure;
mod estimate;
mod events;
mod files;
mod forget;
mod generator;
mod help;
mod list;
mod local_time;
mod log;
mod manual;
mod metrics;
mod names;
mod output;
mod pages;
mod parse_error;
mod progress_line;
mod restart;
mod run;
mod sampler;
mod service;
mod set;
mod stats;
mod status;
mod swap;
mod take_over;
mod top;
mod trial;
mod udev;
mod up;
mod version;

use crate::config::{Paths, name};
use crate::control::Client;
use crate::daemon::survey::{Seen, Survey};
use crate::daemon::{self, Found, ballast, freed_slots, hook};
use crate::error::{Error, Result};
use crate::remedy;
use crate::stats::drives::Role;
use crate::stats::{About, Health, Trouble, time};
use crate::system::helper;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long a daemon may take to answer a question.
const PATIENCE: Duration = Duration::from_secs(10);

/// Block devices in user space: compressed RAM disks, swap, read caches and durable write logs
#[derive(Parser)]
#[command(name = "ztier", version, long_version = version::long(), arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(Box<up::Up>),
    Down(down::Down),
    Drain(drain::Drain),
    Restart(restart::Restart),
    List(list::List),
    Status(status::Status),
    Stats(stats::Stats),
    Top(top::Top),
    Events(events::Events),
    Metrics(metrics::Metrics),
    Set(set::Set),
    Adopt(adopt::Adopt),
    Disable(disable::Disable),
    Forget(forget::Forget),
    Swapon(swap::On),
    Swapoff(swap::Off),
    AcceptLoss(accept_loss::AcceptLoss),
    Run(Box<run::Run>),
    /// Make a log, or look at one that no volume uses
    #[command(subcommand)]
    Log(log::Log),
    Doctor(doctor::Doctor),
    Advise(advise::Advise),
    Estimate(estimate::Estimate),
    Man(pages::Man),
    Completions(completions::Completions),
    Names(names::Names),
    Udev(udev::Udev),
    Generator(generator::Generator),
    /// The daemon of one volume; started by `up`.
    #[command(hide = true)]
    Daemon {
        /// The volume.
        name: String,
        /// Goes on in the foreground with what the state file says.
        #[arg(long)]
        again: bool,
    },
    /// Works on the device of a volume; started by its daemon.
    #[command(hide = true)]
    Helper {
        /// What to do, as JSON.
        task: String,
    },
    /// Shows a daemon which swap area is its volume's; started by it.
    #[command(hide = true)]
    Slots {
        /// Name of the volume
        name: String,
    },
    /// Runs a program when swap is nearly full; started by a daemon.
    #[command(hide = true)]
    Hook {
        /// The program.
        program: PathBuf,
    },
    /// Keeps ballast in the swap area of a volume; started by its daemon.
    #[command(hide = true)]
    Ballast {
        /// The volume.
        name: String,
    },
    /// Keeps the memory of one volume; started by its daemon.
    #[command(name = "keeper", hide = true)]
    MemoryHolder {
        /// The volume, for those who look at the process list.
        _name: String,
    },
}

/// Parses the command lines of our own processes without clap: building its parser takes longer
/// than everything else that they do first.
fn internal() -> Option<Command> {
    let args: Vec<_> = std::env::args_os().skip(1).take(3).collect();
    let words: Vec<_> = args.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    match words[..] {
        ["daemon", name] if !name.starts_with('-') => {
            Some(Command::Daemon { name: name.to_owned(), again: false })
        }
        [helper::WORD, task] => Some(Command::Helper { task: task.to_owned() }),
        [freed_slots::WORD, name] if !name.starts_with('-') => {
            Some(Command::Slots { name: name.to_owned() })
        }
        [hook::WORD, program] => Some(Command::Hook { program: program.into() }),
        [ballast::WORD, name] if !name.starts_with('-') => {
            Some(Command::Ballast { name: name.to_owned() })
        }
        ["keeper", name] if !name.starts_with('-') => {
            Some(Command::MemoryHolder { _name: name.to_owned() })
        }
        _ => None,
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if let Err(e) = daemon::outlive_file_limit() {
        output::remark(&format!("ztier: {e}"));
    }
    let command = match internal().map_or_else(|| Cli::try_parse().map(|cli| cli.command), Ok) {
        Ok(command) => command,
        Err(e) => return parse_error::report(&e),
    };
    let done = match command {
        Command::Up(up) => up.run(),
        Command::Down(down) => down.run(),
        Command::Drain(drain) => drain.run(),
        Command::Adopt(adopt) => adopt.run(),
        Command::Disable(disable) => disable.run(),
        Command::Forget(forget) => forget.run(),
        Command::Generator(generator) => generator.run(),
        Command::AcceptLoss(accept) => accept.run(),
        Command::Restart(restart) => restart.run(),
        Command::Log(log) => log.run(),
        Command::List(list) => list.run(),
        Command::Status(status) => status.run(),
        Command::Stats(stats) => stats.run(),
        Command::Top(top) => top.run(),
        Command::Events(events) => events.run(),
        Command::Metrics(metrics) => metrics.run(),
        Command::Set(set) => set.run(),
        Command::Swapon(on) => on.run(),
        Command::Swapoff(off) => off.run(),
        Command::Run(run) => match run.run() {
            Ok(status) => return ExitCode::from(status),
            Err(e) => Err(e),
        },
        Command::Doctor(doctor) => doctor.run(),
        Command::Advise(advise) => advise.run(),
        Command::Estimate(estimate) => estimate.run(),
        Command::Man(man) => man.run(),
        Command::Completions(completions) => completions.run(),
        Command::Names(names) => names.run(),
        Command::Udev(udev) => udev.run(),
        Command::Daemon { name, again: true } => daemon::again_main(&name),
        Command::Daemon { .. } => daemon::detached_main(),
        Command::Helper { task } => helper::main(&task),
        Command::Slots { name } => daemon::freed_slots::main(&name),
        Command::Hook { program } => hook::main(&program),
        Command::Ballast { name } => daemon::ballast::main(&name),
        Command::MemoryHolder { .. } => daemon::memory_holder::main(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            output::remark(&format!("ztier: {e}"));
            ExitCode::from(e.exit_status())
        }
    }
}

/// A client of the daemon of `volume`, which must be up.
fn client(paths: &Paths, volume: &str) -> Result<Client> {
    name::check(volume).map_err(Error::usage)?;
    if !paths.exists()? {
        return Err(unknown(paths, volume));
    }
    match daemon::reach(paths, volume) {
        Found::Up(_) => Ok(Client::new(&paths.volume(volume).control)),
        Found::Dead(_) | Found::Broken(_) => Err(gone(volume)),
        Found::Nothing => Err(unknown(paths, volume)),
    }
}

/// Makes a command that has done its work end with status 6 if its volume has lost data and no user
/// has taken note of that.
///
/// # Errors
/// There is such a loss.
fn sound(volume: &str, loss: Option<&str>) -> Result<()> {
    loss.map_or(Ok(()), |loss| {
        Err(Error::degraded(format!("volume `{volume}`: {loss}")).hint(remedy::LOST.of(volume)))
    })
}

/// What is wrong with a volume, the worst first, as the error of a command that only looks. A
/// filling volume is not wrong.
fn ill(volume: &str, stats: &crate::stats::Stats) -> Option<Error> {
    let mut troubles = stats.troubles(time::now());
    troubles.retain(|trouble| trouble.health > Health::Filling);
    let worst = troubles.first()?;
    let texts: Vec<&str> = troubles.iter().map(|trouble| trouble.text.as_str()).collect();
    let error = Error::degraded(format!("volume `{volume}`: {}", texts.join(", and ")));
    Some(error.hint(remedy_for(volume, worst)))
}

/// What to do about a trouble that is worse than filling.
fn remedy_for(volume: &str, trouble: &Trouble) -> String {
    match trouble.about {
        About::Loss => remedy::LOST.of(volume),
        About::Log if trouble.health == Health::Failed => remedy::LOG_FAILED.of(volume),
        About::Log => remedy::LOG_WORN.of(volume),
        About::Spill | About::Room | About::Swap => remedy::SPILL_FAILS.of(volume),
        About::Store => remedy::STORE_FAILS.of(volume),
        About::Drive(Role::Spill, ..) => remedy::SPILL_FAILS.of(volume),
        About::Drive(..) => remedy::DRIVE_FAILS.of(volume),
    }
}

/// The volumes `names` of a survey, or all; and an error for each that there is not.
fn named<'a>(
    paths: &Paths,
    survey: &'a Survey,
    names: &[String],
) -> (Vec<(&'a String, &'a Seen)>, Vec<Error>) {
    let is_known = |name: &&String| survey.known().iter().any(|(known, _)| known == *name);
    let missing = names.iter().filter(|name| !is_known(name));
    let wanted = |name: &String| names.is_empty() || names.contains(name);
    let known = survey.known().iter().filter(|(name, _)| wanted(name));
    (known.collect(), missing.map(|name| unknown(paths, name)).collect())
}

/// Prints all errors of the volumes but the last, which it returns.
///
/// # Errors
/// The last of `wrong`, if there is one.
fn print_all_but_last(mut wrong: Vec<Error>) -> Result<()> {
    let Some(last) = wrong.pop() else { return Ok(()) };
    for error in wrong {
        output::remark(&format!("ztier: {error}"));
    }
    Err(last)
}

/// The error of a command for a volume whose daemon died.
fn gone(volume: &str) -> Error {
    Error::degraded(format!("the daemon of volume `{volume}` is gone"))
        .hint(remedy::DEAD.of(volume))
}

fn unknown(paths: &Paths, volume: &str) -> Error {
    let names = daemon::names(paths);
    let error = Error::not_found(format!("no volume `{volume}` is up"));
    match name::nearest(volume, names.iter().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None if names.is_empty() => error.hint("none is; `ztier up` makes one"),
        None => error.hint(format!("up are {}", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    /// Every command and flag that advice names exists.
    #[test]
    fn what_remedies_advise_can_be_typed() {
        let all = Cli::command();
        let flags: Vec<String> = all
            .get_subcommands()
            .flat_map(|command| {
                let own = command.get_arguments();
                own.chain(command.get_subcommands().flat_map(clap::Command::get_arguments))
            })
            .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
            .collect();
        for (name, remedy) in remedy::ALL {
            for (i, typed) in remedy.text.split('`').enumerate() {
                if i % 2 == 1 && typed.starts_with("ztier ") {
                    let typed = typed.replace("NAME", "x").replace("DEV", "/dev/x");
                    let parsed = Cli::try_parse_from(typed.split(' '));
                    assert!(parsed.is_ok(), "{name}: `{typed}`: {:?}", parsed.err());
                }
            }
            for word in
                remedy.text.split([' ', '`', ',', ';', ':', ')']).filter(|w| w.starts_with("--"))
            {
                assert!(flags.iter().any(|flag| flag == word), "{name}: there is no {word}");
            }
        }
    }

    /// Adds `command`, its flags and all below it to `all`, with all aliases.
    fn typed(command: &clap::Command, path: &str, all: &mut Vec<String>) {
        for arg in command.get_arguments() {
            let longs = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
            let shorts = arg.get_short().map(|short| format!("{path} -{short}"));
            all.extend(longs.map(|long| format!("{path} --{long}")).chain(shorts));
        }
        for sub in command.get_subcommands() {
            for name in std::iter::once(sub.get_name()).chain(sub.get_all_aliases()) {
                let path = format!("{path} {name}");
                all.push(path.clone());
                typed(sub, &path, all);
            }
        }
    }

    /// Scripts for earlier versions work: each version has a list of its commands and flags.
    /// `ZTIER_GOLDEN=write` writes the list of this version once, at its release.
    #[test]
    fn what_could_be_typed_can_be_typed() {
        let mut now = Vec::new();
        typed(&Cli::command(), "ztier", &mut now);
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/upgrade");
        let this = golden.join(env!("CARGO_PKG_VERSION")).join("typed.txt");
        if std::env::var("ZTIER_GOLDEN").as_deref() == Ok("write") && !this.exists() {
            std::fs::write(this, now.join("\n") + "\n").expect("the list is written");
        }
        let versions = std::fs::read_dir(golden).expect("the directory is read");
        for version in versions {
            let path = version.expect("an entry is read").path().join("typed.txt");
            let before = std::fs::read_to_string(&path).expect("the list is read");
            for line in before.lines() {
                assert!(now.iter().any(|l| l == line), "`{line}` of {} is gone", path.display());
            }
        }
    }
}
