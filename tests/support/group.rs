//! A control group with a limit on memory, removed whatever happens to the test.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A control group with a limit on memory; dropping it removes it.
pub struct Group(PathBuf);

impl Group {
    /// A group limited to `bytes`. `None`, with a message, where none can be made.
    pub fn new(name: &str, bytes: u64) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ztier-{name}-{}-{number}", std::process::id());
        let kinds =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (root, file) in kinds {
            let path = Path::new(root).join(&name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self(path);
            // Where the controller is not mounted, the new directory lacks this file.
            let limit = group.0.join(file);
            if limit.exists() && fs::write(limit, bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        println!("skipped: no control group with a limit on memory can be made here");
        None
    }

    /// `command`, to run in the group.
    pub fn command(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", self.0.display());
        within.args(["-c", &script]).arg(command.get_program()).args(command.get_args());
        let set = command.get_envs().filter_map(|(key, value)| Some((key, value?)));
        within.envs(set).stdin(Stdio::null());
        within
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group's processes are ending.
        let gone = (0..100).any(|_| {
            let removed = fs::remove_dir(&self.0).is_ok();
            if !removed {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            removed
        });
        if !gone && self.0.exists() {
            eprintln!("{} is left", self.0.display());
        }
    }
}
