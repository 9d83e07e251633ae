//! Parameters of the modelled drives, each with its source, or marked as fitted or chosen.
//!
//! "Source A, B, C" are the rows of dm-lc's table, measured in 2013 on a "2.5 inch HDD" by Seagate
//! and a Samsung 840 Pro of 256 GB. The source names no model of the disk; its missing figures come
//! from manuals of 2.5-inch disks of those years. MB are 10^6 bytes.

use super::Nanos;

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;

/// A rotating disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskParams {
    /// Bytes of the whole disk. A smaller drive is the beginning of the disk, its outer tracks.
    pub capacity: u64,
    /// Time of a revolution.
    pub turn: Nanos,
    /// Surfaces.
    pub heads: u64,
    /// Number of zones, each with tracks of the same length.
    pub zones: u64,
    /// Bytes in a track of the outermost zone.
    pub track_outer: u64,
    /// Bytes in a track of the innermost zone.
    pub track_inner: u64,
    /// Time to the next track or to another head: also the skew between tracks.
    pub seek_single: Nanos,
    /// Read seek over a third of all cylinders, the average of random seeks.
    pub seek_average: Nanos,
    /// Read seek over all cylinders.
    pub seek_full: Nanos,
    /// Additional settling time before a write (not to the next track).
    pub write_settle: Nanos,
    /// Time from the end of one access to the medium to the start of another elsewhere.
    pub decide: Nanos,
    /// Commands that the drive knows at a time, and cached writes that it chooses from.
    pub queue: usize,
    /// Nanoseconds of waiting that count as being reached 1 ns sooner.
    pub aging: u64,
    /// Bytes of the volatile cache that hold writes.
    pub cache: u64,
    /// Bytes of readahead.
    pub ahead: u64,
    /// Bytes a second between host and cache.
    pub link: u64,
    /// Time of a command on the link, without its data.
    pub command: Nanos,
}

/// A 2.5-inch disk of 500 GB and 7200 rpm, as of 2009 to 2013.
pub const HDD_7200: DiskParams = DiskParams {
    // As all drives of 500 GB (IDEMA LBA1-03: 976,773,168 sectors), in whole blocks.
    capacity: 976_773_168 / 8 * 4096,
    // 7200 rpm.
    turn: 60 * 1_000_000_000 / 7200,
    // Two platters of 250 GB, usual for 500 GB at that time.
    heads: 4,
    zones: 24,
    // Reviews show 100 MB/s sustained at the outer edge (Scorpio Black; Momentus 7200.3: 80): here
    // 100.1 with the skew, 112 within a track. The inner edge reads half as fast, as usual.
    track_outer: 228 * 4096,
    track_inner: 114 * 4096,
    // Manuals of Hitachi's Travelstar 5K160 and 5K320: 1.0, 11 to 12 and 20 ms to read; 13 ms in
    // the average to write.
    seek_single: MS,
    seek_average: 11 * MS,
    seek_full: 20 * MS,
    write_settle: 2 * MS,
    // Fitted to source A.
    decide: 100 * US,
    // The 32 of native command queueing. The window of cached writes that are ordered has the same
    // size, not all 4096 of them, because source A demands that: with all of them, a disk would
    // write several times as fast.
    queue: 32,
    // Chosen, as a weight of 0.01 in "aged shortest access time first" (Jacobson and Wilkes, "Disk
    // scheduling algorithms based on rotational position", 1991).
    aging: 100,
    // Data sheets of the disks named above.
    cache: 16 << 20,
    // Chosen: a part of the same memory.
    ahead: 2 << 20,
    // 3 Gbit/s, 8b/10b coded.
    link: 300_000_000,
    // Chosen.
    command: 50 * US,
};

/// What a controller of flash maps.
#[derive(Clone, Copy, Debug)]
pub enum Mapping {
    /// Pages. A smaller drive leaves the rest as spare.
    Pages {
        /// Bytes of flash.
        physical: u64,
    },
    /// Allocation units.
    Units {
        /// Bytes in a unit.
        bytes: u64,
        /// Units that are open for writes at a time.
        open: usize,
    },
}

