//! A deterministic simulator for the durable log: power cuts, failing and lying drives.
//!
//! The modules stand in the order in which a run is made: the command line, the many cases of a
//! command and the program of one, the world in which it runs, the oracle that judges, and the
//! drives below. A failure prints the one line that replays it.

use std::process::ExitCode;

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
mod outage;
mod volume;
mod world;
mod writers;

mod content;
mod history;
mod oracle;

mod cut;
mod drive;
mod fault;
mod image;

mod rng;
mod trouble;

fn main() -> ExitCode {
    cli::main()
}
