//! Files that are written, read, cut and replaced in random ways, by all ways into a file, and
//! compared with what they must have: below them is a volume, and memory is short.
//!
//! In the manner of fsx (`ltp/fsx.c` of xfstests); that one has no direct I/O beside other ways.

mod content;
mod exercise;
mod mapping;

use clap::Parser;
use exercise::{Counts, Exercise};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use ztier::error::{Error, Result};

#[derive(Parser)]
#[command(name = "ztier-vm-files", version)]
struct Cli {
    /// Where the files are made.
    directory: PathBuf,
    /// How many files, each used by a thread of its own.
    #[arg(long, value_name = "N", default_value_t = 3)]
    files: u16,
    /// Most MiB of a file.
    #[arg(long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    mib: u32,
    /// After how many seconds it ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Decides what is done; a random one by default.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl Cli {
    /// Exercises all files until the time is over, then compares all of each.
    fn run(&self, seed: u64) -> Result<Counts> {
        let end = Instant::now() + Duration::from_secs(self.seconds);
        let exercise = |number: u16| {
            let path = self.directory.join(format!("file{number}"));
            let mut exercise = Exercise::begin(&path, number, self.mib, seed)?;
            while Instant::now() < end {
                exercise.step()?;
            }
            exercise.finish()
        };
        thread::scope(|scope| {
            let all = (1..=self.files).map(|number| scope.spawn(move || exercise(number)));
            let all = all.collect::<Vec<_>>().into_iter();
            all.map(|one| one.join().unwrap_or_else(|_| Err(Error::failure("a thread panicked"))))
                .try_fold(Counts::default(), |sum, one| Ok(sum.plus(one?)))
        })
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let seed = cli.seed.unwrap_or_else(|| fastrand::u64(..));
    match cli.run(seed) {
        Ok(counts) => {
            // If the reader is gone, the line is not needed.
            let _ = writeln!(std::io::stdout(), "{counts}; seed {seed}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ztier-vm-files: {error}; seed {seed}");
            ExitCode::from(error.exit_status())
        }
    }
}
