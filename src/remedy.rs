//! The advice after the semicolon of an error, where following it may lose data, or where a drive
//! may recover by itself.
//!
//! Invariants (checked by tests): no other file advises a flag that gives up data; advice that
//! loses data first names a way without loss, unless there is none; it says what is lost.

use std::fmt;
use std::path::Path;

/// Data lost by following advice to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loses {
    /// Nothing.
    Nothing,
    /// Data that exists in memory only.
    Memory,
    /// Data that the log holds and the backing store lacks.
    Log,
    /// Parts of the log that can't be read.
    Damaged,
    /// Data written after an older state of the log or the store.
    Newer,
    /// What another owner has not sent to a store yet.
    Unsent,
    /// Data that only a spill device held.
    Spill,
    /// The content of a drive.
    Drive,
    /// The requests of the device's holders.
    Requests,
}

/// Advice. `NAME` in it stands for the volume's name, if known.
#[derive(Clone, Copy, Debug)]
pub struct Remedy {
    /// What to do.
    pub text: &'static str,
    /// What following it loses.
    pub loses: Loses,
    /// The words of `text` that name a way without loss; `None`: nothing is lost, or no such way is
    /// left.
    pub instead: Option<&'static str>,
}

impl Remedy {
    const fn safe(text: &'static str) -> Self {
        Self { text, loses: Loses::Nothing, instead: None }
    }

    const fn or(instead: &'static str, text: &'static str, loses: Loses) -> Self {
        Self { text, loses, instead: Some(instead) }
    }

    /// Advice for a case without any way that loses nothing.
    const fn last(text: &'static str, loses: Loses) -> Self {
        Self { text, loses, instead: None }
    }

    /// The text for a volume with this backing store, and for its log on `log`, if that is known.
    pub fn on(&self, backing: &Path, log: Option<&Path>) -> String {
        let text = self.text.replace("BACKING", &backing.display().to_string());
        log.map_or(text.clone(), |log| text.replace("DEV", &log.display().to_string()))
    }

