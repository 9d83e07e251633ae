//! The store of objects of a run, and the network before it.
//!
//! Invariants: a request is carried out as a whole or not at all; a slot that has an object keeps
//! it; of several swaps with one tag, one succeeds. The network may carry a request out long after
//! its process has given it up, or has died.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use ztier::object::planted::{Bug, on};
use ztier::object::{Failure, Root, Session, Tag, Trouble, piece_key};

/// What a process asks of the store.
#[derive(Clone)]
pub enum Request {
    /// Read the root.
    Root,
    /// Read the object in a slot.
    Read(u64),
    /// Make an object in a slot.
    Create(u64, Rc<[u8]>),
    /// Put a root in the place of the one with a tag.
    Swap(Rc<[u8]>, Tag),
    /// Read the piece of a checkpoint with this key.
    ReadPiece(String),
    /// Make a piece of this key.
    CreatePiece(String, Rc<[u8]>),
    /// Remove the piece of this key.
    RemovePiece(String),
}

/// The store's answer.
pub enum Reply {
    Root(Result<(Rc<[u8]>, Tag), Failure>),
    /// Of the slot.
    Object(u64, Result<Rc<[u8]>, Failure>),
    Created(Result<(), Failure>),
    Swapped(Result<Tag, Failure>),
    Piece(Result<Rc<[u8]>, Failure>),
    Removed(Result<(), Failure>),
}

/// The failure that says nothing about what was done.
fn unknown() -> Failure {
    Failure::Other(Trouble { errno: 5, text: String::from("the connection was lost") })
}

impl Request {
    /// The reply to a process that is told that the request failed.
    pub fn failed(&self) -> Reply {
        match self {
            Self::Root => Reply::Root(Err(unknown())),
            Self::Read(slot) => Reply::Object(*slot, Err(unknown())),
            Self::Create(..) | Self::CreatePiece(..) => Reply::Created(Err(unknown())),
            Self::ReadPiece(_) => Reply::Piece(Err(unknown())),
            Self::RemovePiece(_) => Reply::Removed(Err(unknown())),
            Self::Swap(..) => Reply::Swapped(Err(unknown())),
        }
    }
}

impl Reply {
    /// The reply to a process that the answer does not reach.
    pub fn failed(&self) -> Self {
        match self {
            Self::Root(_) => Self::Root(Err(unknown())),
            Self::Object(slot, _) => Self::Object(*slot, Err(unknown())),
            Self::Created(_) => Self::Created(Err(unknown())),
            Self::Swapped(_) => Self::Swapped(Err(unknown())),
            Self::Piece(_) => Self::Piece(Err(unknown())),
            Self::Removed(_) => Self::Removed(Err(unknown())),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => write!(f, "read root"),
            Self::Read(slot) => write!(f, "read {slot}"),
            Self::Create(slot, _) => write!(f, "create {slot}"),
            Self::Swap(_, tag) => write!(f, "swap root {}", tag.0),
            Self::ReadPiece(key) => write!(f, "read {key}"),
            Self::CreatePiece(key, _) => write!(f, "create {key}"),
            Self::RemovePiece(key) => write!(f, "remove {key}"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, failure) = match self {
            Self::Root(result) => ("root", result.as_ref().err()),
            Self::Object(_, result) => ("object", result.as_ref().err()),
            Self::Created(result) => ("created", result.as_ref().err()),
            Self::Swapped(result) => ("swapped", result.as_ref().err()),
            Self::Piece(result) => ("piece", result.as_ref().err()),
            Self::Removed(result) => ("removed", result.as_ref().err()),
        };
        match failure {
            Some(failure) => write!(f, "{failure}"),
            None => write!(f, "{what}"),
        }
    }
}

/// What the store holds.
pub struct Store {
    slots: BTreeMap<u64, Rc<[u8]>>,
    /// Pieces of checkpoints, by their keys.
    pieces: BTreeMap<String, Rc<[u8]>>,
    root: Rc<[u8]>,
    swaps: u64,
    /// Session and fence of each root there was, by its generation.
    owners: BTreeMap<u64, (Session, u64)>,
}

impl Store {
    pub fn new(root: &Root) -> Self {
        let (slots, pieces, owners) = Default::default();
        Self { slots, pieces, root: root.encode().into(), swaps: 0, owners }
    }

