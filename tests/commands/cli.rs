//! The program as users run it: every command of the real binary, over NBD, without root.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::sandbox::{Sandbox, eventually, finish};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

/// Data that compresses to about half: each 4 KiB block has noise and repeated bytes.
fn data(blocks: usize) -> Vec<u8> {
    let mut x = 1u64;
    let mut out = vec![0x5A; blocks * 4096];
    for block in out.chunks_exact_mut(4096) {
        for word in block[..2048].chunks_exact_mut(8) {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&x.to_le_bytes());
        }
    }
    out
}

fn up(sandbox: &Sandbox, name: &str) {
    sandbox.ztier(&["up", name, "--size", "64M", "--export", "nbd"]).ok();
}

fn connect(sandbox: &Sandbox, name: &str) -> Disk {
    Disk::open(&sandbox.run_dir().join(format!("{name}.nbd")), name)
}

#[test]
fn a_path_that_is_no_text_is_refused_by_name() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join(OsStr::from_bytes(b"disk\xff"));
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    for flag in ["--backing", "--spill", "--socket"] {
        let mut command = sandbox.command(&["up", "vol", "--export", "nbd"]);
        if flag != "--backing" {
            command.args(["--size", "64M"]);
        }
        let out = command.arg(flag).arg(&path).output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{err}");
        assert!(err.contains("disk") && err.contains("is not UTF-8; rename it"), "{err}");
    }
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn bad_input_is_refused_in_one_line_with_the_hint() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(60);
    for (args, parts) in [
        (&["up", "x", "--size", "0"][..], &["size 0", "at least 4096"][..]),
        (&["up", "x", "--size", "5000"], &["5000 is not a multiple of 4096", "4096 or 8192"]),
        (&["up", "x", "--size", "17T"], &["more than can be addressed", "16T"]),
        (&["up", "x", "--size", "3X"], &["unknown unit `X`", "K, M, G or T"]),
        (&["up", "x", "--size", "1001%"], &["1001%", "0 to 1000"]),
        (&["up", "x", "--size=-1"], &["not a size", "write it like"]),
        (&["up", "a/b", "--size", "1G"], &["contains '/'", "use letters"]),
        (&["up", "", "--size", "1G"], &["can't be empty", "use letters"]),
        (&["up", ".", "--size", "1G"], &["begin with a letter"]),
        (&["up", &long, "--size", "1G"], &["too long", "at most 48"]),
        (&["up", "a b", "--size", "1G"], &["contains ' '"]),
        (&["up", "x"], &["no --size", "add --size"]),
        (&["up", "x", "--size", "1G", "--algorithm", "lz5"], &["'lz5'", "'lz4'"]),
        (&["up", "x", "--size", "1G", "--export", "nbb"], &["'nbb'", "'nbd'"]),
        (&["up", "x", "--size", "1G", "--ram-limit", "4K"], &["below the minimum", "at least"]),
        (&["up", "x", "--size", "1G", "--ram-limit", "101%"], &["is more than", "give less"]),
        (&["up", "x", "--size", "1G", "--segment", "48K"], &["48K is not a power", "32K to 16M"]),
        (&["up", "x", "--size", "1G", "--segment", "16K"], &["16K is outside", "32K to 16M"]),
        (&["up", "x", "--size", "1G", "--segment", "32M"], &["32M is outside", "32K to 16M"]),
        (&["up", "x", "--size", "1G", "--threads", "0"], &["0 threads", "1 to 256"]),
        (&["up", "x", "--size", "1G", "--nbd-listen", "here"], &["not an address", "10809"]),
        (
            &["up", "x", "--size", "1G", "--export", "fuse", "--socket", "s"],
            &["make no sense", "--export nbd"],
        ),
        (&["up", "x", "--size", "1G", "--spyll", "/dev/sdb"], &["'--spyll'", "'--spill'"]),
        (&["upp", "x"], &["`upp`", "`up`"]),
        (&["set", "x", "ramlimit=1G"], &["unknown key `ramlimit`", "`ram-limit`"]),
        (&["set", "x", "size"], &["not KEY=VALUE"]),
        (&["stats", "x", "--format", "zramm"], &["'zramm'", "'zram'"]),
        (&["estimate", "/dev/null"], &["neither file, directory nor block device"]),
    ] {
        let error = sandbox.ztier(args).refused(2, parts);
        eprintln!("{args:?}\n    {error}");
    }
    assert_eq!(sandbox.files(), [""; 0], "something was made");
}

