//! A run, written down before it begins: devices, faults, and every step.
//!
//! A step carries its choices as plain numbers, taken modulo the number of options. So any subset
//! of the steps is a program too, which makes shrinking possible.

use crate::admission::with_copies;
use crate::content::Flavour;
use crate::cut::Tearing;
use crate::fault::{Fault, Kind};
use crate::rng::{Rng, mix};
use ztier::codec::Algorithm;
use ztier::log::disk::format::{CLUSTER, data_at};

/// A drive of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The log.
    Log,
    /// The backing store.
    Backing,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Log, Self::Backing];

    /// The name in replay lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Backing => "backing",
        }
    }

    /// The drive of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|side| side.name() == name)
    }
}

/// The order in which commands in flight end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order in which they began.
    First,
    /// The last that began ends first.
    Last,
    /// In random order.
    Any,
}

/// Commands so slow that nearly all others overtake them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slow {
    /// None.
    Nothing,
    /// This number of a thousand.
    Some(u32),
    /// Writes of superblocks.
    Superblocks,
    /// Flushes.
    Flushes,
    /// Everything on the backing store.
    Backing,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Seed of all random choices outside of the steps.
    pub seed: u64,
    /// Size of the log in bytes.
    pub log: u64,
    /// Segment size in bytes.
    pub segment: u32,
    /// Blocks in the volume.
    pub blocks: u32,
    /// Writeback window in bytes.
    pub window: u64,
    /// Limit on unflushed bytes in memory.
    pub memory: u64,
    /// Milliseconds without a write after which the log commits on its own.
    pub idle_ms: u64,
    /// Bytes between two checkpoints, at least; 0: no checkpoints.
    pub checkpoint: u64,
    /// How blocks are compressed.
    pub algorithm: Algorithm,
    /// Events that a writer waits for when the log is full, before it gives up.
    pub patience: u32,
    /// Blocks with content at the start, of a thousand.
    pub preload: u32,
    /// Order in which commands end.
    pub order: Order,
    /// Which commands are overtaken.
    pub slow: Slow,
    /// Limit on the commands in flight, on both drives together.
    pub depth: usize,
    /// Limit on the writers between reserving and filling.
    pub writers: usize,
    /// While an actor waits: at how many of a thousand events a writer fills its place.
    pub filled: u32,
    /// Percent of the log for copies of the backing store's blocks.
    pub keep: u64,
    /// How the log behaves when the power goes.
    pub log_tearing: Tearing,
    /// How the backing store behaves when the power goes.
    pub backing_tearing: Tearing,
}

impl Setup {
    /// Whether the backing store is atomic. Not drawn from the generator, so that seeds keep their
    /// meaning.
    pub fn is_atomic(&self) -> bool {
        self.seed > 1 && mix(self.seed ^ 0xa70_311c).is_multiple_of(4)
    }

    /// Whether the volume grows. Not drawn from the generator, so that seeds keep their meaning.
    pub fn grows(&self) -> bool {
        mix(self.seed ^ 0x6772_6f77) % 8 == 1
    }

    /// With `--sync`, the number of concurrent writers: each gets its answer when its change is
    /// durable. `None` where a write is acknowledged when the log has it in memory. Not drawn from
    /// the generator, so that seeds keep their meaning.
    pub const fn synced_writers(&self) -> Option<usize> {
        match self.seed / 3 % 16 {
            14 => Some(1),
            15 => Some(4),
            _ => None,
        }
    }
}

/// A power cut, and what happens during the recovery from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Decides what is left of the writes in flight.
    pub seed: u64,
    /// Number of operations of each recovery after which the power goes again; if negative, counted
    /// from the recovery's end.
    pub nested: Vec<i64>,
    /// Whether to recover a second time, which must change nothing.
    pub again: bool,
}

