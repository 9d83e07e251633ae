//! The windows of an object drive that are not in its store yet. Pure.
//!
//! The open window gets what is written; sealed ones are issued as parts, in order. The window of a
//! log is not sealed by its size or age: it is issued when it settles, all but its last part, which
//! its commit completes with the log's mark and with what is lost.
//!
//! Invariants: a window enters the index when all its parts, and all objects before them, are in
//! the store; a log's window that is dropped leaves no part that commits it, in the store or on the
//! way.

use super::checkpoint::{Unit, write_rest};
use super::contents::Contents;
use super::format::{Entry, Part};
use super::issuer::Issuer;
use super::mark::Mark;
use super::store::Trouble;
use super::window::{Draft, Had, Window, ending};
use super::window_end::WindowEnd;
use crate::media::Commit;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a request waits for a store that fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// How far the window of a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    #[default]
    None,
    /// It is written to.
    Open,
    /// All of its parts but the last are issued.
    Settled,
    /// Its commit is under way.
    Committing,
}

/// A window that gets no more writes.
struct Sealed {
    window: Arc<Window>,
    number: u64,
    /// Parts that have no slot yet.
    todo: VecDeque<Draft>,
    issued: u32,
    /// The slots of its parts, and what they say.
    parts: Vec<(u64, Vec<Entry>)>,
    /// The last one of them so far.
    end: Option<WindowEnd>,
    /// Whether no part comes behind `todo`.
    is_whole: bool,
}

impl Sealed {
    /// Whether all of its parts so far are in the store.
    fn is_sent(&self) -> bool {
        self.todo.is_empty() && self.parts.len() == self.issued as usize
    }
}

/// See the module.
pub struct State {
    pub open: Window,
    /// Since when the open window has something; `None` for that of a log.
    opened: Option<Instant>,
    /// Oldest first.
    sealed: VecDeque<Sealed>,
    sealed_windows: u64,
    committed_windows: u64,
    /// How far the window of a log is.
    stage: Stage,
    /// Its last part, while that waits for the commit.
    last: Option<Draft>,
    pub contents: Contents,
    issuer: Issuer,
    /// The latest trouble, and since when there is some.
    pub failing: Option<(Trouble, Instant)>,
    /// The next owner, in words.
    pub successor: Option<String>,
}

impl State {
    /// That of an owner whose first slot is `first`.
    pub fn new(contents: Contents, first: u64) -> Self {
        let contents = Contents { next: first, ..contents };
        Self {
            open: Window::default(),
            opened: None,
            sealed: VecDeque::new(),
            sealed_windows: 0,
            committed_windows: 0,
            stage: Stage::None,
            last: None,
            contents,
            issuer: Issuer::new(first),
            failing: None,
            successor: None,
        }
    }

    /// Memory of writes that are not in the store, in bytes.
    pub fn waiting_bytes(&self) -> usize {
        self.open.bytes() + self.sealed.iter().map(|sealed| sealed.window.bytes()).sum::<usize>()
    }

    /// What the windows that are in memory have of a block.
    pub fn get(&self, block: u64) -> Option<Had> {
        let sealed = self.sealed.iter().rev().map(|sealed| &*sealed.window);
        std::iter::once(&self.open).chain(sealed).find_map(|window| window.get(block))
    }

    /// Whether all that was sealed is in the store.
    pub fn is_settled(&self) -> bool {
        self.sealed.is_empty()
    }

    /// Windows that this owner has committed.
    pub fn windows(&self) -> u64 {
        self.committed_windows
    }

    /// The slot that comes next.
    pub fn next_slot(&self) -> u64 {
        self.issuer.next()
    }

    /// The first slot whose object is not in the store.
    pub fn durable_slot(&self) -> u64 {
        self.issuer.durable()
    }

    /// How far the window of a log is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The error number of the store's trouble, if that has lasted for [`PATIENCE`], and as long
    /// since `began`.
    pub fn trouble_since(&self, began: Option<Instant>) -> Option<i32> {
        let (trouble, since) = self.failing.as_ref()?;
        let since = began.map_or(*since, |began| began.max(*since));
        (since.elapsed() >= PATIENCE).then_some(trouble.errno)
    }

    /// Notes that the open window has something; returns its size in bytes, unless it is a log's.
    pub fn written(&mut self) -> Option<usize> {
        if self.stage == Stage::Open {
            return None;
        }
        self.opened.get_or_insert_with(Instant::now);
        Some(self.open.bytes())
    }

