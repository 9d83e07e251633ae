//! The adaptive limit on a simulated machine: its final value, its speed, and its stability.
//!
//! The machine's memory is shared by a heap, a volume and the page cache. Files and the volume's
//! data are accessed at some rate, and the misses follow one of three laws.
#![allow(clippy::unwrap_used)]

use crate::support::ram_drive::RamDrive;
use proptest::prelude::*;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use ztier::cache::Cached;
use ztier::config::Bounds;
use ztier::limit::{Controller, DiskReads, Machine, Ours, Reason, Role, Sample, Sampler};
use ztier::media::Drive;
use ztier::stats::CacheStats;

const MIB: u64 = 1 << 20;
const PAGE: f64 = 4096.0;

/// The share of accesses that miss if `room` of `wanted` bytes are in memory.
#[derive(Clone, Copy)]
enum Law {
    /// All data is accessed equally often.
    Even,
    /// Some data is accessed more often.
    Skewed,
    /// A cyclic scan: every access misses until all data has room.
    Loop,
}

impl Law {
    fn missed(self, room: f64, wanted: f64) -> f64 {
        let lack = (1.0 - room / wanted.max(1.0)).max(0.0);
        match self {
            Self::Even => lack,
            Self::Skewed => lack.powi(4),
            Self::Loop => f64::from(lack > 0.0),
        }
    }
}

/// A consumer of memory.
#[derive(Clone, Copy)]
struct Load {
    /// Bytes wanted.
    wanted: u64,
    /// Pages or blocks accessed in a second.
    rate: f64,
    law: Law,
    /// Cost of a miss.
    cost_ns: f64,
}

const NONE: Load = Load { wanted: 0, rate: 0.0, law: Law::Even, cost_ns: 100_000.0 };

struct World {
    role: Role,
    bounds: Bounds,
    total: u64,
    heap: u64,
    files: Load,
    data: Load,
    limit: u64,
    used: u64,
    /// Limit on the bytes that a volume gains in a second.
    fill: u64,
    sample: Sample,
    controller: Controller,
    now: u64,
    limits: Vec<u64>,
    /// Number of requests to recompress stored data.
    recompresses: u32,
    /// Whether the machine itself is short of memory when files miss.
    is_short: bool,
    /// Reads of files that are in the disk's queue at the same time.
    together: f64,
    reason: Reason,
}

fn ours(role: Role, limit: u64) -> Ours {
    Ours {
        role,
        limit_bytes: limit,
        used_bytes: 0,
        is_full: false,
        data_bytes: 0,
        read_blocks: 0,
        misses: 0,
        miss_ns: 0,
        regretted: None,
        leaving_ns: 0,
        own_reads: DiskReads::default(),
    }
}

impl World {
    fn new(role: Role) -> Self {
        let limit = 128 * MIB;
        let total = 512 * MIB;
        let machine = Machine {
            total_bytes: total,
            available_bytes: Some(total),
            refaults: Some(0),
            scanned: Some(0),
            stalled_us: Some(0),
            disk_reads: Some(DiskReads::default()),
            disk_busy_ns: Some(0),
        };
        Self {
            role,
            bounds: Bounds { min_bytes: 16 * MIB, max_bytes: 256 * MIB },
            total,
            heap: 64 * MIB,
            files: NONE,
            data: NONE,
            limit,
            used: 0,
            fill: 50 * MIB,
            sample: Sample { machine, ours: ours(role, limit) },
            controller: Controller::default(),
            now: 0,
            limits: Vec::new(),
            recompresses: 0,
            is_short: true,
            together: 1.0,
            reason: Reason::Starting,
        }
    }

    fn available(&self) -> u64 {
        self.total.saturating_sub(self.heap + self.used)
    }