/// One step of one actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A writer reserves a place for a block. If too many writers have reserved, one of them fills
    /// its place.
    Write(u32, Flavour),
    /// A writer appends the cluster that begins with a block; its blocks are all different.
    Cluster(u32, Flavour),
    /// A writer fills its place: the choice among those that have reserved.
    Fill(u32),
    /// The discarder appends a range: first block, number of blocks.
    Discard(u32, u32),
    /// The flusher requests a flush, and goes on.
    Flush,
    /// The flusher requests a flush, and waits for it.
    Sync,
    /// The media take new commands, up to this number, and end one: the choice among those in
    /// flight.
    Media(u8, u32),
    /// The media take new commands, up to this number.
    Take(u8),
    /// A reader begins to read a block.
    Read(u32),
    /// A reader ends: the choice among those that have begun.
    Finish(u32),
    /// This many milliseconds pass.
    Tick(u32),
    /// Writeback begins a window of at most this many bytes of segments.
    Window(u32),
    /// The log is closed in order and opened again.
    Close,
    /// The admission thread reads a block to give the log a copy of it.
    Copy(u32),
    /// The admission thread gives the log a copy: the choice among those that it has read.
    Store(u32),
    /// The admission thread lets copies leave the log.
    Leave,
    /// Everything is written back. Then, by the choice, the log is closed, the power goes, or the
    /// process dies. Then another program writes a block.
    Bare(u32, Flavour, u32),
    /// Everything is written back; the backing store then equals the volume.
    Drain,
    /// Everything in flight ends.
    Settle,
    /// The media work until the core has work that needs no drive, as when the index forgets a
    /// window, or until nothing is left to do.
    Forgetting,
    /// The power goes and comes back.
    Cut(Cut),
    /// The process dies, and another one takes over its memory.
    Kill(Cut),
    /// A writer appends a block whose payload does not decode, as from a broken codec.
    Miscompress(u32),
    /// A bit of a drive flips: the choice of byte and bit.
    Flip(Side, u64),
    /// A bit flips in the header of one of the first chunks of the log.
    Behead(u64),
    /// A bit flips in the header of the newest chunk, if a superblock says that it is durable.
    Curtail(u64),
    /// The log refuses all writes but those of superblocks.
    Wear,
    /// The drives work again.
    Repair,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The devices and their parameters.
    pub setup: Setup,
    /// The faults of each drive.
    pub faults: Vec<(Side, Fault)>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Program {
    /// A program of these steps, with steps between them in which writers fill their places.
    pub fn new(setup: Setup, faults: Vec<(Side, Fault)>, steps: Vec<Step>) -> Self {
        let mut rng = Rng::new(setup.seed ^ 5);
        let often = if setup.writers > 0 { rng.pick(&[50, 300, 900]) } else { 0 };
        let with_fill =
            |step| [rng.chance(often).then(|| Step::Fill(rng.bits() as u32)), Some(step)];
        let steps = steps.into_iter().flat_map(with_fill).flatten().collect();
        let steps = if setup.keep > 0 { with_copies(&setup, steps) } else { steps };
        Self { setup, faults, steps }
    }

    /// The program reduced to `steps`.
    pub fn only(&self, steps: &[usize]) -> Self {
        let steps = steps.iter().filter_map(|i| self.steps.get(*i).cloned()).collect();
        Self { setup: self.setup.clone(), faults: self.faults.clone(), steps }
    }
}

/// Index of closing in the weights.
pub const CLOSE: usize = 10;

/// The preferences of a seed: the weights of steps, and where they go.
pub struct Swarm {
    /// The devices and their parameters.
    pub setup: Setup,
    /// Weights of write, discard, flush, sync, media, take, read, finish, tick, window,
    /// close, drain, settle.
    pub weights: [u32; 13],
    /// Weights of zero, word, double, compressible, any, incompressible.
    flavours: [u32; 6],
    /// Blocks that most writes go to.
    hot: u32,
    /// Writes that continue where the last one ended, of a thousand.
    sequential: u32,
    discard_max: u32,
    cursor: u32,
    /// Writes of a whole cluster, of a thousand.
    clusters: u64,
    /// Writes so far.
    writes: u64,
}

/// Writes of a cluster, of a thousand. Not drawn from the generator, so that seeds keep their
/// meaning.
fn clusters(setup: &Setup) -> u64 {
    [0, 0, 100, 500][(mix(setup.seed) % 4) as usize]
}

