//! Volumes that come up with the machine: `--enable`, `disable`, `forget`, `--all`, and the
//! generator. Here a script takes the place of `systemctl`, and runs the service as systemd would;
//! the package is tested with systemd itself.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::place::{BLOCK, content};
use crate::support::sandbox::{Done, Guard, Sandbox, eventually, finish, wait};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// Notes its arguments, says how systemd is, and has `start` run what the unit runs.
const SYSTEMCTL: &str = r#"#!/bin/sh
[ "$1" != --no-ask-password ] || shift
echo "$*" >> "$SYSTEMCTL_DIR/calls"
[ ! -e "$SYSTEMCTL_DIR/fails-$1" ] || { cat "$SYSTEMCTL_DIR/fails-$1" >&2; exit 1; }
case $1 in
    is-system-running) cat "$SYSTEMCTL_DIR/is" ;;
    start)
        name=${2#ztier@}
        name=${name%.service}
        ! grep -q '"foreground":true' "$ZTIER_RUN_DIR/$name.json" || exit 0
        "$ZTIER" up "$name" --foreground --wait 5 --adopt < /dev/null > "$SYSTEMCTL_DIR/out" 2>&1 &
        for _ in $(seq 200); do
            if grep -q "/$name" "$SYSTEMCTL_DIR/out"; then exit 0; fi
            kill -0 $! 2> /dev/null || exit 1
            sleep 0.05
        done
        exit 1
        ;;
esac
"#;

/// A sandbox in which systemd is in a state.
struct Service {
    sandbox: Sandbox,
}

impl Service {
    fn new(is: &str) -> Self {
        let sandbox = Sandbox::new();
        let script = sandbox.path().join("systemctl");
        fs::write(&script, SYSTEMCTL).unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        fs::write(sandbox.path().join("is"), is).unwrap();
        Self { sandbox }
    }

    fn ztier(&self, args: &[&str]) -> Done {
        let mut command = self.sandbox.command(args);
        let path = std::env::var("PATH").unwrap();
        command
            .env("PATH", format!("{}:{path}", self.sandbox.path().display()))
            .env("SYSTEMCTL_DIR", self.sandbox.path())
            .env("ZTIER", env!("CARGO_BIN_EXE_ztier"));
        finish(command)
    }

    /// The calls of `systemctl` since the last look, without questions.
    fn calls(&self) -> Vec<String> {
        let file = self.sandbox.path().join("calls");
        let text = fs::read_to_string(&file).unwrap_or_default();
        fs::write(file, "").unwrap();
        let lines = text.lines().filter(|line| *line != "is-system-running");
        lines.map(str::to_owned).collect()
    }

    fn saved(&self, name: &str) -> String {
        let file = self.sandbox.config_dir().join(format!("{name}.toml"));
        fs::read_to_string(file).unwrap_or_default()
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.sandbox.config_dir()).unwrap();
        fs::write(self.sandbox.config_dir().join(format!("{name}.toml")), text).unwrap();
    }

    fn disk(&self, name: &str) -> Disk {
        Disk::open(&self.sandbox.run_dir().join(format!("{name}.nbd")), name)
    }

    /// Whether the daemon of a volume is what the service runs.
    fn is_service(&self, name: &str) -> bool {
        let pid = self.sandbox.pid(name).as_raw_nonzero();
        fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains("--adopt")
    }
}