    /// A second passes, and the controller decides. `noise` multiplies the counters.
    fn second(&mut self, noise: f64) {
        self.now += 1;
        let target = self.data.wanted.min(self.limit);
        self.used = if target < self.used { target } else { target.min(self.used + self.fill) };
        let file_room = self.available();
        let file_missed = self.files.rate
            * self.files.law.missed(file_room as f64, self.files.wanted as f64)
            * noise;
        let missed = self.data.rate
            * self.data.law.missed(self.used as f64, self.data.wanted as f64)
            / noise;
        let Sample { machine, ours } = &mut self.sample;
        machine.available_bytes = Some(file_room);
        let add = |counter: &mut Option<u64>, more: f64| {
            if let Some(counter) = counter {
                *counter += more as u64;
            }
        };
        add(&mut machine.refaults, file_missed);
        if self.is_short {
            add(&mut machine.scanned, file_missed);
        }
        if let Some(reads) = &mut machine.disk_reads {
            reads.bytes += (file_missed * PAGE) as u64;
            reads.ns += (file_missed * self.files.cost_ns * self.together) as u64;
        }
        add(&mut machine.disk_busy_ns, file_missed * self.files.cost_ns);
        ours.limit_bytes = self.limit;
        ours.used_bytes = self.used;
        ours.is_full = self.used + 8 * MIB >= self.limit;
        ours.data_bytes = self.used * 3;
        ours.read_blocks += self.data.rate as u64;
        ours.misses += missed as u64;
        ours.miss_ns += (missed * self.data.cost_ns) as u64;
        if self.role == Role::Copies {
            ours.regretted = Some(ours.misses);
        }
        let now = Duration::from_secs(self.now);
        let decision = self.controller.decide(now, &self.sample, &self.bounds);
        self.reason = decision.reason;
        self.recompresses += u32::from(decision.recompress);
        self.limit = decision.limit_bytes.unwrap_or(self.limit);
        assert!(self.bounds.clamp(self.limit) == self.limit, "{} is outside", self.limit);
        self.limits.push(self.limit);
    }

    fn run(&mut self, seconds: u64) -> &mut Self {
        (0..seconds).for_each(|_| self.second(1.0));
        self
    }

    /// Number of times that the limit changed direction since `from`.
    fn turns(&self, from: usize) -> usize {
        let steps = self.limits[from..].windows(2).map(|pair| pair[1].cmp(&pair[0]));
        let ways: Vec<_> = steps.filter(|way| way.is_ne()).collect();
        ways.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }
}

/// A file of twice the machine's memory, read over and over.
const HUNGRY: Load = Load { wanted: 1024 * MIB, rate: 20_000.0, law: Law::Even, cost_ns: 50_000.0 };
/// Data without accesses.
const COLD: Load = Load { wanted: 200 * MIB, ..NONE };

#[test]
fn an_idle_machine_is_left_alone() {
    for role in [Role::Copies, Role::Spills, Role::SpillsSwap, Role::Sole, Role::SoleSwap] {
        let mut world = World::new(role);
        world.limit = 256 * MIB;
        world.data = Load { wanted: 100 * MIB, rate: 500.0, ..NONE };
        world.run(600);
        assert!(world.limits.iter().all(|limit| *limit == 256 * MIB), "{role:?}: {}", world.reason);
    }
}

#[test]
fn cold_data_gives_way_to_files_within_a_minute() {
    for role in [Role::Copies, Role::Spills, Role::SpillsSwap] {
        let mut world = World::new(role);
        (world.files, world.data) = (HUNGRY, COLD);
        world.run(60);
        assert_eq!(world.limit, world.bounds.min_bytes, "{role:?}: {}", world.reason);
        assert_eq!(world.reason, Reason::AtLeast);
        world.run(600);
        assert_eq!((world.turns(0), world.limit), (0, world.bounds.min_bytes));
    }
}

#[test]
fn files_that_all_have_room_take_nothing() {
    let mut world = World::new(Role::Copies);
    world.files = Load { wanted: 200 * MIB, ..HUNGRY };
    world.data = Load { wanted: 120 * MIB, ..COLD };
    world.run(600);
    assert!(world.limits.iter().all(|limit| *limit == 128 * MIB), "{}", world.reason);
}

/// A file with large readahead has a thousand requests in the disk's queue, each of which counts
/// all of its time there. The reader does not wait a thousand times for them.
#[test]
fn what_many_requests_wait_for_at_once_is_waited_for_once() {
    for role in [Role::Spills, Role::SpillsSwap] {
        let mut world = World::new(role);
        world.together = 1000.0;
        world.files = Load { rate: 2000.0, ..HUNGRY };
        world.data = Load { wanted: 500 * MIB, rate: 500.0, cost_ns: 1e6, ..COLD };
        world.run(120);
        let waits = world.controller.waits();
        assert_eq!(world.limit, world.bounds.max_bytes, "{role:?}: {} {waits:?}", world.reason);
    }
}

