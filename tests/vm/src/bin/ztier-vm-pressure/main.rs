//! Swap under pressure: a load of twice the available memory, an unrelated process beside it, and
//! the kernel's messages meanwhile.
//!
//! Runs where the memory is short: in a virtual machine, or below `ztier run` on this machine.

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

/// Runs `what` under a process name by which the kernel's log tells the processes apart.
fn named(name: &str, what: impl FnOnce() -> Result<()>) -> Result<()> {
    // Without its name the log is hard to read, and the search for the name finds nothing.
    std::fs::write("/proc/self/comm", name)
        .map_err(|e| ztier::error::Error::failure(format!("cannot take a name: {e}")))?;
    what()
}

/// Prints a line without buffering, also into a pipe.
fn say(line: &str) {
    // If the reader is gone, the line is not needed.
    let _ = writeln!(std::io::stdout(), "{line}");
}