#[test]
fn a_file_with_a_mistake_names_its_line_and_the_nearest_key() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.config_dir()).unwrap();
    let file = sandbox.config_dir().join("data.toml");
    fs::write(&file, "size = \"64M\"\nalgoritm = \"lz4\"\n").unwrap();
    sandbox
        .ztier(&["up", "data"])
        .refused(2, &["data.toml:2: unknown key `algoritm`", "`algorithm`"]);
    fs::write(&file, "size = \"64M\"\nalgorithm = \"lz5\"\n").unwrap();
    sandbox.ztier(&["up", "data"]).refused(2, &["data.toml:2: unknown value `lz5`", "`lz4`"]);
    fs::write(&file, "size = 5000\n").unwrap();
    sandbox.ztier(&["up", "data"]).refused(2, &["not a multiple of 4096"]);
    sandbox.ztier(&["up", "dat"]).refused(2, &["did you mean `data`?"]);
}

#[test]
fn a_volume_from_up_to_down() {
    let sandbox = Sandbox::new();
    let started = Instant::now();
    let done = sandbox.ztier(&["up", "vol", "--size", "64M", "--export", "nbd"]);
    eprintln!("up took {:?}", started.elapsed());
    let endpoint = done.ok();
    let socket = sandbox.run_dir().join("vol.nbd");
    assert_eq!(endpoint, format!("nbd+unix:///vol?socket={}\n", socket.display()));

    // The volume is usable at once, and reads return what was written.
    let mut client = connect(&sandbox, "vol");
    assert_eq!(client.size, 64 << 20);
    let data = data(100);
    client.write(4096, &data);
    assert_eq!(client.read(4096, data.len()), data);

    sandbox
        .ztier(&["up", "vol", "--size", "64M", "--export", "nbd"])
        .refused(4, &["`vol` is already up", "ztier down vol"]);

    let status = sandbox.status("vol");
    assert_eq!(status["name"], "vol");
    assert_eq!(status["size_bytes"], 64 << 20);
    assert_eq!(status["stats"]["blocks_stored"], 100);
    assert!(status["holders"][0].as_str().unwrap().contains("NBD"), "{status}");
    let text = sandbox.ztier(&["status"]).ok();
    assert!(
        text.contains("400 KiB (") && text.contains("`ztier status vol` says by what"),
        "{text}"
    );
    let text = sandbox.ztier(&["status", "vol"]).ok();
    assert!(text.contains("400 KiB (") && text.contains("NBD"), "{text}");
    let list = sandbox.ztier(&["list"]).ok();
    assert!(list.lines().nth(1).unwrap().starts_with("vol   ok     ram   64 MiB "), "{list}");

    let stats = sandbox.ztier(&["stats", "vol", "--format", "json"]).json();
    assert_eq!(stats["write"]["requests"], 1);
    assert_eq!(stats["orig_data_bytes"], 409_600);
    let config = sandbox.ztier(&["stats", "vol", "--format", "zramconfig"]).ok();
    assert!(config.contains("PagesStored:         100\n"), "{config}");
    let swap = sandbox.ztier(&["stats", "vol", "--format", "ramzswap"]).ok();
    assert!(swap.starts_with("DiskSize:\t   65536 kB\nMemLimit:\t"), "{swap}");
    let zram = sandbox.ztier(&["stats", "vol", "--format", "zram"]).ok();
    let columns: Vec<_> = zram.lines().map(|line| line.split_whitespace().count()).collect();
    assert_eq!(columns, [9, 4, 3]);
    assert!(sandbox.ztier(&["stats", "vol"]).ok().contains("blocks stored"));

    // In use: refused. Released, but with data: refused. Discarded: gone without a trace.
    sandbox.ztier(&["down", "vol", "--discard"]).refused(4, &["`vol` is in use", "NBD", "--force"]);
    drop(client);
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    sandbox.ztier(&["down", "vol"]).refused(5, &["400 KiB", "nowhere else", "--discard"]);
    assert_eq!(connect(&sandbox, "vol").read(4096, data.len()), data);
    eventually("the client is gone", || sandbox.status("vol")["holders"][0].is_null());
    assert_eq!(sandbox.ztier(&["down", "vol", "--discard"]).ok(), "vol is down\n");
    assert_eq!(sandbox.files(), [""; 0]);
    assert_eq!(sandbox.ztier(&["list"]).ok().lines().count(), 1);
}

