//! What scripts, cron and configuration management use: commands that may run twice, quiet checks,
//! and JSON from commands that change something.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::sandbox::{Sandbox, eventually};
use std::fs::{self, File};

const UP: [&str; 6] = ["up", "vol", "--size", "64M", "--export", "nbd"];

fn ensure<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&UP[..], &["--ensure"], more].concat()
}

#[test]
fn a_volume_that_is_up_as_asked_is_left_alone() {
    let sandbox = Sandbox::new();
    let socket = sandbox.run_dir().join("vol.nbd").display().to_string();
    let asked = ["--ram-limit", "48M", "--algorithm", "zstd", "--socket", &socket, "--json"];
    let first = sandbox.ztier(&ensure(&asked)).json();
    assert_eq!(first["changed"], true);
    let again = sandbox.ztier(&ensure(&asked)).json();
    assert_eq!(again["changed"], false);
    for key in ["name", "endpoints", "pid", "export", "size_bytes", "ram_limit_bytes", "durable"] {
        assert_eq!(again[key], first[key], "{key}");
    }
    // What is not given is not compared; the same with a plan as with the text.
    let done = sandbox.ztier(&ensure(&[]));
    assert_eq!(done.err, "vol: is up with these settings already\n");
    assert_eq!(done.ok(), format!("nbd+unix:///vol?socket={socket}\n"));
    sandbox.ztier(&ensure(&["--dry-run"])).ok();
    // Without --ensure it is an error as before.
    sandbox.ztier(&UP).refused(4, &["`vol` is already up"]);
    sandbox.ztier(&ensure(&["--foreground"])).refused(2, &["--foreground"]);
}

