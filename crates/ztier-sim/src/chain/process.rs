//! A process of a host: it takes the chain over, then owns it, until it is fenced or dies.
//!
//! Invariant: what a process knows is in it alone, and ends with it; its requests may outlive it.

use super::oracle::{Blocks, Name, Window};
use super::owner::{Duty, Owner};
use super::scene::{APART, BLOCKS, Scene, VOLUME, seed, wrong};
use super::store::{Reply, Request};
use crate::trouble::{Kind, Trouble};
use std::mem::take;
use std::rc::Rc;
use ztier::object::{
    Adopted, Answer, Ask, Checkpoint, Contents, Failure, Object, Owned, PieceReader, Root, Session,
    Step, TakeOver, decode, fence, piece_key,
};

/// What a process does after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    GoesOn,
    /// It owns the chain no more.
    Fenced,
}

/// What a process asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    TakeOver,
    Owner(Duty),
}

enum Role {
    Taking(Box<Taking>),
    Owner(Box<Owner>),
}

/// See the module.
pub struct Process {
    pub number: u32,
    role: Role,
    /// Requests that it waits for.
    asked: Vec<(u64, Purpose)>,
}

impl Process {
    /// Starts a process, which asks its first question.
    pub fn start(scene: &mut Scene) -> Result<Self, Trouble> {
        let (number, session) = (scene.process(), scene.session());
        scene.note(|| format!("process {number} starts as {}", Name(session)));
        let role = Role::Taking(Box::new(Taking::new(session)));
        let mut process = Self { number, role, asked: Vec::new() };
        process.ask(scene)?;
        Ok(process)
    }

    /// The request that the process has waited for the longest.
    pub fn oldest(&self) -> Option<u64> {
        self.asked.first().map(|(id, _)| *id)
    }

    pub fn is_owner(&self) -> bool {
        matches!(self.role, Role::Owner(_))
    }

    fn send(&mut self, scene: &mut Scene, request: Request, purpose: Purpose) {
        self.asked.push((scene.network.send(self.number, request), purpose));
    }

    fn ask(&mut self, scene: &mut Scene) -> Result<(), Trouble> {
        if let Role::Taking(taking) = &mut self.role {
            let request = taking.ask()?;
            self.send(scene, request, Purpose::TakeOver);
        }
        Ok(())
    }

    /// Takes the answer to request `id`.
    ///
    /// # Errors
    /// Something is wrong with the chain.
    pub fn hear(&mut self, id: u64, reply: Reply, scene: &mut Scene) -> Result<Life, Trouble> {
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == id) else {
            return Ok(Life::GoesOn);
        };
        let (_, purpose) = self.asked.remove(at);
        match (purpose, &mut self.role) {
            (Purpose::TakeOver, Role::Taking(taking)) => {
                if let Some(owned) = taking.hear(reply, scene)? {
                    self.role = Role::Owner(Box::new(taking.owner(&owned, scene)?));
                }
                self.ask(scene)?;
                Ok(Life::GoesOn)
            }
            (Purpose::Owner(duty), Role::Owner(owner)) => {
                let life = owner.hear(duty, reply, scene)?;
                self.send_parts(scene);
                Ok(life)
            }
            _ => Ok(Life::GoesOn),
        }
    }

    /// An owner writes or flushes.
    pub fn work(&mut self, scene: &mut Scene) {
        if let Role::Owner(owner) = &mut self.role {
            owner.work(scene);
            self.send_parts(scene);
        }
    }

    fn send_parts(&mut self, scene: &mut Scene) {
        while let Role::Owner(owner) = &mut self.role
            && let Some((request, duty)) = owner.next(scene)
        {
            self.send(scene, request, Purpose::Owner(duty));
        }
    }

    /// A copy of an owner, as of a virtual machine that is restored a second time: it sends anew
    /// what it waits for.
    pub fn copy(&self, scene: &mut Scene) -> Option<Self> {
        let Role::Owner(owner) = &self.role else { return None };
        let (owner, number) = (owner.copied(scene), scene.process());
        scene.note(|| format!("process {} is copied as {number}", self.number));
        let mut copy = Self { number, role: Role::Owner(Box::new(owner)), asked: Vec::new() };
        copy.send_parts(scene);
        Some(copy)
    }
}

/// A takeover under way.
struct Taking {
    machine: TakeOver,
    adopted: Adopted,
    windows: Vec<Window>,
    /// The checkpoint that it reads, and how far it is.
    restoring: Option<(Checkpoint, PieceReader)>,
    /// The slot of the last read, if it failed.
    failed: Option<u64>,
}

impl Taking {
    fn new(session: Session) -> Self {
        Self {
            machine: TakeOver::new(session, String::from("simulated")),
            adopted: Adopted::default(),
            windows: Vec::new(),
            restoring: None,
            failed: None,
        }
    }

