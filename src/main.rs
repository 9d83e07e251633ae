//! The `ztier` command: parse, run, exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    ztier::cli::main()
}
