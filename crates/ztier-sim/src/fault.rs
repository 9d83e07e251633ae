//! Faults of a drive's operations while the power is on.
//!
//! A drive counts its operations from 0, in the order in which it carries them out. A fault is tied
//! to that count, so that a sweep can try every position. Honest faults report an error and may
//! have stored something; lies report success.

use std::fmt;
use ztier::log::disk::format::DATA_MIN;
use ztier::media::Action;

/// Input/output error.
pub const EIO: i32 = 5;
/// No space left on device.
pub const ENOSPC: i32 = 28;
/// Error number of every operation while the power is off. No system has such a number.
pub const POWER_CUT: i32 = i32::MAX;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The operation fails and has done nothing; the next one works.
    Once,
    /// This and every later operation fails.
    Forever,
    /// This and every later write, zeroing and flush fails; reads work.
    ReadOnly,
    /// This and every later write and zeroing behind the superblocks of a log fails.
    Worn,
    /// From here on, the first page that a read wants behind the superblocks is unreadable until it
    /// is written; everything else works.
    BadPage,
    /// The operation is carried out, and an error is reported.
    Applied,
    /// No space is left, this once. A read fails with EIO.
    NoSpace,
    /// The first half is carried out, then an error is reported.
    Short,
    /// A lie: the first write from here on is reported as done, and is not.
    Lost,
    /// A lie: the first write from here on lands in another place.
    Misdirected,
    /// A lie: the first read from here on has one bit flipped; the medium is good.
    FlippedRead,
}

impl Kind {
    /// Kinds that report an error, for a sweep.
    pub const SWEPT: [Self; 8] = [
        Self::Once,
        Self::Forever,
        Self::ReadOnly,
        Self::Worn,
        Self::BadPage,
        Self::Applied,
        Self::NoSpace,
        Self::Short,
    ];

    /// Kinds that a program may have. Recorded seeds depend on their order and number.
    pub const HONEST: [Self; 7] = [
        Self::Once,
        Self::Forever,
        Self::ReadOnly,
        Self::Worn,
        Self::Applied,
        Self::NoSpace,
        Self::Short,
    ];

    /// The name in replay lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Forever => "forever",
            Self::ReadOnly => "readonly",
            Self::Worn => "worn",
            Self::BadPage => "badpage",
            Self::Applied => "applied",
            Self::NoSpace => "nospace",
            Self::Short => "short",
            Self::Lost => "lost",
            Self::Misdirected => "misdirected",
            Self::FlippedRead => "flippedread",
        }
    }

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Self> {
        let lies = [Self::Lost, Self::Misdirected, Self::FlippedRead];
        Self::SWEPT.into_iter().chain(lies).find(|kind| kind.name() == name)
    }

    /// Whether the fault reports success.
    pub const fn is_lie(self) -> bool {
        matches!(self, Self::Lost | Self::Misdirected | Self::FlippedRead)
    }

    /// Whether the fault passes: later operations work.
    pub const fn passes(self) -> bool {
        !matches!(self, Self::Forever | Self::ReadOnly | Self::Worn | Self::BadPage)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fault of one drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The operation that the fault is tied to, counted from 0.
    pub nth: u64,
    /// The kind of fault.
    pub kind: Kind,
}

/// The effect of a drive's faults on one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It works.
    None,
    /// The operation fails with this error number; nothing is done.
    Fails(i32),
    /// The operation fails with this error number after all of it is done.
    Done(i32),
    /// The operation fails with this error number after half of it is done.
    Half(i32),
    /// Reported as done, and not done.
    Lost,
    /// Done in another place.
    Elsewhere,
    /// A bit of what was read is wrong.
    Flipped,
}

/// The faults of one drive, and its operation counters.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    planned: Vec<Fault>,
    /// Operations so far.
    count: u64,
    /// Operations that a fault has changed.
    fired: u64,
    /// Offset of the bad page.
    bad: Option<u64>,
}

impl Faults {
    /// Adds a fault.
    pub fn plan(&mut self, fault: Fault) {
        self.planned.push(fault);
    }

    /// Forgets all faults: the drive is repaired.
    pub fn clear(&mut self) {
        self.planned.clear();
        self.bad = None;
    }

    /// Operations so far.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Operations that a fault has changed so far.
    pub const fn fired(&self) -> u64 {
        self.fired
    }

