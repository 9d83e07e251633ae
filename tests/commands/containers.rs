//! The static program and its image, with the commands of docs/containers.md, without root.
//!
//! Building takes minutes: `./test --static` does it.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::shell::{missing, ok, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const DOCUMENT: &str = include_str!("../../docs/containers.md");
/// A user without rights.
const UNPRIVILEGED: &str = "65534";
/// For `podman`: no service of the machine, no network, no control group.
const ENGINE: &str = "[containers]\nnetns = \"none\"\n[engine]\ncgroup_manager = \"cgroupfs\"\n\
                      events_logger = \"file\"\n";

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The blocks of commands.
fn blocks() -> Vec<&'static str> {
    DOCUMENT.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The block that has this in it.
fn block(part: &str) -> &'static str {
    blocks().into_iter().find(|block| block.contains(part)).unwrap_or_else(|| panic!("{part}"))
}

/// A directory with what the image is made of, in which a user without rights works.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("ztier-").tempdir().unwrap();
        let place = Self(dir);
        for name in
            ["home/tmp", "run", "etc/container", "target/static/amd64", "target/static/arm64"]
        {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        for name in [
            "etc/container/Containerfile",
            "target/static/amd64/ztier",
            "target/static/arm64/ztier",
        ] {
            fs::copy(project().join(name), place.path().join(name)).unwrap();
        }
        fs::write(place.path().join("home/containers.conf"), ENGINE).unwrap();
        let storage = "[storage]\ndriver = \"vfs\"\n";
        fs::write(place.path().join("home/storage.conf"), storage).unwrap();
        ok(
            20,
            "chown",
            &["-R", &format!("{UNPRIVILEGED}:{UNPRIVILEGED}"), place.path().to_str().unwrap()],
        );
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(place.path().join("run"), mode).unwrap();
        place
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs a script as that user, for at most two minutes.
    fn run(&self, script: &str) -> Output {
        let home = self.path().join("home");
        Command::new("timeout")
            .args(["-k", "5", "120", "setpriv", "--reuid", UNPRIVILEGED, "--regid", UNPRIVILEGED])
            .args(["--clear-groups", "sh", "-euc", script])
            .current_dir(self.path())
            .env("CONTAINERS_CONF", home.join("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", home.join("storage.conf"))
            .env("XDG_RUNTIME_DIR", self.path().join("run"))
            .env("TMPDIR", home.join("tmp"))
            .env("HOME", home)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    #[track_caller]
    fn ok(&self, script: &str) -> String {
        let out = self.run(script);
        assert!(out.status.success(), "{script}: {:?}: {}", out.status, text(&out));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Repeats a script until it succeeds, for at most 20 s.
    #[track_caller]
    fn soon(&self, script: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            let out = self.run(script);
            if out.status.success() {
                return String::from_utf8(out.stdout).unwrap();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.ok(script)
    }

    /// Whether containers run here at all, by the engine's own runtime or by `runc`.
    fn runs_containers(&self) -> bool {
        self.ok(block("podman build"));
        let tried = self.run("podman run --rm ztier --version");
        if tried.status.success() {
            return true;
        }
        let conf = format!("{ENGINE}runtime = \"runc\"\n");
        fs::write(self.path().join("home/containers.conf"), conf).unwrap();
        let again = self.run("podman run --rm ztier --version");
        if !again.status.success() {
            println!("skipped: podman runs no container: {} {}", text(&tried), text(&again));
        }
        again.status.success()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Files of containers belong to users that the engine made.
        let left = self.run(
            "podman rm --all --force --time 1; podman unshare rm -rf home/.local; \
                             podman system migrate",
        );
        if !left.status.success() {
            println!("left by podman: {}", text(&left));
        }
    }
}

/// Builds both programs; `None` where the test is not asked for or cannot run.
fn built() -> Option<Place> {
    if std::env::var_os("ZTIER_TEST_STATIC").is_none_or(|asked| asked != "yes") {
        println!("skipped: building static programs takes minutes; ./test --static does it");
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to become another user");
        return None;
    }
    if missing(&["podman", "setpriv", "qemu-aarch64-static", "readelf"]) {
        return None;
    }
    let build = Command::new("sh")
        .args(["-euc", block("scripts/static")])
        .current_dir(project())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(build.status.success(), "{}", text(&build));
    Some(Place::new())
}

/// A program of another architecture is that one, and works.
fn other_architecture() {
    let program = project().join("target/static/arm64/ztier");
    let program = program.to_str().unwrap();
    let version = ok(60, "qemu-aarch64-static", &[program, "--version"]);
    assert!(version.contains("ztier"), "{version}");
    // e_machine of ELF: 183 is AArch64.
    assert_eq!(fs::read(program).unwrap()[18..20], [183, 0]);
}

/// Where the engine has put a volume.
fn volume(place: &Place, name: &str) -> PathBuf {
    let said = place.ok(&format!("podman volume inspect --format '{{{{.Mountpoint}}}}' {name}"));
    PathBuf::from(said.trim())
}

/// Serves memory without root; other processes use it by the socket that they share.
fn memory(place: &Place) {
    place.ok(block("podman run"));
    place.soon("podman exec scratch /ztier status --check scratch");
    let mut disk = Disk::open(&volume(place, "sockets").join("scratch.nbd"), "scratch");
    assert_eq!(disk.size, 1 << 30);
    let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n / 7 % 251) as u8).collect();
    disk.write(4096, &data);
    assert!(disk.read(4096, data.len()) == data);
    drop(disk);
    let said = place.ok(block("podman exec"));
    assert!(said.contains("scratch"), "{said}");
    let status = place.ok("podman inspect --format '{{.State.ExitCode}}' scratch");
    assert_eq!(status.trim(), "0");
}

/// A log outlives its container, also one that is killed.
fn log(place: &Place) {
    place.ok("mkdir log disk && truncate -s 64M disk/data.img && chmod 600 disk/data.img");
    let up = "podman run --detach --replace --name data --volume state:/var/lib/ztier \
              --volume ./log:/log --volume ./disk:/disk --volume sockets:/run/ztier ztier \
              up data --foreground --ram-limit 16M --log /log/data.log --log-size 64M \
              --backing /disk/data.img --export nbd";
    let socket = volume(place, "sockets").join("data.nbd");
    for (n, end) in ["kill", "kill", "stop --time 60"].into_iter().enumerate() {
        place.ok(up);
        place.soon("podman exec data /ztier status --check data");
        let mut disk = Disk::open(&socket, "data");
        for (earlier, at) in (0..n).zip((0..).step_by(1 << 16)) {
            assert_eq!(disk.read(at, 8192), [earlier as u8 + 1; 8192]);
        }
        disk.write(n as u64 * (1 << 16), &[n as u8 + 1; 8192]);
        disk.flush();
        // A client keeps the volume from being taken down.
        drop(disk);
        place.ok(&format!("podman {end} data"));
    }
    assert_eq!(place.ok("podman inspect --format '{{.State.ExitCode}}' data").trim(), "0");
}

#[test]
fn one_file_is_an_image_that_serves_without_root() {
    let Some(place) = built() else { return };
    other_architecture();
    let program = project().join("target/static/amd64/ztier");
    let needs = ok(20, "readelf", &["--program-headers", "--dynamic", program.to_str().unwrap()]);
    assert!(!needs.contains("INTERP") && !needs.contains("NEEDED"), "{needs}");
    if place.runs_containers() {
        memory(&place);
        log(&place);
    }
}
