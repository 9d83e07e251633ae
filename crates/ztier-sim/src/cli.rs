//! Command line: arguments, progress on stderr, one line of result, and a line to replay.

use crate::case::Case;
use crate::chain;
use crate::hunts;
use crate::recorded::{self, Recorded};
use crate::runner::Summary;
use crate::shrink::Kept;
use crate::trouble::Trouble;
use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;
use std::time::Instant;

/// Simulated power cuts, failing and lying drives, for the durable log.
#[derive(Parser)]
#[command(name = "ztier-sim", version)]
struct Cli {
    /// Threads; by default one a processor.
    #[arg(long, global = true)]
    jobs: Option<usize>,
    /// Plant a bug (builds with `--cfg sim`).
    #[arg(long, global = true)]
    bug: Option<String>,
    /// Append what fails to tests/sim/seeds.txt.
    #[arg(long, global = true)]
    record: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Cut the power at random.
    Cuts(Cuts),
    /// Kill the process at random; the next one takes its memory over.
    Kills {
        /// Seeds.
        #[arg(long, default_value_t = 2000)]
        seeds: u64,
        /// Deaths of each seed, or cuts, nested ones not counted.
        #[arg(long, default_value_t = 50)]
        kills: u32,
        /// First seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
    },
    /// Run one case again, step by step if asked.
    Replay(Replay),
    /// Fail the N-th operation of each drive, for every N.
    Errors {
        /// Only this workload.
        #[arg(long)]
        workload: Option<u32>,
    },
    /// Flip a bit, lose or misdirect a write; it must be noticed.
    Corruption {
        /// Runs.
        #[arg(long, default_value_t = 10_000)]
        runs: u64,
        /// First seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
    },
    /// Cut every short sequence of operations in every way.
    Exhaustive {
        /// Operations at most.
        #[arg(long, default_value_t = 4)]
        length: u32,
    },
    /// Plant each bug; it must be found (builds with `--cfg sim`).
    Bugs {
        /// Cuts in which it must be found.
        #[arg(long, default_value_t = 10_000)]
        cuts: u64,
    },
    /// Take a chain of objects over from other hosts, with lost, late and repeated requests.
    Chain(Chain),
    /// Run some of everything; every mark must be passed (builds with `--cfg sim`).
    Marks,
}

#[derive(Args)]
struct Cuts {
    /// Seeds.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// Cuts of each seed, nested ones not counted.
    #[arg(long, default_value_t = 50)]
    cuts: u32,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
}

#[derive(Args)]
struct Chain {
    /// Runs, each of a seed [default: 50000, and 20000 for each bug].
    #[arg(long)]
    runs: Option<u64>,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Plant each bug; it must be found (builds with `--cfg sim`).
    #[arg(long, conflicts_with = "bug")]
    bugs: bool,
}

#[derive(Args)]
struct Replay {
    /// The case, as a failure has printed it.
    case: String,
    /// Only these steps of it.
    #[arg(long)]
    only: Option<String>,
    /// Say what happens.
    #[arg(long)]
    trace: bool,
    /// Find the steps that are needed.
    #[arg(long)]
    shrink: bool,
}

/// Parses the arguments and runs the command. Exit status 2 for usage, 1 for a failure.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let jobs =
        cli.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    let plant = if matches!(cli.command, Command::Chain(_)) { chain::plant } else { hunts::plant };
    if let Some(bug) = &cli.bug
        && let Err(why) = plant(bug)
    {
        eprintln!("ztier-sim: {why}");
        return ExitCode::from(2);
    }
    let began = Instant::now();
    let result = match &cli.command {
        Command::Replay(replay) => return again(replay),
        Command::Bugs { cuts } => return finish(hunts::bugs(jobs, *cuts), began),
        Command::Chain(options) => {
            return finish(chain_runs(jobs, options, cli.bug.as_deref()), began);
        }
        Command::Marks => return finish(hunts::marks(jobs), began),
        Command::Cuts(Cuts { seeds, cuts, from }) => {
            if let Err(failed) = replay_recorded() {
                return failed;
            }
            hunts::cuts(jobs, *from..*from + *seeds, *cuts)
        }
        Command::Kills { seeds, kills, from } => hunts::kills(jobs, *from..*from + *seeds, *kills),
        Command::Errors { workload } => hunts::errors(jobs, *workload),
        Command::Corruption { runs, from } => hunts::corruption(jobs, *from..*from + *runs),
        Command::Exhaustive { length } => hunts::exhaustive(jobs, *length),
    };
    report(&cli, result, began)
}