#[test]
fn one_step_makes_a_volume_that_comes_up_with_the_machine() {
    let service = Service::new("running");
    let up = ["up", "vol", "--size", "64M", "--export", "nbd", "--enable"];
    let done = service.ztier(&up);
    assert!(
        done.err.contains("comes up with the machine, and is now ztier@vol.service"),
        "{done:?}"
    );
    done.ok();
    assert_eq!(service.calls(), ["enable ztier@vol.service", "start ztier@vol.service"]);
    assert_eq!(service.saved("vol"), "size = \"64M\"\nexport = \"nbd\"\n");
    assert!(service.is_service("vol"));
    let pid = service.sandbox.pid("vol");

    // Again, nothing changes but what systemd does.
    let again = service.ztier(&[&up[..], &["--json"]].concat());
    assert_eq!(again.json()["changed"], false);
    assert_eq!(service.sandbox.pid("vol"), pid);

    let done = service.ztier(&["disable", "vol"]).ok();
    assert!(done.contains("vol does not come up with the machine (boot = false in "), "{done}");
    assert_eq!(service.saved("vol"), "size = \"64M\"\nexport = \"nbd\"\nboot = false\n");
    assert_eq!(service.calls().last().unwrap(), "disable ztier@vol.service");
    assert_eq!(service.sandbox.pid("vol"), pid, "it stays up");
    // `--save` says nothing about boot.
    service.ztier(&["up", "vol", "--size", "64M", "--ensure", "--save"]).ok();
    assert_eq!(service.saved("vol"), "size = \"64M\"\nboot = false\n");
    service.ztier(&["up", "vol", "--enable"]).ok();
    assert_eq!(service.saved("vol"), "size = \"64M\"\n");

    service.disk("vol").write(0, &content(0, 1));
    service.ztier(&["forget", "vol"]).refused(5, &["exist nowhere else", "--discard"]);
    assert_eq!(service.saved("vol"), "size = \"64M\"\n");
    service.calls();
    let done = service.ztier(&["forget", "vol", "--discard"]).ok();
    assert!(done.contains("vol is forgotten: removed ") && done.contains("left nothing"), "{done}");
    assert_eq!(service.calls(), ["disable ztier@vol.service"]);
    assert_eq!(service.saved("vol"), "");
    service.ztier(&["forget", "vol"]).refused(3, &["no volume `vol`"]);
    service.ztier(&["disable", "vol"]).refused(2, &["no configuration", "--save"]);
}

#[test]
fn a_service_goes_on_with_the_data_of_a_volume_that_is_up() {
    let service = Service::new("degraded");
    service.ztier(&["up", "my-disk", "--size", "64M", "--export", "nbd", "--threads", "3"]).ok();
    let mut disk = service.disk("my-disk");
    disk.write(BLOCK, &content(1, 1));
    drop(disk);
    let before = service.sandbox.pid("my-disk");
    let up = ["up", "my-disk", "--size", "64M", "--enable", "--json"];
    let done = service.ztier(&[&up[..], &["--threads", "4"]].concat());
    assert!(done.status == 7 && done.err.contains("threads is 3 (asked: 4)"), "{done:?}");
    assert_eq!((service.saved("my-disk"), service.calls()), (String::new(), vec![]));

    // The script takes no escaped names, as systemd does, so the start is refused.
    let done = service.ztier(&up[..5]);
    let what =
        "is up and comes up at the next boot, but `systemctl start ztier@my\\x2ddisk.service`";
    assert!(done.status == 1 && done.err.contains(what), "{done:?}");
    assert!(done.err.contains("journalctl -u"), "{done:?}");
    assert_eq!(service.sandbox.pid("my-disk"), before);
    service.ztier(&["down", "my-disk", "--discard"]).ok();

    service.ztier(&["up", "vol", "--size", "64M", "--export", "nbd"]).ok();
    let before = service.sandbox.pid("vol");
    let mut disk = service.disk("vol");
    disk.write(BLOCK, &content(1, 2));
    drop(disk);
    let done = service.ztier(&["up", "vol", "--size", "64M", "--enable", "--json"]).json();
    assert!(service.is_service("vol"));
    assert_ne!(service.sandbox.pid("vol"), before);
    assert_eq!(done["pid"], service.sandbox.pid("vol").as_raw_nonzero().get());
    assert!(service.disk("vol").read(BLOCK, BLOCK as usize) == content(1, 2));
    // What another supervisor has is not taken from it.
    let adopt = ["up", "vol", "--foreground", "--adopt"];
    service.ztier(&adopt).refused(4, &["is up in the foreground", "end that first"]);
    service.ztier(&["restart", "vol"]).ok();
    assert!(service.disk("vol").read(BLOCK, BLOCK as usize) == content(1, 2));
    service.ztier(&["down", "vol", "--discard"]).ok();
}

/// What a command does by means of another one is told on standard error.
#[test]
fn json_is_alone_on_standard_output() {
    let service = Service::new("running");
    let up = ["up", "vol", "--size", "64M", "--export", "nbd"];
    let forget = ["forget", "vol", "--discard", "--json"];
    service.ztier(&up).ok();
    let done = service.ztier(&forget);
    assert!(done.err.contains("vol is down"), "{done:?}");
    assert_eq!(done.json()["changed"], true);
    service.ztier(&up).ok();
    service.sandbox.kill("vol");
    let done = service.ztier(&forget);
    assert!(done.err.contains("vol: its daemon was gone; removed: "), "{done:?}");
    assert_eq!(done.json()["name"], "vol");

    // A service takes the volume over.
    service.ztier(&up).ok();
    let out = service.sandbox.path().join("adopted");
    let adopt = [&up[..], &["--foreground", "--adopt", "--json"]].concat();
    let mut command = service.sandbox.command(&adopt);
    command.stdout(fs::File::create(&out).unwrap()).stderr(Stdio::null());
    let mut child = Guard(command.spawn().unwrap());
    let printed = || serde_json::from_slice::<serde_json::Value>(&fs::read(&out).unwrap());
    eventually("it serves the volume", || printed().is_ok());
    assert_eq!(printed().unwrap()["pid"], child.0.id());
    service.ztier(&["down", "vol"]).ok();
    assert_eq!(wait(&mut child.0), 0);
}

