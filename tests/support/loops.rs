//! Loop devices, detached also if the test fails.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use super::shell::{missing, ok, run, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A loop device, detached when dropped.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn on(file: &Path, args: &[&str]) -> Self {
        for _ in 0..4 {
            let out = attach(file, args);
            if out.status.success() {
                return Self(text(&out).trim().into());
            }
            make_nodes();
        }
        let out = attach(file, args);
        assert!(out.status.success(), "losetup {}: {}", file.display(), text(&out));
        Self(text(&out).trim().into())
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// A partition over these bytes, independent of any partition table.
    pub fn part(&self, number: u32, bytes: std::ops::Range<u64>) -> Part {
        let [n, start, len] = [number.into(), bytes.start / 512, (bytes.end - bytes.start) / 512]
            .map(|n| n.to_string());
        ok(20, "addpart", &[self.path(), &n, &start, &len]);
        let part =
            Part { disk: self.0.clone(), number, node: format!("{}p{n}", self.path()).into() };
        if !part.node.exists() {
            let sys = Path::new("/sys/class/block").join(part.node.file_name().unwrap());
            let text = std::fs::read_to_string(sys.join("dev")).unwrap();
            let (major, minor) = text.trim().split_once(':').unwrap();
            ok(20, "mknod", &[part.path(), "b", major, minor]);
        }
        part
    }
}

fn attach(file: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "60", "losetup"]).args(args).args(["--find", "--show"]).arg(file);
    command.output().unwrap()
}

/// A partition of a loop device, removed when dropped, as the device would keep it for its next
/// file.
pub struct Part {
    disk: PathBuf,
    number: u32,
    pub node: PathBuf,
}

impl Part {
    pub fn path(&self) -> &str {
        self.node.to_str().unwrap()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let number = self.number.to_string();
        let out = run(20, "delpart", &[self.disk.to_str().unwrap(), &number]);
        if !out.status.success() {
            eprintln!("{} was left: {}", self.node.display(), text(&out));
        }
    }
}

/// Whether this machine lacks one of the programs, or loop devices; prints a message.
pub fn lacks_loops(programs: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        println!("skipped: loop devices need root and /dev/loop-control");
        return true;
    }
    missing(programs) || missing(&["losetup", "addpart", "delpart", "mount", "umount"])
}

/// Makes the nodes of new devices, which no service makes where `/dev` belongs to a container.
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
        // The kernel detaches the device when the last program that scans all devices has closed
        // it.
        let shown = Path::new("/sys/block").join(self.0.file_name().unwrap()).join("loop");
        let until = Instant::now() + Duration::from_secs(10);
        while shown.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
