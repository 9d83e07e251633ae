//! What each owner of a chain must find, and what must have become of acknowledged flushes.
//!
//! Invariants: there is one history, in the order of the root's generations: each owner's windows
//! from the first on, without a gap, and with all that it acknowledged. A window is whole.

use crate::trouble::{Kind, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use ztier::object::{Checkpoint, Entry, Owned, Session};

/// The contents of a volume: the value of each block that is not zero.
pub type Blocks = BTreeMap<u64, u32>;

/// Applies the entries of a part.
pub fn apply(blocks: &mut Blocks, entries: &[Entry]) {
    for entry in entries {
        match *entry {
            Entry::Block { block, check, .. } => {
                blocks.insert(block, check);
            }
            Entry::Zeros { first, count } => {
                blocks.retain(|block, _| !(first..first + u64::from(count)).contains(block));
            }
            // Of logs: the simulator of logs has them, with a drive in place of a chain.
            Entry::Lost { .. } | Entry::Mark { .. } => {}
        }
    }
}

/// A session, for the trace.
pub struct Name(pub Session);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}", self.0[0], self.0[1])
    }
}

/// A window that a takeover has adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub session: Session,
    pub number: u64,
    /// Its parts, each with its slot.
    pub parts: Vec<(u64, Vec<Entry>)>,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Name(self.session), self.number)
    }
}

/// What a session wrote as a window: one version, several where its process was copied.
#[derive(Default)]
struct Written {
    versions: Vec<Vec<Vec<Entry>>>,
    acknowledged: Option<usize>,
}

/// The time of an owner.
struct Reign {
    session: Session,
    adopted: Vec<Window>,
    /// Windows that it acknowledged.
    acknowledged: u64,
}

/// See the module.
#[derive(Default)]
pub struct Oracle {
    written: BTreeMap<(Session, u64), Written>,
    /// By the root's generation.
    reigns: BTreeMap<u64, Reign>,
    /// Sessions that several processes have, because one was copied.
    copied: BTreeSet<Session>,
    /// The windows that each checkpoint stands for, by its generation and check word.
    checkpoints: BTreeMap<(u64, u32), Vec<Window>>,
}

/// Whether these are the parts of the window.
fn is_version(window: &Window, version: &[Vec<Entry>]) -> bool {
    window.parts.iter().map(|(_, entries)| entries).eq(version)
}

fn listed(windows: &[Window]) -> String {
    windows.iter().map(Window::to_string).collect::<Vec<_>>().join(" ")
}

impl Oracle {
    /// A process of `session` was copied.
    pub fn copied(&mut self, session: Session) {
        self.copied.insert(session);
    }

    pub fn is_copied(&self, session: &Session) -> bool {
        self.copied.contains(session)
    }

    /// An owner is about to have the root name a checkpoint, which stands for these windows.
    pub fn checkpoint(&mut self, of: &Checkpoint, windows: Vec<Window>) {
        self.checkpoints.insert((of.generation, of.check), windows);
    }

    /// The windows that a checkpoint stands for.
    pub fn windows(&self, of: &Checkpoint) -> Vec<Window> {
        self.checkpoints.get(&(of.generation, of.check)).cloned().unwrap_or_default()
    }

    /// An owner has sealed a window. Returns the number of this version.
    pub fn sealed(&mut self, session: Session, window: u64, parts: Vec<Vec<Entry>>) -> usize {
        let written = self.written.entry((session, window)).or_default();
        written.versions.push(parts);
        written.versions.len() - 1
    }

    /// The owner of `generation` acknowledges the flush that waited for `window`.
    ///
    /// # Errors
    /// An owner of a later generation does not have the window.
    pub fn acknowledged(
        &mut self,
        generation: u64,
        window: u64,
        version: usize,
    ) -> Result<(), Trouble> {
        let Some(reign) = self.reigns.get_mut(&generation) else {
            return Err(Trouble::new(Kind::Misuse, format!("{generation} has no owner")));
        };
        let session = reign.session;
        reign.acknowledged = reign.acknowledged.max(window + 1);
        let written = self.written.entry((session, window)).or_default();
        let kept = *written.acknowledged.get_or_insert(version);
        let name = format!("flush {}/{window} is acknowledged", Name(session));
        if written.versions[kept] != written.versions[version] {
            let text = format!("{name} by two processes with different contents");
            return Err(Trouble::new(Kind::Kept, text));
        }
        let parts = written.versions.get(version).map_or(&[][..], Vec::as_slice);
        for (later, reign) in self.reigns.range(generation + 1..) {
            let is_it = |w: &&Window| w.session == session && w.number == window;
            if !reign.adopted.iter().find(is_it).is_some_and(|w| is_version(w, parts)) {
                let text = format!("{name}, but the owner of generation {later} has not got it");
                return Err(Trouble::new(Kind::Kept, text));
            }
        }
        Ok(())
    }