#[test]
fn what_was_not_done_is_said() {
    let up = ["up", "vol", "--size", "64M", "--export", "nbd", "--enable"];
    let service = Service::new("offline");
    let plan = service.ztier(&[&up[..], &["--dry-run"]].concat()).ok();
    assert!(plan.contains("vol.toml, ztier@vol.service"), "{plan}");
    assert_eq!((service.saved("vol"), service.calls()), (String::new(), vec![]));
    let done = service.ztier(&up);
    assert!(
        done.err.contains("comes up at the next boot, as ztier@vol.service; until"),
        "{done:?}"
    );
    done.ok();
    assert_eq!(service.calls(), ["enable ztier@vol.service"]);
    assert!(!service.is_service("vol"));
    service.ztier(&["down", "vol"]).ok();

    let missing = "Failed to enable unit: Unit file ztier@vol.service does not exist.";
    fs::write(service.sandbox.path().join("fails-enable"), missing).unwrap();
    let done = service.ztier(&up);
    let parts = ["systemctl enable ztier@vol.service` failed: ", missing, "scripts/install"];
    assert!(done.status == 1 && parts.iter().all(|part| done.err.contains(part)), "{done:?}");
    service.ztier(&["forget", "vol"]).ok();

    // Without any systemctl.
    fs::remove_file(service.sandbox.path().join("systemctl")).unwrap();
    let mut command = service.sandbox.command(&up);
    command.env("PATH", service.sandbox.path());
    let done = finish(command);
    assert!(done.err.contains("saved, and not enabled: there is no systemctl"), "{done:?}");
    done.ok();
    let mut command = service.sandbox.command(&["forget", "vol"]);
    command.env("PATH", service.sandbox.path());
    finish(command).ok();
    assert_eq!((service.saved("vol"), service.sandbox.files()), (String::new(), vec![]));
}

#[test]
fn a_volume_with_a_log_is_drained_before_it_is_forgotten() {
    let service = Service::new("running");
    let place = |name: &str| service.sandbox.path().join(name).display().to_string();
    for (name, size) in [("slow", 64 << 20), ("fast", 16 << 20)] {
        fs::File::create(place(name)).unwrap().set_len(size).unwrap();
    }
    let (slow, fast) = (place("slow"), place("fast"));
    let up = ["up", "vol", "--backing", &slow, "--log", &fast, "--writeback", "off"];
    let up = [&up[..], &["--export", "nbd", "--enable"]].concat();
    let write = || {
        let mut disk = service.disk("vol");
        disk.write(BLOCK, &content(1, 3));
        disk.flush();
    };
    service.ztier(&up).ok();
    assert!(service.is_service("vol"));
    write();
    service.ztier(&["down", "vol"]).ok();
    // Down, or with a daemon that died, the log holds what the backing store lacks.
    let parts = ["may hold what", "`ztier up vol`", "what it held with --discard"];
    service.ztier(&["forget", "vol"]).refused(5, &parts);
    service.ztier(&["up", "vol"]).ok();
    service.sandbox.kill("vol");
    service.ztier(&["forget", "vol"]).refused(5, &parts);
    assert!(service.saved("vol").contains("log-uuid"));
    service.ztier(&["up", "vol"]).ok();
    let record = fs::read_dir(service.sandbox.state_dir()).unwrap().next().unwrap().unwrap().path();
    let done = service.ztier(&["forget", "vol"]).ok();
    let removed = format!("vol.toml, {}; left backing store {slow}, log {fast}", record.display());
    assert!(done.contains(&removed), "{done}");
    assert!(!record.exists());
    let stored = &fs::read(&slow).unwrap()[BLOCK as usize..2 * BLOCK as usize];
    assert!(stored == content(1, 3), "the backing store has everything");

    // Given up on request: the record stays, without which the store would be taken for whole.
    service.ztier(&[&up[..up.len() - 1], &["--save", "--wipe"]].concat()).ok();
    write();
    service.ztier(&["down", "vol"]).ok();
    let done = service.ztier(&["forget", "vol", "--discard", "--json"]).json();
    assert_eq!(done["left"][2]["what"], "record of what the log holds");
    assert!(record.exists());
}