#[test]
fn what_control_groups_miss_for_want_of_their_own_memory_takes_nothing() {
    let mut world = World::new(Role::Copies);
    (world.files, world.data) = (HUNGRY, COLD);
    world.is_short = false;
    world.run(600);
    assert!(world.limits.iter().all(|limit| *limit == 128 * MIB), "{}", world.reason);
}

/// Neither has all the memory it wants: memory goes to the one with the higher cost of misses,
/// until both costs are equal.
#[test]
fn two_that_want_memory_meet_where_they_wait_as_long() {
    for law in [Law::Even, Law::Skewed] {
        for (rate, cost) in [(500.0, 200_000.0), (2000.0, 50_000.0), (100.0, 2_000_000.0)] {
            for start in [16, 128, 256] {
                let mut world = World::new(Role::Spills);
                world.limit = start * MIB;
                world.files = Load { wanted: 700 * MIB, rate: 4000.0, law, cost_ns: 50_000.0 };
                world.data = Load { wanted: 500 * MIB, rate, law, cost_ns: cost };
                world.run(1800);
                let waits = world.controller.waits();
                let ratio = (waits.missed + waits.coldest) / waits.files;
                let at_end =
                    [world.bounds.min_bytes, world.bounds.max_bytes].contains(&world.limit);
                let says = format!("{rate} from {start}: {} {waits:?}", world.limit / MIB);
                assert!((0.4..2.5).contains(&ratio) || at_end, "{says}");
                assert!(world.turns(0) <= 6, "{} turns, {says}", world.turns(0));
                assert!(world.turns(900) <= 1, "{says}");
            }
        }
    }
}

/// The worst case for any controller: each load is satisfied with all it wants, and misses
/// everything with less.
#[test]
fn two_loops_that_do_not_fit_together_make_it_turn_round_ever_more_seldom() {
    let mut world = World::new(Role::Spills);
    world.files = Load { wanted: 350 * MIB, rate: 4000.0, law: Law::Loop, cost_ns: 50_000.0 };
    world.data = Load { wanted: 180 * MIB, rate: 1000.0, law: Law::Loop, cost_ns: 100_000.0 };
    world.run(3600);
    let (all, late) = (world.turns(0), world.turns(1800));
    assert!(all <= 30 && late <= 12, "{all} turns, {late} of them late");
}

#[test]
fn a_noisy_machine_makes_it_no_busier() {
    let mut world = World::new(Role::Copies);
    world.files = Load { wanted: 700 * MIB, rate: 4000.0, law: Law::Skewed, cost_ns: 50_000.0 };
    world.data = Load { wanted: 500 * MIB, rate: 800.0, law: Law::Skewed, cost_ns: 150_000.0 };
    world.run(300);
    let mut seed = 1u64;
    for _ in 0..1800 {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        world.second(0.5 + (seed >> 40) as f64 / (1u64 << 24) as f64);
    }
    let late = &world.limits[300..];
    let (least, most) = (late.iter().min().unwrap(), late.iter().max().unwrap());
    assert!(world.turns(300) <= 16, "{} turns", world.turns(300));
    assert!(*most <= least / 2 * 3, "{least} to {most}");
}

#[test]
fn when_the_neighbour_has_gone_what_is_missed_comes_back() {
    for role in [Role::Copies, Role::Spills, Role::SpillsSwap] {
        let mut world = World::new(role);
        (world.files, world.data) = (HUNGRY, COLD);
        world.run(120);
        assert_eq!(world.limit, world.bounds.min_bytes, "{role:?}");
        world.files = NONE;
        world.data = Load { rate: 3000.0, wanted: 180 * MIB, ..world.data };
        world.run(30);
        assert!(world.limit >= 170 * MIB, "{role:?}: {} {}", world.limit / MIB, world.reason);
        // The neighbour comes back: the controller detects it again.
        (world.files, world.data) = (HUNGRY, COLD);
        world.run(90);
        assert_eq!(world.limit, world.bounds.min_bytes, "{role:?}: {}", world.reason);
    }
}