#[test]
fn force_takes_the_device_away_and_an_empty_volume_needs_no_discard() {
    let sandbox = Sandbox::new();
    up(&sandbox, "vol");
    let mut client = connect(&sandbox, "vol");
    assert!(!client.is_closed());
    sandbox.ztier(&["down", "vol", "--force"]).ok();
    assert!(client.is_closed());
    assert_eq!(sandbox.files(), [""; 0]);
    up(&sandbox, "vol");
    sandbox.ztier(&["down", "vol"]).ok();
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn set_grows_and_never_shrinks() {
    let sandbox = Sandbox::new();
    up(&sandbox, "vol");
    let out = sandbox.ztier(&["set", "vol", "size=128M", "ram-limit=96M"]).ok();
    assert_eq!(out, "vol: size=128M ram-limit=96M recompress=idle\n");
    assert_eq!(connect(&sandbox, "vol").size, 128 << 20);
    sandbox
        .ztier(&["set", "vol", "size=64M"])
        .refused(2, &["below the present 128M", "never shrink"]);
    sandbox.ztier(&["set", "vol", "size=5000"]).refused(2, &["not a multiple of 4096"]);
    sandbox.ztier(&["set", "vol", "ram-limit=4K"]).refused(2, &["below the minimum", "at least"]);
    // A change that is refused in one part is refused as a whole.
    sandbox.ztier(&["set", "vol", "ram-limit=90M", "size=64M"]).refused(2, &["never shrink"]);
    let status = sandbox.status("vol");
    assert_eq!(status["size_bytes"], 128 << 20);
    assert_eq!(status["ram_limit_bytes"], 96 << 20);
    assert_eq!(status["stats"]["disk_size_bytes"], 128 << 20);
}

#[test]
fn recompression_is_done_when_it_is_asked_for() {
    let sandbox = Sandbox::new();
    up(&sandbox, "vol");
    // The same bytes four times, which compress only together.
    let blocks = data(256);
    let quads: Vec<u8> = blocks.chunks_exact(4096).flat_map(|block| block.repeat(4)).collect();
    let mut disk = connect(&sandbox, "vol");
    for (at, part) in quads.chunks(64 << 10).enumerate() {
        disk.write(at as u64 * (64 << 10), part);
    }
    let before = sandbox.status("vol")["stats"]["compr_data_bytes"].as_u64().unwrap();
    let out = sandbox.ztier(&["set", "vol", "recompress=now"]).ok();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("vol: size=64M ram-limit=") && lines[0].ends_with("=idle"));
    assert!(lines[1].starts_with("vol: recompressed ") && lines[1].contains(" in clusters as "));
    let status = sandbox.status("vol");
    let after = status["stats"]["compr_data_bytes"].as_u64().unwrap();
    assert!(after * 2 < before, "{after} of {before}");
    assert_eq!(status["stats"]["recompressing"], false);
    assert!(status["stats"]["blocks_clustered"].as_u64().unwrap() > 400);
    for (at, part) in quads.chunks(64 << 10).enumerate() {
        assert!(disk.read(at as u64 * (64 << 10), part.len()) == part);
    }
    for (change, words) in [
        ("recompress=soon", "`soon` is none of now, idle and off"),
        ("recompress=", "`` is none of now, idle and off"),
        ("recompres=now", "did you mean `recompress`?"),
    ] {
        sandbox.ztier(&["set", "vol", change]).refused(2, &[words]);
    }
    let out = sandbox.ztier(&["set", "vol", "recompress=off"]).ok();
    assert!(out.starts_with("vol: size=64M ") && out.ends_with("recompress=off\n"), "{out}");
    assert_eq!(sandbox.status("vol")["recompress"], "off");
    assert!(sandbox.ztier(&["status", "vol"]).ok().contains("recompress"));
    sandbox
        .ztier(&["up", "x", "--size", "1G", "--recompress", "now"])
        .refused(2, &["'now'", "idle, off"]);
}

#[test]
fn unknown_names_get_a_suggestion() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["down", "scratch"]).refused(3, &["no volume `scratch` is up", "ztier up"]);
    up(&sandbox, "scratch");
    for command in ["down", "status", "stats"] {
        sandbox.ztier(&[command, "scrach"]).refused(3, &["did you mean `scratch`?"]);
    }
    sandbox.ztier(&["set", "scrach", "size=1G"]).refused(3, &["did you mean `scratch`?"]);
    sandbox.ztier(&["down", "a/b"]).refused(2, &["contains '/'"]);
}