    /// The text for the volume `name`.
    pub fn of(&self, name: &str) -> String {
        self.text.replace("NAME", name)
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

impl From<Remedy> for String {
    fn from(remedy: Remedy) -> Self {
        remedy.text.to_owned()
    }
}

macro_rules! remedies {
    ($($(#[$doc:meta])* $name:ident = $remedy:expr;)*) => {
        $($(#[$doc])* pub const $name: Remedy = $remedy;)*
        /// All advice, by name.
        pub const ALL: &[(&str, Remedy)] = &[$((stringify!($name), $name)),*];
    };
}

remedies! {
    /// A daemon is gone, and its memory may be kept.
    DEAD = Remedy::safe("`ztier restart NAME` goes on with it, `ztier down NAME` removes it");
    /// A daemon is gone, and its memory is kept; advice without loss.
    DEAD_WITH_DATA = Remedy::safe("`ztier restart NAME` goes on with its data");
    /// A daemon is gone, and nothing is kept.
    DEAD_WITHOUT = Remedy::safe("`ztier down NAME` removes it");
    /// A daemon does not answer.
    SILENT = Remedy::safe("`ztier down NAME --force` ends it; what is in memory is kept");
    /// A daemon is gone, and its memory is kept.
    KEPT = Remedy::or(
        "go on with it (`ztier restart NAME`)",
        "go on with it (`ztier restart NAME`), or give up what exists in memory only with --discard",
        Loses::Memory,
    );
    /// A daemon has ended by a signal, and its memory is kept.
    KEPT_ASIDE = Remedy::or(
        "`ztier restart NAME` goes on with it",
        "`ztier restart NAME` goes on with it, and `ztier down NAME --discard` gives up what exists \
         in memory only",
        Loses::Memory,
    );
    /// Kept memory that no program can take over.
    KEPT_IN_VAIN = Remedy::last(
        "give up what exists in memory only with `ztier down NAME --discard`, then try again",
        Loses::Memory,
    );
    /// Kept memory of another program.
    KEPT_BY_ANOTHER = Remedy::or(
        "go on with it by that ztier's `ztier restart NAME`",
        "go on with it by that ztier's `ztier restart NAME`, or give up what exists in memory only \
         with `ztier down NAME --discard`",
        Loses::Memory,
    );
    /// Kept memory of another version or volume.
    KEPT_ELSEWHERE = Remedy::or(
        "go on with the program that made it",
        "go on with the program that made it, or give up what exists in memory only \
         (`ztier down NAME --discard`)",
        Loses::Memory,
    );
    /// Inconsistent kept memory.
    KEPT_BROKEN = Remedy::last(
        "give up what exists in memory only (`ztier down NAME --discard`)",
        Loses::Memory,
    );
    /// A volume holds data that exists nowhere else.
    ONLY_IN_MEMORY = Remedy::or(
        "copy what you need",
        "copy what you need, then give up what exists in memory only with --discard",
        Loses::Memory,
    );
    /// Data in memory can't be made durable now.
    NOT_DURABLE = Remedy::or(
        "have the drive work again",
        "have the drive work again (see the kernel's log); `ztier down NAME --discard` gives up \
         what exists in memory only",
        Loses::Memory,
    );
    /// Data in memory can't be made durable now, and another daemon will take it over.
    NOT_DURABLE_YET = Remedy::safe(
        "have the drive work again (see the kernel's log); with --force it stays in memory for the \
         next daemon",
    );
    /// A store fails, and what it has not got is in its daemon alone.
    NOT_SENT = Remedy::safe(
        "have the store, or the way to it, work again: this daemon alone has what was written",
    );
    /// A log's drive fails writes.
    LOG_FAILED = Remedy::safe(
        "have its drive work again: it is tried every 5 s, and nothing that was flushed is lost \
         meanwhile",
    );
    /// A log has failed for good, and the volume works without it.
    LOG_WORN = Remedy::safe(
        "nothing is lost; `ztier restart NAME --log DEV` gives it another log, `ztier restart NAME --log \
         none` none",
    );
    /// A spill device fails writes.
    SPILL_FAILS = Remedy::safe(
        "have it work again: it is tried by itself, and a write that memory has no room for is \
         refused meanwhile; or `ztier set NAME spill=DEV` goes on with another device, `ztier set \
         NAME spill=none` without one, as far as it still returns what it has",
    );
    /// A store of objects fails, has damage or another owner.
    STORE_FAILS = Remedy::safe(
        "if it was taken over, end this one (`ztier down NAME`); else repair the store or the way to \
         it, or restore the object from a copy",
    );
    /// A drive fails, and nothing is lost yet.
    DRIVE_FAILS = Remedy::safe("see the kernel's log, have the drive work again, then try again");
    /// A drive that is read-only.
    DRIVE_READ_ONLY = Remedy::safe(
        "make it writable, or give another; a log on it is not lost: copy the drive whole (`dd`, \
         `ddrescue`) to one at least as large, and give that with --log",
    );
    /// A log's drive fails writes, and nothing is lost yet.
    LOG_FAILS_WRITES = Remedy::safe(
        "see the kernel's log, have the drive work again, then try again; if it can only be read any \
         more, copy it whole (`dd`, `ddrescue`) to one at least as large, and give that with --log",
    );
    /// The device is held.
    HELD = Remedy::or(
        "end that first",
        "end that first, or take the device away with --force: requests of its holders fail",
        Loses::Requests,
    );
    /// Clients are connected to a server that can't wait for its next daemon.
    CONNECTED = Remedy::or(
        "end that first",
        "end that first, or add --force and connect again afterwards: requests under way fail",
        Loses::Requests,
    );
    /// A device without a daemon is held.
    HELD_UNSERVED = Remedy::or(
        "end that first",
        "end that first, or, where that hangs, have requests of the device's holders fail with \
         `ztier down NAME --force`",
        Loses::Requests,
    );
    /// Blocks are lost.
    LOST = Remedy::safe(
        "reading them fails: write them again, or take note of it with `ztier accept-loss NAME`",
    );
    /// Only the log knows which blocks are lost.
    LOST_IN_LOG = Remedy::safe("write or discard them (`ztier status NAME` lists them), then try again");
    /// The log is missing that holds what the backing store lacks.
    LOG_MISSED = Remedy::or(
        "bring that log back",
        "bring that log back; only if it is gone for good, go on without what it held, on another \
         drive (`ztier up NAME --backing BACKING --log DEV --discard-log --save`) or without a log \
         (`ztier up NAME --backing BACKING --log none --discard-log --save`)",
        Loses::Log,
    );
    /// A drive without a log in place of that of the log, which held what the backing store lacks.
    LOG_REPLACED = Remedy::or(
        "look for the right one with `lsblk`",
        "look for the right one with `lsblk`; only if the log is gone for good and this drive replaces \
         it, go on without what it held: `ztier up NAME --backing BACKING --log DEV --discard-log \
         --save`",
        Loses::Log,
    );
    /// As [`LOG_MISSED`], before a store of objects.
    LOG_MISSED_STORE = Remedy::or(
        "bring that log back",
        "bring that log back; only if it is gone for good, go on without what it held: \
         --discard-log, with another --log",
        Loses::Log,
    );
    /// As [`LOG_MISSED`], for a volume that comes up without a log.
    LOG_MISSED_PASSTHROUGH = Remedy::or(
        "bring it up with that --log, then drain it (`ztier restart NAME --log none`)",
        "bring it up with that --log, then drain it (`ztier restart NAME --log none`); only if that \
         log is gone for good, go on without what it held: `ztier up NAME --backing BACKING --log \
         none --discard-log --save`",
        Loses::Log,
    );
    /// A volume in a store whose owner was alive a moment ago.
    OBJECT_IN_USE = Remedy::or(
        "take it down there (`ztier down NAME`), or wait until it has been silent for 30 s",
        "take it down there (`ztier down NAME`), or wait until it has been silent for 30 s; only if \
         it is dead for certain, --force (what it had not sent is lost)",
        Loses::Unsent,
    );
    /// A drive that overlaps with a backing store whose log holds data.
    OVERLAP_LACKS_LOG = Remedy::or(
        "bring that backing store up with its log and take it down with --drain",
        "bring that backing store up with its log and take it down with --drain; only if that log is \
         gone for good, go on without what it held by --discard-log",
        Loses::Log,
    );
    /// A log whose superblocks are damaged.
    LOG_BROKEN = Remedy::last(
        "look at it with `ztier log check DEV`; where nothing else helps, go on without what it \
         held by --discard-log",
        Loses::Log,
    );
    /// A log whose drive is smaller than it was.
    LOG_SHRUNK = Remedy::or(
        "give the drive its size back",
        "give the drive its size back; where nothing else helps, go on without what it held by \
         --discard-log",
        Loses::Log,
    );
    /// Durable parts of a log are damaged.
    LOG_DAMAGED = Remedy::last(
        "look at it with `ztier log check DEV`; --accept-loss goes on without what is damaged",
        Loses::Damaged,
    );
    /// Parts of a log can't be read at present.
    LOG_UNREAD = Remedy::or(
        "have the drive work again",
        "have the drive work again (see the kernel's log); only if it stays so, --accept-loss goes \
         on without what is damaged",
        Loses::Damaged,
    );
    /// A verified log is damaged.
    LOG_CHECKED = Remedy::last(
        "what is damaged is lost; `ztier up NAME --accept-loss` and `ztier down NAME --drain` bring \
         the rest to the backing store",
        Loses::Damaged,
    );
    /// A log with data that would be overwritten.
    LOG_HOLDS = Remedy::or(
        "bring it to the backing store with `ztier up NAME` and `ztier down NAME --drain`",
        "bring it to the backing store with `ztier up NAME` and `ztier down NAME --drain`, or give up \
         what it held with --force",
        Loses::Log,
    );
    /// A volume that is to be forgotten, with a log that holds data.
    FORGET_HOLDS = Remedy::or(
        "bring it up with `ztier up NAME`, then try again, which drains the log",
        "bring it up with `ztier up NAME`, then try again, which drains the log; or give up what it \
         held with --discard",
        Loses::Log,
    );
    /// A log that can't be used here and would be overwritten.
    LOG_HOLDS_ELSEWHERE = Remedy::or(
        "bring it to its backing store where it can be used",
        "bring it to its backing store where it can be used, or give up what it held with --force",
        Loses::Log,
    );
    /// A log with data, whose backing store was used without it since.
    LOG_STALE = Remedy::or(
        "give that log",
        "give that log, or make this one anew, without what it held: `ztier log format DEV \
         --backing DEV --force`; --accept-older-log puts what it held over newer data",
        Loses::Log,
    );
    /// A log of which this machine has seen a newer state.
    LOG_OLDER = Remedy::or(
        "give the newer log",
        "give the newer log; only if it is gone for good, --accept-older-log goes on with this \
         one, without what was written since",
        Loses::Newer,
    );
    /// As [`LOG_OLDER`], if the backing store lacks nothing of the newer state.
    LOG_OLDER_THAN_BACKING = Remedy::last(
        "make it anew, the backing store has what it held: `ztier log format DEV --backing DEV \
         --force`; only if the backing store was put back to that state, too, --accept-older-log \
         goes on with both",
        Loses::Log,
    );
    /// A backing store that was changed while its log held newer data.
    LOG_BEHIND = Remedy::or(
        "copy both drives first",
        "copy both drives first; then give up the log and what it held with --discard-log, or what was \
         changed on the backing store with --accept-changed-backing (then check the file system)",
        Loses::Log,
    );
    /// A log that holds changes of a volume in a store that went on without it.
    LOG_BEHIND_STORE = Remedy::or(
        "`ztier log branch DEV --backing PLACE --to PLACE` gives the log a store of its own",
        "`ztier log branch DEV --backing PLACE --to PLACE` gives the log a store of its own; only if \
         that is not needed, give up the log and what it held with --discard-log, or what was \
         written meanwhile with --accept-changed-backing (then check the file system)",
        Loses::Log,
    );
    /// A log whose volume another host has taken over.
    LOG_OVERTAKEN = Remedy::safe(
        "if that host writes nothing, take the volume back; else `ztier log branch DEV --backing \
         PLACE --to PLACE` gives the log a store of its own",
    );
    /// A store that is older than what its log had brought it.
    STORE_BEHIND = Remedy::or(
        "give the store in its newest state",
        "give the store in its newest state: it may be a copy that was restored; only if there is \
         none, --accept-changed-backing goes on without what was written since (then check the \
         file system)",
        Loses::Newer,
    );
    /// A log that does not say which backing store it belongs to.
    LOG_NAMELESS = Remedy::last(
        "its superblock is damaged: see `ztier log check DEV`; `ztier log format DEV --backing DEV \
         --force` gives up what it held",
        Loses::Log,
    );
    /// A log with data of another backing store.
    LOG_OF_ANOTHER = Remedy::or(
        "give the backing store of that log",
        "give the backing store of that log (`ztier log check DEV` says what it holds); only if it \
         is its own, --discard-log gives up what it held",
        Loses::Log,
    );
    /// A log with data of a backing store that has another size by now.
    LOG_RESIZED = Remedy::or(
        "give it that size back, then `ztier up NAME` and `ztier down NAME --drain`",
        "give it that size back, then `ztier up NAME` and `ztier down NAME --drain`; change its size \
         after that; only if that is impossible, --discard-log gives up what it held",
        Loses::Log,
    );
    /// A log of another drive with the same content.
    LOG_MOVED = Remedy::safe("give the right drive, or add --moved if this is a copy of it");
    /// A log of another drive, if only the size could be compared.
    LOG_MOVED_UNSEEN = Remedy::safe(
        "give the right drive, or add --moved if you are certain that this is a copy of it as it was, \
         or the same drive under another id",
    );
    /// Kept memory that belongs to another log.
    MEMORY_OF_ANOTHER_LOG = Remedy::or(
        "give the log that the volume had",
        "give the log that the volume had; or give up what exists in memory only with \
         `ztier down NAME --discard`",
        Loses::Memory,
    );
    /// A volume that comes up without a log, although kept memory belongs to its log.
    MEMORY_OF_LOG = Remedy::or(
        "go on with that log",
        "go on with that log, or give up what exists in memory only with `ztier down NAME --discard`",
        Loses::Memory,
    );
    /// Kept memory that no longer matches its log.
    MEMORY_OUTDATED = Remedy::last(
        "give up what exists in memory only with `ztier down NAME --discard`, then bring the volume \
         up",
        Loses::Memory,
    );
    /// The spill device is another one.
    SPILL_MISSED = Remedy::or(
        "bring back the device that `NAME` had, then `ztier restart NAME`",
        "bring back the device that `NAME` had, then `ztier restart NAME`; only if it is gone for \
         good, `ztier restart NAME --discard-spill` goes on without what only it held, and then \
         `ztier set NAME spill=DEV` with another one",
        Loses::Spill,
    );
    /// Blocks that only a spill device has can't be read from it.
    SPILL_UNREAD = Remedy::or(
        "have the drive work again",
        "have the drive work again (see the kernel's log), then try again; only if it is gone for \
         good, add --accept-loss, which gives up what only it held",
        Loses::Spill,
    );
    /// A drive has known content.
    DRIVE_HOLDS = Remedy::or(
        "give another drive",
        "give another drive, or overwrite what is on the drive with --wipe",
        Loses::Drive,
    );
    /// A device that is to become swap has content.
    SWAP_HOLDS = Remedy::or(
        "use an empty volume",
        "use an empty volume, or overwrite what is on the drive with --force",
        Loses::Drive,
    );
    /// A daemon that may wait for its own swap.
    SWAP_UNSAFE = Remedy::safe(
        "run it as root with CAP_SYS_RESOURCE, CAP_IPC_LOCK and CAP_SYS_NICE, or add --force where \
         the machine itself never runs short of memory",
    );
    /// Swapped-out data has no room elsewhere.
    SWAP_FULL = Remedy::safe("end some programs, or try all the same with --force");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that must name each loss.
    fn naming(loses: Loses) -> &'static [&'static str] {
        match loses {
            Loses::Nothing => &[],
            Loses::Memory => {
                &["give up what exists in memory only", "gives up what exists in memory only"]
            }
            Loses::Log => &["what it held"],
            Loses::Damaged => &["what is damaged"],
            Loses::Newer => &["what was written since"],
            Loses::Unsent => &["what it had not sent"],
            Loses::Spill => &["what only it held"],
            Loses::Drive => &["overwrite what is on the drive"],
            Loses::Requests => &["requests"],
        }
    }

    #[test]
    fn what_loses_data_says_so_and_comes_last() {
        let lossy = [
            "--discard-log",
            "--discard-spill",
            "--accept-changed-backing",
            "--accept-loss",
            "--accept-older-log",
            "--discard",
            "--wipe",
            "log format",
        ];
        for (name, remedy) in ALL {
            let Remedy { text, loses, instead } = *remedy;
            assert!(!text.contains('\n') && !text.contains("  "), "{name}: {text}");
            let flag = lossy.iter().filter_map(|flag| text.find(flag)).min();
            if loses == Loses::Nothing {
                assert!(flag.is_none() && instead.is_none(), "{name} loses something: {text}");
                continue;
            }
            let tells = naming(loses).iter().any(|words| text.contains(words));
            assert!(tells, "{name} does not say what is lost: {text}");
            let at = flag.or_else(|| text.find("--force"));
            let Some(at) = at else { panic!("{name} loses nothing that is known: {text}") };
            if let Some(words) = instead {
                let safe = text.find(words).map(|from| from + words.len());
                assert!(safe.is_some_and(|end| end <= at), "{name}: {words:?} comes after: {text}");
                assert!(!lossy.iter().any(|flag| words.contains(flag)), "{name}: {words}");
            }
        }
    }

    #[test]
    fn names_are_filled_in() {
        assert_eq!(DEAD.of("x"), "`ztier restart x` goes on with it, `ztier down x` removes it");
        assert_eq!(String::from(DRIVE_FAILS), DRIVE_FAILS.to_string());
    }
}
