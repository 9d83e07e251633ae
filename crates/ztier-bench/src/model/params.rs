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

/// An SSD.
#[derive(Clone, Copy, Debug)]
pub struct FlashParams {
    /// Bytes that the host sees. A smaller drive leaves the rest as spare.
    pub capacity: u64,
    /// Bytes of flash.
    pub physical: u64,
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
    /// Bytes of the volatile write buffer.
    pub buffer: u64,
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
    physical: 256 << 30,
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
