//! Shows that the news in the kernel are of the area on this volume, before any of them counts.
//!
//! Three things are shown with the pages of a short-lived process ([`super::process`]): content
//! that only this process has is on the volume, in the slots that the kernel names, so the area of
//! that number is the volume's; the pages are still in these slots after the watch of that area has
//! begun, so the watch has begun in the lifetime of this area, and will see its end; and the slots'
//! bits come when the process ends, so the kernel tells what it frees.

use super::load::News;
use super::process::{PAGES, page};
use crate::daemon::companion::Companion;
use crate::daemon::swappable::{PAGE, Slot};
use crate::device::{Request, Serving};
use crate::error::{Context, Error, Result};
use crate::patience::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a page that is swapped out may take to reach the volume, and a bit to come.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between looks at them.
const LOOK: Duration = Duration::from_millis(20);
/// The number of pages that are read back and compared.
const COMPARED: usize = 8;

/// Loads the programs, has `volume`, named `name`, follow their bits, and begins to watch its area.
/// Gives up soon after `stop` is set.
///
/// # Errors
/// The kernel refuses the programs, or one of the three things was not shown. Then the volume
/// follows nothing.
pub(super) fn begin(volume: &Arc<dyn Serving>, name: &str, stop: &AtomicBool) -> Result<News> {
    let memory = volume.in_memory().ok_or_else(|| Error::failure("the volume is not in memory"))?;
    let news = News::load(volume.size() / PAGE as u64)?;
    // From now on writes take bits back; no bit is set yet.
    memory.follow_freed(Some(news.bits()));
    let shown = show(volume, name, &news, stop);
    if shown.is_err() {
        memory.follow_freed(None);
    }
    shown.map(|()| news)
}

fn show(volume: &Arc<dyn Serving>, name: &str, news: &News, stop: &AtomicBool) -> Result<()> {
    let mut process = Companion::start(super::WORD, name, "the process that shows the swap area")?;
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
        .context("no random number")?;
    let number = u64::from_ne_bytes(number);
    let before = slots(&mut process, number)?;
    let area = area(&before)?;
    compare(volume, number, &before, stop)?;
    news.watch(area);
    let after = slots(&mut process, 0)?;
    let stay = before.iter().zip(&after).filter(|(one, other)| one.is_some() && one == other);
    if stay.count() < PAGES / 2 || !news.watches() {
        return Err(Error::failure("the swap area changed meanwhile"));
    }
    drop(process);
    let slots: Vec<u64> = before.iter().flatten().map(|place| place.slot).collect();
    let is_set = |slot: &&u64| {
        let word = news.bits().get((**slot / 64) as usize);
        word.load(Ordering::Acquire) >> (**slot % 64) & 1 == 1
    };
    in_time(stop, || slots.iter().filter(is_set).count() >= PAGES / 4)
        .ok_or_else(|| Error::failure("the kernel does not tell which slots it frees"))
}

/// Sends an order to the process. Returns where its pages are swapped out to.
fn slots(process: &mut Companion, order: u64) -> Result<Vec<Option<Slot>>> {
    process.order(order)?;
    (0..PAGES).map(|_| process.answer().map(Slot::of)).collect()
}

/// The area to which most pages are swapped out, all of them to the same.
fn area(slots: &[Option<Slot>]) -> Result<u64> {
    let mut there = slots.iter().flatten();
    let Some(first) = there.next() else {
        return Err(Error::failure("no page of a process can be swapped out to it"));
    };
    let others = there.filter(|slot| slot.area == first.area).count();
    if others + 1 < slots.len() / 2 {
        return Err(Error::failure("too few pages of a process are swapped out to it"));
    }
    Ok(first.area)
}

/// Compares some pages with what the volume has in their slots.
fn compare(
    volume: &Arc<dyn Serving>,
    number: u64,
    slots: &[Option<Slot>],
    stop: &AtomicBool,
) -> Result<()> {
    let mut channel = Arc::clone(volume).channel();
    let there = slots.iter().enumerate().filter_map(|(n, slot)| Some((n, (*slot)?)));
    for (n, slot) in there.step_by(PAGES / COMPARED) {
        let offset = slot.slot * PAGE as u64;
        if offset + PAGE as u64 > volume.size() {
            return Err(elsewhere());
        }
        let mut buf = [0; PAGE];
        let mut is_there = || {
            let read = Request::Read { offset, buf: &mut buf };
            channel.submit(read, Instant::now()).is_ok() && buf == page(number, n)
        };
        in_time(stop, &mut is_there).ok_or_else(elsewhere)?;
    }
    Ok(())
}

fn elsewhere() -> Error {
    Error::failure("pages of a process are swapped out elsewhere")
}

/// Waits until `is_so`; `None` if that takes too long, or `stop` is set.
fn in_time(stop: &AtomicBool, mut is_so: impl FnMut() -> bool) -> Option<()> {
    let mut found = false;
    eventually(PATIENCE, LOOK, || {
        found = is_so();
        found || stop.load(Ordering::Acquire)
    });
    found.then_some(())
}
