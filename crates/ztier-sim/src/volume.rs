//! The product's code as a run drives it: a log's core, writeback, and the codec around them.
//!
//! This module does what a volume's threads do around the core, in the same way: it compresses
//! blocks before it appends them, treats zeros as a discard of one block, and verifies payloads
//! before it decodes them. It decides nothing.

use crate::atomic;
use crate::content::Value;
use crate::drive::SimDrive;
use crate::image::{Image, PAGE, Page};
use crate::oracle::Seen;
use crate::program::Setup;
use std::sync::Arc;
use ztier::codec::{Algorithm, Codec, Coding, Encoded};
use ztier::log::disk::cluster::{self, Unpacked};
use ztier::log::disk::format::{CLUSTER, IDENTITY, Kind, Seed, crc};
use ztier::log::{
    self, Command, Core, Fills, Found, Kept, OpenError, Options, Outcome, Reading, Refused, Report,
    Token, Writeback,
};
use ztier::media::{Commit, Memory, Spares};

thread_local! {
    /// Memory files that no volume of this thread uses any more. A run of many short recoveries
    /// would otherwise spend its time making and mapping files.
    static SPARES: Arc<Spares> = Arc::default();
}

/// Memory that no process has used: empty files.
pub fn new_memory() -> Memory {
    SPARES.with(Memory::of_spares)
}

/// The source of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The core.
    Core,
    /// The window at work.
    Writeback,
    /// The commit of a window.
    Commit,
}

/// How a log is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Another program may have written to the backing store.
    Cold,
    /// No other program has written to it.
    Warm,
    /// Missing chunks are skipped.
    Lossy,
}

/// A reserved place in the log, and its payload.
pub struct Reserved {
    fills: Fills,
    payload: Vec<u8>,
}

/// A volume at work.
pub struct Volume {
    /// The log.
    pub core: Core,
    /// The result of opening.
    pub report: Report,
    writeback: Option<Writeback>,
    algorithm: Algorithm,
    /// Made when it is needed first: to make one takes longer than a short recovery.
    codec: Option<Codec>,
    payload: Vec<u8>,
    cluster: Vec<u8>,
    unpacked: Unpacked,
    page: Box<Page>,
}

impl Volume {
    /// Formats a log and opens it.
    ///
    /// # Errors
    /// Those of the product.
    pub fn create(setup: &Setup, log: &SimDrive, memory: &Memory) -> Result<Self, OpenError> {
        let uuid = *b"a simulated disk";
        log::format(log, uuid, [7; IDENTITY], u64::from(setup.blocks), setup.segment)?;
        Self::open_in(setup, log, setup.seed, (Opening::Cold, None), memory)
    }

    /// Opens a log after a power cut; `epoch` is a random number. An atomic backing store has a
    /// newest commit.
    ///
    /// # Errors
    /// Those of the product.
    pub fn open(
        setup: &Setup,
        log: &SimDrive,
        epoch: u64,
        opening: (Opening, Option<Commit>),
    ) -> Result<Self, OpenError> {
        Self::open_in(setup, log, epoch, opening, &new_memory())
    }

    /// Opens a log with memory that another process may have used.
    ///
    /// # Errors
    /// Those of the product.
    pub fn open_in(
        setup: &Setup,
        log: &SimDrive,
        epoch: u64,
        (opening, newest): (Opening, Option<Commit>),
        memory: &Memory,
    ) -> Result<Self, OpenError> {
        let options = Options {
            memory: setup.memory,
            window: setup.window,
            idle_ms: setup.idle_ms,
            checkpoint: setup.checkpoint,
            // Not drawn from the generator, so that seeds keep their meaning.
            gather_part: [0, 1, 8][(setup.seed % 3) as usize],
            keep_percent: setup.keep,
            atomic: setup.is_atomic(),
        };
        log.power().begin();
        let kept = Kept::new(memory).map_err(|e| OpenError::Memory(e.to_string()))?;
        let later = newest.filter(|commit| {
            log::read_superblock(log).is_ok_and(|(sb, ..)| sb.written.segment < commit.tail.segment)
        });
        let lossy = opening == Opening::Lossy;
        let found = match later {
            Some(commit) => log::inspect_committed(log, lossy, &commit, &|_| ())?,
            None if opening == Opening::Warm => log::inspect_warm(log, false, &|_| ())?,
            None => log::inspect(log, lossy, false)?,
        };
        let (core, report) = found.open(log, options, epoch, kept)?;
        Ok(Self {
            core,
            report,
            writeback: None,
            algorithm: setup.algorithm,
            codec: None,
            payload: vec![0; PAGE],
            cluster: Vec::new(),
            unpacked: Unpacked::default(),
            page: Box::new([0; PAGE]),
        })
    }

