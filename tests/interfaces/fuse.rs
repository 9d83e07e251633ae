//! The FUSE + loop export against the real kernel: files, block device, ext4, errors, clean-up.
//!
//! Needs root, `/dev/fuse` and loop devices; where these are missing every test prints `skipped:`
//! and the reason. Every command has a time limit.
#![cfg(feature = "fuse")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::shell::{missing, ok, run, text, unmount};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use ztier::device::{
    self, Algorithm, Channel, Device, Extent, ExtentKind, IoError, Request, Volume,
};
use ztier::export::fuse::{FuseLoop, Options, available};
use ztier::export::{Export, Leftover};
use ztier::kernel_text::kernel_text;
use ztier::system::helper::Helper;

const MIB: u64 = 1 << 20;

/// A directory for each test, and the options for an export in it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// `None`, with a message, where the export can't work.
    fn new(block_device: bool) -> Option<Self> {
        if let Err(why) = available(block_device) {
            println!("skipped: {why}");
            return None;
        }
        Some(Self { dir: tempfile::tempdir().unwrap() })
    }

    fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    fn options(&self, block_device: bool) -> Options {
        Options {
            name: "vol".into(),
            run_dir: self.path(),
            link_dir: self.path().join("dev"),
            threads: 2,
            block_device,
            sector: ztier::device::Sector::Block,
            helper: helper(),
        }
    }

    fn assert_nothing_left(&self) {
        let here = self.path();
        let here = here.to_str().unwrap();
        assert!(!kernel_text("/proc/self/mountinfo").unwrap().contains(here));
        assert!(!text(&run(10, "losetup", &["-a"])).contains(here));
        let left: Vec<_> = std::fs::read_dir(here).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, Vec::<PathBuf>::new());
    }
}

impl Drop for Place {
    /// Leftovers of a failed test must not disturb others.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for l in FuseLoop::planned(&self.options(true)) {
                let _ = l.remove();
            }
        }
    }
}

/// The real program: this binary has only tests.
fn helper() -> Helper {
    Helper::Program(env!("CARGO_BIN_EXE_ztier").into())
}

fn volume(size: u64) -> Arc<Volume> {
    Volume::create(&device::Options {
        size,
        ram_limit: size * 2 + 64 * MIB,
        ram_limit_max: 0,
        segment: 1 << 20,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    })
    .unwrap()
}

fn direct(path: &Path) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    let flag = rustix::fs::OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flag).open(path).unwrap()
}

/// Memory at an address that O_DIRECT accepts.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

