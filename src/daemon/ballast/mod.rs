//! Ballast: pages of zeros that occupy a part of a swap area, so that the kernel frees the slot of
//! each page that is read back.
//!
//! The kernel keeps such a slot, beside the page, until more than half of all swap is in use
//! (`vm_swap_full`, `mm/swap.h`): with a large swap area the volume then stores most pages twice,
//! once for the program and once for nothing. Ballast takes what is missing to that half. It needs
//! no capacity: it gives way to other pages ([`wanted`]), and is gone before the area is full.
//! Pages of zeros are not written (Linux 6.12) or take an entry of the index each.
//!
//! Ballast also takes what of the area the volume can't hold at the present compression
//! ([`surplus`]). A kernel that has free slots and gets errors for them tries for seconds to swap
//! out, and all processes wait for their files meanwhile; without free slots it ends a program at
//! once.
//!
//! A process of its own, `ztier ballast`, has these pages ([`process`]): its memory can be swapped
//! out, unlike the daemon's, and the kernel frees the slots when the process ends.
//!
//! Invariants:
//! - other pages always have two fifths of the swap area, less [`CHUNK`], until no ballast is left,
//!   or a quarter more than the volume can hold;
//! - beside swap that is not this volume's there is no ballast, unless the user asked for it: all
//!   swap would count as full;
//! - ballast ends before the use of the device as swap.

mod link;
mod process;

pub use process::main;

use super::log;
use crate::config::size::human;
use crate::error::Result;
use crate::system::usage::{Ballast, SwapWith, Swapped, swap_with};
use link::Holder;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The word that starts the process: `ztier ballast NAME`.
pub const WORD: &str = "ballast";
/// Ballast shrinks by multiples of this number of bytes, and grows by it: the thread must be free
/// to shrink it again soon.
const CHUNK: u64 = 2 << 20;
/// Slots that stay free, in bytes, until the volume refuses pages.
const MARGIN: u64 = 8 << 20;
/// Ballast does not grow for this time after the use has grown by one [`RUSH_PART`] of the area
/// between two looks: a program is filling memory, and needs the slots and the processor.
const RUSH: Duration = Duration::from_millis(200);
/// See [`RUSH`].
const RUSH_PART: u64 = 8;
/// A smaller swap area could be filled faster than ballast gives way.
const LEAST_AREA: u64 = 64 << 20;
/// There is ballast only while this part of the area, and [`LEAST_USE`], are in use, unless it is
/// certain that the area will be used: tables of the kernel for ballast take 5 MiB for each GiB,
/// more than less use could save.
const USED_PART: u64 = 32;
/// In bytes; see [`USED_PART`].
const LEAST_USE: u64 = 8 << 20;
/// The rate at which pages are swapped out at most, in bytes a second.
const FASTEST: u64 = 2 << 30;
/// The longest interval between looks while there is ballast.
const PACE_MOST: Duration = Duration::from_millis(100);
/// Interval between looks while there is no ballast that could be in the way.
const PAUSE: Duration = Duration::from_millis(250);
/// Pause after a failure.
const REST: Duration = Duration::from_secs(5);

/// What a volume can hold of swapped-out pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    /// In bytes of pages, at the present compression; `None`: unknown.
    pub holds: Option<u64>,
    /// It has refused pages lately.
    pub refuses: bool,
}

/// Bytes of a swap area of `size` bytes that other pages than the `used` ones can't take. An
/// estimate that is too low must not keep pages out, so a quarter more stays free, and
/// [`MARGIN`], until the volume has refused some.
fn surplus(size: u64, used: u64, capacity: Capacity) -> u64 {
    let Some(holds) = capacity.holds else { return 0 };
    let takes = holds.saturating_sub(used);
    let free = match takes < MARGIN && capacity.refuses {
        true => 0,
        false => takes.saturating_add(takes / 4 + MARGIN),
    };
    size.saturating_sub(used).saturating_sub(free) / CHUNK * CHUNK
}

/// Bytes of ballast for a swap area of `size` bytes with `used` bytes of other pages, if there are
/// `held` already. `early`: also while hardly any are used. `grows`: whether it grew at the last
/// look.
///
/// Swap counts as full if `free × 2 < size`, where `free` is `size − used − ballast`. That holds
/// for each `ballast > size / 2 − used`. Ballast grows until a sixth of `used` is to spare; more
/// would leave less room. It grows again when only a twelfth is left: a use that varies must not
/// move pages to and fro.
fn wanted(size: u64, used: u64, held: u64, Fits { early, grows, capacity }: Fits) -> u64 {
    if size < LEAST_AREA {
        return 0;
    }
    let least = if early { 0 } else { LEAST_USE.max(size / USED_PART) };
    let begins = if held > 0 { least / 2 } else { least };
    let to_spare = |part: u64| (size / 2).saturating_sub(used - used / part);
    let (full, enough) = match used < begins {
        true => (0, 0),
        false => (to_spare(6).next_multiple_of(CHUNK), to_spare(12)),
    };
    let surplus = surplus(size, used, capacity);
    let most = full.max(surplus);
    let lacks = grows || held < enough || held + CHUNK < surplus;
    if most > held && !lacks { held } else { most.min(held + CHUNK) }
}