    /// Number of objects in the chain, and of pieces.
    pub fn objects(&self) -> usize {
        self.slots.len() + self.pieces.len()
    }

    /// The first piece of the checkpoint that the root names, if it is not there.
    pub fn missing_piece(&self) -> Option<String> {
        let checkpoint = Root::decode(&self.root).ok()?.checkpoint?;
        let key = |number| piece_key(checkpoint.generation, number);
        (0..checkpoint.pieces).map(key).find(|key| !self.pieces.contains_key(key))
    }

    /// Session and fence of the root of a generation.
    pub fn owner(&self, generation: u64) -> Option<(Session, u64)> {
        self.owners.get(&generation).copied()
    }

    fn tag(&self) -> Tag {
        Tag(self.swaps.to_string())
    }

    /// Does what is asked.
    pub fn carry_out(&mut self, request: &Request) -> Reply {
        match request {
            Request::Root => Reply::Root(Ok((self.root.clone(), self.tag()))),
            Request::Read(slot) => {
                let found = self.slots.get(slot).cloned().ok_or(Failure::Missing);
                let cut = |object: Rc<[u8]>| object[..object.len() / 2].into();
                Reply::Object(*slot, if on(Bug::CutAnswer) { found.map(cut) } else { found })
            }
            Request::Create(slot, _)
                if self.slots.contains_key(slot) && !on(Bug::CreateReplaces) =>
            {
                Reply::Created(Err(Failure::Exists))
            }
            Request::Create(slot, bytes) => {
                self.slots.insert(*slot, bytes.clone());
                Reply::Created(Ok(()))
            }
            Request::ReadPiece(key) => {
                Reply::Piece(self.pieces.get(key).cloned().ok_or(Failure::Missing))
            }
            Request::CreatePiece(key, _) if self.pieces.contains_key(key) => {
                Reply::Created(Err(Failure::Exists))
            }
            Request::CreatePiece(key, bytes) => {
                self.pieces.insert(key.clone(), bytes.clone());
                Reply::Created(Ok(()))
            }
            Request::RemovePiece(key) => {
                Reply::Removed(self.pieces.remove(key).map(drop).ok_or(Failure::Missing))
            }
            Request::Swap(_, before) if *before != self.tag() => {
                Reply::Swapped(Err(Failure::Changed))
            }
            Request::Swap(bytes, _) => {
                if let Ok(root) = Root::decode(bytes) {
                    self.owners.insert(root.generation, (root.session, root.fence));
                    let last = self.owners.range(..root.generation).next_back();
                    if let Some((_, (session, fence))) = last
                        && *session != root.session
                        && on(Bug::RemoveFence)
                    {
                        self.slots.remove(fence);
                    }
                }
                self.root = bytes.clone();
                self.swaps += 1;
                Reply::Swapped(Ok(self.tag()))
            }
        }
    }
}

/// A request on its way to the store.
pub struct Sent {
    pub id: u64,
    pub process: u32,
    pub request: Request,
    /// Whether its process waits for the answer.
    pub awaited: bool,
}

/// An answer on its way to a process.
pub struct Answered {
    pub id: u64,
    pub process: u32,
    pub reply: Reply,
}

/// What is under way, in no order.
#[derive(Default)]
pub struct Network {
    pub requests: Vec<Sent>,
    pub answers: Vec<Answered>,
    sent: u64,
}

impl Network {
    /// Takes a request of `process`. Returns its number.
    pub fn send(&mut self, process: u32, request: Request) -> u64 {
        self.sent += 1;
        self.requests.push(Sent { id: self.sent, process, request, awaited: true });
        self.sent
    }

    /// No answer reaches `process` any more; its requests stay.
    pub fn forget(&mut self, process: u32) {
        self.answers.retain(|answer| answer.process != process);
        for sent in self.requests.iter_mut().filter(|sent| sent.process == process) {
            sent.awaited = false;
        }
    }
}
