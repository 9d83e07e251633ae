//! An owner: it writes, seals windows, makes their parts in the chain, and acknowledges flushes.
//!
//! Invariant: a flush is acknowledged when all slots up to the last part of its window are durable,
//! and never after a fence was found.

use super::checkpointer::Checkpointer;
use super::oracle::{Name, Window};
use super::process::Life;
use super::scene::{Scene, VOLUME, seed, wrong};
use super::store::{Reply, Request};
use crate::trouble::{Kind, Trouble};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use ztier::object::{
    Contents, Entry, Failure, Issuer, Object, Owned, Part, Session, Taken, WindowEnd, check_of,
    decode, judge, part,
};

/// Flushes under way at most.
const FLUSHES: usize = 4;
/// Parts of a window at most.
const PARTS: u64 = 3;

/// What an owner asked the store for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// To make its part in this slot.
    Create(u64),
    /// To read what is in this slot of its own.
    Judge(u64),
    /// To go on with its checkpoint.
    Checkpoint,
}

/// A flush that waits for its window.
#[derive(Clone)]
struct Flush {
    window: u64,
    version: usize,
    /// Its parts that are issued.
    parts: Vec<(u64, Vec<Entry>)>,
    /// The last part, once it is issued.
    end: Option<WindowEnd>,
}

/// See the module.
#[derive(Clone)]
pub struct Owner {
    session: Session,
    generation: u64,
    issuer: Issuer,
    writes: Vec<Entry>,
    windows: u64,
    flushes: VecDeque<Flush>,
    /// Parts without a slot.
    waiting: VecDeque<(Part, Vec<Entry>)>,
    /// The check word of the part that was issued last.
    before: u32,
    /// Parts that are to be created, by their slot.
    issued: BTreeMap<u64, Rc<[u8]>>,
    /// What it wants to ask.
    wanted: VecDeque<Duty>,
    /// What it has, without what is not durable, and the windows of that.
    contents: Contents,
    applied: Vec<Window>,
    checkpointer: Checkpointer,
}

impl Owner {
    /// An owner that has adopted these windows.
    pub fn new(owned: &Owned, contents: Contents, adopted: Vec<Window>) -> Self {
        let mut contents = Contents { next: owned.next, ..contents };
        let session = owned.root.session;
        contents.sessions.begin(owned.next, session);
        Self {
            session,
            generation: owned.root.generation,
            issuer: Issuer::new(owned.next),
            writes: Vec::new(),
            windows: 0,
            flushes: VecDeque::new(),
            waiting: VecDeque::new(),
            before: 0,
            issued: BTreeMap::new(),
            wanted: VecDeque::new(),
            contents,
            applied: adopted,
            checkpointer: Checkpointer::new(owned),
        }
    }

    /// Writes a block, seals a window for a flush, or begins a checkpoint.
    pub fn work(&mut self, scene: &mut Scene) {
        if scene.rng.chance(100) {
            self.checkpointer.begin();
        }
        if self.writes.is_empty() || scene.rng.chance(500) {
            self.writes.push(scene.write());
        } else if self.flushes.len() < FLUSHES {
            self.seal(scene);
        }
    }

    fn seal(&mut self, scene: &mut Scene) {
        let window = self.windows;
        let most = PARTS.min(self.writes.len() as u64);
        let count = scene.rng.between(1, most) as usize;
        let share = self.writes.len().div_ceil(count);
        let parts: Vec<Vec<Entry>> = self.writes.chunks(share).map(<[Entry]>::to_vec).collect();
        self.writes.clear();
        self.windows += 1;
        scene.stats.windows += 1;
        scene.note(|| format!("{} seals {window}: {parts:?}", Name(self.session)));
        let last = parts.len() - 1;
        for (number, entries) in parts.iter().enumerate() {
            let (part, commits) = (number as u32, number == last);
            let part = Part { window, part, commits, before: 0 };
            self.waiting.push_back((part, entries.clone()));
        }
        let version = scene.oracle.sealed(self.session, window, parts);
        self.flushes.push_back(Flush { window, version, parts: Vec::new(), end: None });
    }

    /// The next request, if it has one.
    pub fn next(&mut self, scene: &mut Scene) -> Option<(Request, Duty)> {
        self.issue(scene);
        if let Some(request) = self.checkpointer.ask() {
            return Some((request, Duty::Checkpoint));
        }
        let duty = self.wanted.pop_front()?;
        let request = match duty {
            Duty::Create(slot) => Request::Create(slot, self.issued.get(&slot)?.clone()),
            Duty::Judge(slot) => Request::Read(slot),
            Duty::Checkpoint => return None,
        };
        Some((request, duty))
    }