    /// Counts an operation and returns the effect of the faults on it.
    pub fn next(&mut self, action: Action, at: u64, len: u64) -> Effect {
        let index = self.count;
        self.count += 1;
        let stores = matches!(action, Action::Write | Action::Zero);
        let covers = |bad: u64| (at..at + len).contains(&bad);
        if stores && self.bad.is_some_and(covers) {
            // The drive remaps the page.
            self.planned.retain(|fault| fault.kind != Kind::BadPage);
            self.bad = None;
        }
        let hit = self.planned.iter().position(|fault| match fault.kind {
            Kind::Forever => index >= fault.nth,
            Kind::ReadOnly => index >= fault.nth && action != Action::Read,
            Kind::Worn => index >= fault.nth && stores && at >= DATA_MIN,
            Kind::BadPage => {
                let read = index >= fault.nth && action == Action::Read;
                read && self.bad.map_or(at >= DATA_MIN, covers)
            }
            Kind::Lost | Kind::Misdirected => index >= fault.nth && action == Action::Write,
            Kind::FlippedRead => index >= fault.nth && action == Action::Read,
            _ => index == fault.nth,
        });
        let Some(hit) = hit else {
            return Effect::None;
        };
        let kind = self.planned[hit].kind;
        if kind.passes() {
            self.planned.swap_remove(hit);
        }
        self.fired += 1;
        if kind == Kind::BadPage {
            self.bad.get_or_insert(at);
        }
        match kind {
            Kind::Once | Kind::Forever | Kind::ReadOnly | Kind::Worn | Kind::BadPage => {
                Effect::Fails(EIO)
            }
            Kind::Applied => Effect::Done(EIO),
            Kind::NoSpace if action == Action::Read => Effect::Fails(EIO),
            Kind::NoSpace => Effect::Fails(ENOSPC),
            Kind::Short => Effect::Half(EIO),
            Kind::Lost => Effect::Lost,
            Kind::Misdirected => Effect::Elsewhere,
            Kind::FlippedRead => Effect::Flipped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_hit_their_operation_and_no_other() {
        let mut faults = Faults::default();
        faults.plan(Fault { nth: 1, kind: Kind::Once });
        faults.plan(Fault { nth: 2, kind: Kind::Lost });
        let effects: Vec<_> = [Action::Write, Action::Read, Action::Flush, Action::Write]
            .into_iter()
            .map(|action| faults.next(action, 0, 4096))
            .collect();
        assert_eq!(effects, [Effect::None, Effect::Fails(EIO), Effect::None, Effect::Lost]);
        assert_eq!((faults.count(), faults.fired()), (4, 2));
        faults.plan(Fault { nth: 5, kind: Kind::ReadOnly });
        assert_eq!(faults.next(Action::Write, 0, 4096), Effect::None);
        assert_eq!(faults.next(Action::Read, 0, 4096), Effect::None);
        assert_eq!(faults.next(Action::Flush, 0, 4096), Effect::Fails(EIO));
        assert_eq!(faults.next(Action::Zero, 0, 4096), Effect::Fails(EIO));
        faults.clear();
        assert_eq!(faults.next(Action::Write, 0, 4096), Effect::None);
        faults.plan(Fault { nth: 0, kind: Kind::Worn });
        assert_eq!(faults.next(Action::Write, 0, 4096), Effect::None);
        assert_eq!(faults.next(Action::Read, DATA_MIN, 4096), Effect::None);
        assert_eq!(faults.next(Action::Write, DATA_MIN, 4096), Effect::Fails(EIO));
        let mut faults = Faults::default();
        faults.plan(Fault { nth: 1, kind: Kind::BadPage });
        let (page, next) = (DATA_MIN + 4096, DATA_MIN + 8192);
        assert_eq!(faults.next(Action::Read, page, 4096), Effect::None);
        assert_eq!(faults.next(Action::Read, page, 8192), Effect::Fails(EIO));
        assert_eq!(faults.next(Action::Read, next, 4096), Effect::None);
        assert_eq!(faults.next(Action::Read, DATA_MIN, 8192), Effect::Fails(EIO));
        assert_eq!(faults.next(Action::Write, page, 4096), Effect::None);
        assert_eq!(faults.next(Action::Read, page, 4096), Effect::None);
    }

    #[test]
    fn names_lead_back() {
        for kind in Kind::SWEPT {
            assert_eq!(Kind::named(kind.name()), Some(kind));
        }
        assert_eq!(Kind::named("misdirected"), Some(Kind::Misdirected));
        assert_eq!(Kind::named("sunshine"), None);
    }
}
