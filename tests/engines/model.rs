//! The volume compared with a plain array of bytes, over random sequences of requests, with limits
//! so small that cleaning, refusals and the making and freeing of leaves are frequent.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{
    Algorithm, Channel, Device, ExtentKind, IoError, Options, Request, Volume, min_ram_limit,
};
use ztier::media::Memory;

const SIZE: u64 = 6 << 20;
const SEGMENT: u32 = 32 << 10;

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        len: u64,
        seed: u64,
        entropy: u8,
    },
    Read {
        offset: u64,
        len: u64,
    },
    Discard {
        offset: u64,
        len: u64,
    },
    Zero {
        offset: u64,
        len: u64,
        no_hole: bool,
    },
    Flush,
    Clean,
    /// Cold blocks are recompressed into clusters.
    Recompress,
    /// Another volume takes over the memory of this one.
    Succeed,
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    let any_bytes = (0..SIZE, 0u64..300_000);
    let blocks = (0..SIZE / 4096, 1u64..40).prop_map(|(b, n)| (b * 4096, n * 4096));
    let few = (0..48u64, 1u64..3).prop_map(|(b, n)| (b * 4096, n * 4096));
    let large = (0..3u64, 1u64..3).prop_map(|(l, n)| (l << 21, n << 21));
    prop_oneof![2 => any_bytes, 3 => blocks, 4 => few, 1 => large]
        .prop_map(|(offset, len)| (offset, len.min(SIZE - offset)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (range(), any::<u64>(), any::<u8>()).prop_map(|((offset, len), seed, entropy)| {
            Step::Write { offset, len: len.min(200_000), seed, entropy }
        }),
        4 => range().prop_map(|(offset, len)| Step::Read { offset, len }),
        2 => range().prop_map(|(offset, len)| Step::Discard { offset, len }),
        2 => (range(), any::<bool>())
            .prop_map(|((offset, len), no_hole)| Step::Zero { offset, len, no_hole }),
        1 => Just(Step::Flush),
        1 => Just(Step::Clean),
        2 => Just(Step::Recompress),
        1 => Just(Step::Succeed),
    ]
}

/// Bytes of which about `entropy`/255 are noise; 0 gives one repeated word.
fn bytes(len: u64, seed: u64, entropy: u8) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|i| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            if entropy > 0 && (x >> 32) as u8 <= entropy {
                x as u8
            } else {
                seed as u8 ^ (i & 3) as u8
            }
        })
        .collect()
}

struct Pair {
    memory: Memory,
    options: Options,
    /// `None` only during a takeover.
    up: Option<(Arc<Volume>, Box<dyn Channel>)>,
    model: Vec<u8>,
    /// A refused write may have been carried out for some blocks: their old or new bytes are right.
    limit: u64,
}

impl Pair {
    fn new(limit: u64, algorithm: Algorithm) -> Self {
        let options = Options {
            size: SIZE,
            ram_limit: limit,
            ram_limit_max: limit,
            segment: SEGMENT,
            algorithm,
            lock_memory: false,
        };
        let memory = Memory::default();
        let up = Some(Self::up(&options, &memory));
        Self { memory, options, up, model: vec![0; SIZE as usize], limit }
    }

    fn up(options: &Options, memory: &Memory) -> (Arc<Volume>, Box<dyn Channel>) {
        let volume = Arc::new(Volume::new_in(options, memory).unwrap());
        let channel = Arc::clone(&volume).channel();
        (volume, channel)
    }

    fn volume(&self) -> &Volume {
        &self.up.as_ref().unwrap().0
    }

    /// Makes a new volume take over the memory files.
    fn succeed(&mut self) {
        self.up = None;
        let dup = |file: &OwnedFd| file.try_clone().unwrap();
        let files = self.memory.files().into_iter().map(|(name, file)| (name, dup(&file)));
        self.memory = Memory::inherited(files.collect());
        self.up = Some(Self::up(&self.options, &self.memory));
        self.check_all();
    }

    fn submit(&mut self, request: Request<'_>) -> Result<(), IoError> {
        self.up.as_mut().unwrap().1.submit(request, Instant::now())
    }