    fn ask(&mut self) -> Result<Request, Trouble> {
        Ok(match self.machine.ask() {
            Ask::Root => Request::Root,
            Ask::Checkpoint(checkpoint) => {
                let reader = || (checkpoint, PieceReader::new(VOLUME, checkpoint));
                let (_, reader) = self.restoring.get_or_insert_with(reader);
                let number = reader.next().unwrap_or_default();
                Request::ReadPiece(piece_key(checkpoint.generation, number))
            }
            Ask::Object(slot) => Request::Read(slot),
            Ask::Fence(slot) if self.failed == Some(slot) => {
                let text = format!("slot {slot} is taken for free after a read that failed");
                return wrong(Kind::Misuse, text);
            }
            Ask::Fence(slot) => {
                Request::Create(slot, fence(&seed(self.machine.session(), slot)).into())
            }
            Ask::Swap(root, tag) => Request::Swap(root.encode().into(), tag),
        })
    }

    /// Returns what the session owns once it does.
    fn hear(&mut self, reply: Reply, scene: &mut Scene) -> Result<Option<Owned>, Trouble> {
        let Some(answer) = self.answer(reply, scene)? else { return Ok(None) };
        match self.machine.hear(answer) {
            Step::Next | Step::Failed(_) => {}
            Step::Adopt(slot, object) => self.adopt(slot, object),
            Step::Again => {
                let session = scene.session();
                scene.stats.again += 1;
                let before = self.machine.session();
                scene.note(|| format!("{} begins again as {}", Name(before), Name(session)));
                self.machine.again(session);
                self.windows.clear();
                (self.adopted, self.restoring, self.failed) = Default::default();
            }
            Step::Owner(owned) => return Ok(Some(owned)),
            Step::Damaged(slot, damage) => {
                return wrong(Kind::Lost, format!("slot {slot} {damage}"));
            }
        }
        Ok(None)
    }

    /// The answer for the machine; `None`: a piece came, and more are to come.
    fn answer(&mut self, reply: Reply, scene: &mut Scene) -> Result<Option<Answer>, Trouble> {
        Ok(Some(match reply {
            Reply::Root(Ok((bytes, tag))) => Answer::Root(Ok((root(&bytes)?, tag))),
            Reply::Root(Err(failure)) => Answer::Root(Err(failure)),
            Reply::Object(slot, found) => {
                self.failed = matches!(found, Err(Failure::Other(_))).then_some(slot);
                Answer::Object(found.map(|bytes| decode(&bytes, &VOLUME, slot)))
            }
            Reply::Created(made) => Answer::Created(made),
            Reply::Swapped(swapped) => Answer::Swapped(swapped),
            Reply::Piece(piece) => return Ok(self.piece(piece, scene)),
            Reply::Removed(_) => return wrong(Kind::Misuse, String::from("it removed nothing")),
        }))
    }

    fn piece(&mut self, piece: Result<Rc<[u8]>, Failure>, scene: &mut Scene) -> Option<Answer> {
        let (_, reader) = self.restoring.as_mut()?;
        let taken = piece.map(|content| reader.take(&content));
        if taken == Ok(Ok(())) && reader.next().is_some() {
            return None;
        }
        let (checkpoint, reader) = self.restoring.take()?;
        if taken == Ok(Ok(())) {
            scene.stats.restored += 1;
            self.windows = scene.oracle.windows(&checkpoint);
            self.adopted.contents = reader.contents();
        }
        Some(Answer::Checkpoint(taken))
    }

    fn adopt(&mut self, slot: u64, object: Object) {
        let Object::Part { session, part, .. } = object else { return };
        let parts = self.adopted.adopt(slot, object);
        if !parts.is_empty() {
            self.windows.push(Window { session, number: part.window, parts });
        }
    }

    /// The session owns the chain: the oracle compares what it has adopted.
    fn owner(&mut self, owned: &Owned, scene: &mut Scene) -> Result<Owner, Trouble> {
        let (session, generation) = (self.machine.session(), owned.root.generation);
        scene.stats.takeovers += 1;
        let (fence, next, windows) = (owned.root.fence, owned.next, self.windows.len());
        scene.note(|| {
            let name = Name(session);
            format!(
                "{name} owns generation {generation}: {windows} windows, fence {fence}, goes on \
                 at {next}"
            )
        });
        let stored = scene.store.owner(generation);
        let (windows, contents) = (take(&mut self.windows), take(&mut self.adopted.contents));
        scene.oracle.owner(session, owned, windows.clone(), &blocks(&contents), stored)?;
        Ok(Owner::new(owned, contents, windows))
    }
}

/// What the oracle compares: the check word of each block that is not zeros.
fn blocks(contents: &Contents) -> Blocks {
    let all = (0..BLOCKS).map(|number| number * APART);
    all.filter_map(|block| Some((block, contents.index.get(block)?.check))).collect()
}

fn root(bytes: &Rc<[u8]>) -> Result<Root, Trouble> {
    Root::decode(bytes).or_else(|damage| wrong(Kind::Lost, format!("the root {damage}")))
}
