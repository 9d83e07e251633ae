//! What a chain says of its volume up to a slot: where each block is, which session made which
//! objects, and the newest window. Pure.
//!
//! Invariant: it is that of the windows that were applied, in their order.

use super::adoption::Adoption;
use super::format::{Entry, Object, payloads};
use super::index::Index;
use super::planted::{Bug, on};
use super::sessions::Sessions;
use super::window_end::WindowEnd;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Where each block is.
    pub index: Index,
    /// Which session made which objects.
    pub sessions: Sessions,
    /// All windows end before this slot.
    pub next: u64,
    /// The end of the newest window.
    pub end: Option<WindowEnd>,
    /// What was applied after the newest checkpoint.
    pub since: Since,
}

/// Objects, and bytes of their payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// Number of the objects.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Since {
    /// Without what was applied before `earlier`.
    pub fn subtract(&mut self, earlier: Self) {
        self.objects -= earlier.objects;
        self.bytes -= earlier.bytes;
    }
}

impl Contents {
    /// Applies a window: its parts, each with its slot, and its end.
    pub fn apply(&mut self, parts: &[(u64, Vec<Entry>)], end: WindowEnd) {
        self.index.apply(parts);
        self.since.objects += parts.len() as u64;
        let last = parts.iter().filter_map(|(_, entries)| payloads(entries).last());
        self.since.bytes += last.map(|(_, range)| u64::from(range.end)).sum::<u64>();
        self.next = end.slot + 1 + u64::from(on(Bug::CheckpointAhead));
        self.end = Some(end);
    }
}

/// The contents of a chain that is walked.
#[derive(Debug, Default)]
pub struct Adopted {
    /// Those of the windows that have ended.
    pub contents: Contents,
    adoption: Adoption,
}

impl Adopted {
    /// Takes the object in the next slot. Returns the parts of the window that it ends, each with
    /// its slot.
    pub fn adopt(&mut self, slot: u64, object: Object) -> Vec<(u64, Vec<Entry>)> {
        let Object::Part { session, check, entries, .. } = &object else { return Vec::new() };
        self.contents.sessions.begin(slot, *session);
        let end = WindowEnd::new((slot, *check), *session, entries);
        let window = self.adoption.take(slot, object);
        if !window.is_empty() {
            self.contents.apply(&window, end);
        }
        window
    }
}