impl Swarm {
    /// The drives of a seed.
    fn choose_setup(rng: &mut Rng) -> Setup {
        let segment = rng.pick(&[32 << 10, 64 << 10]);
        let blocks = rng.pick(&[256, 256, 512, 1024]);
        let seed = rng.bits();
        Setup {
            seed,
            log: data_at(0, segment) + u64::from(segment) * rng.pick(&[8, 9, 12, 16, 30, 60]),
            segment,
            blocks,
            window: u64::from(segment) * rng.pick(&[1, 2, 4, 8]),
            memory: u64::from(segment) * rng.pick(&[2, 4, 16]),
            idle_ms: rng.pick(&[1, 100, 1000]),
            checkpoint: rng.pick(&[0, 1, 1, 64 << 10, 256 << 10]),
            algorithm: rng.pick(&[
                Algorithm::Lz4,
                Algorithm::Lz4,
                Algorithm::Zstd,
                Algorithm::None,
            ]),
            patience: rng.pick(&[0, 1, 4, u32::MAX]),
            preload: rng.pick(&[0, 100, 1000]),
            order: rng.pick(&[Order::First, Order::Last, Order::Any, Order::Any]),
            slow: rng.pick(&[
                Slow::Nothing,
                Slow::Nothing,
                Slow::Some(50),
                Slow::Some(200),
                Slow::Superblocks,
                Slow::Flushes,
                Slow::Backing,
            ]),
            depth: rng.pick(&[1, 2, 4, 16, 32]),
            writers: [0, 1, 2, 4, 8][(seed / 3 % 5) as usize],
            filled: [200, 20, 2][(seed / 15 % 3) as usize],
            keep: [0, 25, 50, 50][(mix(seed ^ 0x6b65_6570) % 4) as usize],
            log_tearing: Tearing::choose(rng),
            backing_tearing: Tearing::choose(rng),
        }
    }

    /// Many small records of many blocks and ranges, windows of any size, and slow flushes:
    /// checkpoints are long, and meet every state of a window; segments have many chunks, of which
    /// some are durable.
    fn crowded(setup: Setup, rng: &mut Rng) -> Self {
        let segment = 32 << 10;
        let setup = Setup {
            log: data_at(0, segment) + u64::from(segment) * rng.pick(&[16, 30]),
            segment,
            blocks: 1024,
            memory: u64::from(segment) * 4,
            patience: u32::MAX,
            checkpoint: 1,
            slow: rng.pick(&[setup.slow, Slow::Flushes]),
            ..setup
        };
        Self {
            clusters: clusters(&setup),
            writes: 0,
            setup,
            weights: [
                400,
                rng.pick(&[10, 200]),
                rng.pick(&[5, 30, 100]),
                10,
                200,
                20,
                20,
                5,
                5,
                20,
                0,
                0,
                1,
            ],
            flavours: [0, 3, 3, 1, 0, rng.pick(&[0, 2, 8])],
            hot: rng.pick(&[512, 1024]),
            sequential: 0,
            discard_max: 1,
            cursor: 0,
        }
    }

    /// The swarm of a seed's generator.
    pub fn choose(rng: &mut Rng) -> Self {
        let mut setup = Self::choose_setup(rng);
        let blocks = setup.blocks;
        let mut weights = [0; 13];
        let choices: [&[u32]; 13] = [
            &[100, 200, 400],
            &[0, 0, 5, 30, 100],
            &[0, 5, 30],
            &[0, 2, 10, 60],
            &[20, 100, 200, 400],
            &[0, 20],
            &[0, 20, 50],
            &[1, 5, 50],
            &[0, 5, 20],
            &[0, 2, 10, 40],
            &[0, 0, 1],
            &[0, 0, 1],
            &[0, 1, 5],
        ];
        for (weight, choices) in weights.iter_mut().zip(choices) {
            *weight = rng.pick(choices);
        }
        let mut flavours = [0; 6];
        for weight in &mut flavours {
            *weight = rng.pick(&[0, 1, 3]);
        }
        flavours[4] += 1;
        if rng.chance(100) {
            // Incompressible data fills a small log again and again, faster than its tail moves:
            // slots are reused as soon as they may be.
            setup.segment = 32 << 10;
            setup.log = data_at(0, setup.segment) + u64::from(setup.segment) * rng.between(8, 9);
            setup.memory = 16 * u64::from(setup.segment);
            setup.window = 64 * u64::from(setup.segment);
            setup.depth = 32;
            setup.patience = u32::MAX;
            setup.slow = rng.pick(&[Slow::Superblocks, Slow::Flushes, Slow::Some(100)]);
            flavours = [0, 0, 0, 0, 0, 1];
            weights = [200, 5, 0, 1, 100, 0, 20, 1, 2, 5, 0, 0, 0];
        }
        if rng.chance(200) {
            return Self::crowded(setup, rng);
        }
        Self {
            weights,
            flavours,
            hot: rng.pick(&[2, 8, 32, 128, blocks]).min(blocks),
            sequential: rng.pick(&[0, 0, 300, 900]),
            discard_max: rng.pick(&[1, 8, 64, blocks]),
            cursor: 0,
            clusters: clusters(&setup),
            writes: 0,
            setup,
        }
    }