#[test]
fn the_generator_wants_each_volume_with_a_sound_file() {
    let service = Service::new("running");
    for (name, text) in [
        ("a", "size = \"64M\"\n"),
        ("my-disk", "size = \"64M\"\nboot = true\n"),
        ("off", "size = \"64M\"\nboot = false\n"),
        ("bad", "size = \n"),
        ("odd", "size = \"64M\"\ncolour = 1\n"),
    ] {
        service.write(name, text);
    }
    fs::write(service.sandbox.config_dir().join("README"), "").unwrap();
    let dir = service.sandbox.path().join("normal");
    let normal = dir.to_str().unwrap();
    for _ in 0..2 {
        let mut command = service.sandbox.command(&["generator", normal, "/no/early", "/no/late"]);
        command.env_remove("SYSTEMD_SCOPE");
        let done = finish(command);
        assert_eq!((done.status, done.err.lines().count()), (0, 2), "{done:?}");
        for line in ["bad.toml:1: ", "odd.toml:2: unknown key `colour`"] {
            assert!(done.err.contains(line), "{done:?}");
        }
        let wants = dir.join("sysinit.target.wants");
        let mut names: Vec<_> = fs::read_dir(&wants)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["ztier@a.service", "ztier@my\\x2ddisk.service"]);
        let to = fs::read_link(wants.join(&names[0])).unwrap();
        assert_eq!(to.to_str(), Some("/usr/lib/systemd/system/ztier@.service"));
    }
    // A directory that can't be written, and none to read: nothing fails.
    let done = service.ztier(&["generator", "/proc/no"]);
    assert_eq!(done.status, 0, "{done:?}");
    fs::remove_dir_all(service.sandbox.config_dir()).unwrap();
    assert_eq!(service.ztier(&["generator", normal]).err, "");
}

#[test]
fn all_volumes_come_up_and_go_down() {
    let service = Service::new("running");
    let slow = service.sandbox.path().join("slow");
    fs::File::create(&slow).unwrap().set_len(64 << 20).unwrap();
    for (name, more) in [("a", ""), ("b", "threads = 3\n"), ("off", "boot = false\n")] {
        service.write(name, &format!("size = \"64M\"\nexport = \"nbd\"\n{more}"));
    }
    service.write("bad", "size = \n");
    service.ztier(&["up", "b"]).ok();
    let done = service.ztier(&["up", "--all"]);
    assert!(done.status == 2 && done.err.contains("bad.toml:1: "), "{done:?}");
    assert!(done.out.contains("/a.nbd") && !done.out.contains("/b.nbd"), "{done:?}");
    let names = || service.ztier(&["list", "-o", "name", "--no-headings"]).ok();
    assert_eq!(names().split_whitespace().collect::<Vec<_>>(), ["a", "b"]);
    service.ztier(&["up", "--all", "--size", "1M"]).refused(2, &["settings of its file"]);
    service.ztier(&["up", "x", "--all"]).refused(2, &["--all"]);
    service.ztier(&["up"]).refused(2, &["NAME"]);

    service.disk("a").write(0, &content(0, 1));
    service.ztier(&["down", "--all"]).refused(5, &["`a`", "exist nowhere else"]);
    assert_eq!(names().trim(), "a");
    service.ztier(&["down", "--all", "--discard"]).ok();
    assert_eq!(service.sandbox.files(), [""; 0]);
    service.ztier(&["down", "--all"]).ok();
}

#[test]
fn a_size_is_a_share_of_memory() {
    let service = Service::new("running");
    let up =
        |size: &str| service.ztier(&["up", "vol", "--size", size, "--export", "nbd", "--ensure"]);
    up("7%").ok();
    let size = service.sandbox.status("vol")["size_bytes"].as_u64().unwrap();
    let memory = ztier::config::machine::memory_bytes();
    assert_eq!(size, (memory as f64 / 100.0 * 7.0) as u64 / 4096 * 4096);
    up("7%").ok();
    up("8%").refused(7, &["size is ", "(asked: "]);
    service.ztier(&["set", "vol", "size=8%"]).ok();
    up("8%").ok();
    service.ztier(&["down", "vol"]).ok();
    up("0%").refused(2, &["outside 0 to 1000 %"]);
    up("1001%").refused(2, &["outside 0 to 1000 %"]);
    up("0.0000001%").refused(2, &["size 0 makes no device"]);
}
