//! Which session made each object of a chain. Pure.

use super::format::Session;
use std::collections::BTreeMap;

/// Which session made the objects from a slot on.
#[derive(Clone, Debug, Default)]
pub struct Sessions(BTreeMap<u64, Session>);

impl Sessions {
    /// The session of the object in `slot`.
    pub fn of(&self, slot: u64) -> Session {
        self.0.range(..=slot).next_back().map_or([0; 16], |(_, session)| *session)
    }

    /// The first slot of each, and the session.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Session)> + '_ {
        self.0.iter().map(|(slot, session)| (*slot, *session))
    }

    /// From `slot` on it is this session.
    pub fn begin(&mut self, slot: u64, session: Session) {
        if self.of(slot) != session {
            self.0.insert(slot, session);
        }
    }
}
