//! Brings the state of a volume out of its store, as its next owner.
//!
//! Invariant: a store that fails is asked again, for [`PATIENCE`], unless that is in vain; damage
//! is never passed over.

use super::Mark;
use super::ahead::Ahead;
use super::contents::{Adopted, Contents};
use super::format::{Damage, Identity, Seed, Session, fence};
use super::probe::probe;
use super::restoring::restore;
use super::root::{OWNER_MAX, Root};
use super::store::{BEAT, Failure, ROOT, Store, Tag, slot};
use super::takeover::{Answer, Ask, Owned, Step, TakeOver};
use super::window_end::WindowEnd;
use crate::error::{Error, Result};
use crate::remedy;
use rustix::rand::{GetRandomFlags, getrandom};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a store that fails is asked again.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before it is asked again.
const RETRY: Duration = Duration::from_millis(50);
/// How long after its last sign an owner counts as alive.
pub const ALIVE: Duration = Duration::from_secs(30);

/// How to open a volume.
pub struct Wanted<'a> {
    /// The name of the owner: users see it, and the same name does not wait for itself.
    pub owner: &'a str,
    /// Bytes of the volume, if it is new; one that is there has its own size.
    pub size: Option<u64>,
    /// Take it from an owner that may be alive.
    pub force: bool,
    /// The session that must have had the volume last, as [`session_name`]; `None`: any.
    pub after: Option<&'a str>,
}

/// A volume that is owned.
pub struct Opened {
    pub(super) owned: Owned,
    pub(super) contents: Contents,
}

/// A volume that is about to be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFound {
    /// Its identity.
    pub volume: Identity,
    /// Bytes.
    pub size: u64,
    /// The newest window, if it has one and was looked at.
    pub newest: Option<Newest>,
}

/// The newest window of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The slot of its last part.
    pub slot: u64,
    /// The check word of that part.
    pub check: u32,
    /// What the log that made it said; `None`: it was made without a log.
    pub mark: Option<Mark>,
}

/// A session, as users and files see it.
pub fn session_name(session: &Session) -> String {
    session.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A number that no other has.
pub fn unique() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|e| Error::failure(format!("no random numbers: {e}")))?;
    Ok(bytes)
}

/// The root of the volume in `store`; `None` if it has none.
///
/// # Errors
/// The store fails, or its root is damaged or of a newer version.
pub fn root(store: &dyn Store) -> Result<Option<Root>> {
    match patiently(|| store.get(ROOT)) {
        Ok((content, _)) => match Root::decode(&content) {
            Ok(root) => Ok(Some(root)),
            Err(damage) => {
                Err(bad(store, ROOT, damage, "give the place of a volume, or an empty one"))
            }
        },
        Err(Failure::Missing) => Ok(None),
        Err(failure) => Err(Error::failure(failure.to_string())),
    }
}

/// The error for an object that is not believed; `hint`: what to do unless it is newer.
pub(super) fn bad(store: &dyn Store, key: &str, damage: Damage, hint: &str) -> Error {
    let error = Error::failure(format!("{}/{key} {damage}", store.place()));
    match damage {
        Damage::Newer(_) => error.hint("use that version, or a newer one"),
        _ => error.hint(hint),
    }
}

/// Reads the mark of the newest window, of which this is the end.
pub(super) fn newest(store: &dyn Store, volume: &Identity, end: &WindowEnd) -> Result<Newest> {
    let mark = patiently(|| end.read_mark(store, volume))
        .map_err(|failure| Error::failure(failure.to_string()))?
        .map_err(|damage| {
            bad(store, &slot(end.slot), damage, "restore that object from a copy of the store")
        })?;
    Ok(Newest { slot: end.slot, check: end.check, mark })
}

/// Asks a store that fails again, for [`PATIENCE`].
pub(super) fn patiently<T>(
    mut ask: impl FnMut() -> std::result::Result<T, Failure>,
) -> std::result::Result<T, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Err(Failure::Other(e)) if !e.lasts() && Instant::now() < until => {
                std::thread::sleep(RETRY);
            }
            answer => return answer,
        }
    }
}