#[test]
fn other_settings_are_named_and_nothing_is_changed() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&ensure(&["--ram-limit", "48M"])).ok();
    let before = sandbox.status("vol");
    let asked = ["up", "vol", "--ensure", "--size", "128M", "--ram-limit", "auto"];
    let error = sandbox.ztier(&asked).refused(7, &["size is 64M (asked: 128M)"]);
    assert!(error.contains(", ram-limit is 48M (asked: auto); "), "{error}");
    assert!(error.ends_with("; `ztier set vol size=128M ram-limit=auto`\n"), "{error}");
    let slow = sandbox.path().join("slow");
    File::create(&slow).unwrap().set_len(64 << 20).unwrap();
    let slow = slow.display().to_string();
    for (args, part) in [
        (&["--size", "32M"][..], "size is 64M (asked: 32M)"),
        (&["--backing", &slow], "backing is none (asked: "),
        (&["--size", "64M", "--algorithm", "zstd"], "algorithm is lz4 (asked: zstd)"),
        (&["--size", "64M", "--nbd-listen", "0"], "nbd-listen is none (asked: 127.0.0.1:0)"),
    ] {
        let args = [&["up", "vol", "--ensure"], args].concat();
        sandbox.ztier(&args).refused(7, &[part, "after `ztier down vol`"]);
    }
    let done = sandbox.ztier(&ensure(&["--threads", "77", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(json["changed"], false);
    assert_eq!(json["differs"][0]["key"], "threads");
    assert_eq!(json["differs"][0]["asked"], "77");
    done.refused(7, &["threads is "]);
    let after = sandbox.status("vol");
    for key in ["pid", "size_bytes", "ram_limit_bytes", "algorithm", "threads", "export"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    // What `set` did counts.
    sandbox.ztier(&["set", "vol", "ram-limit=40M"]).ok();
    sandbox.ztier(&ensure(&["--ram-limit", "48M"])).refused(7, &["ram-limit is 40M (asked: 48M)"]);
    sandbox.ztier(&ensure(&["--ram-limit", "40M"])).ok();
}

#[test]
fn a_file_and_a_log_are_compared_and_a_dead_daemon_is_taken_over() {
    let sandbox = Sandbox::new();
    let place = |name: &str| sandbox.path().join(name).display().to_string();
    File::create(place("slow")).unwrap().set_len(64 << 20).unwrap();
    let drives = ["--backing", &place("slow"), "--log", &place("fast"), "--log-size", "64M"];
    let more = ["--export", "nbd", "--save", "--ensure"];
    sandbox.ztier(&[&["up", "vol"], &drives[..], &more].concat()).ok();
    let pid = sandbox.pid("vol");
    sandbox.ztier(&["up", "vol", "--ensure"]).ok();
    let alone = ["up", "vol", "--ensure", "--backing", &place("slow")];
    sandbox.ztier(&alone).refused(7, &["log is ", "/fast (asked: none)"]);
    let file = sandbox.config_dir().join("vol.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.clone() + "writeback-idle = 700\n").unwrap();
    sandbox
        .ztier(&["up", "vol", "--ensure"])
        .refused(7, &["writeback-idle is 500 (asked: 700)", "`ztier set vol writeback-idle=700`"]);
    fs::write(&file, text).unwrap();
    assert_eq!(sandbox.pid("vol"), pid);
    sandbox.kill("vol");
    let json = sandbox.ztier(&["up", "vol", "--ensure", "--json"]).json();
    assert_eq!(json["changed"], true);
    eventually("it is served", || sandbox.status("vol")["pid"] == json["pid"]);
}

#[test]
fn a_volume_that_is_not_there_can_go_down() {
    let sandbox = Sandbox::new();
    let down = ["down", "vol", "--if-exists"];
    // Without a run directory, and with one.
    for _ in 0..2 {
        sandbox.ztier(&["down", "vol"]).refused(3, &["no volume `vol` is up"]);
        let done = sandbox.ztier(&down);
        assert!(done.err.starts_with("no volume `vol` is up"), "{done:?}");
        assert_eq!(done.ok(), "");
        let json = sandbox.ztier(&[&down[..], &["--json"]].concat()).json();
        assert_eq!(json, serde_json::json!({"name": "vol", "changed": false}));
        sandbox.ztier(&UP).ok();
        assert_eq!(sandbox.ztier(&down).ok(), "vol is down\n");
        assert_eq!(sandbox.files(), [""; 0]);
    }
    sandbox.ztier(&["down", "a/b", "--if-exists"]).refused(2, &["contains '/'"]);
    // What would lose data is refused all the same, and a dead daemon's volume exists.
    sandbox.ztier(&UP).ok();
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol").write(0, &[7; 4096]);
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    sandbox.ztier(&down).refused(5, &["nowhere else"]);
    sandbox.kill("vol");
    sandbox.ztier(&down).refused(5, &["what it had in memory is kept"]);
    let json = sandbox.ztier(&[&down[..], &["--discard", "--json"]].concat()).json();
    assert_eq!(json["changed"], true);
    assert!(json["removed"].as_array().unwrap().contains(&"the memory that was kept".into()));
}

#[test]
fn a_check_is_quiet_until_something_is_wrong() {
    let sandbox = Sandbox::new();
    let quiet = |args: &[&str]| {
        let done = sandbox.ztier(&[&["status", "--check"], args].concat());
        assert_eq!((done.status, &*done.out, &*done.err), (0, "", ""), "{args:?}");
    };
    quiet(&[]);
    for name in ["one", "two", "three"] {
        sandbox.ztier(&["up", name, "--size", "64M", "--export", "nbd"]).ok();
    }
    quiet(&[]);
    quiet(&["two", "one"]);
    sandbox.ztier(&["status", "--check", "five"]).refused(3, &["no volume `five` is up"]);
    sandbox.ztier(&["status", "--check", "a/b"]).refused(2, &["contains '/'"]);
    sandbox.kill("two");
    sandbox.ztier(&["status", "--check"]).refused(6, &["the daemon of volume `two` is gone"]);
    quiet(&["one", "three"]);
    sandbox.ztier(&["down", "three"]).ok();
    let done = sandbox.ztier(&["status", "--check", "one", "two", "three"]);
    let lines: Vec<&str> = done.err.lines().collect();
    assert!(lines[0].contains("no volume `three` is up"), "{done:?}");
    assert!(lines[1].contains("the daemon of volume `two` is gone"), "{done:?}");
    assert_eq!((done.status, &*done.out, lines.len()), (6, "", 2));
    // Several names without --check: those volumes, as without a name.
    sandbox.ztier(&["up", "two", "--size", "64M", "--export", "nbd"]).ok();
    let both = sandbox.ztier(&["status", "two", "one", "--json"]).json();
    assert_eq!(both.as_array().unwrap().len(), 2);
    sandbox.ztier(&["status", "two", "three"]).refused(3, &["no volume `three` is up"]);
}

#[test]
fn a_volume_that_is_filling_is_a_trouble_of_a_check_alone() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&[&UP[..], &["--ram-limit", "16M", "--segment", "32K"]].concat()).ok();
    let mut noise = 1u64;
    let data: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        noise.to_le_bytes()
    })
    .take(1 << 17)
    .flatten()
    .collect();
    let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
    for at in 0..32 {
        if sandbox.status("vol")["stats"]["health"] == "filling" {
            break;
        }
        disk.write(at << 19, &data[..512 << 10]);
    }
    assert_eq!(sandbox.status("vol")["stats"]["health"], "filling");
    assert_eq!(sandbox.ztier(&["status", "vol"]).status, 0);
    sandbox.ztier(&["status", "--check"]).refused(6, &["volume `vol`: ", "there is room for"]);
}

