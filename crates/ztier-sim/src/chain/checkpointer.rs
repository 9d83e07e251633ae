//! An owner's checkpoint in the making, one request at a time.
//!
//! Invariant: blocks are those of the time at which their piece was made, all else that of the
//! begin.

use super::oracle::Window;
use super::process::Life;
use super::scene::{Scene, VOLUME, wrong};
use super::store::{Reply, Request};
use crate::trouble::{Kind, Trouble};
use std::rc::Rc;
use ztier::object::{
    Answer, Ask, Changed, Contents, Failure, Owned, PieceWriter, Root, RootChange, Tag, What,
    piece_key, write_blocks, write_rest,
};

/// See the module.
#[derive(Clone)]
pub struct Checkpointer {
    /// The root as this owner has left it.
    root: (Root, Tag),
    stage: Stage,
    /// Whether an answer is to come.
    asked: bool,
}

#[derive(Clone)]
enum Stage {
    Idle,
    /// The root is changed: to begin, and then to name the checkpoint.
    Change(Box<RootChange>),
    Piece(Box<Making>),
    /// Pieces of the checkpoint before are removed: of this generation, so many.
    Remove(u64, u32),
}

/// Pieces under way.
#[derive(Clone)]
struct Making {
    writer: PieceWriter,
    /// What the checkpoint stands for.
    windows: Vec<Window>,
    key: String,
    content: Rc<[u8]>,
    /// Whether there was something in its place, which is to be read.
    exists: bool,
    /// The leaf with which the next piece begins.
    next: Option<u64>,
}

impl Making {
    fn new(root: &Root, (contents, windows): (&Contents, &[Window])) -> Self {
        let mut writer = PieceWriter::new(VOLUME, root.session, (root.generation, contents.next));
        let mut units = Vec::new();
        write_rest(contents, &mut units);
        let (key, content) = writer.add(&units, false);
        let (windows, content) = (windows.to_vec(), content.into());
        Self { writer, windows, key, content, exists: false, next: Some(0) }
    }

    /// Makes the next piece, if there is one.
    fn advance(&mut self, contents: &Contents) -> bool {
        let Some(from) = self.next else { return false };
        let mut units = Vec::new();
        self.next = write_blocks(&contents.index, from, 1, &mut units);
        let (key, content) = self.writer.add(&units, self.next.is_none());
        (self.key, self.content, self.exists) = (key, content.into(), false);
        true
    }
}

impl Checkpointer {
    pub fn new(owned: &Owned) -> Self {
        let root = (owned.root.clone(), owned.tag.clone());
        Self { root, stage: Stage::Idle, asked: false }
    }

    /// Begins a checkpoint, unless one is under way.
    pub fn begin(&mut self) {
        if matches!(self.stage, Stage::Idle) {
            self.change(What::Begin);
        }
    }

    fn change(&mut self, what: What) {
        self.stage = Stage::Change(Box::new(RootChange::new(what, self.root.clone())));
    }

    /// The next request, if there is one and no answer is to come.
    pub fn ask(&mut self) -> Option<Request> {
        if self.asked {
            return None;
        }
        let request = match &self.stage {
            Stage::Idle => return None,
            Stage::Change(change) => match change.ask() {
                Ask::Swap(root, tag) => Request::Swap(root.encode().into(), tag),
                _ => Request::Root,
            },
            Stage::Piece(making) if making.exists => Request::ReadPiece(making.key.clone()),
            Stage::Piece(making) => {
                Request::CreatePiece(making.key.clone(), making.content.clone())
            }
            Stage::Remove(generation, left) => {
                Request::RemovePiece(piece_key(*generation, left - 1))
            }
        };
        self.asked = true;
        Some(request)
    }

    /// Takes the answer, as an owner that has these contents, of these windows.
    ///
    /// # Errors
    /// It is an answer to another question, or the root is damaged.
    pub fn hear(
        &mut self,
        reply: Reply,
        has: (&Contents, &[Window]),
        scene: &mut Scene,
    ) -> Result<Life, Trouble> {
        self.asked = false;
        match (&mut self.stage, reply) {
            (Stage::Change(change), reply) => {
                let answer = match reply {
                    Reply::Swapped(swapped) => Answer::Swapped(swapped),
                    Reply::Root(Ok((bytes, tag))) => match Root::decode(&bytes) {
                        Ok(root) => Answer::Root(Ok((root, tag))),
                        Err(damage) => return wrong(Kind::Lost, format!("the root {damage}")),
                    },
                    Reply::Root(Err(failure)) => Answer::Root(Err(failure)),
                    _ => return wrong(Kind::Misuse, String::from("the root was not answered")),
                };
                let heard = change.hear(answer);
                return Ok(self.changed(heard, has, scene));
            }
            (Stage::Piece(making), Reply::Created(made)) => match made {
                Ok(()) => self.created(has.0, scene),
                Err(Failure::Exists) => making.exists = true,
                Err(_) => {}
            },
            (Stage::Piece(making), Reply::Piece(Ok(found))) if found == making.content => {
                self.created(has.0, scene);
            }
            // A copy of this process has made another.
            (Stage::Piece(_), Reply::Piece(Ok(_) | Err(Failure::Missing))) => {
                self.stage = Stage::Idle;
            }
            (Stage::Remove(_, left), Reply::Removed(Ok(()) | Err(Failure::Missing))) => {
                *left -= 1;
                if *left == 0 {
                    self.stage = Stage::Idle;
                }
            }
            // Its connection was lost: again.
            _ => {}
        }
        Ok(Life::GoesOn)
    }

    fn changed(&mut self, heard: Changed, has: (&Contents, &[Window]), scene: &mut Scene) -> Life {
        match heard {
            Changed::Next => {}
            Changed::Done(root, tag) if root.begun == root.generation => {
                self.stage = Stage::Piece(Box::new(Making::new(&root, has)));
                self.root = (*root, tag);
            }
            Changed::Done(root, tag) => {
                scene.stats.checkpoints += 1;
                let old = self.root.0.checkpoint.filter(|old| old.generation == root.stale);
                self.stage =
                    old.map_or(Stage::Idle, |old| Stage::Remove(old.generation, old.pieces));
                self.root = (*root, tag);
            }
            Changed::Over => return Life::Fenced,
            Changed::Failed(_) => self.stage = Stage::Idle,
        }
        Life::GoesOn
    }

    /// The piece is there.
    fn created(&mut self, contents: &Contents, scene: &mut Scene) {
        let Stage::Piece(making) = &mut self.stage else { return };
        if !making.advance(contents) {
            let checkpoint = making.writer.checkpoint();
            scene.oracle.checkpoint(&checkpoint, making.windows.clone());
            self.change(What::Checkpoint(checkpoint));
        }
    }

    /// That of a copy that has lost its connections.
    pub fn copied(&self) -> Self {
        Self { asked: false, ..self.clone() }
    }
}
