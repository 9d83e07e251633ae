//! The load: a process that scans anonymous memory again and again.
//!
//! Seven eighths of its memory are mapped once and filled. A pass visits each page of them in order
//! (the cyclic part): it compares the page with what the pass before wrote, and writes new content.
//! Then the pass maps the last eighth anew, writes each page, reads each once, and unmaps it (the
//! part that is used once). So a pass dirties everything, and the least recently used page is
//! always the next that is needed.
//!
//! Invariants: a page that differs from its last written content ends the load with an error that
//! names the page. The load makes and locks its other memory (the pool of data) before it enters
//! the group with the limit, so that this memory does not count.

use crate::data::{Kind, Pool};
use crate::sys::interrupt;
use crate::sys::map::AlignedBuf;
use crate::sys::usage::{Usage, own_major_faults, own_schedule};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::error::{Context, Error, Result};
use ztier::stats::Latency;
use ztier::stats::histogram::Histogram;

/// Pages with different ratios: from 1.3:1 to 50:1, this in the mean.
pub const DATA: Kind = Kind::Mix(2.5);
/// Bytes of distinct pages in the pool; each pass rotates the assignment of pages.
const POOL_BYTES: usize = 4 << 20;
/// The divisor of the memory that is used once.
const ONCE: u64 = 8;
/// A touch of a page that takes less had no fault with I/O.
const QUICK: Duration = Duration::from_nanos(500);
/// Pages between checks of the clock and of signals.
const LOOK: u64 = 64;

/// The parameters of a scan.
#[derive(Clone, Debug)]
pub struct Load {
    /// Limit on the mapped memory, in MiB.
    pub mib: u64,
    /// Number of passes.
    pub passes: u32,
    /// Time after which the load stops, wherever it is.
    pub limit: Option<Duration>,
    /// The file for process ids of a control group.
    pub join: Option<PathBuf>,
}

/// The results of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Wall time, from the first filled page to the last unmapped one.
    pub elapsed_s: f64,
    /// CPU time in user mode.
    pub user_s: f64,
    /// CPU time in the kernel.
    pub system_s: f64,
    /// Running time by the scheduler's finer clock; `None` where the kernel does not report it.
    pub running_s: Option<f64>,
    /// Time in which the load was ready without a CPU.
    pub queued_s: Option<f64>,
    /// Faults with I/O.
    pub major_faults: u64,
    /// Faults without I/O.
    pub minor_faults: u64,
    /// What pages took whose touch was a fault with I/O.
    #[serde(default)]
    pub faults: Latency,
    /// Time of the fill.
    pub fill_s: f64,
    /// Times of the finished passes.
    pub passes_s: Vec<f64>,
    /// Whether the load was stopped before the end of its last pass.
    pub cut: bool,
    /// LZ4's ratio of the data, page by page.
    pub ratio: f64,
}

/// The data of a load, as reports describe it.
///
/// # Errors
/// No memory.
pub fn data() -> Result<Pool> {
    Pool::build(DATA, POOL_BYTES, crate::workload::SEED)
}

/// Runs a load; for a separate process.
///
/// # Errors
/// A wrong page; no memory; no such group; the run is interrupted.
pub fn child(load: &Load) -> Result<Outcome> {
    let mut pool = data()?;
    pool.lock()?;
    if let Some(file) = &load.join {
        let id = std::process::id().to_string();
        std::fs::write(file, id).context(format_args!("cannot write {}", file.display()))?;
    }
    let before = (Usage::of(std::process::id())?, own_schedule());
    let begun = Instant::now();
    let mut scan = Scan { pool: &mut pool, begun, limit: load.limit, faults: Faults::new() };
    let mut outcome = Outcome::default();
    outcome.cut = !scan.run(load, &mut outcome)?;
    outcome.faults = scan.faults.took.latency();
    let after = (Usage::of(std::process::id())?, own_schedule());
    let schedule = before.1.zip(after.1);
    Ok(Outcome {
        elapsed_s: begun.elapsed().as_secs_f64(),
        user_s: (after.0.user - before.0.user).as_secs_f64(),
        system_s: (after.0.system - before.0.system).as_secs_f64(),
        running_s: schedule.map(|(b, a)| (a.0 - b.0).as_secs_f64()),
        queued_s: schedule.map(|(b, a)| (a.1 - b.1).as_secs_f64()),
        major_faults: after.0.major_faults - before.0.major_faults,
        minor_faults: after.0.minor_faults - before.0.minor_faults,
        ratio: pool.ratio,
        ..outcome
    })
}

struct Scan<'a> {
    pool: &'a mut Pool,
    begun: Instant,
    limit: Option<Duration>,
    faults: Faults,
}

/// How long faults with I/O take, as the load sees them.
struct Faults {
    seen: u64,
    took: Histogram,
}

impl Faults {
    fn new() -> Self {
        Self { seen: own_major_faults(), took: Histogram::default() }
    }

    /// Touches a page, and notes how long that took if it was a fault with I/O.
    fn touch(&mut self, page: &[u8]) {
        let begun = Instant::now();
        std::hint::black_box(page[0]);
        let took = begun.elapsed();
        if took < QUICK {
            return;
        }
        let now = own_major_faults();
        if now > std::mem::replace(&mut self.seen, now) {
            self.took.record(took);
        }
    }
}