/// Makes the volume if it is new, refuses it while another owner is alive, and takes it over if
/// `approve` does not fail: it may be asked several times. `progress` hears the number of objects
/// that were read.
///
/// # Errors
/// The volume is in use, is another one, or damaged; or the store fails for [`PATIENCE`]; or that
/// of `approve`, and then nothing was changed.
pub fn open(
    store: &dyn Store,
    wanted: &Wanted<'_>,
    approve: &dyn Fn(&VolumeFound) -> Result<()>,
    progress: &dyn Fn(u64),
) -> Result<Opened> {
    let found = match root(store)? {
        Some(root) => root,
        None => make(store, wanted)?,
    };
    refuse_alive(store, &found, wanted)?;
    store.prepare()?;
    let approve = |newest: Option<Newest>| {
        approve(&VolumeFound { volume: found.volume, size: found.size, newest })
    };
    let opened = take_over(store, &found, wanted, (&approve, progress))?;
    // The next daemon looks at its age; a sign that is missing only makes the owner look dead.
    let _ = store.put(BEAT, wanted.owner.as_bytes());
    Ok(opened)
}

/// Makes the root of a new volume, in a store that is shown to do.
fn make(store: &dyn Store, wanted: &Wanted<'_>) -> Result<Root> {
    let Some(size) = wanted.size else {
        return Err(Error::usage(format!("{} has no volume yet", store.place()))
            .hint("give its size, like --size 1T"));
    };
    let root = Root::new(unique()?, size);
    probe(store)?;
    if patiently(|| store.get_range(&slot(0), 0..1)).is_ok() {
        let text = format!("{}/{ROOT} is gone, and the volume's objects are there", store.place());
        return Err(Error::would_lose(text).hint("restore it from a copy of the store"));
    }
    match patiently(|| store.create(ROOT, &root.encode())) {
        Ok(()) => Ok(root),
        // By an earlier try of this call, or by another host.
        Err(Failure::Exists) => self::root(store)?.ok_or_else(|| vanished(store)),
        Err(failure) => Err(Error::failure(failure.to_string())),
    }
}

fn vanished(store: &dyn Store) -> Error {
    Error::failure(format!("{}/{ROOT} was there, and is not", store.place()))
        .hint("does another program delete from it?")
}

impl Wanted<'_> {
    /// Whether the owner of this root has to be asked before the volume is taken from it.
    fn respects(&self, root: &Root) -> bool {
        let name = &self.owner[..self.owner.floor_char_boundary(OWNER_MAX)];
        !self.force && !root.ended && root.owner != name
    }
}

/// Refuses a volume whose owner has given a sign lately.
fn refuse_alive(store: &dyn Store, root: &Root, wanted: &Wanted<'_>) -> Result<()> {
    if !wanted.respects(root) {
        return Ok(());
    }
    match patiently(|| store.age(BEAT)) {
        Ok(age) if age < ALIVE => Err(Error::busy(format!(
            "the volume in {} is in use by {}, alive {} s ago",
            store.place(),
            root.owner,
            age.as_secs()
        ))
        .hint(remedy::OBJECT_IN_USE)),
        Ok(_) | Err(Failure::Missing) => Ok(()),
        Err(failure) => Err(Error::failure(failure.to_string())),
    }
}

/// Refuses a volume that has another root `now` than it may have: another host has taken it over
/// since it was `found`, whose first sign of life comes after that; or has had it.
fn refuse_changed(store: &dyn Store, found: &Root, now: &Root, wanted: &Wanted<'_>) -> Result<()> {
    if now.session != found.session && wanted.respects(now) {
        return Err(Error::busy(format!(
            "the volume in {} is in use by {}, which took it over just now",
            store.place(),
            now.owner
        ))
        .hint(remedy::OBJECT_IN_USE));
    }
    match wanted.after {
        Some(after) if after != session_name(&now.session) => {
            let text = format!("the volume in {} changed hands just now", store.place());
            Err(Error::busy(text).hint("try again"))
        }
        _ => Ok(()),
    }
}

