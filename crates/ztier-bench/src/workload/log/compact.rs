//! A drive in memory that keeps only the nonzero lines of each page, so that the headers and tables
//! of a log of 100 GiB fit if its payloads are nearly all zeros.
//!
//! The drive takes no time, but counts reads, and the time that they would take on a modelled
//! drive. Invariants: reads return what was written; pages are written whole.

use crate::model::{Model, Name, Nanos, Request};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use ztier::media::{ALIGN, Buffer, Drive, DriveError};
use ztier::sync::Mutex;

/// Limit on the reads in flight, of those submitted together: as for a file.
const DEPTH: usize = 16;
const LINE: usize = 64;
/// Bytes in a piece of memory; a page does not cross its end.
const PIECE: usize = 32 << 20;
/// Limit on the bytes of a page: its mask, and all of its lines.
const PAGE_MAX: usize = 8 + ALIGN;

/// Reads since [`Compact::count`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    /// Number of requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of the reads on the modelled drive: one after the other, except those submitted
    /// together.
    pub drive: Nanos,
}

impl Reads {
    /// Reads submitted together, with [`DEPTH`] of them in flight.
    fn serve(&mut self, model: &mut Model, reads: impl Iterator<Item = Request>) {
        let mut lanes: BinaryHeap<Reverse<Nanos>> =
            (0..DEPTH).map(|_| Reverse(self.drive)).collect();
        let mut last = self.drive;
        for request in reads {
            let Some(Reverse(free)) = lanes.pop() else { return };
            let end = model.serve(free, request);
            lanes.push(Reverse(end));
            last = last.max(end);
            if let Request::Read { len, .. } = request {
                self.requests += 1;
                self.bytes += len;
            }
        }
        self.drive = last;
    }
}

#[derive(Default)]
struct Lines {
    /// Position of each page, plus one; 0: all zeros.
    at: Vec<u64>,
    pieces: Vec<Vec<u8>>,
}

impl Lines {
    fn write(&mut self, page: usize, data: &[u8]) {
        let (mut mask, mut kept) = (0u64, 0);
        for (i, line) in data.chunks_exact(LINE).enumerate() {
            if line.iter().any(|&byte| byte != 0) {
                mask |= 1 << i;
                kept += LINE;
            }
        }
        if mask == 0 {
            self.at[page] = 0;
            return;
        }
        let place = self.place(page, 8 + kept);
        let (piece, from) = (place / PIECE, place % PIECE);
        let to = &mut self.pieces[piece][from..from + 8 + kept];
        to[..8].copy_from_slice(&mask.to_le_bytes());
        let lines = data.chunks_exact(LINE).enumerate().filter(|(i, _)| mask >> i & 1 == 1);
        for ((_, line), to) in lines.zip(to[8..].chunks_exact_mut(LINE)) {
            to.copy_from_slice(line);
        }
        self.at[page] = place as u64 + 1;
    }

    /// Makes room for a page: in its old place if that is large enough, or at the end.
    fn place(&mut self, page: usize, len: usize) -> usize {
        if let Some(old) = (self.at[page] as usize).checked_sub(1) {
            let mask = self.mask(old);
            if 8 + mask.count_ones() as usize * LINE >= len {
                return old;
            }
        }
        match self.pieces.last_mut() {
            Some(last) if last.len() + len <= PIECE => last.resize(last.len() + len, 0),
            _ => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.resize(len, 0);
                self.pieces.push(piece);
            }
        }
        let last = self.pieces.len() - 1;
        last * PIECE + self.pieces[last].len() - len
    }

    fn mask(&self, place: usize) -> u64 {
        let mut mask = [0; 8];
        mask.copy_from_slice(&self.pieces[place / PIECE][place % PIECE..][..8]);
        u64::from_le_bytes(mask)
    }

    fn read(&self, page: usize, out: &mut [u8]) {
        out.fill(0);
        let Some(place) = (self.at[page] as usize).checked_sub(1) else { return };
        let mask = self.mask(place);
        let lines = &self.pieces[place / PIECE][place % PIECE + 8..];
        let wanted = out.chunks_exact_mut(LINE).enumerate().filter(|(i, _)| mask >> i & 1 == 1);
        for ((_, to), line) in wanted.zip(lines.chunks_exact(LINE)) {
            to.copy_from_slice(line);
        }
    }
}

/// A compact drive.
pub struct Compact {
    size: u64,
    /// Pages use their group's lock; a log is written in order.
    lines: Mutex<Lines>,
    reads: Mutex<(Model, Reads)>,
    name: Name,
}

