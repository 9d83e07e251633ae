//! I/O contexts: a compressor and room for some records, for one request at a time; and buffers for
//! readahead.
//!
//! Contexts and buffers are made when first needed and then kept, no more of them than the limit
//! has room for. A request that finds no context bypasses the cache.

use super::record::{self, Header, RECORD_MAX};
use super::seal::Seal;
use crate::BLOCK_SIZE;
use crate::codec::{Algorithm, Codec};
use crate::media::{Buffer, Given};
use crate::sync::{Mutex, relax};

/// Most records that a request handles between two locks of a shard.
pub const BATCH: usize = 16;

/// How often a request tries to get an I/O context: for a few microseconds, then it yields the
/// processor.
const ROUNDS: u32 = if cfg!(shuttle) { 2 } else { 200 };

/// A record in an I/O context.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The index of its block in the piece.
    pub index: u64,
    /// Its header.
    pub header: Header,
}

/// The compressor and the records of one request.
pub struct IoContext {
    codec: Codec,
    records: Vec<u8>,
    held: Vec<Held>,
    /// Seals of blocks, by their index in the piece.
    seals: Vec<(u64, Seal)>,
}

impl IoContext {
    fn new() -> Self {
        Self {
            codec: Codec::new(Algorithm::Lz4),
            records: vec![0; BATCH * RECORD_MAX],
            held: Vec::with_capacity(BATCH),
            seals: Vec::with_capacity(BATCH),
        }
    }

    /// Memory in bytes.
    pub fn memory() -> u64 {
        let held = BATCH * (size_of::<Held>() + size_of::<(u64, Seal)>());
        let records = BATCH * RECORD_MAX;
        (Codec::new(Algorithm::Lz4).memory() + records + held + size_of::<Self>()) as u64
    }

    /// Drops all records and seals.
    pub fn clear(&mut self) {
        self.held.clear();
        self.seals.clear();
    }

    /// Whether it has no room for another record.
    pub fn is_full(&self) -> bool {
        self.held.len() == BATCH || self.seals.len() == BATCH
    }

    /// Adds the seal of a block.
    pub fn seal(&mut self, index: u64, seal: Seal) {
        self.seals.push((index, seal));
    }

    /// The seals, each with the index of its block.
    pub fn seals(&self) -> &[(u64, Seal)] {
        &self.seals
    }

    fn slot(&mut self, n: usize) -> &mut [u8] {
        &mut self.records[n * RECORD_MAX..(n + 1) * RECORD_MAX]
    }

    /// Where the next record goes.
    pub fn room(&mut self) -> &mut [u8] {
        self.slot(self.held.len())
    }

    /// Adds the record that was put into [`Self::room`].
    pub fn hold(&mut self, index: u64, header: Header) {
        self.held.push(Held { index, header });
    }

    /// Encodes a block, which may be packed already, as a record, and adds that.
    pub fn encode(&mut self, index: u64, (block, key): (u64, u32), given: Given<'_>, ahead: bool) {
        let n = self.held.len();
        let out = &mut self.records[n * RECORD_MAX..(n + 1) * RECORD_MAX];
        if let Some(header) = record::encode(&mut self.codec, (block, key), given, ahead, out) {
            self.hold(index, header);
        }
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// The `n`-th record.
    pub fn get(&self, n: usize) -> (Held, &[u8]) {
        let held = self.held[n];
        let begin = n * RECORD_MAX;
        (held, &self.records[begin..begin + held.header.record_len()])
    }

    /// Verifies and decodes the `n`-th record, of `block`; `false` if it is damaged.
    pub fn decode(&mut self, n: usize, block: u64, out: &mut [u8; BLOCK_SIZE]) -> bool {
        let header = self.held[n].header;
        let begin = n * RECORD_MAX;
        let record = &self.records[begin..begin + header.record_len()];
        let sound = super::planted::on(super::planted::Bug::ServeWhateverIsThere)
            || header.verify(record, block);
        sound && header.decode(&mut self.codec, record, out)
    }
}

/// A pool of at most `most` things.
struct BoundedPool<T> {
    idle: Vec<T>,
    made: usize,
    most: usize,
}

impl<T> BoundedPool<T> {
    fn take(&mut self, make: impl FnOnce() -> T) -> Option<T> {
        if self.idle.is_empty() && self.made < self.most {
            self.made += 1;
            return Some(make());
        }
        self.idle.pop()
    }

