//! The settings of a volume, each declared once: its key in `NAME.toml`, its flag of `ztier up`,
//! whether `ztier set` changes it, and its row in `docs/config.md` come from here.
//!
//! A declaration is
//!
//! ```text
//! /// The flag's help
//! #[flag(…)]                             what clap is told besides
//! #[formerly("log-keep")]                an earlier key, still accepted
//! log_cache = "log-cache", live: u64 {   `live`: `set` changes it
//!     "its values", "its default",
//!     "Its meaning in the file."
//! }
//! ```
//!
//! and stands below `flags`, or below `file` if it has no flag.

use super::exclusive::Exclusive;
use super::export::{Address, Choice};
use super::size::{Amount, Limit};
use super::tunable::Tunable;
use super::unsent::Unsent;
use crate::device::{Algorithm, Recompress, Sector};
use crate::system::usage::{Ballast, SlotNews};
use clap::ValueHint;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;

/// What the user says about the use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// Swap space.
    Swap,
    /// An ext4 file system.
    Ext4,
}

/// What is said of a key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As in the file; the flag has two dashes before it.
    pub name: &'static str,
    /// Earlier names, still accepted.
    pub formerly: &'static [&'static str],
    /// Whether it can be changed while the volume is up.
    pub live: bool,
    values: &'static str,
    default: &'static str,
    meaning: &'static str,
}

/// Columns of a line in documents.
const WIDTH: usize = 100;

impl Key {
    /// The values that it can have, as text without marks.
    pub fn values(&self) -> String {
        unmarked(self.values)
    }

    /// What holds without it; empty if nothing does.
    pub fn default(&self) -> String {
        unmarked(self.default)
    }

    /// What it means.
    pub fn meaning(&self) -> String {
        unmarked(self.meaning)
    }
}

/// Markdown as text: links by their words, and no marks of code and emphasis.
fn unmarked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        out.push_str(before);
        match link.split_once("](").and_then(|(words, to)| Some((words, to.split_once(')')?.1))) {
            Some((words, after)) => {
                out.push_str(words);
                rest = after;
            }
            None => {
                out.push('[');
                rest = link;
            }
        }
    }
    (out + rest).replace(['`', '*'], "")
}