    /// The devices of this seed.
    pub fn setup(&self) -> Setup {
        self.setup.clone()
    }

    fn block(&mut self, rng: &mut Rng) -> u32 {
        let blocks = self.setup.blocks;
        let block = if rng.chance(self.sequential) {
            (self.cursor + 1) % blocks
        } else if rng.chance(900) {
            // Hot blocks lie apart, so that windows are sparse.
            (rng.below(u64::from(self.hot)) as u32 * (blocks / self.hot)) % blocks
        } else {
            rng.below(u64::from(blocks)) as u32
        };
        self.cursor = block;
        block
    }

    fn flavour(&self, rng: &mut Rng) -> Flavour {
        match rng.weighted(&self.flavours) {
            0 => Flavour::Zero,
            1 => Flavour::Word,
            2 => Flavour::Double,
            3 => Flavour::Stamp(rng.below(20) as u8),
            4 => Flavour::Stamp(rng.below(256) as u8),
            _ => Flavour::Stamp(255),
        }
    }

    /// A step of the swarm.
    pub fn step(&mut self, rng: &mut Rng) -> Step {
        match rng.weighted(&self.weights) {
            0 => {
                let (block, flavour) = (self.block(rng), self.flavour(rng));
                self.writes += 1;
                if mix(self.setup.seed ^ self.writes) % 1000 < self.clusters {
                    Step::Cluster(block / CLUSTER as u32 * CLUSTER as u32, flavour)
                } else {
                    Step::Write(block, flavour)
                }
            }
            1 => {
                let block = self.block(rng);
                let most = self.discard_max.min(self.setup.blocks - block);
                Step::Discard(block, rng.between(1, u64::from(most)) as u32)
            }
            2 => Step::Flush,
            3 => Step::Sync,
            4 => Step::Media(rng.pick(&[1, 4, 32]), rng.bits() as u32),
            5 => Step::Take(rng.pick(&[1, 2, 32])),
            6 if rng.chance(500) => Step::Read(rng.below(u64::from(self.setup.blocks)) as u32),
            6 => Step::Read(self.block(rng)),
            7 => Step::Finish(rng.bits() as u32),
            8 => Step::Tick(rng.pick(&[1, 10, 100, 1000, 10_000])),
            9 => Step::Window(self.setup.segment * rng.pick(&[1, 2, 4, 64])),
            10 => Step::Close,
            11 => Step::Drain,
            _ => Step::Settle,
        }
    }
}

/// Limits on the steps between two cuts; a seed prefers short or long stretches.
const STRETCHES: [u64; 6] = [8, 40, 100, 200, 400, 800];

/// A program with `cuts` power cuts.
pub fn cuts(seed: u64, cuts: u32) -> Program {
    let mut rng = Rng::new(seed);
    let mut swarm = Swarm::choose(&mut rng);
    // Not drawn from the generator, so that other seeds keep their meaning.
    if mix(seed ^ 0x666f_7267_6574).is_multiple_of(16) {
        return forgetting(swarm, &mut rng, cuts);
    }
    if rng.chance(50) {
        return summarised(swarm, &mut rng, cuts);
    }
    let stretch = rng.pick(&STRETCHES);
    let (nesting, again) = (rng.pick(&[0, 200, 600]), rng.pick(&[0, 100, 500]));
    let mut steps = Vec::new();
    for _ in 0..cuts {
        for _ in 0..rng.between(1, stretch) {
            steps.push(swarm.step(&mut rng));
        }
        let mut nested = Vec::new();
        while nested.len() < 3 && rng.chance(nesting) {
            let most = rng.pick(&[4, 20, 100]);
            let operations = rng.below(most) as i64;
            nested.push(if rng.chance(500) { -1 - operations % 8 } else { operations });
        }
        steps.push(Step::Cut(Cut { seed: rng.bits(), nested, again: rng.chance(again) }));
    }
    Program::new(swarm.setup(), Vec::new(), steps)
}