impl Scan<'_> {
    /// Runs the load; returns whether it came to its end. Results so far are in `outcome`.
    fn run(&mut self, load: &Load, outcome: &mut Outcome) -> Result<bool> {
        let bytes = load.mib << 20;
        let once = bytes / ONCE;
        let len = |bytes: u64| usize::try_from(bytes).context("more memory than there can be");
        let mut memory = AlignedBuf::small_pages(len(bytes - once)?)?;
        if !self.go(&mut memory, |page, bytes, pool| write(page, 0, bytes, pool))? {
            return Ok(false);
        }
        let mut ended = self.begun.elapsed();
        outcome.fill_s = ended.as_secs_f64();
        for pass in 1..=load.passes {
            if !self.go(&mut memory, |page, bytes, pool| visit(page, pass, bytes, pool))? {
                return Ok(false);
            }
            // Distinct block numbers, so that no page of one part passes for one of the other.
            let first = (bytes - once) / BLOCK_SIZE as u64;
            let mut memory = AlignedBuf::small_pages(len(once)?)?;
            let filled =
                self.go(&mut memory, |page, bytes, pool| write(first + page, pass, bytes, pool))?;
            let read = |page, bytes: &mut _, pool: &mut _| check(first + page, pass, bytes, pool);
            if !(filled && self.go(&mut memory, read)?) {
                return Ok(false);
            }
            drop(memory);
            let now = self.begun.elapsed();
            outcome.passes_s.push((now - ended).as_secs_f64());
            ended = now;
        }
        Ok(true)
    }

    /// Applies `visit` to each page in order; returns whether there was time for all.
    fn go(
        &mut self,
        memory: &mut [u8],
        mut each: impl FnMut(u64, &mut [u8], &mut Pool) -> Result<()>,
    ) -> Result<bool> {
        for (page, bytes) in (0u64..).zip(memory.chunks_exact_mut(BLOCK_SIZE)) {
            if page.is_multiple_of(LOOK) {
                interrupt::check()?;
                if self.limit.is_some_and(|limit| self.begun.elapsed() >= limit) {
                    return Ok(false);
                }
            }
            self.faults.touch(bytes);
            each(page, bytes, self.pool)?;
        }
        Ok(true)
    }
}

/// A pass over one page: checks that it has the content of the pass before, and writes new content.
fn visit(page: u64, pass: u32, bytes: &mut [u8], pool: &mut Pool) -> Result<()> {
    check(page, pass - 1, bytes, pool)?;
    write(page, pass, bytes, pool)
}

fn write(page: u64, pass: u32, bytes: &mut [u8], pool: &mut Pool) -> Result<()> {
    bytes.copy_from_slice(pool.record(page * BLOCK_SIZE as u64, pass, BLOCK_SIZE));
    Ok(())
}

fn check(page: u64, pass: u32, bytes: &[u8], pool: &mut Pool) -> Result<()> {
    if pool.matches(page * BLOCK_SIZE as u64, pass, bytes) {
        return Ok(());
    }
    let found = crate::data::claim(bytes);
    Err(Error::failure(format!(
        "wrong data: page {page} should hold what pass {pass} wrote, and says it is {found:?}"
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pages(count: usize) -> Vec<u8> {
        vec![0; count * BLOCK_SIZE]
    }

    /// Two passes over a few pages, with `damage` in between.
    fn scanned(damage: impl FnOnce(&mut [u8])) -> Result<bool> {
        let mut pool = data().unwrap();
        let (begun, faults) = (Instant::now(), Faults::new());
        let mut scan = Scan { pool: &mut pool, begun, limit: None, faults };
        let mut memory = pages(200);
        scan.go(&mut memory, |page, bytes, pool| write(page, 0, bytes, pool))?;
        scan.go(&mut memory, |page, bytes, pool| visit(page, 1, bytes, pool))?;
        damage(&mut memory);
        scan.go(&mut memory, |page, bytes, pool| visit(page, 2, bytes, pool))
    }

    #[test]
    fn a_wrong_page_is_found_and_named() {
        assert!(scanned(|_| ()).unwrap());
        let at = 77 * BLOCK_SIZE;
        let found = |what: &str, damage: fn(&mut [u8], usize)| {
            let error = scanned(|memory| damage(memory, at)).unwrap_err().to_string();
            assert!(error.contains("page 77 should hold what pass 1 wrote"), "{what}: {error}");
        };
        found("a flipped bit", |memory, at| memory[at + 4095] ^= 1);
        found("zeros", |memory, at| memory[at..at + BLOCK_SIZE].fill(0));
        found("another page", |memory, at| {
            memory.copy_within(at + BLOCK_SIZE..at + 2 * BLOCK_SIZE, at);
        });
        found("what an earlier pass wrote", |memory, at| {
            write(77, 0, &mut memory[at..at + BLOCK_SIZE], &mut data().unwrap()).unwrap();
        });
    }

    #[test]
    fn a_load_ends_as_told_and_says_what_it_did() {
        let load = Load { mib: 2, passes: 3, limit: None, join: None };
        let outcome = child(&load).unwrap();
        assert_eq!((outcome.passes_s.len(), outcome.cut), (3, false));
        assert!(outcome.elapsed_s >= outcome.fill_s + outcome.passes_s.iter().sum::<f64>());
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);

        let cut = child(&Load { limit: Some(Duration::ZERO), ..load.clone() }).unwrap();
        assert_eq!((cut.passes_s.len(), cut.cut), (0, true));
        let nowhere = Load { join: Some("/nonexistent/cgroup.procs".into()), ..load };
        assert!(child(&nowhere).unwrap_err().to_string().contains("cannot write"));
    }

    #[test]
    fn data_shrinks_two_to_three_times_and_pages_differ() {
        let mut pool = data().unwrap();
        assert!((2.0..3.0).contains(&pool.ratio), "{}", pool.ratio);
        let page = |pool: &mut Pool, page: u64| pool.record(page * 4096, 0, 4096).to_vec();
        assert_ne!(page(&mut pool, 1), page(&mut pool, 2));
        // Also where the pool repeats.
        assert_ne!(page(&mut pool, 1), page(&mut pool, 1 + (POOL_BYTES / 4096) as u64));
    }
}