fn chain_runs(jobs: usize, options: &Chain, bug: Option<&str>) -> Result<String, String> {
    let Chain { runs, from, bugs } = *options;
    let range = |usual| from..from.saturating_add(runs.unwrap_or(usual));
    if bugs { chain::bugs(jobs, &range(60_000)) } else { chain::hunt(jobs, range(50_000), bug) }
}

fn finish(result: Result<String, String>, began: Instant) -> ExitCode {
    let (word, text, code) = match result {
        Ok(text) => ("ok", text, ExitCode::SUCCESS),
        Err(text) => ("FAILED", text, ExitCode::FAILURE),
    };
    eprintln!("{word}: {text}, {:.1} s", began.elapsed().as_secs_f64());
    code
}

fn report(cli: &Cli, summary: Summary, began: Instant) -> ExitCode {
    let Summary { cases, stats, failure } = summary;
    let Some((case, trouble)) = failure else {
        let seconds = began.elapsed().as_secs_f64();
        eprintln!(
            "ok: {cases} cases, {} cuts, {} kills, {} recoveries, {} writes ({} synced, {} taken \
             over), {} commands, {} reads, {} errors, {} lost blocks, {} lies found at opening, \
             {seconds:.1} s",
            stats.cuts,
            stats.kills,
            stats.recoveries,
            stats.writes,
            stats.synced,
            stats.recommitted,
            stats.commands,
            stats.reads,
            stats.errors,
            stats.lost,
            stats.detected,
        );
        return ExitCode::SUCCESS;
    };
    eprintln!("FAILED: {case}: {trouble}");
    eprintln!("shrinking…");
    let only = case.shrunk(&trouble);
    let recorded = Recorded { case, only };
    say_replay(&recorded, cli.bug.as_deref());
    if cli.record
        && let Err(e) = recorded::add(&recorded, &format!("{:?}", trouble.kind))
    {
        eprintln!("cannot record it: {e}");
    }
    ExitCode::FAILURE
}

/// Prints the line that replays a failure.
fn say_replay(recorded: &Recorded, bug: Option<&str>) {
    let only = recorded.only.as_ref().map(|kept| format!(" --only {kept}")).unwrap_or_default();
    let bug = bug.map(|bug| format!(" --bug {bug}")).unwrap_or_default();
    eprintln!("cargo run --release -p ztier-sim -- replay {}{only}{bug} --trace", recorded.case);
}

fn again(replay: &Replay) -> ExitCode {
    let parsed = replay.case.parse::<Case>().and_then(|case| {
        let only = replay.only.as_ref().map(|list| list.parse::<Kept>()).transpose()?;
        Ok((case, only))
    });
    let (case, only) = match parsed {
        Ok(parsed) => parsed,
        Err(why) => {
            eprintln!("ztier-sim: {why}");
            return ExitCode::from(2);
        }
    };
    match case.run(only.as_ref(), replay.trace) {
        Ok(stats) => {
            eprintln!("ok: {case}: {stats:?}");
            ExitCode::SUCCESS
        }
        Err(trouble) => {
            eprintln!("FAILED: {case}: {trouble}");
            if replay.shrink {
                let only = case.shrunk(&trouble);
                say_replay(&Recorded { case, only }, None);
            }
            ExitCode::FAILURE
        }
    }
}

/// Replays every recorded case.
fn replay_recorded() -> Result<(), ExitCode> {
    let all = recorded::all().map_err(|why| {
        eprintln!("ztier-sim: {why}");
        ExitCode::from(2)
    })?;
    let mut failed = false;
    for recorded in &all {
        if let Err(trouble) = run_recorded(recorded) {
            eprintln!("FAILED again: {}: {trouble}", recorded.case);
            say_replay(recorded, None);
            failed = true;
        }
    }
    eprintln!("{} recorded cases replayed", all.len());
    if failed { Err(ExitCode::FAILURE) } else { Ok(()) }
}

fn run_recorded(recorded: &Recorded) -> Result<(), Trouble> {
    recorded.case.run(recorded.only.as_ref(), false).map(drop)
}