impl Compact {
    /// An empty drive of `size` bytes, with reads as slow as on the model `name`.
    pub fn new(size: u64, name: Name) -> Self {
        let at = vec![0; (size / ALIGN as u64) as usize];
        Self {
            size,
            lines: Mutex::new(Lines { at, pieces: Vec::new() }),
            reads: Mutex::new((Model::new(name), Reads::default())),
            name,
        }
    }

    fn fill(&self, at: u64, buf: &mut [u8]) {
        let lines = self.lines.lock();
        for (page, out) in (at as usize / ALIGN..).zip(buf.chunks_exact_mut(ALIGN)) {
            lines.read(page, out);
        }
    }

    /// Bytes of memory that the content takes.
    pub fn kept_bytes(&self) -> u64 {
        let lines = self.lines.lock();
        (lines.pieces.len() * PIECE + lines.at.len() * 8) as u64
    }

    /// Returns the reads so far, and restarts the count on an idle drive.
    pub fn count(&self) -> Reads {
        let mut reads = self.reads.lock();
        let before = reads.1;
        *reads = (Model::new(self.name), Reads::default());
        before
    }
}

const _: () = assert!(PAGE_MAX <= PIECE && ALIGN / LINE == 64);

impl Drive for Compact {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        {
            let (model, reads) = &mut *self.reads.lock();
            let len = buf.len() as u64;
            reads.serve(model, std::iter::once(Request::Read { at, len }));
        }
        self.fill(at, buf);
        Ok(())
    }

    fn read_many(&self, wanted: Vec<(u64, Buffer)>) -> Vec<Result<(u64, Buffer), DriveError>> {
        {
            let (model, reads) = &mut *self.reads.lock();
            let read = |(at, buf): &(u64, Buffer)| Request::Read { at: *at, len: buf.len() as u64 };
            reads.serve(model, wanted.iter().map(read));
        }
        let filled = wanted.into_iter().map(|(at, mut buf)| {
            self.fill(at, &mut buf);
            Ok((at, buf))
        });
        filled.collect()
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        let mut lines = self.lines.lock();
        for (page, data) in (at as usize / ALIGN..).zip(data.chunks_exact(ALIGN)) {
            lines.write(page, data);
        }
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        let mut lines = self.lines.lock();
        let (first, end) = (at as usize / ALIGN, (at + len) as usize / ALIGN);
        lines.at[first..end].fill(0);
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }
}

/// A backing store without content: it reads as zeros, and writes to it are dropped.
pub struct Nothing(pub u64);

impl Drive for Nothing {
    fn size(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        buf.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), DriveError> {
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> Result<(), DriveError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::data::Rng;
    use crate::model::Kind;

    #[test]
    fn it_reads_back_what_any_other_drive_would() {
        const PAGES: usize = 64;
        let name = Name { kind: Kind::Ssd840Pro, size: 1 << 30 };
        let drive = Compact::new((PAGES * ALIGN) as u64, name);
        let mut model = vec![0u8; PAGES * ALIGN];
        let mut rng = Rng::new(3);
        for round in 0..500 {
            let page = rng.below(PAGES as u64 - 4) as usize;
            let len = (1 + rng.below(4) as usize) * ALIGN;
            let (at, mut data) = (page * ALIGN, vec![0; len]);
            if round % 7 == 0 {
                drive.zero(at as u64, len as u64).unwrap();
            } else {
                // A few lines, or all of a page.
                for _ in 0..rng.below(6) {
                    data[rng.below(len as u64) as usize] = round as u8 | 1;
                }
                if round % 5 == 0 {
                    rng.fill(&mut data[..ALIGN]);
                }
                drive.write(at as u64, &data).unwrap();
            }
            model[at..at + len].copy_from_slice(&data);
            let mut back = vec![9; model.len()];
            drive.read(0, &mut back).unwrap();
            assert!(back == model, "round {round}");
        }
        let reads = drive.count();
        assert_eq!((reads.requests, reads.bytes), (500, 500 * model.len() as u64));
        assert!(reads.drive > 500 * 71_000, "a read of flash each");
        assert_eq!(drive.count().requests, 0);
        let one = |at| (at, Buffer::new(ALIGN));
        let many = drive.read_many((0..32).map(|n| one(n * ALIGN as u64)).collect());
        for (n, read) in many.into_iter().enumerate() {
            let (at, page) = read.unwrap();
            assert!(at == (n * ALIGN) as u64 && page[..] == model[n * ALIGN..][..ALIGN]);
        }
        let together = drive.count();
        for n in 0..32 {
            drive.read(n * ALIGN as u64, &mut Buffer::new(ALIGN)).unwrap();
        }
        let apart = drive.count();
        assert_eq!((together.requests, together.bytes), (apart.requests, apart.bytes));
        assert!(together.drive * 2 < apart.drive, "{together:?} {apart:?}");
        assert!(drive.kept_bytes() < 40 << 20);
    }
}
