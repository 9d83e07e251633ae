//! Drives that no test machine has, as models: how long each request takes them.
//!
//! A [`Model`] is a deterministic state machine in virtual time. It holds no clock and never
//! sleeps: it is told when a request arrives, and says when it completes. [`ModelDrive`] puts
//! memory behind one and waits as long as it says; [`job`] runs loads on both.
//!
//! Invariants: the same requests at the same times complete at the same times; no request completes
//! before it arrives; time never runs backwards (an arrival before an earlier one counts as at the
//! same time); a flush completes after everything that completed before it arrived is on the
//! medium.

mod disk;
mod drive;
mod flash;
mod geometry;
mod held;
pub mod job;
mod name;
mod pages;
mod params;
mod wait;

pub use drive::ModelDrive;
pub use held::Held;
pub use name::{Kind, Name};
pub use wait::lateness;

use disk::Disk;
use flash::Flash;

/// A point in time, or a stretch of it, in nanoseconds.
pub type Nanos = u64;

/// Names a request until it has completed.
pub type Ticket = u64;

/// One request; offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `len` bytes from `at` on to the host.
    Read { at: u64, len: u64 },
    /// `len` bytes from `at` on from the host.
    Write { at: u64, len: u64 },
    /// `len` bytes from `at` on made zeros, without data on the link.
    Zero { at: u64, len: u64 },
    /// All that was written made to survive a loss of power.
    Flush,
}

/// A request that will complete, or has, at a known time.
pub type Done = (Ticket, Nanos);

/// A drive's timing.
#[derive(Debug)]
pub enum Model {
    /// A rotating one.
    Disk(Box<Disk>),
    /// An SSD.
    Flash(Box<Flash>),
    /// No cost at all: every request completes as it arrives.
    Null,
}

impl Model {
    /// A new, empty drive whose first `size` bytes are used.
    pub fn new(name: Name) -> Self {
        match name.kind {
            Kind::Hdd7200 => Self::Disk(Box::new(Disk::new(params::HDD_7200))),
            Kind::Ssd840Pro => Self::Flash(Box::new(Flash::new(params::SSD_840PRO, name.size))),
            Kind::SsdNull => Self::Null,
        }
    }

    /// A request arrives at `now`. Whatever is known by then, of this request or others, is added
    /// to `done`; what is not becomes known by [`Model::advance`].
    pub fn submit(&mut self, now: Nanos, ticket: Ticket, request: Request, done: &mut Vec<Done>) {
        match self {
            Self::Disk(disk) => disk.submit(now, ticket, request, done),
            Self::Flash(flash) => done.push((ticket, flash.submit(now, request))),
            Self::Null => done.push((ticket, now)),
        }
    }

    /// Lets time pass up to `now`.
    pub fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        if let Self::Disk(disk) = self {
            disk.advance(now, done);
        }
    }

    /// Until when time must pass for the next decision; `None` if every request is decided.
    pub fn next(&self) -> Option<Nanos> {
        match self {
            Self::Disk(disk) => disk.next(),
            Self::Flash(_) | Self::Null => None,
        }
    }

    /// When a request that arrives at `now`, with none under way, completes.
    pub fn serve(&mut self, now: Nanos, request: Request) -> Nanos {
        let mut done = Vec::new();
        self.submit(now, 0, request, &mut done);
        loop {
            if let Some(&(_, at)) = done.first() {
                return at;
            }
            let Some(next) = self.next() else { return now };
            self.advance(next, &mut done);
        }
    }
}

/// Time for `bytes` at `bytes_per_second`.
fn transfer(bytes: u64, bytes_per_second: u64) -> Nanos {
    // Requests are far below 2^34 bytes, where this would overflow, except for zeroing.
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second)) as Nanos
}