/// Reads blocks in random order, one by one.
struct Reader {
    blocks: u64,
    at: u64,
}

impl Reader {
    /// A reader of a drive of incompressible noise.
    fn of(drive: &RamDrive) -> Self {
        let mut reader = Self { blocks: drive.size() / 4096, at: 1 };
        let mut block = [0; 4096];
        for at in 0..reader.blocks {
            block.as_chunks_mut().0.fill_with(|| reader.next().to_le_bytes());
            drive.write(at * 4096, &block).unwrap();
        }
        reader
    }

    fn next(&mut self) -> u64 {
        self.at ^= self.at << 13;
        self.at ^= self.at >> 7;
        self.at ^= self.at << 17;
        self.at
    }

    fn read(&mut self, cached: &Cached, count: u64) {
        for _ in 0..count {
            let block = self.next() % self.blocks;
            cached.read(block * 4096, &mut [0; 4096]).unwrap();
        }
    }
}

/// The real cache reports whether it is full.
#[test]
fn copies_that_gave_way_to_the_least_come_back_when_misses_are_dear() {
    let drive = Arc::new(RamDrive::new(48 * MIB));
    let mut reader = Reader::of(&drive);
    for (least, begun) in [(4, 64), (8, 8), (16, 16), (16, 64)] {
        let mut world = World::new(Role::Copies);
        world.bounds = Bounds { min_bytes: least * MIB, max_bytes: 64 * MIB };
        (world.limit, world.files, world.data) = (64 * MIB, HUNGRY, COLD);
        world.run(120);
        assert_eq!(world.limit, least * MIB, "{}", world.reason);

        let drive = Arc::clone(&drive) as Arc<dyn Drive>;
        let cached = Cached::over(drive, begun * MIB, 64 * MIB).unwrap();
        cached.set_limit(world.limit).unwrap();
        for second in 120..180 {
            reader.read(&cached, 500);
            let ours = Ours::of_copies(&cached.stats());
            // As for a rotating disk.
            world.sample.ours = Ours { miss_ns: ours.misses * 8_000_000, ..ours };
            let now = Duration::from_secs(second + 1);
            let decision = world.controller.decide(now, &world.sample, &world.bounds);
            world.reason = decision.reason;
            decision.limit_bytes.into_iter().for_each(|limit| cached.set_limit(limit).unwrap());
        }
        let limit = cached.stats().limit_bytes / MIB;
        assert!(limit >= 32, "{limit} MiB of {least} begun at {begun}: {}", world.reason);
    }
}

/// A volume's reads of a disk are counted there, at the partition and at the devices above it, and
/// count as waits for files at none of them.
#[test]
fn own_reads_of_a_partition_are_not_what_files_wait_for() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
    // Total reads of a page each since the start, and their total milliseconds.
    let line = |name: &str, reads: u64, ms: u64| {
        format!("8 0 {name} {reads} 0 {} {ms} 0 0 0 0 0 {ms} {ms}\n", reads * 8)
    };
    write("meminfo", "MemTotal: 524288 kB\nMemAvailable: 262144 kB\n".into());
    let mut controller = Controller::default();
    let mut sampler = None;
    let bounds = Bounds { min_bytes: 16 * MIB, max_bytes: 256 * MIB };
    for second in 1..30 {
        let own = ["sdb", "sdb1", "dm-0"].map(|name| line(name, second * 100, second * 800));
        let others = ["nvme0n1", "nvme0n1p2"].map(|name| line(name, second * 1000, second * 100));
        write("diskstats", [own.concat(), others.concat()].concat());
        let pages = second * 1000;
        write("vmstat", format!("workingset_refault_file {pages}\npgscan_kswapd {pages}\n"));
        let sampler = sampler.get_or_insert_with(|| Sampler::open(dir.path(), None));
        let own_reads = DiskReads { bytes: second * 100 * 4096, ns: second * 800_000_000 };
        let ours = Ours { own_reads, regretted: Some(0), ..ours(Role::Copies, 128 * MIB) };
        let sample = Sample { machine: sampler.sample(None), ours };
        controller.decide(Duration::from_secs(second), &sample, &bounds);
    }
    // A thousand pages a second, of 0.1 ms each.
    let files = controller.waits().files;
    assert!((0.09..0.11).contains(&files), "{files}");
}