/// A program in which the process dies `kills` times, or the power goes, also while drives fail.
pub fn kills(seed: u64, kills: u32) -> Program {
    let mut rng = Rng::new(seed ^ 0x006b_1115);
    let mut swarm = Swarm::choose(&mut rng);
    let stretch = rng.pick(&STRETCHES[..5]);
    let (nesting, cut) = (rng.pick(&[0, 200, 600]), rng.pick(&[0, 100, 400]));
    let (mut steps, mut length) = (Vec::new(), 0);
    for _ in 0..kills {
        for _ in 0..rng.between(1, stretch) {
            steps.push(swarm.step(&mut rng));
            length += 1;
        }
        let mut nested = Vec::new();
        while nested.len() < 3 && rng.chance(nesting) {
            let operations = rng.below(20) as i64;
            nested.push(if rng.chance(500) { -1 - operations % 8 } else { operations });
        }
        let end = Cut { seed: rng.bits(), nested, again: false };
        if rng.chance(cut) {
            // A power cut after writes that went past the log may tear a block that no log has.
            steps.extend([Step::Repair, Step::Cut(end)]);
        } else {
            steps.push(Step::Kill(end));
        }
    }
    let mut faults = Vec::new();
    if rng.chance(300) {
        let kinds: &[Kind] = match rng.chance(600) {
            true => &Kind::HONEST,
            false => &[Kind::Once, Kind::Applied, Kind::Short],
        };
        for _ in 0..rng.between(1, 6) {
            let fault = Fault { nth: rng.below(length), kind: rng.pick(kinds) };
            faults.push((Side::Log, fault));
        }
        let at = rng.index(steps.len() + 1);
        steps.insert(at, Step::Repair);
    }
    Program::new(swarm.setup(), faults, steps)
}

/// Cuts while the first chunks of a segment are durable, its last ones are not, and its summary is
/// in flight as well.
fn summarised(mut swarm: Swarm, rng: &mut Rng, cuts: u32) -> Program {
    let segment = 32 << 10;
    swarm.setup.segment = segment;
    swarm.setup.log = data_at(0, segment) + 16 * u64::from(segment);
    swarm.setup.memory = 16 * u64::from(segment);
    swarm.setup.depth = 32;
    swarm.setup.patience = u32::MAX;
    swarm.setup.slow = Slow::Flushes;
    let mut steps = Vec::new();
    for _ in 0..cuts {
        for _ in 0..rng.between(1, 3) {
            let block = rng.below(u64::from(swarm.setup.blocks)) as u32;
            steps.extend([Step::Write(block, Flavour::Word), Step::Sync]);
        }
        for _ in 0..rng.between(7, 14) {
            let block = rng.below(u64::from(swarm.setup.blocks)) as u32;
            steps.push(Step::Write(block, Flavour::Stamp(255)));
        }
        steps.push(Step::Flush);
        steps.extend((0..rng.between(2, 8)).map(|_| Step::Media(32, rng.bits() as u32)));
        steps.push(Step::Cut(Cut { seed: rng.bits(), nested: Vec::new(), again: false }));
    }
    Program::new(swarm.setup(), Vec::new(), steps)
}

/// Cuts while the index forgets a large window, and readers, new changes and a checkpoint come
/// between two steps of that. The window after such a cut is smaller: its records are older than
/// those that the large one wrote back.
fn forgetting(mut swarm: Swarm, rng: &mut Rng, cuts: u32) -> Program {
    let segment: u32 = 32 << 10;
    swarm.setup.segment = segment;
    swarm.setup.log = data_at(0, segment) + 30 * u64::from(segment);
    swarm.setup.memory = 4 * u64::from(segment);
    swarm.setup.patience = u32::MAX;
    swarm.setup.slow = Slow::Nothing;
    swarm.setup.keep = 0;
    // Small enough that a checkpoint is often due while the index forgets the window.
    swarm.setup.checkpoint = rng.pick(&[16 << 10, 32 << 10]);
    let hot = 200;
    let cut = |rng: &mut Rng| Step::Cut(Cut { seed: rng.bits(), nested: Vec::new(), again: false });
    let mut steps = Vec::new();
    for _ in 0..cuts.div_ceil(2) {
        for _ in 0..rng.between(100, 300) {
            let block = rng.below(hot) as u32;
            steps.push(match rng.below(10) {
                0 => Step::Discard(block, rng.between(1, 8) as u32),
                1..4 => Step::Write(block, Flavour::Stamp(255)),
                4 => Step::Flush,
                5 => Step::Media(32, rng.bits() as u32),
                _ => Step::Write(block, Flavour::Word),
            });
        }
        steps.extend([Step::Sync, Step::Window(u32::MAX), Step::Forgetting]);
        for _ in 0..rng.between(1, 300) {
            let block = rng.below(hot) as u32;
            steps.push(match rng.below(10) {
                0 => Step::Write(block, Flavour::Stamp(255)),
                1 => Step::Flush,
                2 => Step::Read(block),
                3 => Step::Finish(rng.bits() as u32),
                _ => Step::Media(1, rng.bits() as u32),
            });
        }
        steps.extend([cut(rng), Step::Window(segment), Step::Settle, cut(rng)]);
    }
    Program::new(swarm.setup(), Vec::new(), steps)
}