    /// Whether the open window is as old as `age`.
    pub fn is_aged(&self, age: Duration) -> bool {
        self.opened.is_some_and(|opened| opened.elapsed() >= age)
    }

    /// Seals the open window, if it has something; that of a log stays open. Returns the number of
    /// the next window.
    pub fn seal(&mut self) -> u64 {
        if self.stage == Stage::None && !self.open.is_empty() {
            let window = std::mem::take(&mut self.open);
            let parts = window.parts();
            self.push(window, parts, true);
        }
        self.opened = None;
        self.sealed_windows
    }

    fn push(&mut self, window: Window, parts: Vec<Draft>, is_whole: bool) {
        let (window, number, todo) = (Arc::new(window), self.sealed_windows, parts.into());
        self.sealed_windows += 1;
        let sealed =
            Sealed { window, number, todo, issued: 0, parts: Vec::new(), end: None, is_whole };
        self.sealed.push_back(sealed);
    }

    /// Whether every window before the one of this number is in the store; a log's window that has
    /// no end yet does not count.
    pub fn has_sent_before(&self, number: u64) -> bool {
        self.sealed.iter().all(|sealed| sealed.number >= number || !sealed.is_whole)
    }

    /// The next part to send, with its slot; `None` while there is none, or too many are under way.
    pub fn next(&mut self) -> Option<(Draft, u64, Part)> {
        if self.successor.is_some() {
            return None;
        }
        let sealed = self.sealed.iter_mut().find(|sealed| !sealed.todo.is_empty())?;
        let slot = self.issuer.issue()?;
        let draft = sealed.todo.pop_front()?;
        let commits = sealed.is_whole && sealed.todo.is_empty();
        let part = Part { window: sealed.number, part: sealed.issued, commits, before: 0 };
        sealed.issued += 1;
        Some((draft, slot, part))
    }

    /// A part of the window of this number is in the store. One of a window that was dropped only
    /// fills its slot.
    pub fn sent(&mut self, window: u64, end: WindowEnd, entries: Vec<Entry>) {
        let slot = end.slot;
        self.issuer.created(slot);
        if let Some(sealed) = self.sealed.iter_mut().find(|sealed| sealed.number == window) {
            sealed.parts.push((slot, entries));
            if sealed.end.as_ref().is_none_or(|last| last.slot < slot) {
                sealed.end = Some(end);
            }
        }
        self.failing = None;
        self.commit();
    }

    /// The slot from which on a checkpoint of now would have the chain walked, and what of its
    /// contents is no block.
    pub fn checkpoint(&self) -> (u64, Vec<Unit>) {
        let mut units = Vec::new();
        write_rest(&self.contents, &mut units);
        (self.contents.next, units)
    }

    /// Commits the sealed windows whose parts are all durable.
    fn commit(&mut self) {
        let durable = self.issuer.durable();
        while let Some(first) = self.sealed.front()
            && first.is_whole
            && first.is_sent()
            && first.parts.iter().all(|(slot, _)| *slot < durable)
        {
            let Some(mut done) = self.sealed.pop_front() else { return };
            done.parts.sort_unstable_by_key(|(slot, _)| *slot);
            if let Some(end) = done.end {
                self.contents.apply(&done.parts, end);
            }
            self.committed_windows += 1;
        }
    }

    /// A log begins a window, and drops the one that was not committed. What was written without a
    /// log is a window of its own.
    pub fn begin_window(&mut self) {
        if self.stage == Stage::Settled {
            self.sealed.pop_back();
        }
        if matches!(self.stage, Stage::Open | Stage::Settled) {
            (self.open, self.last, self.stage) = (Window::default(), None, Stage::None);
        }
        self.seal();
        if self.stage == Stage::None {
            self.stage = Stage::Open;
        }
    }

    /// Issues the parts of a log's window, all but the last. Returns whether those are in the
    /// store.
    pub fn settle_window(&mut self) -> bool {
        if self.stage == Stage::Open {
            let window = std::mem::take(&mut self.open);
            let mut parts = window.parts();
            self.last = parts.pop();
            self.push(window, parts, false);
            self.stage = Stage::Settled;
        }
        self.stage != Stage::Settled || self.sealed.back().is_none_or(Sealed::is_sent)
    }