#[test]
fn what_a_volume_reads_ahead_it_reads_itself() {
    let stats =
        CacheStats { missed_blocks: 3, ahead_blocks: 5, missed_ns: 7, ..CacheStats::default() };
    let ours = Ours::of_copies(&stats);
    assert_eq!(ours.own_reads, DiskReads { bytes: 8 * 4096, ns: 7 });
    assert_eq!((ours.misses, ours.miss_ns), (3, 7));
}

#[test]
fn a_heap_that_grows_finds_the_floor_held() {
    for role in [Role::Copies, Role::Spills] {
        let mut world = World::new(role);
        world.limit = 256 * MIB;
        world.data = Load { wanted: 250 * MIB, rate: 2000.0, law: Law::Even, cost_ns: 200_000.0 };
        world.run(60);
        let floor = Controller::floor(&world.sample.machine);
        for _ in 0..40 {
            world.heap += 10 * MIB;
            world.run(1);
            // The shortage shows only afterwards, so one step is in use before the limit gives it
            // back.
            let held =
                world.available() + 10 * MIB >= floor || world.limit == world.bounds.min_bytes;
            assert!(held, "{role:?}: {} available", world.available() / MIB);
        }
        world.run(30);
        assert!(world.available() >= floor, "{role:?}: {}", world.reason);
        let there = world.limit;
        world.run(300);
        assert!(world.turns(world.limits.len() - 300) == 0, "{role:?}");
        // Missing memory is not taken from the heap, and comes back when the heap has gone.
        assert!(matches!(world.reason, Reason::NoRoom { .. }), "{role:?}: {}", world.reason);
        assert_eq!(world.limit, there);
        world.heap = 64 * MIB;
        world.run(60);
        assert!(world.limit >= 240 * MIB, "{role:?}: {} {}", world.limit / MIB, world.reason);
    }
}

/// With swap, growth frees more memory than it takes: little available memory is no reason against
/// it.
#[test]
fn swap_grows_though_nothing_is_available() {
    let mut world = World::new(Role::SpillsSwap);
    world.limit = 16 * MIB;
    world.heap = 500 * MIB;
    world.data = Load { wanted: 200 * MIB, rate: 5000.0, law: Law::Loop, cost_ns: 150_000.0 };
    // The few file pages miss, too.
    world.files = Load { wanted: 20 * MIB, rate: 200.0, law: Law::Even, cost_ns: 100_000.0 };
    world.run(30);
    assert!(world.limit >= 200 * MIB, "{} {}", world.limit / MIB, world.reason);
    world.run(300);
    assert!(world.limit >= 190 * MIB && world.turns(0) == 0, "{}", world.reason);
}

#[test]
fn what_has_no_other_place_may_take_what_others_leave() {
    let mut world = World::new(Role::Sole);
    world.limit = 256 * MIB;
    world.data = Load { wanted: 100 * MIB, ..COLD };
    world.run(60);
    assert_eq!(world.limit, 256 * MIB);
    world.heap = 320 * MIB;
    world.run(5);
    let floor = Controller::floor(&world.sample.machine);
    assert_eq!(world.limit, world.total - world.heap - floor, "{}", world.reason);
    // However little memory is available: stored data stays.
    world.heap = 500 * MIB;
    world.run(60);
    assert!(world.limit >= world.used && world.used == 100 * MIB);
    world.heap = 64 * MIB;
    world.run(5);
    assert_eq!(world.limit, 256 * MIB);
    assert_eq!(World::new(Role::SoleSwap).run(3).limit, 256 * MIB);
}

#[test]
fn what_has_no_other_place_is_compressed_now_and_then_while_memory_is_missed() {
    let mut world = World::new(Role::Sole);
    (world.files, world.data) = (HUNGRY, Load { wanted: 100 * MIB, ..COLD });
    world.run(600);
    assert_eq!(world.recompresses, 10);
}

