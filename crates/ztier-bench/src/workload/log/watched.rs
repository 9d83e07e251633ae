//! A drive that measures its use: busy time, number and size of requests.

use std::sync::Arc;
use std::time::Instant;
use ztier::media::{Drive, DriveError};
use ztier::sync::Mutex;

/// Statistics since the last [`Watched::take`].
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    since: Instant,
    /// Time at which the number of requests in flight last changed.
    changed: Instant,
    now: u32,
    /// Seconds with at least one request in flight.
    busy: f64,
    /// Integral of the requests in flight over time, in seconds.
    weighted: f64,
    /// Number of writes, and their bytes.
    writes: u64,
    bytes: u64,
}

impl Seen {
    fn new(now: u32) -> Self {
        let since = Instant::now();
        Self { since, changed: since, now, busy: 0.0, weighted: 0.0, writes: 0, bytes: 0 }
    }

    fn pass(&mut self) {
        let now = Instant::now();
        let time = now.duration_since(self.changed).as_secs_f64();
        if self.now > 0 {
            self.busy += time;
            self.weighted += time * f64::from(self.now);
        }
        self.changed = now;
    }

    /// Percent of the time with a request in flight.
    pub fn busy_percent(&self) -> f64 {
        100.0 * self.busy / self.changed.duration_since(self.since).as_secs_f64()
    }

    /// Mean number of requests in flight while there was one.
    pub fn depth(&self) -> f64 {
        self.weighted / self.busy
    }

    /// Mean bytes of a write.
    pub fn mean_write(&self) -> f64 {
        self.bytes as f64 / self.writes as f64
    }
}

/// A drive with statistics.
pub struct Watched {
    drive: Arc<dyn Drive>,
    seen: Mutex<Seen>,
}

impl Watched {
    /// Watches `drive` from now on.
    pub fn new(drive: Arc<dyn Drive>) -> Self {
        Self { drive, seen: Mutex::new(Seen::new(0)) }
    }

    /// Returns the statistics, and restarts them.
    pub fn take(&self) -> Seen {
        let mut seen = self.seen.lock();
        seen.pass();
        let now = seen.now;
        std::mem::replace(&mut seen, Seen::new(now))
    }

    fn during<T>(&self, wrote: Option<usize>, work: impl FnOnce() -> T) -> T {
        {
            let mut seen = self.seen.lock();
            seen.pass();
            seen.now += 1;
        }
        let result = work();
        let mut seen = self.seen.lock();
        seen.pass();
        seen.now -= 1;
        if let Some(bytes) = wrote {
            seen.writes += 1;
            seen.bytes += bytes as u64;
        }
        result
    }
}

impl Drive for Watched {
    fn size(&self) -> u64 {
        self.drive.size()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.during(None, || self.drive.read(at, buf))
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.during(Some(data.len()), || self.drive.write(at, data))
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.during(None, || self.drive.zero(at, len))
    }

    fn zeroes_quickly(&self) -> bool {
        self.drive.zeroes_quickly()
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.during(None, || self.drive.flush())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::{Kind, ModelDrive, Name};
    use std::time::Duration;

    #[test]
    fn use_is_what_was_asked_for() {
        let name = Name { kind: Kind::SsdNull, size: 1 << 20 };
        let drive = Watched::new(Arc::new(ModelDrive::virtual_time(name)));
        drive.write(0, &[1; 4096]).unwrap();
        drive.write(4096, &[1; 12288]).unwrap();
        drive.flush().unwrap();
        let seen = drive.take();
        assert!((seen.mean_write() - 8192.0).abs() < 1e-9 && seen.busy_percent() <= 100.0);
        // Two at a time, 30 ms each.
        let both = std::sync::Barrier::new(2);
        let asleep = || {
            // Neither request begins or ends without the other.
            both.wait();
            std::thread::sleep(Duration::from_millis(30));
            both.wait();
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| drive.during(None, asleep));
            }
        });
        let seen = drive.take();
        assert!(seen.busy > 0.03 && seen.depth() > 1.0 && seen.depth() <= 2.0, "{seen:?}");
    }
}
