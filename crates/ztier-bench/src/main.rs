//! Workloads, rivals and reports: one table a source document.
//!
//! The modules stand in the order in which a run passes them: the command line, all tables in one
//! go, the workloads that measure, what they measure, models of drives that are not there, the data
//! they write, the report of a table, and that of all of them. `sys` is what they all need.

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