/// The controller draws no conclusion from figures that a machine does not provide.
#[test]
fn what_is_missing_moves_nothing() {
    let forget: [fn(&mut Machine); 2] = [
        |machine| machine.refaults = None,
        |machine| {
            let total_bytes = machine.total_bytes;
            *machine = Machine { total_bytes, ..Machine::default() };
        },
    ];
    for forget in forget {
        let mut world = World::new(Role::Copies);
        (world.files, world.data) = (HUNGRY, COLD);
        world.limit = 200 * MIB;
        forget(&mut world.sample.machine);
        for _ in 0..300 {
            world.second(1.0);
            forget(&mut world.sample.machine);
        }
        assert!(world.limits.iter().all(|limit| *limit == 200 * MIB), "{}", world.reason);
    }
    // Without the time of a read, one is assumed; without scans, refaults count as they are.
    let mut world = World::new(Role::Copies);
    (world.files, world.data) = (HUNGRY, COLD);
    (world.sample.machine.disk_reads, world.sample.machine.scanned) = (None, None);
    world.sample.machine.disk_busy_ns = None;
    world.run(60);
    assert_eq!(world.limit, world.bounds.min_bytes);
}

#[test]
fn new_bounds_hold_at_once_and_a_machine_that_slept_says_nothing() {
    let mut world = World::new(Role::Copies);
    world.run(10);
    world.bounds = Bounds { min_bytes: 150 * MIB, max_bytes: 200 * MIB };
    world.run(1);
    assert_eq!((world.limit, world.reason), (150 * MIB, Reason::Bounds));
    (world.files, world.data) = (HUNGRY, COLD);
    world.bounds.min_bytes = 16 * MIB;
    let before = world.limit;
    world.now += 3600;
    world.run(1);
    assert_eq!((world.limit, world.reason), (before, Reason::Starting));
}

fn counter() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..10_000u64, any::<u64>()]
}

fn maybe() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![Just(None), counter().prop_map(Some)]
}

prop_compose! {
    fn machines()(
        total_bytes in counter(), available_bytes in maybe(), refaults in maybe(),
        scanned in maybe(), stalled_us in maybe(), disk in maybe(), ns in counter(),
        disk_busy_ns in maybe(),
    ) -> Machine {
        let disk_reads = disk.map(|bytes| DiskReads { bytes, ns });
        Machine {
            total_bytes, available_bytes, refaults, scanned, stalled_us, disk_reads, disk_busy_ns,
        }
    }
}

prop_compose! {
    fn volumes()(
        role in prop_oneof![
            Just(Role::Sole), Just(Role::SoleSwap), Just(Role::Spills), Just(Role::SpillsSwap),
            Just(Role::Copies),
        ],
        limit_bytes in counter(), used_bytes in counter(), is_full: bool, data_bytes in counter(),
        (read_blocks, misses, miss_ns) in (counter(), counter(), counter()),
        regretted in maybe(), leaving_ns in counter(), bytes in counter(), ns in counter(),
    ) -> Ours {
        let own_reads = DiskReads { bytes, ns };
        Ours {
            role, limit_bytes, used_bytes, is_full, data_bytes, read_blocks, misses, miss_ns,
            regretted, leaving_ns, own_reads,
        }
    }
}

proptest! {
    /// For any sample, also a nonsensical one: the limit is within its bounds, and where data has
    /// no other place the limit is not below its size.
    #[test]
    fn a_limit_is_always_one_that_can_be(
        samples in prop::collection::vec((machines(), volumes(), 0..20_000u64), 1..40),
        min in counter(), more in counter(),
    ) {
        let bounds = Bounds { min_bytes: min, max_bytes: min.saturating_add(more) };
        let mut controller = Controller::default();
        let mut now = Duration::ZERO;
        for (machine, ours, millis) in samples {
            now += Duration::from_millis(millis);
            let decision = controller.decide(now, &Sample { machine, ours }, &bounds);
            let waits = controller.waits();
            prop_assert!(waits.files.is_finite() && waits.missed.is_finite());
            prop_assert!(waits.coldest.is_finite() && !decision.reason.to_string().is_empty());
            let Some(limit) = decision.limit_bytes else { continue };
            prop_assert!((bounds.min_bytes..=bounds.max_bytes).contains(&limit));
            prop_assert!(limit != ours.limit_bytes);
            if ours.role.is_sole() && decision.reason != Reason::Bounds {
                prop_assert!(limit >= ours.used_bytes.min(bounds.max_bytes));
            }
        }
    }
}