#[test]
fn what_changes_something_says_as_json_whether_it_did() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&UP).ok();
    let set =
        |changes: &[&str]| sandbox.ztier(&[&["set", "vol", "--json"], changes].concat()).json();
    let json = set(&["ram-limit=48M"]);
    assert_eq!(json["changed"], true);
    let settings = serde_json::json!({"size": "64M", "ram-limit": "48M", "recompress": "idle"});
    assert_eq!(json["settings"], settings);
    assert_eq!(set(&["ram-limit=48M"])["changed"], false);
    let json = set(&["ram-limit=auto", "ram-max=60M"]);
    assert_eq!((&json["changed"], &json["settings"]["ram-max"]), (&true.into(), &"60M".into()));
    assert_eq!(json["recompressed"], serde_json::Value::Null);
    let json = set(&["recompress=now"]);
    assert_eq!((&json["changed"], &json["recompressed"]["bytes"]), (&false.into(), &0.into()));
    let json = sandbox.ztier(&["down", "vol", "--json"]).json();
    assert_eq!((&json["name"], &json["changed"]), (&"vol".into(), &true.into()));
    assert!(json["left"].is_null() && json["loss"].is_null(), "{json}");

    // With a log: what it alone has is an object, as in the protocol.
    let place = |name: &str| sandbox.path().join(name).display().to_string();
    File::create(place("slow")).unwrap().set_len(64 << 20).unwrap();
    let drives = ["--backing", &place("slow"), "--log", &place("fast"), "--log-size", "64M"];
    let up = [&["up", "vol", "--export", "nbd", "--writeback", "off"], &drives[..]].concat();
    sandbox.ztier(&up).ok();
    let write = || {
        Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol").write(0, &[7; 4096]);
        eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    };
    write();
    let json = sandbox.ztier(&["drain", "vol", "--json"]).json();
    assert_eq!(json, serde_json::json!({"name": "vol", "left_bytes": 0, "lost_blocks": 0}));
    write();
    let json = sandbox.ztier(&["down", "vol", "--json"]).json();
    assert_eq!(json["left"]["bytes"], 4096);
    assert_eq!(json["left"]["log"], place("fast"));
}
