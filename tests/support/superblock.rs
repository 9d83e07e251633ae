//! Superblocks of a log, changed as a crash, another boot or another machine would change them.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use ztier::log::disk::format::{SUPER, SUPER_AT, Superblock};
use ztier::media::Identity;

/// The newest superblock of a log.
pub fn read(log: &str) -> Superblock {
    let file = File::open(log).unwrap();
    let copies = SUPER_AT.map(|at| {
        let mut bytes = [0; SUPER];
        file.read_exact_at(&mut bytes, at).unwrap();
        Superblock::decode(&bytes).unwrap()
    });
    copies.into_iter().max_by_key(|sb| sb.generation).unwrap()
}

/// Changes both copies of the superblock.
pub fn edit(log: &str, change: impl Fn(&mut Superblock)) {
    let mut sb = read(log);
    change(&mut sb);
    let file = File::options().write(true).open(log).unwrap();
    for at in SUPER_AT {
        file.write_all_at(&sb.encode(), at).unwrap();
    }
}

/// Simulates a reboot since the log was closed: the change counters have another scope.
pub fn reboot(log: &str) {
    edit(log, |sb| {
        sb.change_counter.scope ^= 1;
        sb.change_counter.sure ^= 1;
        sb.change_counter.written ^= 1;
    });
}

/// Simulates a window that writes to every sampled range.
pub fn forget_samples(log: &str) {
    edit(log, |sb| {
        let mut identity = Identity::decode(&sb.identity).unwrap();
        identity.forget(|_| true);
        sb.identity = identity.encode();
    });
}