    fn give(&mut self, thing: T, fits: bool) {
        if fits && self.made <= self.most {
            self.idle.push(thing);
        } else {
            self.made -= 1;
        }
    }

    fn limit(&mut self, most: usize) {
        self.most = most;
        self.idle.reserve(most.saturating_sub(self.idle.len()));
        while self.made > most && self.idle.pop().is_some() {
            self.made -= 1;
        }
    }
}

impl<T> Default for BoundedPool<T> {
    fn default() -> Self {
        Self { idle: Vec::new(), made: 0, most: 0 }
    }
}

/// The sizes of the pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Most {
    /// I/O contexts.
    pub contexts: usize,
    /// Buffers for readahead (windows).
    pub windows: usize,
    /// Bytes of a window.
    pub window: usize,
}

impl Most {
    /// Bytes that full pools take; a context takes `each`.
    pub fn bytes(&self, each: u64) -> u64 {
        self.contexts as u64 * each + (self.windows * self.window) as u64
    }
}

/// All I/O contexts, and all windows for readahead.
#[derive(Default)]
pub struct IoContexts {
    contexts: Mutex<BoundedPool<IoContext>>,
    windows: Mutex<(BoundedPool<Buffer>, usize)>,
}

impl IoContexts {
    /// Changes the sizes of the pools. What is too much is freed now, or when it is given back.
    pub fn limit(&self, most: Most) {
        self.contexts.lock().limit(most.contexts);
        let mut windows = self.windows.lock();
        if windows.1 != most.window {
            let idle = std::mem::take(&mut windows.0.idle);
            windows.0.made -= idle.len();
            windows.1 = most.window;
        }
        windows.0.limit(most.windows);
    }

    /// Takes an I/O context, if one is free now or in a moment: no thread has one while it waits
    /// for a drive.
    pub fn take(&self) -> Option<IoContext> {
        (0..ROUNDS).find_map(|round| {
            let io = self.contexts.lock().take(IoContext::new);
            if io.is_none() {
                relax(round);
            }
            io
        })
    }

    /// Gives an I/O context back.
    pub fn give(&self, io: IoContext) {
        self.contexts.lock().give(io, true);
    }

    /// Takes a window for readahead, if one is free.
    pub fn window(&self) -> Option<Buffer> {
        let mut windows = self.windows.lock();
        let len = windows.1;
        windows.0.take(|| Buffer::new(len))
    }

    /// Gives a window back. One of another size than now is freed.
    pub fn give_window(&self, window: Buffer) {
        let mut windows = self.windows.lock();
        let fits = window.len() == windows.1;
        windows.0.give(window, fits);
    }

    /// Bytes of a window.
    pub fn window_bytes(&self) -> u64 {
        self.windows.lock().1 as u64
    }

    /// Memory of all contexts and windows in bytes, now; a context takes `each`.
    pub fn bytes(&self, each: u64) -> u64 {
        let windows = self.windows.lock();
        self.contexts.lock().made as u64 * each + (windows.0.made * windows.1) as u64
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "calls the C library")]
    fn there_are_never_more_than_there_may_be() {
        let contexts = IoContexts::default();
        assert!(contexts.take().is_none() && contexts.window().is_none());
        contexts.limit(Most { contexts: 2, windows: 1, window: 8192 });
        let (one, two, window) =
            (contexts.take().unwrap(), contexts.take().unwrap(), contexts.window().unwrap());
        assert!(contexts.take().is_none() && contexts.window().is_none());
        assert_eq!(contexts.bytes(10), 2 * 10 + 8192);
        contexts.limit(Most { contexts: 1, windows: 1, window: 4096 });
        contexts.give(one);
        contexts.give(two);
        contexts.give_window(window);
        assert_eq!(contexts.bytes(10), 10);
        assert_eq!(contexts.window().unwrap().len(), 4096);
        contexts.take().unwrap();
    }
}
