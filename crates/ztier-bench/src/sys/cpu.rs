//! Wall and CPU time of some work.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Duration and cost of some work.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Wall time.
    pub wall: Duration,
    /// User and system time of the working thread, in percent of one CPU (as `iozone -+u`).
    pub own_percent: f64,
    /// Time in which the machine's CPUs were not idle, in percent of one CPU: including daemons,
    /// kernel threads and all other work.
    pub machine_percent: f64,
    /// The part of it in the kernel, interrupts included.
    pub kernel_percent: f64,
}

/// A running stopwatch.
pub struct Stopwatch {
    wall: Instant,
    own: Duration,
    machine: Busy,
}

impl Stopwatch {
    /// Starts now, on this thread.
    pub fn start() -> Self {
        Self { machine: Busy::now(), own: thread_time(), wall: Instant::now() }
    }

    /// The time spent since the start; call on the same thread.
    pub fn stop(&self) -> Spent {
        let wall = self.wall.elapsed();
        let own = thread_time().saturating_sub(self.own);
        let now = Busy::now();
        let percent = |busy: Duration| 100.0 * busy.as_secs_f64() / wall.as_secs_f64().max(1e-9);
        Spent {
            wall,
            own_percent: percent(own),
            machine_percent: percent(now.all.saturating_sub(self.machine.all)),
            kernel_percent: percent(now.kernel.saturating_sub(self.machine.kernel)),
        }
    }
}

/// User and system time of this process so far.
pub fn process() -> Duration {
    time(ClockId::ProcessCPUTime)
}

fn thread_time() -> Duration {
    time(ClockId::ThreadCPUTime)
}

fn time(clock: ClockId) -> Duration {
    let t = clock_gettime(clock);
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Busy time of all CPUs since boot, from `/proc/stat` (usually in clock ticks of 10 ms).
#[derive(Clone, Copy)]
struct Busy {
    all: Duration,
    /// In the kernel.
    kernel: Duration,
}

impl Busy {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let [user, kernel] = stat.lines().next().map_or([0, 0], busy_ticks);
        let second = rustix::param::clock_ticks_per_second() as f64;
        let [all, kernel] =
            [user + kernel, kernel].map(|ticks| Duration::from_secs_f64(ticks as f64 / second));
        Self { all, kernel }
    }
}

/// user + nice, and system + irq + softirq; idle, iowait and time stolen by other guests do not
/// count.
fn busy_ticks(line: &str) -> [u64; 2] {
    let fields: Vec<u64> =
        line.split_whitespace().skip(1).map(|f| f.parse().unwrap_or(0)).collect();
    let sum = |which: &[usize]| which.iter().filter_map(|&i| fields.get(i)).sum();
    [sum(&[0, 1]), sum(&[2, 5, 6])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_does_not_count_as_busy() {
        assert_eq!(busy_ticks("cpu  10 2 30 4000 500 6 7 80 0 0"), [12, 43]);
        assert_eq!(busy_ticks(""), [0, 0]);
    }

    #[test]
    fn work_costs_and_sleep_does_not() {
        let watch = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(60));
        assert!(watch.stop().own_percent < 50.0);
        let works = || {
            let watch = Stopwatch::start();
            let mut x = 1u64;
            while watch.wall.elapsed() < Duration::from_millis(60) {
                x = std::hint::black_box(x.wrapping_mul(31));
            }
            watch.stop().own_percent > 5.0
        };
        // Other work on the machine may spoil some attempts.
        assert!((0..8).any(|_| works()));
    }
}
