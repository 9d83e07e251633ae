//! Copies the past of a volume, up to a window, to another store. There the log that had made this
//! window can go on, after other owners have overtaken it here.
//!
//! Invariants: objects are copied as they are, so the copy is the same volume at another place; its
//! root comes last, so a copy that is cut short is no volume, and is gone on with; the store that
//! is copied is only read.

use super::adoption::Adoption;
use super::ahead::Ahead;
use super::format::{Object, WIDTH};
use super::opening::{Newest, bad, newest, patiently, root};
use super::probe::probe;
use super::root::Root;
use super::store::{Failure, ROOT, Store, slot};
use super::window_end::WindowEnd;
use crate::error::{Error, Result};

/// The last window of a volume for which `counts`; `progress` hears the number of objects that were
/// read.
///
/// # Errors
/// The store fails, or an object is damaged.
pub fn last_window(
    store: &dyn Store,
    root: &Root,
    counts: impl Fn(&Newest) -> bool,
    progress: &dyn Fn(u64),
) -> Result<Option<Newest>> {
    let (mut adoption, mut found, mut read) = (Adoption::default(), None, 0);
    walk(store, root, &mut |number, object| {
        read += 1;
        progress(read);
        let Object::Part { session, check, entries, .. } = &object else { return Ok(true) };
        let end = WindowEnd::new((number, *check), *session, entries);
        if !adoption.take(number, object).is_empty() {
            let window = newest(store, &root.volume, &end)?;
            if counts(&window) {
                found = Some(window);
            }
        }
        Ok(true)
    })?;
    Ok(found)
}

/// Copies the volume as it was with the window that ends in slot `end` (`None`: without any) to
/// another store, with this size in bytes. `progress` hears the number of objects that were copied.
/// Returns that number.
///
/// # Errors
/// A store fails, or the other one has a volume or something else.
pub fn copy_past(
    from: &dyn Store,
    to: &dyn Store,
    (end, size): (Option<u64>, u64),
    progress: &dyn Fn(u64),
) -> Result<u64> {
    let Some(root) = root(from)? else {
        return Err(failed(&Failure::Missing, from));
    };
    if self::root(to)?.is_some() {
        return Err(Error::failure(format!("{} has a volume already", to.place()))
            .hint("give an empty place"));
    }
    probe(to)?;
    to.prepare()?;
    let mut copied = 0;
    walk(from, &root, &mut |number, _| {
        if end.is_none_or(|end| number > end) {
            return Ok(false);
        }
        let key = slot(number);
        let (content, _) = patiently(|| from.get(&key)).map_err(|e| failed(&e, from))?;
        put(to, &key, &content)?;
        copied += 1;
        progress(copied);
        Ok(true)
    })?;
    // Without a checkpoint: it may have what comes later.
    put(to, ROOT, &Root::new(root.volume, size).encode())?;
    Ok(copied)
}

/// Creates an object, unless it is there as it should be.
fn put(store: &dyn Store, key: &str, content: &[u8]) -> Result<()> {
    match patiently(|| store.create(key, content)) {
        Ok(()) => Ok(()),
        Err(Failure::Exists) => {
            let (found, _) = patiently(|| store.get(key)).map_err(|e| failed(&e, store))?;
            match found == content {
                true => Ok(()),
                false => Err(Error::failure(format!("{}/{key} is another object", store.place()))
                    .hint("give an empty place")),
            }
        }
        Err(failure) => Err(failed(&failure, store)),
    }
}

fn failed(failure: &Failure, store: &dyn Store) -> Error {
    Error::failure(format!("{}: {failure}", store.place()))
}

/// Calls `each` with the objects of a chain, in order, until it returns `false`.
fn walk(
    store: &dyn Store,
    root: &Root,
    each: &mut dyn FnMut(u64, Object) -> Result<bool>,
) -> Result<()> {
    let (mut number, mut ahead) = (0, Ahead::new(store, &root.volume));
    loop {
        let object = match patiently(|| ahead.look(number)) {
            Ok(Ok(object)) => object,
            Ok(Err(damage)) => {
                let hint = "restore that object from a copy of the store";
                return Err(bad(store, &slot(number), damage, hint));
            }
            Err(Failure::Missing) => return Ok(()),
            Err(failure) => return Err(failed(&failure, store)),
        };
        let width = if matches!(object, Object::Fence { .. }) { WIDTH } else { 1 };
        if !each(number, object)? {
            return Ok(());
        }
        number += width;
    }
}