macro_rules! settings {
    (flags {$(
        $(#[doc = $help:tt])+
        #[flag($($flag:tt)*)]
        $(#[formerly($formerly:tt)])?
        $field:ident = $key:tt $(, $live:ident)?: $type:ty {
            $values:literal, $default:literal, $meaning:literal
        }
    )*}
    file {$(
        $(#[doc = $file_help:tt])+
        $file_field:ident = $file_key:tt: $file_type:ty {
            $file_values:literal, $file_default:literal, $file_meaning:literal
        }
    )*}) => {
        /// What the user asks for, by flags or in a file; `None` means the default.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            $(
                $(#[doc = $help])+
                #[serde(
                    rename = $key,
                    $(alias = $formerly,)?
                    skip_serializing_if = "Option::is_none",
                )]
                #[arg(long = $key, $(alias = $formerly,)? $($flag)*)]
                pub $field: Option<$type>,
            )*
            $(
                $(#[doc = $file_help])+
                #[serde(rename = $file_key, skip_serializing_if = "Option::is_none")]
                #[arg(skip)]
                pub $file_field: Option<$file_type>,
            )*
        }

        /// All keys of the file, in the order in which it is written.
        pub const KEYS: &[Key] = &[
            $(Key {
                name: $key,
                formerly: &[$($formerly)?],
                live: settings!(@is $($live)?),
                values: $values,
                default: $default,
                meaning: $meaning,
            },)*
            $(Key {
                name: $file_key,
                formerly: &[],
                live: false,
                values: $file_values,
                default: $file_default,
                meaning: $file_meaning,
            },)*
        ];

        impl Settings {
            /// These settings, with those of `base` where these say nothing.
            #[must_use]
            pub fn over(self, base: Self) -> Self {
                Self {
                    $($field: self.$field.or(base.$field),)*
                    $($file_field: self.$file_field.or(base.$file_field),)*
                }
            }
        }
    };
    (@is live) => { true };
    (@is) => { false };
}

settings! {
flags {
    /// Size of the device, like 3G, 512M, or 50% of the machine's (or cgroup's) memory: a multiple
    /// of 4096, up to 16T
    #[flag(value_name = "BYTES")]
    size = "size", live: Amount {
        "bytes: a multiple of 4096 up to 16T; or a percentage of memory, up to 1000 %",
        "required without `backing`",
        "The device's size: can grow, never shrink."
    }
    /// Slow drive or file to speed up, with copies in memory and, with --log, an SSD. Its content
    /// stays and is the volume's. Or a store that hosts can share, file:///DIR or
    /// s3://BUCKET/PREFIX: at first with --size
    #[flag(value_name = "DEV", value_hint = ValueHint::AnyPath)]
    backing = "backing": PathBuf {
        "a block device or file; `file:///DIR`, `s3://BUCKET/PREFIX`", "",
        "The slow drive behind a [cache](cache.md) and `log`. Its content stays; it sets `size`. \
         Or a [store](object-store.md)."
    }
    /// Fast drive or file that takes changes first. It is overwritten; if it holds something known
    /// (a file system, a partition table), only with --wipe
    #[flag(value_name = "DEV", value_hint = ValueHint::AnyPath)]
    log = "log": PathBuf {
        "a block device or file; `none`", "",
        "The fast drive for [changes](log.md); needs `backing`. `none`: a store without one; a \
         store needs one of the two."
    }
    /// With a log: acknowledge each write only when it is durable
    #[flag(num_args = 0, default_missing_value = "true")]
    sync = "sync": bool {
        "`true`, `false`", "`false`",
        "Acknowledge writes when durable, not in memory."
    }
    /// With a log before a store: a flush waits until the store has it
    #[flag(num_args = 0, default_missing_value = "true")]
    sync_remote = "sync-remote": bool {
        "`true`, `false`", "`false`",
        "With a log before a store: a flush waits for the store."
    }
    /// With a log: whether writeback runs by itself; off: only for a drain or a nearly full log
    /// [default: on]
    #[flag(value_parser = switch())]
    writeback = "writeback", live: bool {
        "`true`, `false` (flag, `set`: `on`, `off`)", "`true`",
        "`false` writes back only when drained or nearly full."
    }
    /// With a log: percentage in use above which writeback runs beside foreground work [default:
    /// 50]
    #[flag(value_name = "PERCENT")]
    writeback_threshold = "writeback-threshold", live: u64 {
        "0 to 100", "50",
        "Percent full from which writeback runs beside requests, not only when idle."
    }
    /// With a log: size of one writeback pass while the log is nearly empty [default: 64M]
    #[flag(value_name = "BYTES")]
    writeback_window = "writeback-window", live: Amount {
        "bytes", "`64M`",
        "A pass of writeback; up to four times that as it fills."
    }
    /// With a log: milliseconds without a request after which writeback runs; many let a slow disk
    /// sleep [default: 500]
    #[flag(value_name = "MILLISECONDS")]
    writeback_idle = "writeback-idle", live: u64 {
        "milliseconds, up to a day", "500",
        "Time without a request until writeback runs. A large one lets a slow disk sleep."
    }
    /// With a log before a store: bytes and seconds that the store may lack; with `,wait` writers
    /// wait beyond them [default: 256M,30s]
    #[flag(value_name = "BYTES,SECONDS")]
    max_unsent = "max-unsent", live: Unsent {
        "bytes from 8M, seconds from 1s, and `,wait`", "`256M,30s`",
        "What a store may lack of its log. With `,wait`, writers wait beyond it."
    }
    /// With a log: milliseconds without a change after which changes in memory are committed
    /// [default: 1000]
    #[flag(value_name = "MILLISECONDS")]
    commit_interval = "commit-interval", live: u64 {
        "milliseconds, up to a day", "1000",
        "Time without change until memory is made durable."
    }
    /// With a log: percentage of it for a read cache, which outlives restarts; 0 for none, at most
    /// 50 [default: 25]
    #[flag(value_name = "PERCENT")]
    #[formerly("log-keep")]
    log_cache = "log-cache", live: u64 {
        "percent, 0 to 50", "25",
        "How much may [serve reads](log.md#what-it-keeps-for-reads) of data written back."
    }
    /// Limit on all memory of the volume, like 512M, or 25% of the machine's (or cgroup's) memory
    /// [default: what the size takes if nothing shrinks, at most half of that memory]. With
    /// --backing: limit on compressed copies, 0 for none [default: 10%]. `auto`: adapts to the
    /// machine and the volume, between --ram-min and --ram-max
    #[flag(value_name = "BYTES|%|auto")]
    ram_limit = "ram-limit", live: Limit {
        "bytes, a percentage or `auto`",
        "what `size` takes if nothing shrinks (`size`, 6 % and some MiB), at most half of memory",
        "Limit on *all* memory: data, index, buffers. Beyond it writes fail with \"no space\". \
         With `backing`: limit on [copies](cache.md), by default 10 %, at least `1M`, or 0 for \
         none; [a log's memory](log.md#memory) and, with a store, up to 128 MiB of waiting writes \
         are on top. `auto`: it [adapts](limit.md)."
    }
    /// With --ram-limit auto: the lower bound [default: what the volume needs to work; with
    /// --backing 1%]
    #[flag(value_name = "BYTES|%")]
    ram_min = "ram-min", live: Amount {
        "bytes or a percentage", "what the volume needs; with `backing` 1 %",
        "With `auto`: the lowest limit."
    }
    /// With --ram-limit auto: the upper bound [default: that of --ram-limit; with --backing 50%]
    #[flag(value_name = "BYTES|%")]
    ram_max = "ram-max", live: Amount {
        "bytes or a percentage", "the default of `ram-limit`; with `backing` 50 %",
        "With `auto`: the highest limit."
    }
    /// With --backing: the cache holds what the page cache drops, not what that has, too; needs a
    /// kernel that tells it. `auto`: where that works [default: off]
    #[flag(value_name = "WHEN", value_parser = word::<Exclusive>(&["auto", "on", "off"]))]
    exclusive = "exclusive": Exclusive {
        "`auto`, `on`, `off`", "`off`",
        "Hold [what the page cache drops](cache.md#beside-the-page-cache), not what that has, too."
    }
    /// Device or file for the coldest data once memory is full; it is overwritten if it holds
    /// nothing known
    #[flag(value_name = "DEV", value_hint = ValueHint::AnyPath)]
    spill = "spill", live: PathBuf {
        "a block device or file; `none`", "",
        "Takes the [coldest data](spill.md), and loses what it held. [Can \
         change](spill.md#another-device-while-the-volume-is-up)."
    }
    /// With --spill: the most to write there a day on average, like 20G; up to twice that within 24
    /// hours, and each start of the daemon begins a new day
    #[flag(value_name = "BYTES")]
    spill_daily = "spill-daily", live: Amount {
        "bytes; 0: no limit", "no limit",
        "Bytes written a day, on average; within 24 hours up to [twice as \
         much](spill.md#flash-wear). A start begins a new day."
    }
    /// How blocks are compressed [default: lz4]
    #[flag(value_parser = word::<Algorithm>(&["lz4", "zstd", "none"]))]
    algorithm = "algorithm": Algorithm {
        "`lz4`, `zstd`, `none`", "`lz4`",
        "`zstd` stores more, several times slower ([logs](log.md#how-it-compresses))."
    }
    /// When cold data is recompressed, neighbouring blocks together, which saves a quarter: when
    /// volume and machine are idle and before spilling, or never by itself [default: idle]
    #[flag(value_parser = word::<Recompress>(&["idle", "off"]))]
    recompress = "recompress", live: Recompress {
        "`idle`, `off`", "`idle`; `off` with `algorithm = \"none\"`",
        "[Compresses cold neighbours together](recompress.md) when idle and before a spill."
    }
    /// Unit in which memory is filled and cleaned: a power of two, 32K to 16M [default: 1M]
    #[flag(value_name = "BYTES")]
    segment = "segment": Amount {
        "a power of two from 32K to 16M", "`1M`",
        "Unit of filling and cleaning memory or a log."
    }
    /// Logical sector of the block device, in bytes [default: that of what is on the backing store,
    /// or of the drive; else 4096]
    #[flag(value_name = "BYTES", value_parser = sector())]
    sector = "sector": Sector {
        "512, 4096",
        "with `backing`: [its content's](start.md#what-a-disk-holds-stays), else the drive's; \
         4096 for files and memory",
        "Logical sector of the block device, bytes. A `restart` keeps it."
    }
    /// How to offer the volume: `ublk` (fast, outlives its daemon) and `fuse` are real block
    /// devices and need root, `nbd` works without root, `auto` takes the best that works here
    /// [default: auto]
    #[flag(value_parser = word::<Choice>(&["auto", "ublk", "fuse", "nbd"]))]
    export = "export": Choice {
        "`auto`, `ublk`, `fuse`, `nbd`", "`auto`",
        "`/dev/ztier/NAME` by [`ublk`](ublk.md) or [`fuse`](fuse.md) (root), or [NBD](nbd.md). \
         `auto`: the first that works."
    }
    /// Serve NBD on this TCP address as well; a port alone means loopback. Every client that
    /// reaches the address can read and write the volume
    #[flag(value_name = "[ADDRESS:]PORT")]
    nbd_listen = "nbd-listen": Vec<Address> {
        "list of TCP addresses", "",
        "NBD on these, too; a port alone (`\"10809\"`) is loopback. [No \
         password](nbd.md#where-it-listens)."
    }
    /// Serve NBD on this Unix socket [default: NAME.nbd in the run directory]
    #[flag(value_name = "PATH", value_hint = ValueHint::FilePath)]
    socket = "socket": PathBuf {
        "a path", "`NAME.nbd` in the run directory",
        "NBD's Unix socket."
    }
    /// Threads that serve the block device, 1 to 256 [default: the number of CPUs, 2 to 16; at
    /// least 8 for --backing alone]
    #[flag(value_name = "N")]
    threads = "threads": u32 {
        "1 to 256", "the number of CPUs, 2 to 16; `backing` without a log: 8 to 16",
        "They serve the block device."
    }
    /// Put a volume in memory to use each time it comes up empty: `swap` makes and enables swap
    /// space, `ext4` makes a file system and mounts it; `down` undoes it
    #[flag(value_name = "USE", value_parser = word::<Use>(&["swap", "ext4"]))]
    usage = "use": Use {
        "`swap`, `ext4`", "",
        "At each start `mkswap` and `swapon`, or `mkfs.ext4` (no journal) and `mount`, with \
         discards. `ztier down` undoes it."
    }
    /// With --use ext4: the mount point; made if missing
    #[flag(value_name = "DIR", value_hint = ValueHint::DirPath)]
    mount = "mount": PathBuf {
        "a directory", "required for `use = \"ext4\"`",
        "An empty or missing directory, not through a symbolic link."
    }
    /// With --use swap: priority, 0 to 32767; the highest is used first [default: 100]
    #[flag(value_name = "N")]
    priority = "priority": i32 {
        "0 to 32767", "100",
        "Of `use = \"swap\"`: higher is used first."
    }
    /// With --use swap: whether the kernel is made to free the swap slots of pages that are read
    /// back; `auto`: while there is no other swap [default: auto]
    #[flag(value_name = "WHEN", value_parser = word::<Ballast>(&["auto", "on", "off"]))]
    ballast = "ballast": Ballast {
        "`auto`, `on`, `off`", "`auto`",
        "Of `use = \"swap\"`: free the [slots of pages that are read \
         back](swap.md#slots-of-pages-that-are-read-back)."
    }
    /// With --use swap: whether blocks of freed swap slots are dropped; `auto`: where the kernel
    /// tells which [default: auto]
    #[flag(value_name = "WHEN", value_parser = word::<SlotNews>(&["auto", "off"]))]
    freed_slots = "freed-slots": SlotNews {
        "`auto`, `off`", "`auto`",
        "Of `use = \"swap\"`: drop the blocks of [freed slots](swap.md#freed-slots)."
    }
    /// With --use swap: run PROGRAM when memory and swap are nearly full, and when that is over
    #[flag(value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    on_full = "on-full": PathBuf {
        "path", "",
        "Of `use = \"swap\"`: a program to run when memory and swap are [nearly \
         full](swap.md#when-it-is-full)."
    }
    /// Run PROGRAM for each event of the volume: degraded, full, recovered, ended, …
    #[flag(value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    on_event = "on-event": PathBuf {
        "path", "",
        "A program to run for each [event](events.md#a-program-for-events)."
    }
    /// With --use swap: vm.page-cluster meanwhile, log2 of the pages read at once, 0 to 31; `keep`
    /// leaves it [default: 5]
    #[flag(value_name = "N|keep")]
    page_cluster = "page-cluster": Tunable {
        "0 to 31, `keep`", "5",
        "Of `use = \"swap\"`: [`vm.page-cluster`](swap.md#what-is-set) meanwhile."
    }
    /// With --use swap: vm.swappiness meanwhile, 0 to 200; `keep` leaves it [default: 100]
    #[flag(value_name = "N|keep")]
    swappiness = "swappiness": Tunable {
        "0 to 200, `keep`", "100",
        "Of `use = \"swap\"`: [`vm.swappiness`](swap.md#what-is-set) meanwhile."
    }
    /// Accept files for log and spill device that other users can read or write
    #[flag(num_args = 0, default_missing_value = "true")]
    allow_readable = "allow-readable": bool {
        "`true`, `false`", "`false`",
        "Accept `log` and `spill` files that other users can read or write."
    }
}
file {
    /// UUID of the log, as 32 hexadecimal digits; a drive with another log is refused
    log_uuid = "log-uuid": String {
        "32 hexadecimal digits", "",
        "By `--save`: the log's UUID. Others are refused."
    }
    /// Whether the volume comes up with the machine; not about the volume itself
    boot = "boot": bool {
        "`true`, `false`", "`true`",
        "Whether the volume [comes up with the machine](boot.md). `ztier disable` writes `false`."
    }
    /// Id of the backing store of a volume without a log, as 16 hexadecimal digits; another drive
    /// is refused
    backing_id = "backing-id": String {
        "16 hexadecimal digits", "",
        "By `--save` without a log: `backing`'s. Others are refused."
    }
}
}

