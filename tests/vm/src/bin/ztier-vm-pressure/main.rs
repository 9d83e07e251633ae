//! Swap under pressure: a load of twice the memory there is, with an unrelated process
//! beside it, and what the kernel says meanwhile.
//!
//! Runs where the pressure is: in a virtual machine, or below `ztier run` on this one.

mod kernel;
mod load;
mod probe;
mod stress;
mod table;
mod work;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use ztier::error::Result;

#[derive(Parser)]
#[command(name = "ztier-vm-pressure", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes a volume swap, puts it under pressure for a while, and says how it went.
    Stress(stress::Stress),
    /// The load of that: stress-ng and one of our own.
    Work(work::Work),
    /// Fills memory, and compares all of it again and again.
    Load(load::Load),
    /// Uses a little memory and a file, and says how long that took at most.
    Probe {
        /// The file, which is made.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Stress(stress) => stress.run(),
        Command::Work(work) => named("work", || work.run()),
        Command::Load(load) => named("load", || load.run()),
        Command::Probe { file } => named("probe", || probe::run(&file)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ztier-vm-pressure: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// Does something under a name of its own, by which the kernel's log tells the processes apart.
fn named(name: &str, what: impl FnOnce() -> Result<()>) -> Result<()> {
    // Without it the log is hard to read, and what is looked for there is not found.
    std::fs::write("/proc/self/comm", name)
        .map_err(|e| ztier::error::Error::failure(format!("cannot take a name: {e}")))?;
    what()
}

/// Prints a line at once, also into a pipe.
fn say(line: &str) {
    // A reader that is gone needs no line.
    let _ = writeln!(std::io::stdout(), "{line}");
}