/// Everything is on the drives, and a mark after it says so: what is missing from now on is damage.
pub const SECURE: [Step; 9] = [
    Step::Sync,
    Step::Settle,
    // A full log has no room for a mark.
    Step::Window(u32::MAX),
    Step::Settle,
    // A mark misdirected into the data destroys the evidence of the damage.
    Step::Repair,
    Step::Tick(1_000_000),
    Step::Settle,
    Step::Sync,
    Step::Settle,
];

/// Workloads of the sweep over I/O errors.
pub const WORKLOADS: u32 = 20;

/// A workload of the sweep: everything that a log does, within some hundred operations. The drives
/// work again before its end.
pub fn workload(number: u32) -> Program {
    let mut rng = Rng::new(u64::from(number) ^ 0x00e2_2025);
    let mut swarm = Swarm::choose(&mut rng);
    swarm.setup.segment = 32 << 10;
    swarm.setup.log = data_at(0, 32 << 10) + (32 << 10) * rng.between(8, 12);
    swarm.setup.patience = u32::MAX;
    swarm.setup.blocks = 64;
    swarm.setup.memory = 128 << 10;
    swarm.setup.window = 64 << 10;
    swarm.hot = swarm.hot.min(16);
    swarm.discard_max = swarm.discard_max.min(64);
    let mut steps = Vec::new();
    let some = |steps: &mut Vec<Step>, swarm: &mut Swarm, rng: &mut Rng, most| {
        steps.extend((0..rng.between(5, most)).map(|_| swarm.step(rng)));
    };
    let cut = |rng: &mut Rng| Step::Cut(Cut { seed: rng.bits(), nested: Vec::new(), again: false });
    some(&mut steps, &mut swarm, &mut rng, 120);
    steps.push(Step::Sync);
    some(&mut steps, &mut swarm, &mut rng, 20);
    steps.push(cut(&mut rng));
    some(&mut steps, &mut swarm, &mut rng, 60);
    steps.push(if number.is_multiple_of(2) { Step::Drain } else { Step::Close });
    some(&mut steps, &mut swarm, &mut rng, 20);
    steps.extend([Step::Sync, Step::Repair, cut(&mut rng)]);
    some(&mut steps, &mut swarm, &mut rng, 20);
    steps.extend([Step::Sync, Step::Drain, cut(&mut rng)]);
    Program::new(swarm.setup(), Vec::new(), steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_program_and_more_cuts_go_on_with_it() {
        let (short, long) = (cuts(7, 3), cuts(7, 9));
        assert_eq!(short.steps, cuts(7, 3).steps);
        assert_eq!(short.steps, long.steps[..short.steps.len()]);
        let count = |p: &Program| p.steps.iter().filter(|s| matches!(s, Step::Cut(_))).count();
        assert_eq!((count(&short), count(&long)), (3, 9));
        assert_ne!(short.steps, cuts(8, 3).steps);
    }

    #[test]
    fn every_step_is_inside_the_volume() {
        for seed in 0..100 {
            let program = cuts(seed, 5);
            let blocks = program.setup.blocks;
            for step in &program.steps {
                match step {
                    Step::Write(block, _) | Step::Read(block) => assert!(*block < blocks),
                    Step::Cluster(block, _) => {
                        let cluster = CLUSTER as u32;
                        assert!(block.is_multiple_of(cluster) && block + cluster <= blocks);
                    }
                    Step::Discard(block, count) => {
                        assert!(*count > 0 && block + count <= blocks);
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn workloads_end_with_working_drives() {
        for number in 0..WORKLOADS {
            let program = workload(number);
            assert_eq!(program.steps.iter().filter(|s| **s == Step::Repair).count(), 1);
            assert!(matches!(program.steps.last(), Some(Step::Cut(_))));
        }
    }

    #[test]
    fn a_part_of_a_program_is_a_program() {
        let program = cuts(1, 2);
        let part = program.only(&[0, 2, 9_999_999]);
        assert_eq!(part.steps, [program.steps[0].clone(), program.steps[2].clone()]);
    }
}
