//! A deterministic simulator for the write log: power cuts, failing and lying drives.
//!
//! The modules are in the order of a run: the command line, the cases of a command and the program
//! of a case, the world in which it runs, the oracle that judges, and the drives below. A failure
//! prints the one line that replays it.

use std::process::ExitCode;

mod chain;
mod cli;
mod hunts;

mod runner;

mod case;
mod exhaustive;
mod lies;
mod program;
mod recorded;
mod shrink;

mod actors;
mod admission;
mod death;
mod growth;
mod outage;
mod volume;
mod world;
mod writers;

mod content;
mod history;
mod oracle;

mod atomic;
mod cut;
mod drive;
mod fault;
mod image;

mod rng;
mod trouble;

fn main() -> ExitCode {
    cli::main()
}