/// Flash with a controller.
#[derive(Clone, Copy, Debug)]
pub struct FlashParams {
    /// Bytes that the host sees.
    pub capacity: u64,
    /// What is mapped.
    pub mapping: Mapping,
    /// Commands that the drive knows at a time; further ones wait in the host.
    pub queue: usize,
    /// Channels that transfer in parallel.
    pub channels: usize,
    /// Dies on all channels, which program, read or erase in parallel.
    pub dies: usize,
    /// Bytes that a die programs at once: a page on each of its planes.
    pub program_bytes: u64,
    /// Time to program `program_bytes`.
    pub program: Nanos,
    /// Time to read a page, or a page of each plane, into the die's register.
    pub sense: Nanos,
    /// Bytes a second on a channel.
    pub channel: u64,
    /// Programs in an erase block.
    pub block_programs: u32,
    /// Time to erase a block.
    pub erase: Nanos,
    /// Bytes of the write buffer.
    pub buffer: u64,
    /// Whether a write completes only when it is programmed: there is no volatile cache.
    pub through: bool,
    /// Bytes a second from the host.
    pub link_write: u64,
    /// Bytes a second to the host.
    pub link_read: u64,
    /// Time for which a write command occupies the link and the firmware, without its data.
    pub command_write: Nanos,
    /// The same for a read command.
    pub command_read: Nanos,
    /// The same for a discard.
    pub command_zero: Nanos,
    /// Latency of every command that occupies nothing.
    pub latency: Nanos,
    /// Time in which a flush writes the changes of the mapping, after the data.
    pub journal: Nanos,
}

/// A Samsung 840 Pro of 256 GB.
pub const SSD_840PRO: FlashParams = FlashParams {
    // IDEMA LBA1-03: 500,118,192 sectors.
    capacity: 500_118_192 / 8 * 4096,
    // 256 GiB, of which 7 % are spare.
    mapping: Mapping::Pages { physical: 256 << 30 },
    // SATA's native command queueing.
    queue: 32,
    // Reviews: eight channels; 32 dies of 64 Gbit make 256 GiB.
    channels: 8,
    dies: 32,
    // Pages of 8 KiB on two planes, usual for that flash.
    program_bytes: 16 << 10,
    // Fitted to the data sheet's 520 MB/s: 32 dies of 16 KiB in 1 ms are 524 MB/s. Two-bit cells of
    // 21 nm take about that time.
    program: MS,
    // Fitted to the data sheet's 9,900 random reads a second at depth 1: 101 us each.
    sense: 71 * US,
    // Toggle mode 2.0: 400 MB/s a chip.
    channel: 400_000_000,
    // Blocks of 2 MiB a plane: 256 pages of 8 KiB. Chosen, as the time to erase one.
    block_programs: 256,
    erase: 3 * MS,
    // Chosen; the chip has 512 MB of memory, most of it for the mapping.
    buffer: 32 << 20,
    through: false,
    // Fitted to source C, 266 MB/s, half of what the data sheet says; a link of 3 Gbit/s would
    // explain it, but the source does not say. With the command time below, 1 MiB takes 3.942 ms.
    link_write: 266_300_000,
    // The data sheet's 540 MB/s; the source measures no reads.
    link_read: 540_000_000,
    // Fitted to source B, 202 MB/s: 4 KiB take 15.4 us on the link, and 20.3 in all.
    command_write: 4_900,
    // Fitted to the data sheet's 100,000 random reads a second at depth 32: 7.6 us on the link.
    command_read: 2_400,
    // Chosen.
    command_zero: 100 * US,
    // Fitted to the data sheet's 31,000 random writes a second at depth 1: 32 us each.
    latency: 12 * US,
    // Chosen: one more program. A write and a flush then take about 2 ms, as is usual of consumer
    // drives without power-loss protection (0.5 to 2 ms for a flush).
    journal: MS,
};

