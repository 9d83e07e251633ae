//! Daemons in a control group with a memory limit: a volume that does not fit is refused, and an
//! accepted one is not killed for lack of memory.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::group::Group;
use crate::support::place::{BLOCK, content};
use crate::support::sandbox::{Done, Sandbox, finish};
use std::fs::File;

const MIB: u64 = 1 << 20;

struct Rig {
    sandbox: Sandbox,
    group: Group,
    log: String,
    backing: String,
}

impl Rig {
    fn new(bytes: u64) -> Option<Self> {
        let group = Group::new("memory", bytes)?;
        let sandbox = Sandbox::new();
        let file = |name: &str| {
            let path = sandbox.path().join(name);
            File::create(&path).unwrap().set_len(512 * MIB).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (log, backing) = (file("fast"), file("slow"));
        Some(Self { sandbox, group, log, backing })
    }

    fn ztier(&self, args: &[&str]) -> Done {
        finish(self.group.command(&self.sandbox.command(args)))
    }

    /// Runs `ztier up vol` with more flags.
    fn up(&self, flags: &[&str]) -> Done {
        self.ztier(&[&["up", "vol", "--export", "nbd"], flags].concat())
    }

    /// Writes bytes that hardly compress, a MiB a request.
    fn write(&self, mib: u64) {
        let mut disk = Disk::open(&self.sandbox.run_dir().join("vol.nbd"), "vol");
        for at in (0..mib * MIB).step_by(MIB as usize) {
            let blocks = at / BLOCK..(at + MIB) / BLOCK;
            let bytes: Vec<u8> = blocks.flat_map(|block| content(block, 1)).collect();
            disk.write(at, &bytes);
        }
        disk.flush();
        for block in [0, mib * MIB / BLOCK - 1] {
            assert!(disk.read(block * BLOCK, BLOCK as usize) == content(block, 1));
        }
    }

    /// The first daemon is still alive.
    fn is_alive(&self) {
        let status = self.sandbox.status("vol");
        assert_eq!(status["restarts"], 0, "{status}");
        assert!(self.sandbox.ztier(&["list"]).ok().contains("nbd"));
    }
}

#[test]
fn a_limit_that_leaves_the_daemon_no_room_is_refused_in_every_role() {
    let Some(rig) = Rig::new(64 * MIB) else { return };
    let bare = ["--backing", rig.backing.as_str()];
    let logged = [&bare[..], &["--log", &rig.log]].concat();
    let memory = ["--size", "256M"];
    for (role, much, little) in
        [(&memory[..], "57M", "56M"), (&bare, "57M", "56M"), (&logged, "40M", "16M")]
    {
        let limit = |limit| [role, &["--ram-limit", limit]].concat();
        let refused = ["is more than the", "of 64 MiB of memory", "like 10%"];
        rig.up(&limit(much)).refused(2, &refused);
        rig.up(&limit("200M")).refused(2, &refused);
        rig.up(&limit(little)).ok();
        // Requests of a process outside are measured by the daemon's own group.
        let set = |limit: &str| rig.sandbox.ztier(&["set", "vol", &format!("ram-limit={limit}")]);
        set(much).refused(2, &refused);
        set(little).ok();
        rig.is_alive();
        rig.sandbox.ztier(&["down", "vol", "--discard"]).ok();
    }
}

#[test]
fn a_volume_in_memory_is_filled_within_its_group() {
    let Some(rig) = Rig::new(64 * MIB) else { return };
    rig.up(&["--size", "256M", "--ram-limit", "56M"]).ok();
    let mut disk = Disk::open(&rig.sandbox.run_dir().join("vol.nbd"), "vol");
    let mut full = false;
    for block in 0..256 * MIB / BLOCK {
        full = disk.write_error(block * BLOCK, &content(block, 1)) != 0;
        if full {
            break;
        }
    }
    assert!(full, "256 MiB do not fit");
    rig.is_alive();
    drop(disk);
    rig.sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

#[test]
fn a_log_is_filled_and_drained_within_its_group() {
    let Some(rig) = Rig::new(64 * MIB) else { return };
    let flags = ["--backing", &rig.backing, "--log", &rig.log, "--writeback", "off"];
    rig.up(&flags).ok();
    rig.write(400);
    rig.is_alive();
    rig.sandbox.ztier(&["drain", "vol"]).ok();
    rig.is_alive();
    rig.sandbox.ztier(&["down", "vol"]).ok();
}
