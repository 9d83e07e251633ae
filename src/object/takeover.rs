//! How a session becomes the owner of a chain. Pure: answers of the store in, the next question
//! out.
//!
//! A session reads the root, and its checkpoint; walks the chain from there, or from its first
//! slot; creates its fence in the first slot without an object, reads what is there, and swaps the
//! root as it was before the walk. From then on it is the owner, and continues [`WIDTH`] slots
//! behind its fence.
//!
//! Invariants:
//! - Nothing is served or written before the swap is confirmed.
//! - A slot is free only if the store says that it has no object: never after a failure.
//! - A takeover that loses begins again as another session, so that its own earlier fence is that
//!   of another. Fences stay.
//! - A part is of the session whose fence came last; any other is damage.
//! - A checkpoint is an abbreviation: one that can't be read costs the walk before it, unless the
//!   root has another by then.

use super::format::{Damage, Object, Session, WIDTH};
use super::planted::{Bug, on};
use super::root::{Checkpoint, Root};
use super::store::{Failure, Tag};

/// What the store is asked next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Read the root: [`Answer::Root`].
    Root,
    /// Read this checkpoint: [`Answer::Checkpoint`].
    Checkpoint(Checkpoint),
    /// Read the object in this slot: [`Answer::Object`].
    Object(u64),
    /// Create this session's fence in this slot: [`Answer::Created`].
    Fence(u64),
    /// Put this root in the place of the one with this tag: [`Answer::Swapped`].
    Swap(Box<Root>, Tag),
}

/// The store's answer to an [`Ask`].
#[derive(Clone, Debug)]
pub enum Answer {
    /// The root, with its tag.
    Root(Result<(Root, Tag), Failure>),
    /// Whether what was adopted is now what the checkpoint has.
    Checkpoint(Result<Result<(), Damage>, Failure>),
    /// The head and table of the object.
    Object(Result<Result<Object, Damage>, Failure>),
    /// Whether the fence was created.
    Created(Result<(), Failure>),
    /// The new tag of the root.
    Swapped(Result<Tag, Failure>),
}

/// What an answer has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask on.
    Next,
    /// The object in this slot is a part of the volume's state.
    Adopt(u64, Object),
    /// All that was adopted is void: ask on, as another session.
    Again,
    /// The session is the owner.
    Owner(Owned),
    /// The store has failed: ask again later.
    Failed(Failure),
    /// The chain is damaged at this slot.
    Damaged(u64, Damage),
}

/// What an owner begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The root as this owner has swapped it.
    pub root: Root,
    /// Its tag.
    pub tag: Tag,
    /// The first slot to write to.
    pub next: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Begin,
    Restore,
    Walk,
    /// What a mistake does ([`Bug::FenceAboveHole`]): looks behind a free slot.
    Probe,
    Fence,
    /// The fence may be there: look.
    Look,
    Swap,
    /// The swap had no answer: read the root.
    Settle,
    Done,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct TakeOver {
    session: Session,
    owner: String,
    state: State,
    root: Option<(Root, Tag)>,
    slot: u64,
    /// The session whose parts count here.
    in_force: Option<Session>,
    /// A checkpoint that can't be read.
    unreadable: Option<Checkpoint>,
    /// How the fence failed, until it is known whether it is there.
    unmade: Option<Failure>,
}

impl TakeOver {
    /// Of a session that is new, whose owner is called `owner`.
    pub fn new(session: Session, owner: String) -> Self {
        Self {
            session,
            owner,
            state: State::Begin,
            root: None,
            slot: 0,
            in_force: None,
            unreadable: None,
            unmade: None,
        }
    }

    /// The session.
    pub fn session(&self) -> Session {
        self.session
    }

    /// Begins again, as another session.
    pub fn again(&mut self, session: Session) {
        let session = if on(Bug::KeepSession) { self.session } else { session };
        let unreadable = self.unreadable;
        *self = Self { unreadable, ..Self::new(session, std::mem::take(&mut self.owner)) };
    }

    /// What to ask now.
    pub fn ask(&self) -> Ask {
        match (&self.state, &self.root) {
            (State::Restore, Some((Root { checkpoint: Some(checkpoint), .. }, _))) => {
                Ask::Checkpoint(*checkpoint)
            }
            (State::Walk | State::Look, _) => Ask::Object(self.slot),
            (State::Probe, _) => Ask::Object(self.slot + 1),
            (State::Fence, _) => Ask::Fence(self.slot),
            (State::Swap, Some((root, tag))) => Ask::Swap(Box::new(self.taken(root)), tag.clone()),
            _ => Ask::Root,
        }
    }

    /// The root as this session leaves it.
    fn taken(&self, root: &Root) -> Root {
        Root {
            generation: root.generation + 1,
            session: self.session,
            fence: self.slot,
            ended: false,
            owner: self.owner.clone(),
            ..root.clone()
        }
    }

