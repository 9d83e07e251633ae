//! Loop devices, detached whatever happens to the test.
#![allow(clippy::unwrap_used, dead_code)]

use super::shell::{ok, run, text};
use std::path::{Path, PathBuf};

/// A loop device, detached when dropped.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn on(file: &Path, args: &[&str]) -> Self {
        let all = [args, &["--find", "--show", file.to_str().unwrap()]].concat();
        for _ in 0..4 {
            let out = run(60, "losetup", &all);
            if out.status.success() {
                return Self(text(&out).trim().into());
            }
            make_nodes();
        }
        Self(ok(60, "losetup", &all).trim().into())
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

/// Makes the nodes of new devices, which nothing else makes where `/dev` is a container's own.
fn make_nodes() {
    for entry in std::fs::read_dir("/sys/block").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let path = format!("/dev/{name}");
        if let Some(number) = name.strip_prefix("loop")
            && !Path::new(&path).exists()
        {
            run(20, "mknod", &[&path, "b", "7", number]);
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let out = run(20, "losetup", &["-d", self.path()]);
        if !out.status.success() {
            eprintln!("{} was left: {}", self.path(), text(&out));
        }
    }
}