fn aligned(len: usize) -> Aligned {
    let bytes = vec![0; len + 4096];
    let start = bytes.as_ptr().align_offset(4096);
    Aligned { bytes, start, len }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// A plain memory device that records its requests and fails on demand.
struct Recorder {
    data: Mutex<Vec<u8>>,
    seen: Mutex<Vec<String>>,
    error: Mutex<Option<IoError>>,
    delay_ms: AtomicU64,
}

impl Recorder {
    fn new(size: u64) -> Arc<Self> {
        Arc::new(Self {
            data: Mutex::new(vec![0; size as usize]),
            seen: Mutex::default(),
            error: Mutex::default(),
            delay_ms: AtomicU64::new(0),
        })
    }

    fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    fn fail_with(&self, error: Option<IoError>) {
        *self.error.lock().unwrap() = error;
    }
}

impl Device for Recorder {
    fn size(&self) -> u64 {
        self.data.lock().unwrap().len() as u64
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(RecorderChannel(self))
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Result<Vec<Extent>, IoError> {
        // The second MiB is data, the rest is a hole.
        let mut at = offset;
        let mut runs = Vec::new();
        for (end, kind) in
            [(MIB, ExtentKind::Hole), (2 * MIB, ExtentKind::Data), (u64::MAX, ExtentKind::Hole)]
        {
            let end = end.min(offset + len);
            if end > at {
                runs.push(Extent { len: end - at, kind });
                at = end;
            }
        }
        Ok(runs)
    }
}

struct RecorderChannel(Arc<Recorder>);

impl Channel for RecorderChannel {
    fn submit(&mut self, request: Request<'_>, _: Instant) -> Result<(), IoError> {
        let name = match &request {
            Request::Read { .. } => None,
            Request::Write { fua, .. } => Some(format!("write fua={fua}")),
            Request::Flush => Some("flush".into()),
            Request::Discard { offset, len } => Some(format!("discard {offset}+{len}")),
            Request::WriteZeroes { offset, len, no_hole, .. } => {
                Some(format!("zeroes {offset}+{len} no_hole={no_hole}"))
            }
        };
        self.0.seen.lock().unwrap().extend(name);
        std::thread::sleep(Duration::from_millis(self.0.delay_ms.load(SeqCst)));
        if let Some(e) = *self.0.error.lock().unwrap() {
            return Err(e);
        }
        let mut data = self.0.data.lock().unwrap();
        match request {
            Request::Read { offset, buf } => {
                buf.copy_from_slice(&data[offset as usize..][..buf.len()]);
            }
            Request::Write { offset, data: new, .. } => {
                data[offset as usize..][..new.len()].copy_from_slice(new);
            }
            Request::Flush => {}
            Request::Discard { offset, len } | Request::WriteZeroes { offset, len, .. } => {
                data[offset as usize..][..len as usize].fill(0);
            }
        }
        Ok(())
    }
}

#[test]
fn start_use_stop_leaves_nothing() {
    let Some(place) = Place::new(true) else { return };
    let options = place.options(true);
    let planned = FuseLoop::planned(&options);
    let mut export = FuseLoop::start(volume(64 * MIB), options).unwrap();
    let left = export.leftovers();
    assert!(left.iter().all(Leftover::exists), "{left:?}");
    assert!(planned.iter().all(|l| left.contains(l)), "{planned:?} {left:?}");
    let link = place.path().join("dev/vol");
    assert_eq!(export.endpoints(), [link.to_str().unwrap()]);
    // udev opens each new device for a moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !export.holders().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", export.holders());
        std::thread::sleep(Duration::from_millis(10));
    }

    let dev = link.to_str().unwrap();
    assert_eq!(ok(60, "blockdev", &["--getsize64", dev]).trim(), (64 * MIB).to_string());
    assert_eq!(ok(60, "blockdev", &["--getss", dev]).trim(), "4096");
    let sys = Path::new("/sys/block").join(export.loop_device().unwrap().file_name().unwrap());
    let read = |f: &str| std::fs::read_to_string(sys.join(f)).unwrap().trim().to_owned();
    assert_eq!(read("loop/dio"), "1");
    assert_eq!(read("queue/discard_granularity"), "4096");
    assert_ne!(read("queue/discard_max_bytes"), "0");
    assert_eq!(read("queue/write_cache"), "write back");

    export.stop().unwrap();
    export.stop().unwrap();
    assert!(left.iter().all(|l| !l.exists()), "{left:?}");
    place.assert_nothing_left();
}

#[test]
fn the_same_name_twice_is_refused() {
    let Some(place) = Place::new(true) else { return };
    let mut export = FuseLoop::start(volume(MIB), place.options(true)).unwrap();
    let e = FuseLoop::start(volume(MIB), place.options(true)).unwrap_err().to_string();
    assert!(e.contains("mounted already") && e.contains("down first"), "{e}");
    let mut other = place.options(true);
    other.name = "other".into();
    std::fs::write(place.path().join("dev/other"), "mine").unwrap();
    let e = FuseLoop::start(volume(MIB), other).unwrap_err().to_string();
    assert!(e.contains("no link of ours"), "{e}");
    std::fs::remove_file(place.path().join("dev/other")).unwrap();
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn fio_verifies_writes_reads_and_trims_at_once() {
    let Some(place) = Place::new(true) else { return };
    if missing(&["fio"]) {
        return;
    }
    let mut export = FuseLoop::start(volume(128 * MIB), place.options(true)).unwrap();
    let file = format!("--filename={}", export.endpoints()[0]);
    // Each job has its own part of the device: trimmed blocks would not verify as written.
    let out = ok(
        60,
        "fio",
        &[
            &file,
            "--direct=1",
            "--verify_state_save=0",
            "--ioengine=libaio",
            "--iodepth=16",
            "--runtime=20",
            "--name=mixed",
            "--rw=randwrite",
            "--bsrange=4k-256k",
            "--blockalign=4k",
            "--size=48m",
            "--verify=crc32c",
            "--do_verify=1",
            "--name=overwrite",
            "--rw=randrw",
            "--bs=4k",
            "--offset=48m",
            "--size=32m",
            "--verify=crc32c",
            "--name=trim",
            "--rw=randtrim",
            "--bs=64k",
            "--offset=80m",
            "--size=32m",
        ],
    );
    assert!(!out.contains("verify failed"), "{out}");
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn ext4_lives_on_it_and_stop_is_refused_while_mounted() {
    let Some(place) = Place::new(true) else { return };
    if missing(&["mkfs.ext4", "e2fsck", "fstrim"]) {
        return;
    }
    let device = volume(256 * MIB);
    let mut export = FuseLoop::start(device.clone(), place.options(true)).unwrap();
    let dev = export.endpoints()[0].clone();
    ok(30, "mkfs.ext4", &["-q", "-F", &dev]);
    let mnt = place.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    ok(20, "mount", &[&dev, mnt.to_str().unwrap()]);

    let content: Vec<u8> = (0..3_000_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    for i in 0..6 {
        std::fs::write(mnt.join(format!("f{i}")), &content).unwrap();
    }
    rustix::fs::syncfs(File::open(&mnt).unwrap()).unwrap();
    let e = export.stop().unwrap_err().to_string();
    assert!(e.contains(&format!("mounted on {}", mnt.display())), "{e}");
    assert!(e.contains("unmount it first"), "{e}");
    assert!(Path::new(&dev).exists());

    for i in 0..3 {
        std::fs::remove_file(mnt.join(format!("f{i}"))).unwrap();
    }
    ok(30, "fstrim", &["-v", mnt.to_str().unwrap()]);
    unmount(mnt.to_str().unwrap());
    ok(30, "e2fsck", &["-f", "-n", &dev]);
    ok(20, "mount", &["-o", "ro", &dev, mnt.to_str().unwrap()]);
    for i in 3..6 {
        assert!(std::fs::read(mnt.join(format!("f{i}"))).unwrap() == content, "f{i} changed");
    }
    unmount(mnt.to_str().unwrap());
    std::fs::remove_dir(&mnt).unwrap();
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn flush_discard_and_zeroes_reach_the_device() {
    let Some(place) = Place::new(true) else { return };
    let device = Recorder::new(16 * MIB);
    let mut export = FuseLoop::start(device.clone(), place.options(true)).unwrap();
    let dev = export.endpoints()[0].clone();
    let node = direct(Path::new(&dev));
    let mut page = aligned(4096);
    page.fill(7);
    device.take_seen();
    node.write_all_at(&page, 4096).unwrap();
    node.sync_all().unwrap();
    assert_eq!(device.take_seen(), ["write fua=false", "flush"]);
    drop(node);

    ok(10, "blkdiscard", &["-o", "4096", "-l", "8192", &dev]);
    assert!(device.take_seen().contains(&"discard 4096+8192".to_owned()));
    assert_eq!(device.data.lock().unwrap()[4096], 0);
    ok(10, "blkdiscard", &["-z", "-o", "1048576", "-l", "65536", &dev]);
    let seen = device.take_seen();
    assert!(seen.iter().any(|s| s == "zeroes 1048576+65536 no_hole=true"), "{seen:?}");
    ok(10, "blkdiscard", &[&dev]);
    let whole = device.take_seen();
    let bytes: u64 = whole
        .iter()
        .filter_map(|s| s.strip_prefix("discard ")?.split_once('+')?.1.parse::<u64>().ok())
        .sum();
    assert_eq!(bytes, 16 * MIB, "{whole:?}");
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn the_file_takes_any_sizes() {
    let Some(place) = Place::new(false) else { return };
    let size = 8 * MIB;
    let device = volume(size);
    let mut export = FuseLoop::start(device, place.options(false)).unwrap();
    let path = export.file().to_owned();
    assert_eq!(export.endpoints(), [path.to_str().unwrap()]);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
    let names: Vec<_> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["vol"]);

    let mut model = vec![0u8; size as usize];
    let plain = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let odirect = direct(&path);
    let mut seed = 0x2545_F491_4F6C_DD1Du64;
    let mut next = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for i in 0..300u32 {
        let unit = if i % 2 == 0 { 512 } else { 1 };
        let offset = next(size / unit) * unit;
        let len = (next(if i % 10 == 0 { 3 * MIB } else { 9000 }) / unit * unit + unit)
            .min(size - offset);
        let (offset, len) = (offset as usize, len as usize);
        let mut bytes = aligned(len);
        bytes.iter_mut().for_each(|b| *b = next(256) as u8);
        let file = if unit == 512 { &odirect } else { &plain };
        file.write_all_at(&bytes, offset as u64).unwrap();
        model[offset..offset + len].copy_from_slice(&bytes);
        let mut back = aligned(len);
        file.read_exact_at(&mut back, offset as u64).unwrap();
        assert!(*back == *bytes, "step {i}: {offset}+{len}");
    }
    assert!(std::fs::read(&path).unwrap() == model);

    // The end of the file behaves as the end of a block device.
    assert_eq!(plain.write_at(&[1; 100], size - 10).unwrap(), 10);
    assert_eq!(plain.write_at(&[1; 100], size).unwrap_err().raw_os_error(), Some(28));
    assert_eq!(plain.read_at(&mut [0; 100], size - 10).unwrap(), 10);
    assert_eq!(plain.read_at(&mut [0; 100], size).unwrap(), 0);
    assert_eq!(plain.set_len(size + 4096).unwrap_err().raw_os_error(), Some(1));
    drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
    assert_eq!(File::create(path.with_file_name("new")).unwrap_err().raw_os_error(), Some(38));
    drop((plain, odirect));
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn holes_and_ranges_of_the_file() {
    use rustix::fs::{FallocateFlags as F, SeekFrom, fallocate, seek};
    let Some(place) = Place::new(false) else { return };
    let device = Recorder::new(4 * MIB);
    let mut export = FuseLoop::start(device.clone(), place.options(false)).unwrap();
    let file = direct(export.file());
    let fd = file.as_fd();
    assert_eq!(seek(fd, SeekFrom::Data(5)).unwrap(), MIB);
    assert_eq!(seek(fd, SeekFrom::Hole(MIB + 5)).unwrap(), 2 * MIB);
    assert_eq!(seek(fd, SeekFrom::Hole(3)).unwrap(), 3);
    assert_eq!(seek(fd, SeekFrom::Data(2 * MIB)).unwrap_err().raw_os_error(), 6);

    device.take_seen();
    fallocate(fd, F::PUNCH_HOLE | F::KEEP_SIZE, 100, 5000).unwrap();
    fallocate(fd, F::ZERO_RANGE, 4096, 4096).unwrap();
    fallocate(fd, F::ZERO_RANGE | F::KEEP_SIZE, 4 * MIB - 4096, 8192).unwrap();
    assert_eq!(
        device.take_seen(),
        ["discard 100+5000", "zeroes 4096+4096 no_hole=true", "zeroes 4190208+4096 no_hole=true"]
    );
    assert_eq!(fallocate(fd, F::empty(), 0, 4096).unwrap_err().raw_os_error(), 95);
    assert!(fallocate(fd, F::ZERO_RANGE, 4 * MIB, 4096).is_err());

    let synced = {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = (rustix::fs::OFlags::DSYNC | rustix::fs::OFlags::DIRECT).bits() as i32;
        OpenOptions::new().write(true).custom_flags(flags).open(export.file()).unwrap()
    };
    device.take_seen();
    synced.write_all_at(&aligned(4096), 0).unwrap();
    let seen = device.take_seen();
    assert_eq!(seen[0], "write fua=true");
    drop((file, synced));
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn errors_reach_the_caller() {
    let Some(place) = Place::new(true) else { return };
    let device = Recorder::new(4 * MIB);
    let mut export = FuseLoop::start(device.clone(), place.options(true)).unwrap();
    let dev = PathBuf::from(&export.endpoints()[0]);
    let (block, file) = (direct(&dev), direct(export.file()));
    let mut page = aligned(4096);
    device.fail_with(Some(IoError::NoSpace));
    assert_eq!(file.write_at(&page, 0).unwrap_err().raw_os_error(), Some(28));
    assert_eq!(block.write_at(&page, 0).unwrap_err().raw_os_error(), Some(28));
    device.fail_with(Some(IoError::Corrupt(3)));
    assert_eq!(file.read_at(&mut page, 0).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(block.read_at(&mut page, 4096).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5));
    assert_eq!(block.sync_all().unwrap_err().raw_os_error(), Some(5));
    device.fail_with(None);
    block.write_all_at(&page, 0).unwrap();
    file.read_exact_at(&mut page, 0).unwrap();
    drop((block, file));
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn a_grown_volume_is_a_larger_device() {
    let Some(place) = Place::new(true) else { return };
    let device = volume(16 * MIB);
    let mut export = FuseLoop::start(device.clone(), place.options(true)).unwrap();
    let dev = export.endpoints()[0].clone();
    device.grow(40 * MIB).unwrap();
    export.resized().unwrap();
    assert_eq!(ok(60, "blockdev", &["--getsize64", &dev]).trim(), (40 * MIB).to_string());
    let node = direct(Path::new(&dev));
    let mut page = aligned(4096);
    page.fill(9);
    node.write_all_at(&page, 40 * MIB - 4096).unwrap();
    let mut back = aligned(4096);
    node.read_exact_at(&mut back, 40 * MIB - 4096).unwrap();
    assert_eq!(*back, *page);
    drop(node);
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn stop_names_the_process_that_holds_it() {
    let Some(place) = Place::new(true) else { return };
    let mut export = FuseLoop::start(volume(4 * MIB), place.options(true)).unwrap();
    for path in [PathBuf::from(&export.endpoints()[0]), export.file().to_owned()] {
        let mut child =
            Command::new("sleep").arg("30").stdin(File::open(&path).unwrap()).spawn().unwrap();
        let refused = export.stop();
        let serving = File::open(&path).unwrap().read_at(&mut [0; 512], 0);
        child.kill().unwrap();
        child.wait().unwrap();
        let e = refused.unwrap_err().to_string();
        assert!(e.contains(&format!("process {} (sleep)", child.id())), "{e}");
        assert_eq!(serving.unwrap(), 512);
        assert!(export.leftovers().iter().all(Leftover::exists));
    }
    export.stop().unwrap();
    place.assert_nothing_left();
}

/// A process begins to use the mount during a stop, and then no block device can be made: both
/// errors are reported, and the stop can be repeated.
#[test]
fn a_stop_that_fails_halfway_says_why() {
    use std::os::unix::fs::PermissionsExt;
    let Some(place) = Place::new(true) else { return };
    let (here, script) = (place.path(), place.path().join("helper"));
    let text = format!(
        "#!/bin/sh\ncd {}\ncase $2 in\n*attach*) [ ! -e pid ] || \
         exec echo '{{\"failed\":[\"failed\",\"no device today\"]}}';;\nesac\n{} \"$@\"\n\
         case $2 in\n*detach*) (cd vol.fuse; exec sleep 60 >/dev/null) & echo $! >pid;;\nesac\n",
        here.display(),
        env!("CARGO_BIN_EXE_ztier")
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
    let options = Options { helper: Helper::Program(script.clone()), ..place.options(true) };
    let mut export = FuseLoop::start(volume(4 * MIB), options).unwrap();
    let e = export.stop().unwrap_err().to_string();
    let pid = std::fs::read_to_string(here.join("pid")).unwrap().trim().to_owned();
    ok(5, "kill", &[&pid]);
    assert!(e.contains(&format!("in use: process {pid}")) && e.contains("no device today"), "{e}");
    assert_eq!(export.endpoints(), [here.join("vol.fuse/vol").to_str().unwrap()]);
    for file in [script, here.join("pid")] {
        std::fs::remove_file(file).unwrap();
    }
    export.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn a_mount_in_another_namespace_is_a_holder() {
    let Some(place) = Place::new(true) else { return };
    if missing(&["mkfs.ext4", "unshare"]) {
        return;
    }
    let mut export = FuseLoop::start(volume(32 * MIB), place.options(true)).unwrap();
    let dev = export.endpoints()[0].clone();
    ok(20, "mkfs.ext4", &["-q", "-F", &dev]);
    let (mnt, ready) = (place.path().join("mnt"), place.path().join("ready"));
    std::fs::create_dir(&mnt).unwrap();
    let script =
        format!("mount {dev} {} && touch {} && exec sleep 30", mnt.display(), ready.display());
    let mut child = Command::new("unshare").args(["-m", "sh", "-c", &script]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let refused = export.stop();
    child.kill().unwrap();
    child.wait().unwrap();
    let e = refused.unwrap_err().to_string();
    let expected = format!("mounted on {} in the namespace of process", mnt.display());
    assert!(e.contains(&expected), "{e}");
    std::fs::remove_file(ready).unwrap();
    std::fs::remove_dir(mnt).unwrap();
    // The namespace, and its mount, go a moment after its last process.
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(e) = export.stop() {
        assert!(Instant::now() < deadline, "{e}");
        std::thread::sleep(Duration::from_millis(50));
    }
    place.assert_nothing_left();
}

/// Serves a device until this process is killed.
fn serve_until_killed(dir: &Path) {
    let device = Recorder::new(16 * MIB);
    let delay = std::env::var("ZTIER_TEST_DELAY").unwrap().parse().unwrap();
    let options = Options {
        name: "vol".into(),
        run_dir: dir.to_owned(),
        link_dir: dir.join("dev"),
        threads: 2,
        block_device: true,
        sector: ztier::device::Sector::Block,
        helper: helper(),
    };
    let export = FuseLoop::start(device.clone(), options).unwrap();
    device.delay_ms.store(delay, SeqCst);
    let state = serde_json::to_string(&export.leftovers()).unwrap();
    std::fs::write(dir.join("state.tmp"), state).unwrap();
    std::fs::rename(dir.join("state.tmp"), dir.join("state")).unwrap();
    std::thread::sleep(Duration::from_secs(120));
}

/// A separate process that serves: this program, in which the first of the tests below is the
/// server.
fn serve_in_child(place: &Place, delay_ms: u64) -> (Child, Vec<Leftover>) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fuse::after_kill_in_the_middle_of_io_everything_is_removed"])
        .env("ZTIER_TEST_DIR", place.path())
        .env("ZTIER_TEST_DELAY", delay_ms.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let state = place.path().join("state");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !state.exists() {
        assert!(Instant::now() < deadline, "the child does not come up");
        std::thread::sleep(Duration::from_millis(10));
    }
    let left = serde_json::from_str(&std::fs::read_to_string(&state).unwrap()).unwrap();
    std::fs::remove_file(&state).unwrap();
    (child, left)
}

#[track_caller]
fn remove_all(left: &[Leftover]) {
    let began = Instant::now();
    for l in left {
        l.remove().unwrap();
        assert!(!l.exists(), "{}", l.describe());
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[test]
fn after_kill_in_the_middle_of_io_everything_is_removed() {
    if let Some(dir) = std::env::var_os("ZTIER_TEST_DIR") {
        return serve_until_killed(Path::new(&dir));
    }
    let Some(place) = Place::new(true) else { return };
    let (mut child, left) = serve_in_child(&place, 3_000);
    let dev = place.path().join("dev/vol");
    // Direct and buffered writers, both waiting for a server that will never answer.
    let start = |flag: &str| {
        Command::new("timeout")
            .args(["-k", "1", "20", "dd", "if=/dev/zero", "bs=1M", "count=8", flag])
            .arg(format!("of={}", dev.display()))
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut writers = [start("oflag=direct"), start("conv=fsync")];
    std::thread::sleep(Duration::from_millis(500));
    assert!(writers.iter_mut().all(|w| w.try_wait().unwrap().is_none()));
    child.kill().unwrap();
    child.wait().unwrap();
    for l in &left {
        assert!(l.exists(), "{}", l.describe());
    }
    for w in &mut writers {
        assert!(!w.wait().unwrap().success());
    }
    remove_all(&left);
    place.assert_nothing_left();
}

/// Waits until all threads have stopped: the thread that takes the signal stops the others.
fn await_stopped(child: &Child) {
    let tasks = format!("/proc/{}/task", child.id());
    let has_stopped = |task: PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_dir(&tasks).unwrap().all(|task| has_stopped(task.unwrap().path())) {
        assert!(Instant::now() < deadline, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_server_that_hangs_is_cut_off() {
    use rustix::process::{Pid, Signal, kill_process};
    let Some(place) = Place::new(true) else { return };
    let (mut child, left) = serve_in_child(&place, 0);
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    await_stopped(&child);
    // The kernel believes that the server is alive: this read would wait for ever.
    let mut reader = Command::new("dd")
        .args(["bs=1M", "count=1", "iflag=direct", "of=/dev/null"])
        .arg(format!("if={}", place.path().join("dev/vol").display()))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let waits = reader.try_wait().unwrap().is_none();
    let removed = left.iter().try_for_each(Leftover::remove);
    let gone = left.iter().all(|l| !l.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let ended = reader.wait().unwrap();
    assert!(waits && !ended.success(), "{waits} {ended:?} {removed:?}");
    removed.unwrap();
    assert!(gone);
    place.assert_nothing_left();
}

#[test]
fn after_kill_before_the_state_was_written_the_plan_is_enough() {
    let Some(place) = Place::new(true) else { return };
    let (mut child, left) = serve_in_child(&place, 0);
    child.kill().unwrap();
    child.wait().unwrap();
    remove_all(&FuseLoop::planned(&place.options(true)));
    assert!(left.iter().all(|l| !l.exists()));
    place.assert_nothing_left();
}

#[test]
fn after_kill_a_mounted_file_system_is_named_and_left_alone() {
    let Some(place) = Place::new(true) else { return };
    if missing(&["mkfs.ext4"]) {
        return;
    }
    let (mut child, left) = serve_in_child(&place, 0);
    let dev = place.path().join("dev/vol");
    ok(20, "mkfs.ext4", &["-q", "-F", dev.to_str().unwrap()]);
    let mnt = place.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    ok(20, "mount", &[dev.to_str().unwrap(), mnt.to_str().unwrap()]);
    std::fs::write(mnt.join("lost"), vec![1; 100_000]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let device = left.iter().find(|l| matches!(l, Leftover::Loop { .. })).unwrap();
    let e = device.remove().unwrap_err().to_string();
    assert!(e.contains(&format!("mounted on {}", mnt.display())), "{e}");
    let mount = left.iter().find(|l| matches!(l, Leftover::Mount(_))).unwrap();
    assert!(mount.remove().unwrap_err().to_string().contains("mounted on"));
    assert!(device.exists() && mount.exists());
    unmount(mnt.to_str().unwrap());
    std::fs::remove_dir(&mnt).unwrap();
    remove_all(&left);
    place.assert_nothing_left();
}

#[test]
fn a_loop_device_that_shows_something_else_is_left_alone() {
    let Some(place) = Place::new(true) else { return };
    let file = place.path().join("image");
    File::create(&file).unwrap().set_len(MIB).unwrap();
    let device = ok(10, "losetup", &["-f", "--show", file.to_str().unwrap()]).trim().to_owned();
    let not_ours = Leftover::Loop {
        device: device.clone().into(),
        backing: place.path().join("vol.fuse/vol"),
    };
    let (exists, removed) = (not_ours.exists(), not_ours.remove());
    let still = ok(10, "losetup", &["-a"]).contains(file.to_str().unwrap());
    ok(10, "losetup", &["-d", &device]);
    std::fs::remove_file(&file).unwrap();
    removed.unwrap();
    assert!(still && !exists);
    place.assert_nothing_left();
}