    /// Takes the compressor's memory over from a volume of the same setup that has ended. Nothing
    /// else: no block has an influence on how the next one is compressed.
    pub fn take_codec(&mut self, ended: &mut Self) {
        self.codec = ended.codec.take();
    }

    /// Reserves a place for a block; `None` if the header says all and no payload has to be filled
    /// in.
    ///
    /// # Errors
    /// Those of the product.
    pub fn reserve(&mut self, block: u32, page: &Page) -> Result<Option<Reserved>, Refused> {
        let block = u64::from(block);
        self.payload.resize(PAGE, 0);
        let (len, kind) =
            match made(&mut self.codec, self.algorithm).encode(page, &mut self.payload) {
                Encoded::Same(0) => return self.core.discard(block, 1).map(|_| None),
                Encoded::Same(word) => {
                    let both = u64::from(word) << 32 | u64::from(word);
                    self.payload[..8].copy_from_slice(&both.to_le_bytes());
                    (8, Kind::Same)
                }
                Encoded::Payload(len, coding) => (len, kind_of(coding)),
            };
        let payload = self.payload[..len].to_vec();
        self.reserve_payload(block, kind, payload).map(Some)
    }

    fn reserve_payload(
        &mut self,
        block: u64,
        kind: Kind,
        payload: Vec<u8>,
    ) -> Result<Reserved, Refused> {
        let mut fills = Fills::default();
        self.core.reserve(block, kind, (payload.len(), crc(&payload)), &mut fills)?;
        Ok(Reserved { fills, payload })
    }

    /// Compresses the blocks of a cluster for [`Volume::reserve_cluster`]; `false` if they do not
    /// get smaller.
    pub fn pack(&mut self, pages: &[Page; CLUSTER]) -> bool {
        cluster::encode(made(&mut self.codec, self.algorithm), pages, &mut self.cluster)
    }

    /// Makes a payload that is no encoding of a cluster.
    pub fn pack_undecodable(&mut self) {
        self.cluster = vec![0; 112];
    }

    /// Reserves a place for the cluster packed last; `None` if the log has no room.
    ///
    /// # Errors
    /// Those of the product.
    pub fn reserve_cluster(&mut self, first: u32) -> Result<Option<Reserved>, Refused> {
        let (payload, mut fills) = (self.cluster.clone(), Fills::default());
        let sized = (payload.len(), crc(&payload));
        let taken = self.core.reserve_cluster(u64::from(first), sized, &mut fills)?;
        Ok(taken.then_some(Reserved { fills, payload }))
    }

    /// Fills a reserved place.
    pub fn fill(&mut self, reserved: Reserved) {
        let Reserved { mut fills, payload } = reserved;
        fills.fill(&payload);
        // The media ask again on their own.
        fills.finish();
    }

    /// The process dies while a writer fills its place: the place holds the first `part` of 256
    /// parts of its payload.
    pub fn fill_partly(&mut self, reserved: Reserved, part: u8) {
        let Reserved { mut fills, mut payload } = reserved;
        let from = payload.len() * usize::from(part) / 256;
        for byte in &mut payload[from..] {
            *byte = !*byte;
        }
        fills.fill(&payload);
        fills.finish();
    }

    /// Reserves a place for a payload with a valid check word that does not decode to a block.
    ///
    /// # Errors
    /// Those of the product.
    pub fn reserve_undecodable(&mut self, block: u32) -> Result<Reserved, Refused> {
        self.reserve_payload(u64::from(block), Kind::Lz4, vec![0; 100])
    }

