//! Reads the contents that a checkpoint has.
//!
//! Invariant: pieces are taken in their order, while later ones are on their way.

use super::contents::Contents;
use super::format::{Damage, Identity};
use super::pieces::{PieceReader, key};
use super::root::Checkpoint;
use super::store::{Failure, Store};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, Scope};

/// Threads that read; each has up to two pieces of a few MiB in memory.
const AT_ONCE: u32 = 8;

/// A piece, or why it was not read.
type Read = Result<Vec<u8>, Failure>;

/// The contents that `checkpoint`, which a root of `volume` names, has. `heard` is called for each
/// piece.
///
/// # Errors
/// The store fails; or, inside, a piece is none of it.
pub fn restore(
    store: &dyn Store,
    volume: &Identity,
    checkpoint: Checkpoint,
    heard: &dyn Fn(),
) -> Result<Result<Contents, Damage>, Failure> {
    let mut reader = PieceReader::new(*volume, checkpoint);
    let read = |number| store.get(&key(checkpoint.generation, number)).map(|found| found.0);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..AT_ONCE).map(|first| ahead(scope, &read, first..checkpoint.pieces)).collect();
        while let Some(number) = reader.next() {
            // A system that gives no thread has this one.
            let piece = threads[(number % AT_ONCE) as usize].recv();
            let content = piece.unwrap_or_else(|_| read(number))?;
            heard();
            if let Err(damage) = reader.take(&content) {
                return Ok(Err(damage));
            }
        }
        Ok(Ok(reader.contents()))
    })
}

/// Reads every [`AT_ONCE`]th piece of a range, one before it is asked for; ends when none is.
fn ahead<'s, 'e: 's>(
    scope: &'s Scope<'s, 'e>,
    read: &'e (impl Fn(u32) -> Read + Sync),
    numbers: std::ops::Range<u32>,
) -> Receiver<Read> {
    let (send, receive) = sync_channel(1);
    let work = move || {
        let mut numbers = numbers.step_by(AT_ONCE as usize);
        while let Some(number) = numbers.next()
            && send.send(read(number)).is_ok()
        {}
    };
    let _ = Builder::new().spawn_scoped(scope, work); // without it, its end of the channel is gone
    receive
}