    fn read(&mut self, offset: u64, len: u64) -> Vec<u8> {
        let mut buf = vec![0xee; len as usize];
        self.submit(Request::Read { offset, buf: &mut buf }).unwrap();
        buf
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Write { offset, len, seed, entropy } => {
                let data = bytes(len, seed, entropy);
                let range = offset as usize..(offset + len) as usize;
                match self.submit(Request::Write { offset, data: &data, fua: false }) {
                    Ok(()) => self.model[range].copy_from_slice(&data),
                    Err(IoError::NoSpace) => self.check_cut(offset, &data),
                    Err(e) => panic!("{e}"),
                }
            }
            Step::Read { offset, len } => {
                let got = self.read(offset, len);
                assert!(got == self.model[offset as usize..(offset + len) as usize]);
            }
            Step::Discard { offset, len } => match self.submit(Request::Discard { offset, len }) {
                Ok(()) => self.model[offset as usize..(offset + len) as usize].fill(0),
                // A partially zeroed block has to be written.
                Err(IoError::NoSpace) if len < 8192 && !(offset | len).is_multiple_of(4096) => {
                    self.check_cut(offset, &vec![0; len as usize]);
                }
                Err(e) => panic!("{e}"),
            },
            Step::Zero { offset, len, no_hole } => {
                let zero = Request::WriteZeroes { offset, len, no_hole, fua: false };
                match self.submit(zero) {
                    Ok(()) => self.model[offset as usize..(offset + len) as usize].fill(0),
                    Err(IoError::NoSpace) => self.check_cut(offset, &vec![0; len as usize]),
                    Err(e) => panic!("{e}"),
                }
            }
            Step::Flush => self.submit(Request::Flush).unwrap(),
            Step::Clean => self.volume().clean_now(),
            Step::Recompress => self.volume().recompress_now(),
            Step::Succeed => self.succeed(),
        }
        let stats = self.volume().stats();
        assert!(stats.mem_used_bytes <= self.limit, "{} > {}", stats.mem_used_bytes, self.limit);
    }

    /// After a refusal each block has its old or its new content; the model adopts it.
    fn check_cut(&mut self, offset: u64, data: &[u8]) {
        let got = self.read(offset, data.len() as u64);
        let mut at = 0;
        while at < data.len() {
            let pos = offset as usize + at;
            let n = (4096 - pos % 4096).min(data.len() - at);
            let (old, new) = (&self.model[pos..pos + n], &data[at..at + n]);
            assert!(got[at..at + n] == *old || got[at..at + n] == *new, "block at {pos} is torn");
            self.model[pos..pos + n].copy_from_slice(&got[at..at + n]);
            at += n;
        }
    }

    fn check_all(&mut self) {
        let got = self.read(0, SIZE);
        assert!(got == self.model, "the device is not what was written");
        let mut at = 0;
        while at < SIZE {
            for extent in self.volume().extents(at, SIZE - at, 7).unwrap() {
                if extent.kind != ExtentKind::Data {
                    let run = &self.model[at as usize..(at + extent.len) as usize];
                    assert!(run.iter().all(|b| *b == 0), "{extent:?} at {at} is not zero");
                }
                at += extent.len;
            }
        }
        self.volume().audit().unwrap();
    }
}

fn run(limit: u64, algorithm: Algorithm, steps: &[Step]) {
    let mut pair = Pair::new(limit, algorithm);
    for step in steps {
        pair.run(step);
    }
    pair.check_all();
    pair.submit(Request::Discard { offset: 0, len: SIZE }).unwrap();
    pair.model.fill(0);
    pair.volume().clean_now();
    pair.check_all();
    let stats = pair.volume().stats();
    assert_eq!((stats.blocks_stored, stats.blocks_same, stats.compr_data_bytes), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn with_room(steps in proptest::collection::vec(step(), 1..120)) {
        run(64 << 20, Algorithm::Lz4, &steps);
    }

    #[test]
    fn at_the_limit(steps in proptest::collection::vec(step(), 1..200)) {
        run(min_ram_limit(SIZE, SEGMENT), Algorithm::Lz4, &steps);
    }

    #[test]
    fn with_zstd(steps in proptest::collection::vec(step(), 1..60)) {
        run(64 << 20, Algorithm::Zstd, &steps);
    }

    #[test]
    fn uncompressed(steps in proptest::collection::vec(step(), 1..60)) {
        run(min_ram_limit(SIZE, SEGMENT), Algorithm::None, &steps);
    }
}