/// An eMMC 5.1 of 64 GB.
///
/// Published: the standard (JEDEC JESD84-B51), and for the figures what Samsung announced in
/// February 2015 of its first eMMC 5.1 of 64 GB: 250 and 125 MB/s, 11,000 random reads and 13,000
/// random writes a second.
pub const EMMC_5_1: FlashParams = FlashParams {
    // 64 GB in whole units. Chosen: parts of that name differ.
    capacity: 64_000_000_000 / (512 << 10) * (512 << 10),
    // The standard counts erase groups in multiples of 512 KiB. As many are open as the 64 MiB of
    // the job need for which the figures are taken: chosen, since the range behind the published
    // figures is unknown.
    mapping: Mapping::Units { bytes: 512 << 10, open: 128 },
    // The standard's command queue.
    queue: 32,
    // Chosen: four dies of 128 Gbit on two channels, with pages of 16 KiB on two planes.
    channels: 2,
    dies: 4,
    program_bytes: 32 << 10,
    // Fitted to 125 MB/s in order, with the erasing.
    program: 1_035 * US,
    // Chosen, as usual of such flash.
    sense: 80 * US,
    channel: 400_000_000,
    block_programs: 256,
    erase: 3 * MS,
    // Chosen: caches of 64 KiB to some MiB are reported.
    buffer: 1 << 20,
    // The standard's volatile cache, which Linux turns on.
    through: false,
    // The standard's HS400: 200 MHz, both edges, eight bits.
    link_write: 400_000_000,
    // Fitted to 250 MB/s in order: less than the bus.
    link_read: 260_900_000,
    // Fitted to 13,000 random writes and 11,000 random reads a second.
    command_write: 65_000,
    command_read: 75_200,
    // Chosen.
    command_zero: 200 * US,
    // Chosen: a read alone takes 0.2 ms then, 5,000 a second.
    latency: 100 * US,
    // Chosen: one more program.
    journal: MS,
};

/// An SD card of 64 GB that just has application performance class A1.
///
/// Published: the SD Association's Physical Layer Specification 5.1 (class A1: 1500 random reads
/// and 500 random writes a second at least, 10 MB/s in order; UHS-I: 104 MB/s), and the 95 MB/s of
/// the first card of the class, a SanDisk Ultra.
pub const SD_A1: FlashParams = FlashParams {
    // 64 GB in whole units. Chosen.
    capacity: 64_000_000_000 / (4 << 20) * (4 << 20),
    // The specification's allocation unit of SDHC and, at UHS-I, unit of measurement. As many are
    // open as the 64 MiB of Raspberry Pi OS's test of the class need: chosen; the surveys of cheap
    // cards (Bergmann, "Optimizing Linux with cheap flash drives", 2011) found one to some ten.
    mapping: Mapping::Units { bytes: 4 << 20, open: 16 },
    // Command queues came with class A2.
    queue: 1,
    // Chosen: what the controller programs at a time, with the next time, stands for the whole
    // card.
    channels: 1,
    dies: 1,
    program_bytes: 8 << 10,
    // Fitted to 10 MB/s in order.
    program: 790 * US,
    // Chosen: fast enough for the 95 MB/s.
    sense: 70 * US,
    channel: 400_000_000,
    // One unit.
    block_programs: 512,
    erase: 5 * MS,
    // Chosen: one program in work, and the next one arrives.
    buffer: 16 << 10,
    // Caches came with class A2.
    through: true,
    // UHS-I at SDR104.
    link_write: 104_000_000,
    // Fitted to 95 MB/s in order.
    link_read: 100_700_000,
    // Fitted to 500 random writes and 1500 random reads a second.
    command_write: 250 * US,
    command_read: 605 * US,
    // Chosen.
    command_zero: MS,
    latency: 20 * US,
    // Without a cache there is nothing to flush.
    journal: 0,
};
