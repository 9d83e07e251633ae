//! What people type: each command parses its flags, does one thing, and prints the result.

use std::process::ExitCode;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