#[test]
fn saved_settings_come_back() {
    let sandbox = Sandbox::new();
    let socket = sandbox.path().join("my.nbd");
    let args = ["up", "vol", "--size", "64M", "--ram-limit", "48M", "--export", "nbd", "--save"];
    let shown = socket.display().to_string();
    sandbox.ztier(&[&args[..], &["--socket", &shown, "--algorithm", "zstd"]].concat()).ok();
    sandbox.ztier(&["down", "vol"]).ok();
    let file = fs::read_to_string(sandbox.config_dir().join("vol.toml")).unwrap();
    assert!(file.contains("size = \"64M\"\nram-limit = \"48M\"\nalgorithm = \"zstd\"\n"), "{file}");

    sandbox.ztier(&["up", "vol", "--ram-limit", "32M"]).ok(); // a flag wins over the file
    let status = sandbox.status("vol");
    assert_eq!(status["algorithm"], "zstd");
    assert_eq!(status["ram_limit_bytes"], 32 << 20);
    assert_eq!(Disk::open(&socket, "vol").size, 64 << 20);
}

#[test]
fn a_dry_run_makes_nothing() {
    let sandbox = Sandbox::new();
    let args = ["up", "vol", "--size", "64M", "--export", "nbd", "--save", "--dry-run"];
    let text = sandbox.ztier(&args).ok();
    for part in ["64 MiB", "vol.nbd", "vol.sock", "vol.toml", "would overwrite  nothing", "nowhere"]
    {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
    let json = sandbox.ztier(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(json["durable"], false);
    assert_eq!(json["plan"]["size_bytes"], 64 << 20);
    assert_eq!(fs::read_dir(sandbox.path()).unwrap().count(), 0);
}

#[test]
fn up_as_json() {
    let sandbox = Sandbox::new();
    let args = ["up", "vol", "--size", "64M", "--nbd-listen", "0", "--json"];
    let json = sandbox.ztier(&args).json();
    assert_eq!(json["export"], "nbd");
    assert_eq!(json["export_reason"], "an NBD address was given");
    let tcp = json["endpoints"][1].as_str().unwrap();
    assert!(tcp.starts_with("nbd://127.0.0.1:"), "{tcp}");
}

#[test]
fn help_manual_and_completions() {
    let sandbox = Sandbox::new();
    let help = sandbox.ztier(&["--help"]).ok();
    for command in
        ["up", "down", "list", "status", "top", "metrics", "set", "doctor", "advise", "estimate"]
    {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is missing in {help}");
        sandbox.ztier(&[command, "--help"]).ok();
    }
    assert!(!help.contains("\n  daemon"), "{help}");
    assert_eq!(sandbox.ztier(&[]).status, 2);
    let short = sandbox.ztier(&["-V"]).ok();
    assert_eq!(short, format!("ztier {}\n", env!("CARGO_PKG_VERSION")));
    let version = sandbox.ztier(&["--version"]).ok();
    assert!(version.starts_with(short.trim_end()) && version.contains("\nfeatures: "), "{version}");
    assert!(sandbox.ztier(&["man"]).ok().contains(".TH ztier 1"));
    let pages = sandbox.path().join("man");
    sandbox.ztier(&["man", &pages.display().to_string()]).ok();
    let page = fs::read_to_string(pages.join("ztier-up.1")).unwrap();
    assert!(page.contains("ram\\-limit"), "{page}");
    let pairs = [
        ("ztier-top.1", "interval"),
        ("ztier-metrics.1", "listen"),
        (
            "ztier.toml.5",
            "serve reads of data written back. Values: percent, 0 to 50. Default: 25.",
        ),
    ];
    for (page, part) in pairs {
        assert!(fs::read_to_string(pages.join(page)).unwrap().contains(part), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.ztier(&["completions", shell]).ok();
        assert!(["estimate", "top", "metrics"].iter().all(|word| script.contains(word)));
    }
}

/// What bash offers after the last of `words`, which may be empty.
fn completed(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let script = sandbox.path().join("ztier.bash");
    fs::write(&script, sandbox.ztier(&["completions", "bash"]).ok()).unwrap();
    let program = env!("CARGO_BIN_EXE_ztier");
    let asking = r#"
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _ztier "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    // A command of the sandbox, for its directories; bash gets them by the environment.
    let like = sandbox.command(&[]);
    let mut bash = std::process::Command::new("bash");
    bash.args(["--norc", "-c", asking, "bash"]).arg(script).arg(program).args(words);
    bash.envs(like.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let out = bash.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_names_of_volumes() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ztier(&["names"]).ok(), "");
    up(&sandbox, "scratch");
    fs::create_dir_all(sandbox.config_dir()).unwrap();
    for name in ["scratch", "saved"] {
        fs::write(sandbox.config_dir().join(format!("{name}.toml")), "size = \"64M\"\n").unwrap();
    }
    for command in ["down", "status", "set", "swapon", "accept-loss", "restart"] {
        assert_eq!(completed(&sandbox, &[command, "s"]), ["scratch"], "{command}");
    }
    assert_eq!(completed(&sandbox, &["down", "--force", "s"]), ["scratch"]);
    assert_eq!(completed(&sandbox, &["up", "s"]), ["saved"]);
    assert_eq!(completed(&sandbox, &["estimate", "s"]), [""]);
    assert_eq!(completed(&sandbox, &["help", "dow"]), ["down"]);
    assert_eq!(completed(&sandbox, &["keep"]), [""], "a hidden command");
}

#[test]
fn doctor_says_what_works() {
    let sandbox = Sandbox::new();
    let text = sandbox.ztier(&["doctor"]).looked();
    assert!(text.contains("export nbd") && text.contains("--export auto takes"), "{text}");
    let report = sandbox.ztier(&["doctor", "--json"]).json();
    for check in report["checks"].as_array().unwrap() {
        let works = check["works"].as_bool().unwrap();
        assert_eq!(works, check["mend"] == "", "works or says how: {check}");
    }
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn estimate_agrees_with_what_a_volume_takes() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("data");
    let bytes = data(2000);
    fs::write(&file, &bytes).unwrap();
    let path = file.display().to_string();
    let report = sandbox.ztier(&["estimate", &path, "--json"]).json();
    assert_eq!(report["sampled_blocks"], 2000);
    let lz4 = &report["algorithms"][0];
    assert_eq!(lz4["algorithm"], "lz4");
    let predicted = lz4["memory_bytes"].as_f64().unwrap();

    up(&sandbox, "vol");
    connect(&sandbox, "vol").write(0, &bytes);
    let stats = &sandbox.status("vol")["stats"];
    let number = |key: &str| stats[key].as_f64().unwrap();
    let taken = number("compr_data_bytes") + number("record_headers_bytes") + 2000.0 * 8.0;
    assert!((predicted / taken - 1.0).abs() < 0.01, "{predicted} {taken}");

    assert_eq!((&lz4["ratio_low"], &lz4["ratio_high"]), (&lz4["ratio"], &lz4["ratio"]));
    let whole = sandbox.ztier(&["estimate", &path, "--all", "--json"]).json();
    assert_eq!(whole["algorithms"], report["algorithms"]);

    let text = sandbox.ztier(&["estimate", &path, "--blocks", "100"]).ok();
    assert!(text.contains("100 blocks of 4 KiB") && text.contains("zstd"), "{text}");
    let few = sandbox.ztier(&["estimate", &path, "--blocks", "100", "--json"]).json();
    let range = |key: &str| few["algorithms"][0][key].as_f64().unwrap();
    let ratio = lz4["ratio"].as_f64().unwrap();
    assert!(range("ratio_low") < ratio && ratio < range("ratio_high"), "{few} {ratio}");
    sandbox.ztier(&["estimate", &path, "--all", "--blocks", "9"]).refused(2, &["--all"]);
    sandbox.ztier(&["estimate", "/nonexistent"]).refused(1, &["/nonexistent"]);
}

#[test]
fn a_run_directory_of_another_user_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.run_dir()).unwrap();
    // As if another user had made the file.
    fs::write(sandbox.run_dir().join("vol.json"), "{}").unwrap();
    fs::set_permissions(sandbox.run_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let args = ["up", "vol", "--size", "64M", "--export", "nbd"];
    sandbox.ztier(&args).refused(1, &["writable for others", "ZTIER_RUN_DIR"]);
    let mut command = sandbox.command(&args);
    command.env("ZTIER_RUN_DIR", "relative");
    finish(command).refused(2, &["ZTIER_RUN_DIR", "absolute"]);
}
