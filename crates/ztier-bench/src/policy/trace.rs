//! Traces: requested blocks in order; and the files of recorded traces.
//!
//! A file has eight bytes of magic, then one zstd frame with a checksum. Inside, numbers are
//! LEB128: the length of the name, the name, the length of the description, the description, the
//! number of steps, and for each step `blocks << 2 | kind` and the distance of its begin from the
//! end of the step before (zigzag).

use std::collections::HashMap;
use std::path::Path;
use ztier::error::{Context, Error, Result};

const MAGIC: &[u8; 8] = b"ztrace1\n";
/// Limit on the decoded size: more than any trace that belongs into a repository.
const PLAIN_MOST: usize = 64 << 20;
const LEVEL: i32 = 19;

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks are read.
    Read = 0,
    /// Blocks are written.
    Write = 1,
    /// Blocks are discarded or zeroed.
    Discard = 2,
    /// The page cache above drops blocks, which it had clean.
    Drop = 3,
}

impl Kind {
    /// That of the lowest two bits.
    fn of(bits: u32) -> Self {
        [Self::Read, Self::Write, Self::Discard, Self::Drop][(bits & 3) as usize]
    }
}

/// One request, or what the page cache dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its action.
    pub kind: Kind,
    /// Its first block.
    pub first: u64,
    /// Its number of blocks.
    pub count: u32,
}

/// Requests in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Name in tables.
    pub name: String,
    /// How the trace was made.
    pub about: String,
    /// The requests.
    pub steps: Vec<Step>,
}

impl Trace {
    /// An empty trace.
    pub fn new(name: &str, about: impl Into<String>) -> Self {
        Self { name: name.into(), about: about.into(), steps: Vec::new() }
    }

    /// Adds a step.
    pub fn push(&mut self, kind: Kind, first: u64, count: u32) {
        self.steps.push(Step { kind, first, count });
    }

    /// Adds reads of one block each.
    pub fn reads(&mut self, blocks: impl IntoIterator<Item = u64>) {
        self.steps.extend(blocks.into_iter().map(|first| Step {
            kind: Kind::Read,
            first,
            count: 1,
        }));
    }

