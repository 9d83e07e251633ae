//! `ztier adopt`: a volume comes before a disk with a file system in use; a step that fails undoes
//! those before it; what can't be is refused with the reason.
//!
//! Needs root, loop devices and FUSE; where these are missing every test prints `skipped:` and the
//! reason.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::loops::{Loop, Part, lacks_loops};
use crate::support::sandbox::{Done, Sandbox, finish};
use crate::support::shell::{lacks_btrfs, ok, try_unmount, unmount};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use ztier::kernel_text::kernel_text;

/// A mounted disk, its table of file systems, and a log's drive.
struct Rig {
    sandbox: Sandbox,
    name: String,
    point: PathBuf,
    fstab: PathBuf,
    text: String,
    log: String,
    /// Programs that come before those of the machine.
    bin: PathBuf,
    disk: String,
    _part: Option<Part>,
    _loop: Loop,
}

impl Rig {
    fn new() -> Option<Self> {
        Self::with("ext4", UUID, false)
    }

    /// With a file system of this kind and UUID, on all of the disk or a partition. No two of btrfs
    /// may have the same.
    fn with(kind: &str, uuid: &str, on_part: bool) -> Option<Self> {
        let mkfs = format!("mkfs.{kind}");
        if lacks_loops(&[&mkfs, "mkfs.ext4", "mount", "umount", "blkid"]) {
            return None;
        }
        if !fs::read_to_string("/proc/filesystems").unwrap().contains(kind) {
            println!("skipped: this kernel has no {kind}");
            return None;
        }
        if let Err(why) = ztier::export::fuse::available(true) {
            println!("skipped: {why}");
            return None;
        }
        let sandbox = Sandbox::new();
        if kind == "btrfs" && lacks_btrfs(sandbox.path()) {
            return None;
        }
        let make = |name: &str, mib: u64| {
            let path = sandbox.path().join(name);
            File::create(&path).unwrap().set_len(mib << 20).unwrap();
            path
        };
        let (image, log) = (make("image", 128), make("log", 32));
        let whole = Loop::on(&image, &[]);
        let part = on_part.then(|| whole.part(1, 8 << 20..120 << 20));
        let disk = part.as_ref().map_or(whole.path(), Part::path).to_owned();
        ok(60, &mkfs, &["-q", "-U", uuid, &disk]);
        let [point, bin] = ["data", "bin"].map(|name| sandbox.path().join(name));
        fs::create_dir(&point).unwrap();
        fs::create_dir(&bin).unwrap();
        ok(20, "mount", &[&disk, point.to_str().unwrap()]);
        fs::write(point.join("file"), "what is on it").unwrap();
        let fstab = sandbox.path().join("fstab");
        let text = format!(
            "# disks\ntmpfs /tmp tmpfs\nUUID={uuid}  {} {kind}\tnoatime 0 2\n",
            point.display()
        );
        fs::write(&fstab, &text).unwrap();
        let name = sandbox.device_name("adopt");
        let log = log.to_str().unwrap().to_owned();
        Some(Self { sandbox, name, point, fstab, text, log, bin, disk, _part: part, _loop: whole })
    }

    fn adopt(&self, more: &[&str]) -> Done {
        let fixed = ["adopt", &self.disk, "--name", &self.name, "--fstab"];
        let fstab = self.fstab.to_str().unwrap();
        let mut command =
            self.sandbox.command(&[&fixed[..], &[fstab, "--log", &self.log], more].concat());
        let path = format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap());
        command.env("PATH", path);
        finish(command)
    }

    /// Puts a program before that of the machine.
    fn program(&self, name: &str, script: &str) {
        let path = self.bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// What is mounted at its place, as the kernel says.
    fn source(&self) -> Option<String> {
        source(&self.point)
    }

    /// The volume's device, without links.
    fn device(&self) -> PathBuf {
        fs::canonicalize(format!("/dev/ztier/{}", self.name)).unwrap()
    }

    /// It fails, after remarks about steps before that.
    fn fails(&self, says: &[&str]) {
        let done = self.adopt(&["--apply"]);
        let told = done.err.lines().last().unwrap_or_default();
        assert!(done.status == 1 && says.iter().all(|part| told.contains(part)), "{done:?}");
    }

    fn is_as_before(&self) {
        assert!(!self.sandbox.path().join("fstab.before-ztier").exists());
        assert_eq!(fs::read_to_string(&self.fstab).unwrap(), self.text);
        assert_eq!(self.source().as_deref(), Some(&*self.disk));
        assert_eq!(fs::read_to_string(self.point.join("file")).unwrap(), "what is on it");
        assert!(!self.sandbox.config_dir().join(format!("{}.toml", self.name)).exists());
        assert!(!Path::new("/dev/ztier").join(&self.name).exists());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Also after a failed test.
        let _ = try_unmount(self.point.to_str().unwrap());
        self.sandbox.ztier(&["forget", &self.name]);
    }
}

/// What is mounted there, as the kernel says.
fn source(point: &Path) -> Option<String> {
    let mounts = kernel_text("/proc/self/mounts").unwrap();
    let on = |line: &&str| line.split(' ').nth(1) == point.to_str();
    mounts.lines().rfind(on).map(|line| line.split(' ').next().unwrap().to_owned())
}

