//! A control group with a limit on memory, removed whatever happens to the test.
#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A control group with a limit on memory; dropping it removes it.
pub struct Group(PathBuf);

impl Group {
    /// Of at most so many bytes. `None` where none can be made; says why.
    pub fn new(name: &str, bytes: u64) -> Option<Self> {
        let name = format!("ztier-{name}-{}", std::process::id());
        let kinds =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (root, file) in kinds {
            let group = Self(Path::new(root).join(&name));
            let made = fs::create_dir(&group.0).is_ok();
            if made && fs::write(group.0.join(file), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        println!("skipped: no control group with a limit on memory can be made here");
        None
    }

    /// The command, in the group.
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
        // What ran in it is on its way out.
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
