//! Models of drives that no test machine has: how long each request takes.
//!
//! A [`Model`] is a deterministic state machine in virtual time. It has no clock and never sleeps:
//! its caller reports when a request arrives, and the model returns when it completes.
//! [`ModelDrive`] combines a model with memory and waits accordingly; [`job`] runs loads on both.
//!
//! Invariants: the same requests at the same times complete at the same times; no request completes
//! before it arrives; time never runs backwards (an arrival before an earlier one counts as at the
//! same time); a flush completes after everything that completed before its arrival is on the
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
mod units;
mod used;
mod wait;

pub use drive::ModelDrive;
pub use held::Held;
pub use name::{Kind, Name};
pub use wait::lateness;

use disk::Disk;
use flash::Flash;

/// A point in time or a duration, in nanoseconds.
pub type Nanos = u64;

/// Identifies a request until it has completed.
pub type Ticket = u64;

/// One request; offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Transfers `len` bytes from `at` on to the host.
    Read { at: u64, len: u64 },
    /// Transfers `len` bytes from `at` on from the host.
    Write { at: u64, len: u64 },
    /// Zeroes `len` bytes from `at` on, without data on the link.
    Zero { at: u64, len: u64 },
    /// Makes all earlier writes survive a power cut.
    Flush,
}

/// A request and its known completion time.
pub type Done = (Ticket, Nanos);

/// A drive's timing.
#[derive(Debug)]
pub enum Model {
    /// A rotating disk.
    Disk(Box<Disk>),
    /// An SSD, an eMMC or an SD card.
    Flash(Box<Flash>),
    /// No cost: every request completes as it arrives.
    Null,
}

impl Model {
    /// A new, empty drive whose first `size` bytes are used.
    pub fn new(name: Name) -> Self {
        match name.kind {
            Kind::Hdd7200 => Self::Disk(Box::new(Disk::new(params::HDD_7200))),
            Kind::Ssd840Pro => Self::flash(params::SSD_840PRO, name),
            Kind::Emmc51 => Self::flash(params::EMMC_5_1, name),
            Kind::SdA1 => Self::flash(params::SD_A1, name),
            Kind::SsdNull => Self::Null,
        }
    }

    fn flash(p: params::FlashParams, name: Name) -> Self {
        Self::Flash(Box::new(Flash::new(p, name.size)))
    }

    /// A request arrives at `now`. All completion times known by then, of this request or others,
    /// are added to `done`; [`Model::advance`] decides the others.
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

    /// Time of the next decision; `None` if every request is decided.
    pub fn next(&self) -> Option<Nanos> {
        match self {
            Self::Disk(disk) => disk.next(),
            Self::Flash(_) | Self::Null => None,
        }
    }

    /// Completion time of a request that arrives at `now`, with none in flight.
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