/// A name of a partition that udev would make; removed when dropped.
struct PartLink(PathBuf);

impl PartLink {
    fn new(id: &str, to: &str) -> Self {
        let link = Path::new("/dev/disk/by-partuuid").join(id);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(to, &link).unwrap();
        Self(link)
    }
}

impl Drop for PartLink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        // Those that are empty.
        self.0.ancestors().skip(1).take(2).for_each(|dir| drop(fs::remove_dir(dir)));
    }
}

const UUID: &str = "5b1c7c86-6c1e-4d0c-9d2a-3f9d4e5a6b7c";

#[test]
fn a_mounted_disk_gets_a_log_and_its_line_changes() {
    let Some(rig) = Rig::new() else { return };
    rig.program("systemctl", "exit 0");
    let told = rig.adopt(&[]).ok();
    let device = format!("/dev/ztier/{}", rig.name);
    let (point, fstab) = (rig.point.display().to_string(), rig.fstab.display().to_string());
    for part in [
        format!("1. umount {point}\n"),
        format!("2. ztier up {} --backing {} --log {} --enable\n", rig.name, &rig.disk, rig.log),
        format!("3. in {fstab}\n   - UUID={UUID}  {point} ext4\tnoatime 0 2\n"),
        format!("   + {device}  {point} ext4\tnoatime,nofail 0 2\n"),
        format!("4. mount --fstab {fstab} {point}\n"),
        "nothing is changed; --apply does this\n".to_owned(),
    ] {
        assert!(told.contains(&part), "{part:?} is missing in {told}");
    }
    rig.is_as_before();
    // By the name that it was given.
    let link = rig.sandbox.path().join("by-id");
    symlink(&rig.disk, &link).unwrap();
    let told = rig.sandbox.ztier(&["adopt", link.to_str().unwrap(), "--fstab", &fstab]).ok();
    assert!(told.contains(&format!("up data --backing {} --enable", link.display())), "{told}");
    let json = rig.adopt(&["--json"]).json();
    assert_eq!((&json["content"], &json["changed"]), (&"ext4".into(), &false.into()));
    assert_eq!(json["steps"].as_array().unwrap().len(), 4);

    rig.adopt(&["--apply"]).ok();
    let now = fs::read_to_string(&rig.fstab).unwrap();
    let spec = format!("UUID={UUID} ");
    assert_eq!(
        now,
        rig.text.replace(&spec, &format!("{device} ")).replace("noatime", "noatime,nofail")
    );
    let backup = fs::read_to_string(format!("{fstab}.before-ztier")).unwrap();
    assert_eq!(backup, rig.text);
    assert_eq!(fs::canonicalize(rig.source().unwrap()).unwrap(), rig.device());
    assert_eq!(fs::read_to_string(rig.point.join("file")).unwrap(), "what is on it");
    let status = rig.sandbox.status(&rig.name);
    assert_eq!(status["log"]["log"], rig.log.as_str(), "{status}");
    assert!(rig.sandbox.config_dir().join(format!("{}.toml", rig.name)).exists());
    // Again: there is one already.
    fs::write(rig.point.join("file"), "newer").unwrap();
    rig.adopt(&["--apply"]).refused(4, &["is held: process"]);
    // And back, as docs/boot.md says.
    unmount(&point);
    rig.sandbox.ztier(&["forget", &rig.name]).ok();
    fs::write(&rig.fstab, &rig.text).unwrap();
    ok(20, "mount", &[&rig.disk, &point]);
    assert_eq!(fs::read_to_string(rig.point.join("file")).unwrap(), "newer");
}

/// Each line leads to it in another way, and each place is mounted again.
#[test]
fn a_partition_that_is_mounted_twice() {
    let Some(rig) = Rig::with("ext4", UUID, true) else { return };
    rig.program("systemctl", "exit 0");
    let id = format!("{:08x}-01", std::process::id());
    let link = PartLink::new(&id, &rig.disk);
    let second = rig.sandbox.path().join("second");
    fs::create_dir(&second).unwrap();
    let place = second.to_str().unwrap();
    ok(20, "mount", &[&rig.disk, place]);
    let line = format!("PARTUUID={id} {place} ext4 noexec 0 0\n");
    fs::write(&rig.fstab, format!("{}{line}", rig.text)).unwrap();
    let json = rig.adopt(&["--json"]).json();
    let steps = json["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap());
    assert_eq!(steps.collect::<Vec<_>>(), ["unmount", "unmount", "up", "fstab", "mount", "mount"]);
    assert_eq!(json["mounted"], serde_json::json!([rig.point, second]));

    // The last mount fails: all is as it was, twice.
    rig.program(
        "mount",
        &format!("case $3 in {place}) exit 32;; esac\nexec /usr/bin/mount \"$@\""),
    );
    rig.fails(&["undone, because `mount --fstab", "failed"]);
    for point in [&rig.point, &second] {
        assert_eq!(source(point).as_deref(), Some(&*rig.disk));
    }
    fs::remove_file(rig.bin.join("mount")).unwrap();

    rig.adopt(&["--apply"]).ok();
    let device = format!("/dev/ztier/{}", rig.name);
    let table = fs::read_to_string(&rig.fstab).unwrap();
    assert!(table.contains(&format!("{device} {place} ext4 noexec,nofail 0 0\n")), "{table}");
    assert!(table.contains(&format!("{device}  {} ext4", rig.point.display())), "{table}");
    for point in [&rig.point, &second] {
        assert_eq!(fs::canonicalize(source(point).unwrap()).unwrap(), rig.device());
        assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "what is on it");
    }
    unmount(place);
    drop(link);
}