    /// Appends a copy of a block that was read when `token` was taken; returns whether it did.
    pub fn keep(&mut self, block: u32, token: Token, page: &Page) -> bool {
        self.payload.resize(PAGE, 0);
        let (len, kind) =
            match made(&mut self.codec, self.algorithm).encode(page, &mut self.payload) {
                Encoded::Same(word) => {
                    let both = u64::from(word) << 32 | u64::from(word);
                    self.payload[..8].copy_from_slice(&both.to_le_bytes());
                    (8, Kind::Same)
                }
                Encoded::Payload(len, coding) => (len, kind_of(coding)),
            };
        self.core.keep(block.into(), token, kind, &self.payload[..len])
    }

    /// Appends a discard; returns the number of blocks that it covers.
    ///
    /// # Errors
    /// Those of the product.
    pub fn discard(&mut self, block: u32, count: u32) -> Result<u32, Refused> {
        self.core.discard(u64::from(block), u64::from(count)).map(|taken| taken as u32)
    }

    /// The location of a block, or of the log's copy of it; a payload in memory is kept for
    /// [`Volume::decoded`].
    pub fn locate(&mut self, block: u32) -> Found {
        match self.core.locate(u64::from(block), &mut self.payload) {
            Found::Backing => {
                let copy = self.core.locate_copy(u64::from(block), &mut self.payload);
                copy.unwrap_or(Found::Backing)
            }
            found => found,
        }
    }

    /// The block of a payload found in memory; `None` if it does not decode.
    pub fn decoded(&mut self, block: u32, kind: Kind) -> Option<&Page> {
        let payload = std::mem::take(&mut self.payload);
        let fine = self.decode(block, kind, &payload);
        self.payload = payload;
        fine.then_some(&*self.page)
    }

    /// The block of a payload read from the log, with its check word; `None` if it is damaged.
    pub fn verified(&mut self, reading: &Reading, check: u32, payload: &[u8]) -> Option<&Page> {
        let fine = reading.seed.fits(payload, check)
            && self.decode(reading.seed.block as u32, reading.kind, payload);
        fine.then_some(&*self.page)
    }

    fn decode(&mut self, block: u32, kind: Kind, payload: &[u8]) -> bool {
        let out = std::slice::from_mut(&mut *self.page);
        let codec = made(&mut self.codec, self.algorithm);
        self.unpacked.decode(codec, kind, payload, block.into(), out)
    }

    /// The next command of the core or the window.
    pub fn next_command(&mut self) -> Option<(Source, Command)> {
        if let Some(command) = self.core.next_command() {
            return Some((Source::Core, command));
        }
        let command = self.writeback.as_mut()?.next_command();
        self.hand_back();
        Some((Source::Writeback, command?))
    }

    /// Reports the outcome of a command.
    pub fn complete(&mut self, source: Source, id: u64, outcome: Outcome) {
        match (source, &mut self.writeback) {
            (Source::Core, _) => _ = self.core.complete(id, &outcome),
            (Source::Writeback, Some(writeback)) => writeback.complete(id, outcome),
            (Source::Writeback, None) => {}
            (Source::Commit, _) if matches!(outcome, Outcome::Done) => self.core.committed(),
            (Source::Commit, _) => {}
        }
        self.hand_back();
    }

    /// Hands the window back to the core when it is over.
    fn hand_back(&mut self) {
        if let Some(ended) = self.writeback.as_mut().and_then(Writeback::ended) {
            self.writeback = None;
            self.core.end_window(ended);
        }
    }

    /// Begins a window of at most `bytes` of segments; returns whether one has begun.
    pub fn begin_window(&mut self, bytes: u64) -> bool {
        if self.writeback.is_some() {
            return false;
        }
        match self.core.begin_window(bytes) {
            Some(plan) => {
                self.writeback = Some(Writeback::new(plan));
                true
            }
            None => false,
        }
    }

