//! How an owner changes the root. Pure: answers of the store in, the next question out.
//!
//! An answer that was lost is settled by reading: the owner's own swap may have been done, now or
//! before.
//!
//! Invariants: a root of another session is never replaced; it names a checkpoint only in place of
//! the note that this one was begun: pieces of any other may be gone.

use super::format::Session;
use super::planted::{Bug, on};
use super::root::{Checkpoint, Root};
use super::store::{Failure, Tag};
use super::takeover::{Answer, Ask};

/// How often a change is tried.
const TRIES: u32 = 3;

/// What changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The owner ends in order.
    End,
    /// The volume gets this size in bytes.
    Grow(u64),
    /// A checkpoint begins.
    Begin,
    /// This checkpoint is whole.
    Checkpoint(Checkpoint),
}

/// What an answer has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Ask on.
    Next,
    /// The root is this one, with this tag.
    Done(Box<Root>, Tag),
    /// The volume has another owner.
    Over,
    /// The store has failed.
    Failed(Failure),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct RootChange {
    what: What,
    session: Session,
    /// The root as it was, with its tag.
    before: (Root, Tag),
    /// The failure of the last swap: the root is to be read.
    failed: Option<Failure>,
    tries: u32,
}

impl RootChange {
    /// Of the root that this owner has left, with its tag.
    pub fn new(what: What, before: (Root, Tag)) -> Self {
        Self { what, session: before.0.session, before, failed: None, tries: 0 }
    }

    fn wanted(&self) -> Root {
        let mut root = self.before.0.clone();
        root.generation += 1;
        match self.what {
            What::End => root.ended = true,
            What::Grow(size) => root.size = size,
            What::Begin => root.begun = root.generation,
            What::Checkpoint(checkpoint) => {
                let old = root.checkpoint.replace(checkpoint);
                (root.begun, root.stale) = (0, old.map_or(0, |old| old.generation));
            }
        }
        root
    }

    /// What to ask now: to swap the root, or to read it.
    pub fn ask(&self) -> Ask {
        match self.failed {
            Some(_) => Ask::Root,
            None => Ask::Swap(Box::new(self.wanted()), self.before.1.clone()),
        }
    }

    /// Takes the answer to [`RootChange::ask`].
    pub fn hear(&mut self, answer: Answer) -> Changed {
        match answer {
            Answer::Swapped(Ok(tag)) => Changed::Done(Box::new(self.wanted()), tag),
            Answer::Swapped(Err(failure)) => {
                self.failed = Some(failure);
                Changed::Next
            }
            Answer::Root(Ok(found)) => self.settle(found),
            Answer::Root(Err(failure)) => Changed::Failed(failure),
            // An answer to another question.
            Answer::Object(_) | Answer::Created(_) | Answer::Checkpoint(_) => Changed::Next,
        }
    }

    fn settle(&mut self, found: (Root, Tag)) -> Changed {
        if found.0.session != self.session && !on(Bug::ChangeAnothersRoot) {
            return Changed::Over;
        }
        if found.0 == self.wanted() {
            return Changed::Done(Box::new(found.0), found.1);
        }
        self.before = found;
        self.tries += 1;
        let begun = self.before.0.begun;
        // A copy of this process may have named it, or begun another.
        let is_void = matches!(self.what, What::Checkpoint(of) if of.generation != begun);
        match self.failed.take() {
            Some(failure) if is_void || self.tries >= TRIES => Changed::Failed(failure),
            _ => Changed::Next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> (Root, Tag) {
        let root = Root { session: [5; 16], generation: 9, ..Root::new([1; 16], 4096) };
        (root, Tag("a".into()))
    }

    fn lost() -> Failure {
        Failure::Other(super::super::Trouble { errno: 5, text: String::new() })
    }

    #[test]
    fn a_lost_answer_is_settled_by_reading() {
        let mut change = RootChange::new(What::Begin, root());
        let Ask::Swap(wanted, tag) = change.ask() else { panic!() };
        assert_eq!((wanted.generation, wanted.begun, tag), (10, 10, Tag("a".into())));
        assert_eq!(change.hear(Answer::Swapped(Err(lost()))), Changed::Next);
        assert_eq!(change.ask(), Ask::Root);
        let done = Changed::Done(wanted.clone(), Tag("b".into()));
        let found = (*wanted, Tag("b".into()));
        assert_eq!(change.clone().hear(Answer::Root(Ok(found))), done);
        // It was not done: again, and with a change that was done before.
        let other = Root { size: 8192, generation: 10, ..root().0 };
        assert_eq!(change.hear(Answer::Root(Ok((other, Tag("c".into()))))), Changed::Next);
        let Ask::Swap(wanted, tag) = change.ask() else { panic!() };
        assert_eq!((wanted.generation, wanted.begun, wanted.size), (11, 11, 8192));
        assert_eq!(tag, Tag("c".into()));
    }

    #[test]
    fn a_checkpoint_is_named_only_while_it_is_the_one_that_was_begun() {
        let checkpoint =
            Checkpoint { generation: 9, slot: 3, session: [5; 16], pieces: 1, check: 7 };
        let before = Root { begun: 9, ..root().0 };
        let mut change = RootChange::new(What::Checkpoint(checkpoint), (before, Tag::default()));
        let Ask::Swap(wanted, _) = change.ask() else { panic!() };
        assert_eq!((wanted.checkpoint, wanted.begun, wanted.stale), (Some(checkpoint), 0, 0));
        change.hear(Answer::Swapped(Err(Failure::Changed)));
        let other = Root { begun: 10, ..root().0 };
        let heard = change.hear(Answer::Root(Ok((other, Tag::default()))));
        assert_eq!(heard, Changed::Failed(Failure::Changed));
    }

    #[test]
    fn anothers_root_is_not_changed_and_tries_end() {
        let mut change = RootChange::new(What::Grow(8192), root());
        change.hear(Answer::Swapped(Err(Failure::Changed)));
        let another = Root { session: [6; 16], ..root().0 };
        let heard = change.clone().hear(Answer::Root(Ok((another, Tag::default()))));
        assert_eq!(heard, Changed::Over);
        for _ in 1..TRIES {
            assert_eq!(change.hear(Answer::Root(Ok(root()))), Changed::Next);
            change.hear(Answer::Swapped(Err(lost())));
        }
        assert_eq!(change.hear(Answer::Root(Ok(root()))), Changed::Failed(lost()));
    }
}