/// A mounted btrfs has another number than its disk.
#[test]
fn a_file_system_with_a_number_of_its_own_is_unmounted_first() {
    let Some(rig) = Rig::with("btrfs", "0c0ffee0-6c1e-4d0c-9d2a-3f9d4e5a6b7c", false) else {
        return;
    };
    rig.program("systemctl", "exit 0");
    let steps = rig.adopt(&["--json"]).json()["steps"].clone();
    let kinds: Vec<_> = steps.as_array().unwrap().iter().map(|step| &step["step"]).collect();
    assert_eq!(kinds, ["unmount", "up", "fstab", "mount"]);
    rig.adopt(&["--apply"]).ok();
    assert_eq!(fs::canonicalize(rig.source().unwrap()).unwrap(), rig.device());
    assert_eq!(fs::read_to_string(rig.point.join("file")).unwrap(), "what is on it");
    let row = rig.sandbox.ztier(&["list", "--json"]).ok();
    assert!(row.contains(rig.point.to_str().unwrap()), "{row}");
    unmount(rig.point.to_str().unwrap());
    rig.sandbox.ztier(&["forget", &rig.name]).ok();
    // Its drop unmounts what is there.
    ok(20, "mount", &[&rig.disk, rig.point.to_str().unwrap()]);
}

#[test]
fn a_step_that_fails_undoes_those_before_it() {
    let Some(rig) = Rig::new() else { return };
    rig.program("systemctl", "exit 0");
    // In use: the first step fails.
    let mut user = Command::new("sleep").arg("60").current_dir(&rig.point).spawn().unwrap();
    rig.fails(&["`umount", "busy"]);
    user.kill().unwrap();
    user.wait().unwrap();
    rig.is_as_before();
    // It fails when nothing is mounted any more, as after a limit while the kernel writes.
    rig.program("umount", "/usr/bin/umount \"$@\"\necho not all is written >&2; exit 1");
    rig.fails(&["undone, because `umount", "not all is written"]);
    rig.is_as_before();
    fs::remove_file(rig.bin.join("umount")).unwrap();
    // The last one fails.
    rig.program(
        "mount",
        "case $1 in --fstab) echo no such thing >&2; exit 32;; esac\nexec /usr/bin/mount \"$@\"",
    );
    rig.fails(&["undone, because `mount --fstab", "no such thing"]);
    rig.is_as_before();
    // It fails when the volume is mounted.
    rig.program(
        "mount",
        "/usr/bin/mount \"$@\"\ncase $1 in --fstab) echo too late >&2; exit 32;; esac",
    );
    rig.fails(&["undone, because `mount --fstab", "too late"]);
    rig.is_as_before();
    fs::remove_file(rig.bin.join("mount")).unwrap();
    // The volume does not come up as a service.
    rig.program("systemctl", "case $2 in enable) echo refused >&2; exit 1;; esac\necho running");
    rig.fails(&["undone, because `ztier up", "refused"]);
    rig.is_as_before();
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let Some(rig) = Rig::new() else { return };
    let refused = |status: i32, says: &[&str]| {
        rig.adopt(&["--apply"]).refused(status, says);
    };
    fs::write(&rig.fstab, format!("{} / ext4 defaults 0 1\n", &rig.disk)).unwrap();
    refused(2, &["is the root file system: the machine needs it before ztier can start"]);
    fs::write(&rig.fstab, format!("{} /var ext4 defaults 0 1\n", &rig.disk)).unwrap();
    refused(2, &["on /var is needed to boot"]);
    fs::write(&rig.fstab, &rig.text).unwrap();
    ok(60, "mkfs.ext4", &["-q", "-F", &rig.log]);
    refused(5, &["holds ext4", "--wipe"]);
    rig.is_as_before();
    let file = rig.sandbox.path().join("image");
    let ztier = |device: &str| rig.sandbox.ztier(&["adopt", device]);
    ztier(file.to_str().unwrap()).refused(2, &["is no block device"]);
    ztier("/nonexistent").refused(1, &["/nonexistent"]);
    let swap = rig.sandbox.path().join("swap");
    File::create(&swap).unwrap().set_len(16 << 20).unwrap();
    let swap = Loop::on(&swap, &[]);
    let adopt = |says: &[&str]| {
        ztier(swap.path()).refused(2, says);
    };
    adopt(&["has no file system that is known", "ztier up"]);
    ok(20, "mkswap", &[swap.path()]);
    adopt(&["holds swap, no file system", "--use swap"]);
}