/// What [`wanted`] fits ballast to, beside sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Fits {
    early: bool,
    grows: bool,
    capacity: Capacity,
}

/// How soon pages that are swapped out at [`FASTEST`] take a quarter of `size` bytes of swap.
fn pace(size: u64) -> Duration {
    Duration::from_millis(size / 4 * 1000 / FASTEST).min(PACE_MOST)
}

/// Fits ballast to the use of a swap area. Dropping this ends the ballast.
pub(super) struct Fitting {
    volume: String,
    device: PathBuf,
    when: Ballast,
    early: bool,
    holder: Option<Holder>,
    /// Bytes of ballast, for other threads to read.
    held: Arc<AtomicU64>,
    /// The most that was possible at the last try, in bytes, and until when to assume that.
    most: Option<(u64, Instant)>,
    /// Whether ballast grew at the last look.
    grows: bool,
    /// Bytes of other pages at the last look.
    used: u64,
    /// Until when ballast does not grow.
    rush: Option<Instant>,
    /// Whether the log has the reason why ballast is missing.
    logged: bool,
}

impl Fitting {
    /// No ballast yet, for the `device` of `volume`, whose swap area is certain to be used if
    /// ballast is to begin `early`. `held` will always have its bytes.
    pub(super) fn new(
        volume: String,
        device: PathBuf,
        (when, early): (Ballast, bool),
        held: Arc<AtomicU64>,
    ) -> Self {
        Self {
            volume,
            device,
            when,
            early,
            holder: None,
            held,
            most: None,
            grows: false,
            used: 0,
            rush: None,
            logged: false,
        }
    }

    /// Fits the ballast to the present use, and to what the volume can hold. Returns the time until
    /// the next look.
    pub(super) fn step(&mut self, capacity: Capacity) -> Duration {
        let Some(swap) = swap_with(&self.device) else {
            self.let_go();
            return PAUSE;
        };
        if !swap.alone && self.when == Ballast::Auto {
            self.let_go();
            self.tell("other swap is in use, too (--ballast on makes all of it count as full)");
            return PAUSE;
        }
        let held = self.held.load(Ordering::Acquire);
        let used = swap.used.saturating_sub(held);
        let fits = Fits { early: self.early, grows: self.grows, capacity };
        let wanted = wanted(swap.size, used, held, fits);
        // What the volume can't hold is needed least when a program fills swap.
        let surplus = surplus(swap.size, used, capacity);
        let most = if self.rushes(swap.size, used) { held.max(surplus) } else { u64::MAX };
        let bytes = self.possible(wanted.min(most));
        let fitted = self.fit(&swap, bytes);
        self.grows = fitted.as_ref().is_ok_and(|now| *now > held);
        match fitted {
            // There may be more to add.
            Ok(_) if self.grows => Duration::ZERO,
            Ok(0) if wanted == 0 => PAUSE,
            Ok(_) => pace(swap.size),
            Err(e) => {
                self.let_go();
                self.tell(&e.to_string());
                self.most = Some((0, Instant::now() + REST));
                PAUSE
            }
        }
    }

    /// Whether pages are being swapped out fast, with `used` of `size` bytes in use now.
    fn rushes(&mut self, size: u64, used: u64) -> bool {
        let now = Instant::now();
        if used > std::mem::replace(&mut self.used, used) + size / RUSH_PART {
            self.rush = Some(now + RUSH);
        }
        self.rush.is_some_and(|until| now < until)
    }

    fn possible(&mut self, bytes: u64) -> u64 {
        self.most.take_if(|(_, until)| Instant::now() >= *until);
        self.most.map_or(bytes, |(most, _)| bytes.min(most))
    }

    /// Makes the ballast `bytes` large, or as large as the kernel has room. Returns its size.
    fn fit(&mut self, swap: &SwapWith, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            self.let_go();
            return Ok(0);
        }
        let holder = match &mut self.holder {
            Some(holder) => holder,
            none => none.insert(Holder::start(&self.volume, swap.size)?),
        };
        let held = if holder.held() == bytes { bytes } else { holder.resize(bytes)? };
        self.held.store(held, Ordering::Release);
        if held == bytes {
            self.logged = false;
        } else {
            self.most = Some((held, Instant::now() + REST));
            self.tell("the kernel does not swap out all of it");
        }
        Ok(held)
    }

    fn let_go(&mut self) {
        self.holder = None;
        self.held.store(0, Ordering::Release);
    }

    /// Logs why ballast is missing, once.
    fn tell(&mut self, why: &str) {
        if !std::mem::replace(&mut self.logged, true) {
            log::line(&format!("{}: no ballast for swap: {why}", self.volume));
        }
    }
}