    /// Issues the rest of a log's window. Returns whether the window is in the store.
    pub fn commit_window(&mut self, commit: &Commit) -> bool {
        self.settle_window();
        if self.stage == Stage::Settled {
            let last = self.last.take().unwrap_or_default();
            if let Some(sealed) = self.sealed.back_mut() {
                sealed.todo.extend(ending(last, &commit.lost, &Mark::of(commit)));
                sealed.is_whole = true;
            }
            self.stage = Stage::Committing;
        }
        if self.stage == Stage::Committing && self.sealed.is_empty() {
            self.stage = Stage::None;
        }
        self.stage == Stage::None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::format::{Seed, payloads};
    use super::*;
    use crate::codec::Coding;
    use crate::media::PackedBlock;

    /// Parts under way: window, slot, entries, and whether they commit.
    type Sent = (u64, u64, Vec<Entry>, bool);

    fn state() -> State {
        State::new(Contents::default(), 16)
    }

    fn write(state: &mut State, block: u64, byte: u8) {
        let bytes = vec![byte; 100].into();
        state.open.write(block, PackedBlock { coding: Coding::Lz4, bytes });
        let _ = state.written();
    }

    /// Takes all parts that have a slot.
    fn send(state: &mut State) -> Vec<Sent> {
        let next = std::iter::from_fn(|| state.next());
        next.map(|(draft, slot, part)| {
            let seed = Seed { volume: [1; 16], session: [2; 16], slot };
            (part.window, slot, draft.encode(&seed, part).0, part.commits)
        })
        .collect()
    }

    fn land(state: &mut State, parts: Vec<Sent>) {
        for (window, slot, entries, _) in parts {
            let end = WindowEnd::new((slot, 7), [2; 16], &entries);
            state.sent(window, end, entries);
        }
    }

    fn commit() -> Commit {
        Commit { lost: vec![(7, 2)], ..Commit::default() }
    }

    #[test]
    fn a_window_of_a_log_counts_with_its_commit_alone() {
        let mut state = state();
        state.begin_window();
        write(&mut state, 1, 1);
        assert!(
            !state.is_aged(Duration::ZERO) && state.seal() == 0,
            "it is sealed by nothing else"
        );
        assert!(state.settle_window(), "its only part waits for the commit");
        assert!(send(&mut state).is_empty() && state.get(1).is_some());
        assert!(!state.commit_window(&commit()));
        let parts = send(&mut state);
        assert!(matches!(&parts[..], [(0, 16, entries, true)] if entries.len() == 3), "{parts:?}");
        assert!(!state.commit_window(&commit()) && state.contents.index.get(1).is_none());
        land(&mut state, parts);
        // Asked again, it is the same commit.
        assert!(state.commit_window(&commit()) && state.commit_window(&commit()));
        assert_eq!(
            (state.stage(), state.windows(), state.contents.index.lost_blocks()),
            (Stage::None, 1, 2)
        );
        assert!(state.contents.index.get(1).is_some());
    }

    #[test]
    fn a_window_that_is_dropped_commits_nothing_also_late() {
        let mut state = state();
        state.begin_window();
        // Two parts and more.
        (0..5000).for_each(|block| {
            let bytes = vec![9; 4096].into();
            state.open.write(block, PackedBlock { coding: Coding::Raw, bytes });
        });
        assert!(!state.settle_window());
        let dropped = send(&mut state);
        assert_eq!(dropped.iter().map(|part| part.3).collect::<Vec<_>>(), [false, false]);
        // The next window begins with those still under way.
        state.begin_window();
        write(&mut state, 3, 1);
        assert!(!state.commit_window(&Commit::default()));
        let parts = send(&mut state);
        land(&mut state, parts);
        assert!(!state.commit_window(&Commit::default()), "slots before it are not there");
        land(&mut state, dropped);
        assert!(state.commit_window(&Commit::default()));
        assert_eq!(
            (state.contents.index.blocks(), state.windows(), state.durable_slot()),
            (1, 1, 19)
        );
        assert_eq!(state.contents.index.get(3).map(|place| place.slot()), Some(18));
    }

    #[test]
    fn writes_without_a_log_are_windows_of_their_own() {
        let mut state = state();
        write(&mut state, 1, 1);
        state.begin_window();
        write(&mut state, 2, 2);
        let first = send(&mut state);
        assert!(matches!(&first[..], [(0, 16, entries, true)]
            if payloads(entries).count() == 1));
        let next = state.seal();
        assert!(!state.has_sent_before(next));
        land(&mut state, first);
        assert!(state.has_sent_before(next), "the window of the log has no end yet");
        assert!(state.settle_window() && state.has_sent_before(next + 1));
    }
}
