//! Read coalescing: one read of the log's drive gets payloads that are neighbours there.
//!
//! Invariants: the buffer holds only what the drive had after its readers were pinned, so it is
//! cleared before other payloads are located. A payload that cannot be read fails no other payload.

use crate::log::core::{Found, Reading};
use crate::media::{ALIGN, Buffer, Drive, DriveError};
use std::ops::Range;

/// Most bytes of a read, unless one payload alone takes more.
const MOST: usize = 64 << 10;
/// Most bytes between two payloads that count as neighbours.
pub(super) const GAP: u64 = 4 << 10;

/// A buffer for reads of a log's drive.
pub(super) struct ReadCoalescer {
    buffer: Buffer,
    /// The byte range of the drive that is in the buffer.
    held: Range<u64>,
}

impl ReadCoalescer {
    /// A buffer for one payload of `largest` bytes, and for at least [`MOST`] bytes.
    pub(super) fn new(largest: usize) -> Self {
        let one = largest.next_multiple_of(ALIGN) + ALIGN;
        Self { buffer: Buffer::new(one.max(MOST)), held: 0..0 }
    }

    /// Empties the buffer.
    pub(super) fn clear(&mut self) {
        self.held = 0..0;
    }

    /// The bytes of the payload of `reading`. If it must be read, the read includes its neighbours
    /// among `later`, which are pinned as well.
    ///
    /// # Errors
    /// The drive fails where this payload is.
    pub(super) fn payload(
        &mut self,
        drive: &dyn Drive,
        reading: &Reading,
        later: &[Found],
    ) -> Result<&[u8], DriveError> {
        let own = aligned(reading);
        if own.start < self.held.start || own.end > self.held.end {
            self.clear();
            let end = self.reach(&own, later);
            let whole = &mut self.buffer[..(end - own.start) as usize];
            self.held = match drive.read(own.start, whole) {
                Ok(()) => own.start..end,
                Err(e) if end == own.end => return Err(e),
                Err(_) => {
                    drive.read(own.start, &mut whole[..(own.end - own.start) as usize])?;
                    own
                }
            };
        }
        let from = (reading.at - self.held.start) as usize;
        Ok(&self.buffer[from..from + reading.len as usize])
    }

    /// The end of the read: that of `own`, or of its last neighbour that fits into the buffer.
    fn reach(&self, own: &Range<u64>, later: &[Found]) -> u64 {
        let most = own.start + self.buffer.len() as u64;
        let mut end = own.end;
        for found in later {
            let Found::Log(reading) = found else { continue };
            let next = aligned(reading);
            if next.start < own.start || next.start > end + GAP || next.end > most {
                break;
            }
            end = end.max(next.end);
        }
        end
    }
}

/// The aligned byte range that covers a payload.
pub(super) fn aligned(reading: &Reading) -> Range<u64> {
    let end = reading.at + u64::from(reading.len);
    reading.at / ALIGN as u64 * ALIGN as u64..end.next_multiple_of(ALIGN as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::log::disk::format::{Kind, Seed};
    use crate::media::Action;
    use parking_lot::Mutex;

    /// A drive whose bytes follow from their offsets. It notes reads, and fails at offset `bad`.
    struct Noting {
        reads: Mutex<Vec<Range<u64>>>,
        bad: u64,
    }

    impl Drive for Noting {
        fn size(&self) -> u64 {
            1 << 20
        }

        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
            let (len, all) = (buf.len() as u64, at..at + buf.len() as u64);
            self.reads.lock().push(all.clone());
            if all.contains(&self.bad) {
                return Err(DriveError { action: Action::Read, at, len, errno: 5 });
            }
            buf.iter_mut().zip(all).for_each(|(byte, at)| *byte = (at % 251) as u8);
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), DriveError> {
            unreachable!("it is only read")
        }

        fn zero(&self, _: u64, _: u64) -> Result<(), DriveError> {
            unreachable!("it is only read")
        }

        fn flush(&self) -> Result<(), DriveError> {
            unreachable!("it is only read")
        }
    }

    fn noting(bad: u64) -> Noting {
        Noting { reads: Mutex::new(Vec::new()), bad }
    }

    fn found(at: u64, len: u32) -> Found {
        let seed = Seed { epoch: 1, segment: 0, offset: at as u32, block: 0 };
        Found::Log(Reading { at, len, kind: Kind::Raw, check: 0, seed })
    }

    /// Reads all payloads in order; whether each could be read.
    fn get(coalescer: &mut ReadCoalescer, drive: &Noting, all: &[Found]) -> Vec<bool> {
        let each = all.iter().enumerate().filter_map(|(i, found)| {
            let Found::Log(reading) = found else { return None };
            let Ok(bytes) = coalescer.payload(drive, reading, &all[i + 1..]) else {
                return Some(false);
            };
            let numbers = reading.at..reading.at + u64::from(reading.len);
            assert!(bytes.iter().copied().eq(numbers.map(|at| (at % 251) as u8)), "{reading:?}");
            Some(true)
        });
        each.collect()
    }

    #[test]
    fn neighbours_are_read_together_and_others_apart() {
        let (drive, mut coalescer) = (noting(u64::MAX), ReadCoalescer::new(20_000));
        let near = [found(8200, 900), Found::Zeros, found(9100, 3000), found(13_000, 4000)];
        let far = [found(60_000, 100), found(4096, 10), found(70_000, 20_000), found(99_000, 10)];
        let all: Vec<Found> = near.into_iter().chain(far).collect();
        assert_eq!(get(&mut coalescer, &drive, &all), [true; 7]);
        let alone = [57_344..61_440, 4096..8192, 69_632..90_112, 98_304..102_400];
        let reads: Vec<_> = std::iter::once(8192..20_480).chain(alone).collect();
        assert_eq!(*drive.reads.lock(), reads);
    }

    #[test]
    fn no_more_is_read_than_there_is_room_for() {
        let (drive, mut coalescer) = (noting(u64::MAX), ReadCoalescer::new(4096));
        let all: Vec<Found> = (0..32).map(|i| found(i * 4096, 4096)).collect();
        assert_eq!(get(&mut coalescer, &drive, &all), [true; 32]);
        assert_eq!(*drive.reads.lock(), [0..65_536, 65_536..131_072]);
    }

    #[test]
    fn what_can_not_be_read_spoils_nothing_else() {
        let (drive, mut coalescer) = (noting(9000), ReadCoalescer::new(4096));
        let all: Vec<Found> = (0..4).map(|i| found(i * 4096, 4096)).collect();
        assert_eq!(get(&mut coalescer, &drive, &all), [true, true, false, true]);
    }

    #[test]
    fn what_was_given_up_is_read_again() {
        let (drive, mut coalescer) = (noting(u64::MAX), ReadCoalescer::new(4096));
        get(&mut coalescer, &drive, &[found(0, 100)]);
        get(&mut coalescer, &drive, &[found(200, 100)]);
        assert_eq!(drive.reads.lock().len(), 1, "it was held");
        coalescer.clear();
        get(&mut coalescer, &drive, &[found(0, 100)]);
        assert_eq!(drive.reads.lock().len(), 2);
    }
}
