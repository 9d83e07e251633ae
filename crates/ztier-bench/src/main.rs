//! Workloads, rivals and reports: one table a source document.
//!
//! The modules are in the order of a run: the command line, the run of all tables, the workloads,
//! the measured systems, models of drives, the data, the report of a table, and that of all tables.
//! All of them use `sys`.

use std::process::ExitCode;

mod cli;
mod data;
mod model;
mod policy;
mod report;
mod rival;
mod suite;
mod summary;
mod sys;
mod vm;
mod workload;

fn main() -> ExitCode {
    cli::main()
}