    /// Encodes the trace as a file.
    ///
    /// # Errors
    /// The trace is too long for a file.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut plain = Vec::new();
        for text in [&self.name, &self.about] {
            put(&mut plain, text.len() as u64);
            plain.extend_from_slice(text.as_bytes());
        }
        put(&mut plain, self.steps.len() as u64);
        let mut end = 0;
        for step in &self.steps {
            put(&mut plain, u64::from(step.count) << 2 | step.kind as u64);
            let by = step.first.wrapping_sub(end).cast_signed();
            put(&mut plain, (by << 1 ^ by >> 63).cast_unsigned());
            end = step.first + u64::from(step.count);
        }
        if plain.len() > PLAIN_MOST {
            return Err(Error::failure(format!("trace {} is too long for a file", self.name)));
        }
        let failed = |code| Error::failure(format!("zstd: {}", zstd_safe::get_error_name(code)));
        let mut context = zstd_safe::CCtx::create();
        for parameter in [
            zstd_safe::CParameter::CompressionLevel(LEVEL),
            zstd_safe::CParameter::ChecksumFlag(true),
        ] {
            context.set_parameter(parameter).map_err(failed)?;
        }
        let mut packed = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
        context.compress2(&mut packed, &plain).map_err(failed)?;
        Ok([&MAGIC[..], &packed].concat())
    }

    /// Decodes a file; `name` is for messages.
    ///
    /// # Errors
    /// The bytes are no trace, or damaged.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::failure(format!("trace {name} is damaged: {what}"));
        let packed = bytes
            .strip_prefix(MAGIC)
            .ok_or_else(|| Error::failure(format!("{name} is not a trace of this program")))?;
        let len = match zstd_safe::get_frame_content_size(packed) {
            Ok(Some(len)) if len <= PLAIN_MOST as u64 => len as usize,
            _ => return Err(damaged("it does not say how long it is")),
        };
        let mut plain = Vec::with_capacity(len);
        zstd_safe::decompress(&mut plain, packed)
            .map_err(|code| damaged(zstd_safe::get_error_name(code)))?;
        let mut rest = Rest(&plain);
        let cut = || damaged("it ends too early");
        let mut text = || {
            let bytes = rest.number().and_then(|len| rest.take(len)).ok_or_else(cut)?;
            String::from_utf8(bytes.to_vec()).map_err(|_| damaged("its name is no text"))
        };
        let (name, about) = (text()?, text()?);
        let count = rest.number().ok_or_else(cut)?;
        let mut trace = Self { name, about, steps: Vec::new() };
        let mut end = 0u64;
        for _ in 0..count {
            let (word, by) = rest.number().zip(rest.number()).ok_or_else(cut)?;
            let kind = Kind::of(word as u32);
            let by = (by >> 1).cast_signed() ^ -(by & 1).cast_signed();
            let first = end.wrapping_add_signed(by);
            let blocks = u32::try_from(word >> 2).ok().filter(|&n| n > 0);
            let blocks = blocks.ok_or_else(|| damaged("a request of no size"))?;
            end = first
                .checked_add(blocks.into())
                .ok_or_else(|| damaged("a request behind all blocks"))?;
            trace.steps.push(Step { kind, first, count: blocks });
        }
        if rest.0.is_empty() { Ok(trace) } else { Err(damaged("something follows its end")) }
    }

    /// Writes the trace's file into a directory; returns its size in bytes.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn save(&self, dir: &Path) -> Result<usize> {
        let path = dir.join(format!("{}.trace", self.name));
        let bytes = self.encode()?;
        std::fs::write(&path, &bytes).context(format!("cannot write {}", path.display()))?;
        Ok(bytes.len())
    }

    /// The trace's accesses, block by block.
    pub fn replay(&self) -> Replay {
        let mut ids: HashMap<u64, u32> = HashMap::new();
        let (mut accesses, mut numbers) = (Vec::new(), Vec::new());
        for step in &self.steps {
            let blocks = step.first..step.first + u64::from(step.count);
            if step.kind == Kind::Discard {
                // Discards cover whole devices, but only blocks accessed before matter.
                let mut known: Vec<u32> = if blocks.end - blocks.start > ids.len() as u64 {
                    ids.iter().filter(|(b, _)| blocks.contains(b)).map(|(_, &id)| id).collect()
                } else {
                    blocks.filter_map(|block| ids.get(&block).copied()).collect()
                };
                known.sort_unstable();
                accesses.extend(known.into_iter().map(|id| Access::new(id, Kind::Discard)));
                continue;
            }
            if step.kind == Kind::Drop {
                let known = blocks.filter_map(|block| ids.get(&block));
                accesses.extend(known.map(|id| Access::new(*id, Kind::Drop)));
                continue;
            }
            for block in blocks {
                let next = ids.len() as u32;
                let id = *ids.entry(block).or_insert_with(|| {
                    numbers.push(block);
                    next
                });
                accesses.push(Access::new(id, step.kind));
            }
        }
        Replay { accesses, blocks: ids.len() as u32, numbers }
    }
}

/// One block of one request: its number in the replay, and the action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    fn new(block: u32, kind: Kind) -> Self {
        Self(block << 2 | kind as u32)
    }

    /// The block, numbered in the order of first use.
    pub fn block(self) -> u32 {
        self.0 >> 2
    }

    /// The action.
    pub fn kind(self) -> Kind {
        Kind::of(self.0)
    }
}

/// A trace, block by block.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The accesses, in order.
    pub accesses: Vec<Access>,
    /// Distinct blocks that are read or written.
    pub blocks: u32,
    /// Their numbers on the device.
    pub numbers: Vec<u64>,
}

impl Replay {
    /// Number of block reads.
    pub fn reads(&self) -> u64 {
        self.accesses.iter().filter(|a| a.kind() == Kind::Read).count() as u64
    }