    /// `session` has become an owner, with these windows and blocks. `stored` is what the root of
    /// that generation said in the store.
    ///
    /// # Errors
    /// It is none, or its state is none of the chain.
    pub fn owner(
        &mut self,
        session: Session,
        owned: &Owned,
        adopted: Vec<Window>,
        blocks: &Blocks,
        stored: Option<(Session, u64)>,
    ) -> Result<(), Trouble> {
        let generation = owned.root.generation;
        if stored != Some((session, owned.root.fence)) || self.reigns.contains_key(&generation) {
            let text = format!(
                "{} takes itself for the owner of generation {generation}, which the root does \
                 not say",
                Name(session)
            );
            return Err(Trouble::new(Kind::Misuse, text));
        }
        self.check(generation, &adopted, blocks).map_err(|trouble| {
            let text = format!(
                "owner {} of generation {generation}: {}; it has [{}]",
                Name(session),
                trouble.text,
                listed(&adopted)
            );
            Trouble::new(trouble.kind, text)
        })?;
        self.reigns.insert(generation, Reign { session, adopted, acknowledged: 0 });
        Ok(())
    }

    fn check(&self, generation: u64, adopted: &[Window], blocks: &Blocks) -> Result<(), Trouble> {
        let mut expected = Blocks::new();
        for window in adopted {
            self.check_whole(window)?;
            window.parts.iter().for_each(|(_, entries)| apply(&mut expected, entries));
        }
        if *blocks != expected {
            let text = format!("its blocks are {blocks:?} in place of {expected:?}");
            return Err(Trouble::new(Kind::Read, text));
        }
        self.check_history(generation, adopted)
    }

    /// A window must have the parts that its session made.
    fn check_whole(&self, window: &Window) -> Result<(), Trouble> {
        let Some(written) = self.written.get(&(window.session, window.number)) else {
            let text = format!("window {window} was never written");
            return Err(Trouble::new(Kind::Prefix, text));
        };
        let is_right = match written.acknowledged {
            Some(version) => is_version(window, &written.versions[version]),
            None => written.versions.iter().any(|version| is_version(window, version)),
        };
        if is_right {
            return Ok(());
        }
        let text = format!("window {window} has {:?} of {:?}", window.parts, written.versions);
        Err(Trouble::new(Kind::Prefix, text))
    }

    /// The windows must be those of the owners before, in their order.
    fn check_history(&self, generation: u64, adopted: &[Window]) -> Result<(), Trouble> {
        let mut rest = adopted;
        for (earlier, reign) in self.reigns.range(..generation) {
            if !adopted.starts_with(&reign.adopted) {
                let list = listed(&reign.adopted);
                let text = format!("the owner of generation {earlier} began with [{list}]");
                return Err(Trouble::new(Kind::Prefix, text));
            }
            let own = rest.iter().take_while(|window| window.session == reign.session).count();
            let windows = rest.split_off(..own).unwrap_or_default();
            let in_order = windows.iter().zip(0..).take_while(|(w, n)| w.number == *n).count();
            if (in_order as u64) < reign.acknowledged {
                let text = format!(
                    "{} acknowledged {} windows, and only {in_order} are here",
                    Name(reign.session),
                    reign.acknowledged
                );
                return Err(Trouble::new(Kind::Kept, text));
            }
            if in_order < own && !self.is_copied(&reign.session) {
                let text = format!("window {} follows another", windows[in_order]);
                return Err(Trouble::new(Kind::Prefix, text));
            }
        }
        if let Some(window) = rest.first() {
            let text = format!("window {window} is of a session that did not own the chain then");
            return Err(Trouble::new(Kind::Prefix, text));
        }
        for (later, reign) in self.reigns.range(generation + 1..) {
            if !reign.adopted.starts_with(adopted) {
                let list = listed(&reign.adopted);
                let text = format!("the owner of generation {later} began with [{list}]");
                return Err(Trouble::new(Kind::Prefix, text));
            }
        }
        Ok(())
    }
}
