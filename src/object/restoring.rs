//! Reads the contents that a checkpoint has.

use super::checkpoint::read;
use super::contents::Contents;
use super::format::{Damage, Identity};
use super::pieces::{PieceReader, key};
use super::root::Checkpoint;
use super::store::{Failure, Store};

/// Pieces that are read at once, each of a few MiB.
const AT_ONCE: u32 = 8;

/// The contents that `checkpoint`, which a root of `volume` names, has.
///
/// # Errors
/// The store fails; or, inside, a piece is none of it.
pub fn restore(
    store: &dyn Store,
    volume: &Identity,
    checkpoint: Checkpoint,
) -> Result<Result<Contents, Damage>, Failure> {
    let mut contents = Contents { next: checkpoint.slot, ..Contents::default() };
    let mut reader = PieceReader::new(*volume, checkpoint);
    let mut number = 0;
    while number < checkpoint.pieces {
        let end = checkpoint.pieces.min(number + AT_ONCE);
        for content in pieces(store, checkpoint.generation, number, end) {
            let content = content?;
            let taken = reader.take(&content).and_then(|units| read(units, &mut contents));
            if let Err(damage) = taken {
                return Ok(Err(damage));
            }
        }
        number = end;
    }
    Ok(Ok(contents))
}

/// The pieces of these numbers, in order.
fn pieces(
    store: &dyn Store,
    generation: u64,
    begin: u32,
    end: u32,
) -> Vec<Result<Vec<u8>, Failure>> {
    let read = |number| store.get(&key(generation, number)).map(|(content, _)| content);
    std::thread::scope(|scope| {
        let begun: Vec<_> = (begin + 1..end)
            .map(|number| {
                // A system that gives no thread has this one.
                let thread = std::thread::Builder::new().spawn_scoped(scope, move || read(number));
                (number, thread.ok())
            })
            .collect();
        let first = read(begin);
        let rest = begun.into_iter().map(|(number, thread)| {
            thread.and_then(|thread| thread.join().ok()).unwrap_or_else(|| read(number))
        });
        std::iter::once(first).chain(rest).collect()
    })
}