    /// The accesses that remain below a page cache of `page_cache` blocks: reads that miss it, and
    /// all writes, at once.
    pub fn below(&self, page_cache: usize) -> Self {
        let mut above = super::rivals::Lru::new(self.blocks, page_cache);
        let left = |access: &&Access| !super::step(&mut above, **access);
        let accesses = self.accesses.iter().filter(left).copied().collect();
        Self { accesses, blocks: self.blocks, numbers: self.numbers.clone() }
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The bytes not decoded yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sample() -> Trace {
        let mut trace = Trace::new("sample", "made by hand");
        trace.push(Kind::Read, 7, 3);
        trace.push(Kind::Write, 0, 1);
        trace.push(Kind::Discard, 1 << 40, u32::MAX);
        trace.push(Kind::Read, 10, 1);
        trace.push(Kind::Drop, 8, 2);
        trace
    }

    #[test]
    fn a_trace_comes_back_from_its_file() {
        let trace = sample();
        assert_eq!(Trace::decode("x", &trace.encode().unwrap()).unwrap(), trace);
        let dir = tempfile::tempdir().unwrap();
        let len = trace.save(dir.path()).unwrap();
        let bytes = std::fs::read(dir.path().join("sample.trace")).unwrap();
        assert_eq!(bytes.len(), len);
    }

    #[test]
    fn bad_files_are_refused_in_one_line() {
        let good = sample().encode().unwrap();
        let mut bad = vec![
            (b"".to_vec(), "not a trace"),
            (b"ztrace2\n".to_vec(), "not a trace"),
            (good[..good.len() - 1].to_vec(), "damaged"),
            ([&good[..], &[0]].concat(), "damaged"),
        ];
        for at in 8..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            bad.push((bytes, "damaged"));
        }
        for (bytes, expected) in bad {
            match Trace::decode("x", &bytes) {
                Err(e) => {
                    let text = e.to_string();
                    assert!(text.contains(expected) && !text.contains('\n'), "{text}");
                }
                // One bit in zstd's header has no meaning.
                Ok(trace) => assert_eq!(trace, sample()),
            }
        }
    }

    /// Valid checksum, invalid content, as from a faulty writer.
    #[test]
    fn content_that_makes_no_sense_is_refused() {
        let packed = |plain: &[u8]| {
            let mut out = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
            zstd_safe::compress(&mut out, plain, 1).unwrap();
            [&MAGIC[..], &out].concat()
        };
        for (plain, expected) in [
            (&[][..], "ends too early"),
            (&[9, b'a'], "ends too early"),
            (&[1, 0xff, 0, 0], "no text"),
            (&[0, 0, 2, 4, 0], "ends too early"),
            (&[0, 0, 1, 0, 0], "no size"),
            (&[0, 0, 1, 4, 1], "behind all blocks"),
            (&[0, 0, 1, 4, 0, 0], "follows its end"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], "ends too early"),
        ] {
            let error = Trace::decode("x", &packed(plain)).unwrap_err().to_string();
            assert!(error.contains(expected), "{plain:?}: {error}");
        }
    }

    #[test]
    fn a_replay_numbers_blocks_and_forgets_discards_of_others() {
        let mut trace = Trace::new("a", "");
        trace.push(Kind::Discard, 0, 1 << 20);
        trace.push(Kind::Write, 100, 2);
        trace.push(Kind::Read, 101, 2);
        trace.push(Kind::Discard, 0, 1 << 20);
        trace.push(Kind::Discard, 102, 1);
        trace.push(Kind::Drop, 99, 2);
        let replay = trace.replay();
        let found: Vec<_> = replay.accesses.iter().map(|a| (a.kind(), a.block())).collect();
        let (read, write, discard) = (Kind::Read, Kind::Write, Kind::Discard);
        let expected = [
            (write, 0),
            (write, 1),
            (read, 1),
            (read, 2),
            (discard, 0),
            (discard, 1),
            (discard, 2),
            (discard, 2),
            (Kind::Drop, 0),
        ];
        assert_eq!(found, expected);
        assert_eq!((replay.blocks, replay.reads()), (3, 2));
        assert_eq!(replay.numbers, [100, 101, 102]);
    }

    #[test]
    fn below_a_page_cache_only_what_it_lacks_is_read() {
        let mut trace = Trace::new("a", "");
        trace.reads([0, 1, 0, 2, 1, 0]);
        trace.push(Kind::Write, 0, 1);
        trace.reads([0, 1]);
        let left = trace.replay().below(2);
        let found: Vec<_> = left.accesses.iter().map(|a| (a.kind(), a.block())).collect();
        let read = Kind::Read;
        assert_eq!(
            found,
            [(read, 0), (read, 1), (read, 2), (read, 1), (read, 0), (Kind::Write, 0)]
        );
    }
}