/// Whether a volume with this newest window may be taken over.
type Approve<'a> = dyn Fn(Option<Newest>) -> Result<()> + 'a;

fn take_over(
    store: &dyn Store,
    found: &Root,
    wanted: &Wanted<'_>,
    (approve, progress): (&Approve<'_>, &dyn Fn(u64)),
) -> Result<Opened> {
    let volume = &found.volume;
    let mut machine = TakeOver::new(unique()?, wanted.owner.to_owned());
    let (mut adopted, read) = (Adopted::default(), Cell::new(0));
    let heard = || {
        read.set(read.get() + 1);
        progress(read.get());
    };
    let mut ahead = Ahead::new(store, volume);
    let (mut failing, mut approved): (Option<Instant>, _) = (None, None);
    loop {
        if let Ask::Fence(slot) = machine.ask()
            && approved != Some(slot)
        {
            // From here on the store is changed.
            let end = adopted.contents.end.as_ref();
            approve(end.map(|end| newest(store, volume, end)).transpose()?)?;
            approved = Some(slot);
        }
        let answer = answer(store, volume, (&machine, &mut ahead), (&mut adopted, &heard));
        if let Answer::Root(Ok((now, _))) = &answer
            && now.session != machine.session()
        {
            refuse_changed(store, found, now, wanted)?;
        }
        let fenced = matches!(answer, Answer::Created(_));
        match machine.hear(answer) {
            // Whether the fence is there, the next answer says.
            Step::Next if fenced => continue,
            Step::Next => {}
            Step::Adopt(slot, object) => {
                adopted.adopt(slot, object);
                heard();
            }
            Step::Again => {
                adopted = Adopted::default();
                machine.again(unique()?);
            }
            Step::Owner(owned) => {
                let mut contents = adopted.contents;
                contents.sessions.begin(owned.next, owned.root.session);
                return Ok(Opened { owned, contents });
            }
            Step::Failed(failure) => {
                let since = *failing.get_or_insert_with(Instant::now);
                let in_vain = matches!(&failure, Failure::Other(trouble) if trouble.lasts());
                if in_vain || since.elapsed() >= PATIENCE {
                    return Err(Error::failure(failure.to_string()));
                }
                std::thread::sleep(RETRY);
                continue;
            }
            Step::Damaged(number, damage) => {
                let hint = "restore that object from a copy of the store";
                return Err(bad(store, &slot(number), damage, hint));
            }
        }
        failing = None;
    }
}

/// The root of `volume`, of which there was one.
pub fn root_of(store: &dyn Store, volume: &Identity) -> std::result::Result<(Root, Tag), Failure> {
    let (content, tag) = store.get(ROOT)?;
    let root = Root::decode(&content).ok().filter(|root| root.volume == *volume);
    Ok((root.ok_or(Failure::Changed)?, tag))
}

/// Asks the store what the machine wants to know.
fn answer(
    store: &dyn Store,
    volume: &Identity,
    (machine, ahead): (&TakeOver, &mut Ahead<'_>),
    (adopted, heard): (&mut Adopted, &dyn Fn()),
) -> Answer {
    match machine.ask() {
        Ask::Root => Answer::Root(root_of(store, volume)),
        Ask::Checkpoint(checkpoint) => {
            let restored = restore(store, volume, checkpoint, heard);
            Answer::Checkpoint(
                restored.map(|contents| contents.map(|contents| adopted.contents = contents)),
            )
        }
        Ask::Object(number) => Answer::Object(ahead.look(number)),
        Ask::Fence(number) => {
            let seed = Seed { volume: *volume, session: machine.session(), slot: number };
            Answer::Created(store.create(&slot(number), &fence(&seed)))
        }
        Ask::Swap(root, tag) => Answer::Swapped(store.swap(ROOT, &root.encode(), &tag)),
    }
}