    /// Takes the answer to [`TakeOver::ask`].
    pub fn hear(&mut self, answer: Answer) -> Step {
        match (self.state.clone(), answer) {
            (State::Begin, Answer::Root(Ok(root))) => {
                let checkpoint = root.0.checkpoint;
                let restores = checkpoint.is_some() && checkpoint != self.unreadable;
                self.state = if restores { State::Restore } else { State::Walk };
                self.root = Some(root);
                Step::Next
            }
            (State::Restore, Answer::Checkpoint(Ok(restored))) => {
                self.restored(restored.is_ok());
                Step::Next
            }
            // It has gone, or the root has another by now.
            (State::Restore, Answer::Checkpoint(Err(Failure::Missing))) => {
                self.restored(false);
                Step::Next
            }
            (State::Walk, Answer::Object(found)) => self.walk(found),
            (State::Probe, Answer::Object(found)) => {
                self.slot += u64::from(found.is_ok());
                self.state = if found.is_ok() { State::Walk } else { State::Fence };
                Step::Next
            }
            // Whatever the answer: what is there counts.
            (State::Fence, Answer::Created(made)) => {
                self.state = State::Look;
                if made == Err(Failure::Exists) && on(Bug::TryNextSlot) {
                    (self.slot, self.state) = (self.slot + 1, State::Fence);
                }
                self.unmade = made.err();
                Step::Next
            }
            (State::Look, Answer::Object(found)) => self.look(found),
            (State::Swap, Answer::Swapped(Ok(tag))) => self.done(tag),
            (State::Swap, Answer::Swapped(Err(Failure::Changed))) => {
                if on(Bug::IgnoreChangedRoot) {
                    self.done(Tag::default())
                } else {
                    Step::Again
                }
            }
            (State::Swap, Answer::Swapped(Err(failure))) => {
                self.state = State::Settle;
                if on(Bug::AssumeSwapped) {
                    return self.done(Tag::default());
                }
                Step::Failed(failure)
            }
            (State::Settle, Answer::Root(Ok((now, tag)))) => self.settle(now, tag),
            (
                _,
                Answer::Root(Err(failure))
                | Answer::Object(Err(failure))
                | Answer::Checkpoint(Err(failure)),
            ) => Step::Failed(failure),
            // An answer to another question.
            _ => Step::Next,
        }
    }

    fn restored(&mut self, done: bool) {
        let checkpoint = self.root.as_ref().and_then(|(root, _)| root.checkpoint);
        match checkpoint {
            Some(checkpoint) if done => {
                self.slot = checkpoint.slot;
                self.in_force = Some(checkpoint.session).filter(|_| !on(Bug::CheckpointOfNone));
                self.state = State::Walk;
            }
            unreadable => (self.unreadable, self.state) = (unreadable, State::Begin),
        }
    }

    fn walk(&mut self, found: Result<Result<Object, Damage>, Failure>) -> Step {
        match found {
            Ok(Ok(object)) => self.pass(object),
            Ok(Err(damage)) => Step::Damaged(self.slot, damage),
            Err(Failure::Missing) => {
                self.state = if on(Bug::FenceAboveHole) { State::Probe } else { State::Fence };
                Step::Next
            }
            Err(_) if on(Bug::FailureIsFree) => {
                self.state = State::Fence;
                Step::Next
            }
            Err(failure) => Step::Failed(failure),
        }
    }

    fn look(&mut self, found: Result<Result<Object, Damage>, Failure>) -> Step {
        match found {
            Ok(Ok(Object::Fence { session })) if session == self.session => {
                self.state = if on(Bug::RootAfterWalk) { State::Settle } else { State::Swap };
                Step::Next
            }
            Err(Failure::Other(trouble)) => Step::Failed(Failure::Other(trouble)),
            // Not made, or removed.
            Err(Failure::Missing) => {
                self.state = State::Fence;
                Step::Failed(self.unmade.take().unwrap_or(Failure::Missing))
            }
            // Another object was first.
            found => {
                self.state = State::Walk;
                self.walk(found)
            }
        }
    }

    /// Goes past an object of the chain.
    fn pass(&mut self, object: Object) -> Step {
        match object {
            Object::Fence { session } => {
                self.in_force = Some(session);
                self.slot += WIDTH - u64::from(on(Bug::ContinueEarly));
                Step::Next
            }
            Object::Part { session, .. } if self.in_force != Some(session) => {
                Step::Damaged(self.slot, Damage::Other)
            }
            part @ Object::Part { .. } => {
                self.slot += 1;
                Step::Adopt(self.slot - 1, part)
            }
        }
    }

    fn settle(&mut self, now: Root, tag: Tag) -> Step {
        let before = self.root.as_ref().map(|(_, tag)| tag.clone());
        if now.session == self.session {
            return self.done(tag);
        }
        self.state = State::Swap;
        if on(Bug::RootAfterWalk) {
            self.root = Some((now, tag));
            return Step::Next;
        }
        // Unchanged: nothing was swapped yet, and of two swaps with one tag at most one succeeds.
        if before == Some(tag) { Step::Next } else { Step::Again }
    }

    fn done(&mut self, tag: Tag) -> Step {
        let Some((root, _)) = &self.root else { return Step::Again };
        let root = self.taken(root);
        self.state = State::Done;
        let next = self.slot + WIDTH - u64::from(on(Bug::ContinueEarly));
        Step::Owner(Owned { root, tag, next })
    }
}
