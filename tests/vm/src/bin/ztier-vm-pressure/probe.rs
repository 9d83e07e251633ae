//! A process unrelated to the load: it allocates a little memory, writes and reads a little of a
//! file, again and again, and records the longest times.

use crate::say;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// Pause between two rounds.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Bytes allocated in each round: more than allocators keep for reuse.
const MEMORY: usize = 1 << 20;
const BLOCK: usize = 4096;
/// Blocks of the file.
const BLOCKS: u64 = 64;

/// Runs until standard input ends. Prints each new maximum as `memory MS` or `file MS`, and at the
/// end `rounds N`.
///
/// # Errors
/// The file can't be written, or does not read as written.
pub fn run(file: &Path) -> Result<()> {
    let what = || format!("cannot use {}", file.display());
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(file);
    let open = open.context(what())?;
    let input = std::io::stdin();
    let mut longest = [Duration::ZERO; 2];
    let mut note = |kind: usize, took: Duration| {
        if took > longest[kind] {
            longest[kind] = took;
            say(&format!("{} {}", ["memory", "file"][kind], took.as_millis()));
        }
    };
    for round in 0u64.. {
        let begun = Instant::now();
        // Written, not zeroed: each page is touched.
        let memory = std::hint::black_box(vec![round as u8 | 1; MEMORY]);
        drop(memory);
        note(0, begun.elapsed());
        let begun = Instant::now();
        let (offset, block) = ((round % BLOCKS) * BLOCK as u64, [round as u8; BLOCK]);
        open.write_all_at(&block, offset).context(what())?;
        open.sync_data().context(what())?;
        let mut found = [0; BLOCK];
        open.read_exact_at(&mut found, offset).context(what())?;
        if found != block {
            return Err(Error::failure(format!("{}: wrong data at {offset}", file.display())));
        }
        note(1, begun.elapsed());
        // The input never gets data: it becomes readable at its end.
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        if matches!(poll(&mut fds, Some(&PAUSE)), Ok(n) if n > 0) {
            say(&format!("rounds {}", round + 1));
            break;
        }
    }
    Ok(())
}