    fn issue(&mut self, scene: &mut Scene) {
        while !self.waiting.is_empty()
            && let Some(slot) = self.issuer.issue()
            && let Some((what, entries)) = self.waiting.pop_front()
        {
            let before = if what.part == 0 { 0 } else { self.before };
            let what = Part { before, ..what };
            let bytes = part(&seed(self.session, slot), what, &entries, &[]);
            self.before = check_of(&bytes);
            let Part { window, part, commits, .. } = what;
            scene.note(|| {
                let end = if commits { ", the last," } else { "" };
                format!("{} issues {slot}: part {part}{end} of {window}", Name(self.session))
            });
            self.issued.insert(slot, bytes.into());
            self.wanted.push_back(Duty::Create(slot));
            if let Some(flush) = self.flushes.iter_mut().find(|flush| flush.window == window) {
                let end = WindowEnd::new((slot, self.before), self.session, &entries);
                flush.end = commits.then_some(end);
                flush.parts.push((slot, entries));
            }
        }
    }

    /// Takes the answer to what it asked for.
    ///
    /// # Errors
    /// Another session writes to its slots, or an acknowledged flush is lost.
    pub fn hear(&mut self, duty: Duty, reply: Reply, scene: &mut Scene) -> Result<Life, Trouble> {
        match (duty, reply) {
            (Duty::Checkpoint, reply) => {
                let life = self.checkpointer.hear(reply, (&self.contents, &self.applied), scene)?;
                scene.stats.fenced += u64::from(life == Life::Fenced);
                return Ok(life);
            }
            (Duty::Create(slot), Reply::Created(Ok(()))) => self.created(slot, scene)?,
            (Duty::Create(slot), Reply::Created(Err(Failure::Exists))) => {
                self.wanted.push_back(Duty::Judge(slot));
            }
            (Duty::Judge(slot), Reply::Object(_, Ok(bytes))) => {
                return self.judge(slot, &bytes, scene);
            }
            // Its connection was lost: again, with the same content.
            (duty, Reply::Created(Err(_)) | Reply::Object(_, Err(_))) => {
                self.wanted.push_back(duty);
            }
            (duty, _) => return wrong(Kind::Misuse, format!("an answer to another than {duty:?}")),
        }
        Ok(Life::GoesOn)
    }

    fn judge(&mut self, slot: u64, bytes: &[u8], scene: &mut Scene) -> Result<Life, Trouble> {
        let read = |bytes: &[u8]| {
            let damaged = |damage| wrong(Kind::Lost, format!("slot {slot} {damage}"));
            decode(bytes, &VOLUME, slot).or_else(damaged)
        };
        let Some(ours) = self.issued.get(&slot) else { return Ok(Life::GoesOn) };
        let (found, ours): (Object, Object) = (read(bytes)?, read(ours)?);
        let name = Name(self.session);
        match judge(&found, &ours) {
            Taken::Ours => {
                self.created(slot, scene)?;
                Ok(Life::GoesOn)
            }
            Taken::Fence(other) => {
                scene.stats.fenced += 1;
                scene.note(|| format!("{name} is fenced at {slot} by {}", Name(other)));
                Ok(Life::Fenced)
            }
            Taken::Other if scene.oracle.is_copied(&self.session) => {
                scene.note(|| format!("{name} finds another's part at {slot}"));
                Ok(Life::Fenced)
            }
            Taken::Other => wrong(
                Kind::Misuse,
                format!("{name} wants slot {slot} for {ours:?} and finds {found:?}"),
            ),
        }
    }

    fn created(&mut self, slot: u64, scene: &mut Scene) -> Result<(), Trouble> {
        self.issuer.created(slot);
        self.issued.remove(&slot);
        let is_done =
            |flush: &Flush, durable| flush.end.as_ref().is_some_and(|end| end.slot < durable);
        while self.flushes.front().is_some_and(|flush| is_done(flush, self.issuer.durable()))
            && let Some(Flush { window, version, parts, end: Some(end) }) = self.flushes.pop_front()
        {
            scene.note(|| format!("{} acknowledges {window}", Name(self.session)));
            scene.stats.acknowledged += 1;
            scene.oracle.acknowledged(self.generation, window, version)?;
            self.contents.apply(&parts, end);
            self.applied.push(Window { session: self.session, number: window, parts });
        }
        Ok(())
    }

    /// A copy that has lost its connections, and creates anew what it waits for.
    pub fn copied(&self, scene: &mut Scene) -> Self {
        scene.stats.copies += 1;
        scene.oracle.copied(self.session);
        let wanted = self.issued.keys().map(|slot| Duty::Create(*slot)).collect();
        Self { wanted, checkpointer: self.checkpointer.copied(), ..self.clone() }
    }
}