/// How a swap area is used, in words. `twice`: bytes of its pages that are in memory, too.
pub fn describe(area: &Swapped, ballast: u64, twice: u64) -> String {
    let some = |bytes: u64, text: &str| match bytes {
        0 => String::new(),
        bytes => format!(", {}{text}", human(bytes)),
    };
    format!(
        "{} of {} used{}{}",
        human(area.used.saturating_sub(ballast)),
        human(area.size),
        some(twice, " of it in memory, too"),
        some(ballast, " of ballast")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Whether the kernel counts swap as full (`vm_swap_full`).
    fn full(size: u64, used: u64, ballast: u64) -> bool {
        (size - used - ballast) * 2 < size
    }

    /// The ballast after enough looks at the same use.
    fn settled(size: u64, used: u64, early: bool) -> u64 {
        settled_at(size, used, Fits { early, ..Fits::default() })
    }

    fn settled_at(size: u64, used: u64, fits: Fits) -> u64 {
        let (mut held, mut grows) = (0, false);
        loop {
            let next = wanted(size, used, held, Fits { grows, ..fits });
            assert!(next <= held + CHUNK);
            if next == held {
                return held;
            }
            (held, grows) = (next, next > held);
        }
    }

    #[test]
    fn swap_in_use_counts_as_full_and_keeps_room() {
        for size in [64, 320, 1200, 16 << 10].map(|mib| mib * MIB) {
            let least = (size / USED_PART).max(LEAST_USE);
            for used in (1..100).map(|percent| size / 100 * percent) {
                let ballast = settled(size, used, false);
                assert_eq!(used < least, ballast == 0 && !full(size, used, 0), "{size} {used}");
                assert!(used < least || full(size, used, ballast), "{size} {used} {ballast}");
                let room = size - used - ballast;
                assert!(ballast == 0 || room + CHUNK > size / 5 * 2, "{size} {used} {ballast}");
            }
        }
    }

    #[test]
    fn ballast_gives_way_at_once_and_stays_at_a_use_that_varies() {
        let size = 1200 * MIB;
        let held = settled(size, 360 * MIB, false);
        assert_eq!(settled(size, 360 * MIB, true), held);
        assert_eq!(settled(size, 0, true), 600 * MIB);
        assert_eq!(held, 300 * MIB);
        let now = |used| wanted(size, used * MIB, held, Fits::default()) / MIB;
        assert_eq!([363, 361, 359, 355, 328, 0].map(now), [298, 300, 300, 300, 300, 0]);
        assert_eq!((now(720), now(327)), (0, 302));
        // It goes on to grow where it grew.
        let grows = Fits { grows: true, ..Fits::default() };
        assert_eq!([360, 355].map(|used| wanted(size, used * MIB, held, grows) / MIB), [300, 302]);
        // It ends at half of the use at which it begins.
        assert_eq!(wanted(size, 37 * MIB, 0, Fits::default()), 0);
        assert!(now(37) > 300 && now(18) == 0);
        assert_eq!(wanted(LEAST_AREA - 1, 40 * MIB, 0, Fits::default()), 0);
    }

    #[test]
    fn the_kernel_is_left_no_slots_that_the_volume_can_not_fill() {
        let (size, holds) = (1200 * MIB, Some(400 * MIB));
        let at = |used, refuses| {
            let capacity = Capacity { holds, refuses };
            settled_at(size, used * MIB, Fits { capacity, ..Fits::default() }) / MIB
        };
        assert_eq!(at(0, false), 1200 - 500 - 8);
        assert_eq!(at(300, false), 1200 - 300 - 125 - 8 - 1, "whole chunks");
        assert_eq!(at(300, true), at(300, false), "there is room, whatever was refused");
        assert_eq!((at(400, false), at(400, true)), (792, 800));
        // It holds more than was thought.
        assert_eq!((at(500, false), at(500, true)), (692, 700));
        let wide = Capacity { holds: Some(2000 * MIB), refuses: true };
        assert_eq!(surplus(size, 600 * MIB, wide), 0);
        assert_eq!(surplus(size, 600 * MIB, Capacity { holds: None, refuses: true }), 0);
    }

    #[test]
    fn ballast_does_not_grow_while_a_program_fills_swap() {
        let held = Arc::default();
        let mut fitting = Fitting::new("v".into(), "/dev/v".into(), (Ballast::Auto, true), held);
        let mut rushes = |used| fitting.rushes(80 * MIB, used * MIB);
        assert!(!rushes(10) && rushes(21) && rushes(0));
        std::thread::sleep(RUSH);
        assert!(!rushes(5));
    }

    #[test]
    fn looks_are_frequent_where_swap_is_small() {
        assert_eq!(pace(64 * MIB), Duration::from_millis(7));
        assert_eq!(pace(16 << 30), PACE_MOST);
    }

    #[test]
    fn what_is_ballast_is_no_use() {
        let area = Swapped { size: 1200 * MIB, used: 500 * MIB, priority: 1 };
        let text = "200 MiB of 1.17 GiB used, 9 MiB of it in memory, too, 300 MiB of ballast";
        assert_eq!(describe(&area, 300 * MIB, 9 * MIB), text);
        assert_eq!(describe(&Swapped { used: 0, ..area }, 0, 0), "0 B of 1.17 GiB used");
    }
}