/// A parser of fixed words, spelled as in the settings file.
pub fn word<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(word.into()))
}

/// A parser of sectors.
fn sector() -> impl TypedValueParser<Value = Sector> {
    PossibleValuesParser::new(["512", "4096"]).map(|word| match word.as_str() {
        "512" => Sector::Small,
        _ => Sector::Block,
    })
}

/// A parser of `on` and `off`.
fn switch() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

/// The table of keys in `docs/config.md`, and what `ztier set` changes.
pub fn describe() -> String {
    let mut out = "| Key | Values | Default | Meaning |\n|---|---|---|---|\n".to_owned();
    let cell = |text: &str| if text.is_empty() { String::new() } else { format!(" {text}") };
    for Key { name, values, default, meaning, .. } in KEYS {
        // Writing to a string can't fail, here and below.
        let _ = writeln!(out, "| `{name}` |{} |{} | {meaning} |", cell(values), cell(default));
    }
    out.push('\n');
    let live = KEYS.iter().filter(|key| key.live).map(|key| format!("`{}`", key.name));
    let live = live.collect::<Vec<_>>().join(", ");
    let text = format!(
        "Until `ztier down`, `ztier set NAME KEY=VALUE` changes {live}; `recompress` also takes \
         `now`. The file stays as it is without `--save`, which writes the change to it."
    );
    let mut line = String::new();
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(out, "{}", line);
            line.clear();
        }
        line.push_str(if line.is_empty() { "" } else { " " });
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
    out
}