    /// Whether the core has work that needs no drive.
    pub fn is_stepping(&self) -> bool {
        let window = self.writeback.as_ref().is_some_and(Writeback::is_stepping);
        window || self.core.is_stepping() || self.core.is_copying()
    }

    /// Whether no window is at work, nor its end in the core.
    pub fn is_between_windows(&self) -> bool {
        self.writeback.is_none() && self.core.is_quiet()
    }

    /// The content of each block for a lone reader that reads a cluster at a time.
    pub fn look(&mut self, blocks: u32, log: &SimDrive, backing: &SimDrive) -> Vec<Seen> {
        let (log, backing) = (log.current(), backing.current());
        let mut payloads: [Vec<u8>; CLUSTER] = Default::default();
        let (mut found, mut seen) = (Vec::new(), Vec::new());
        for first in (0..blocks).step_by(CLUSTER) {
            found.clear();
            self.core.locate_all(first.into(), payloads.iter_mut(), &mut found);
            let mut last = None;
            for (i, (block, here)) in (first..blocks).zip(&found).enumerate() {
                let copy = match *here {
                    Found::Backing => self.core.locate_copy(block.into(), &mut payloads[i]),
                    _ => None,
                };
                seen.push(match copy.unwrap_or(*here) {
                    Found::Zeros => Seen::Value(Value::Zero),
                    Found::Filling => Seen::Foreign,
                    Found::Lost => Seen::Lost,
                    Found::Backing => on_backing(&backing, block),
                    Found::Memory(kind) => {
                        last = None;
                        self.payload.clone_from(&payloads[i]);
                        in_log(block, self.decoded(block, kind))
                    }
                    Found::Log(reading) => {
                        self.core.release(&reading);
                        let payload = payload(&log, &reading);
                        let found = in_log(block, self.verified(&reading, reading.check, &payload));
                        last = Some((reading, payload));
                        if copy.is_some() && found == Seen::Lost {
                            self.core.drop_copy(&reading, block.into());
                            on_backing(&backing, block)
                        } else {
                            found
                        }
                    }
                    Found::Before(check) => {
                        let page = match &last {
                            Some((reading, payload)) => {
                                let seed = Seed { block: block.into(), ..reading.seed };
                                self.verified(&Reading { seed, ..*reading }, check, payload)
                            }
                            None => self.decoded(block, Kind::Cluster),
                        };
                        in_log(block, page)
                    }
                });
            }
        }
        seen
    }
}

/// What a read of a block finds that the log has; `None`: it is damaged there.
fn in_log(block: u32, page: Option<&Page>) -> Seen {
    page.map_or(Seen::Lost, |page| Value::recognise(block, page).map_or(Seen::Foreign, Seen::Value))
}

/// What a read of a block finds that the backing store has.
pub fn on_backing(backing: &Image, block: u32) -> Seen {
    match backing.value(block) {
        Some(value) => Seen::Value(value),
        None if atomic::is_lost(backing.page(block as usize)) => Seen::Lost,
        None => Seen::Foreign,
    }
}

/// The payload bytes of a reading.
fn payload(log: &Image, reading: &Reading) -> Vec<u8> {
    let mut payload = Vec::with_capacity(reading.len as usize);
    let (mut page, mut from) = ((reading.at / PAGE as u64) as usize, reading.at as usize % PAGE);
    while payload.len() < reading.len as usize {
        let left = reading.len as usize - payload.len();
        payload.extend_from_slice(&log.page(page)[from..PAGE.min(from + left)]);
        (page, from) = (page + 1, 0);
    }
    payload
}

/// The codec, which is made if there is none.
fn made(codec: &mut Option<Codec>, algorithm: Algorithm) -> &mut Codec {
    codec.get_or_insert_with(|| Codec::new(algorithm))
}

/// The log's record kind for a coding.
const fn kind_of(coding: Coding) -> Kind {
    match coding {
        Coding::Raw => Kind::Raw,
        Coding::Lz4 => Kind::Lz4,
        Coding::Zstd => Kind::Zstd,
        Coding::Fill => Kind::Same,
        Coding::Cluster(_) => Kind::Cluster,
    }
}
