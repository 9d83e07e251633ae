//! Files of a daemon belong to its user only, with any umask and in any directories.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::sandbox::{Done, Sandbox, finish};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `ztier` with a umask.
fn with_umask(sandbox: &Sandbox, umask: &str, args: &[&str]) -> Done {
    let ztier = sandbox.command(args);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("umask {umask}; exec \"$0\" \"$@\""));
    shell.arg(ztier.get_program()).args(ztier.get_args());
    for (key, value) in ztier.get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    finish(shell)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// `dir` and everything below it.
fn all_below(dir: PathBuf) -> Vec<PathBuf> {
    let mut found = vec![dir];
    let mut next = 0;
    while let Some(dir) = found.get(next).cloned() {
        next += 1;
        if fs::symlink_metadata(&dir).unwrap().is_dir() {
            found.extend(fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

/// Files with a mode other than 0600 (directories: 0700).
fn wide(sandbox: &Sandbox) -> Vec<String> {
    let dirs = [sandbox.run_dir(), sandbox.state_dir(), sandbox.config_dir()];
    let all = dirs.into_iter().flat_map(all_below);
    let modes = all.map(|path| {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        (mode(&path), wanted, path)
    });
    let wrong = modes.filter(|(mode, wanted, _)| mode != wanted);
    wrong.map(|(mode, _, path)| format!("{mode:o} {}", path.display())).collect()
}

fn file(sandbox: &Sandbox, name: &str) -> String {
    let path = sandbox.path().join(name);
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn no_umask_lets_others_read_what_a_daemon_writes() {
    for umask in ["000", "022", "077", "0177"] {
        let sandbox = Sandbox::new();
        let (log, backing) = (file(&sandbox, "log"), file(&sandbox, "backing"));
        let logged =
            ["up", "logged", "--log", &log, "--backing", &backing, "--export", "nbd", "--save"];
        let umasked = |args: &[&str]| with_umask(&sandbox, umask, args);
        // Directories need the owner's right to enter them, which 0177 removes at a plain `mkdir`.
        let umasked_or_usual = |args: &[&str]| {
            if umask == "0177" { sandbox.ztier(args) } else { umasked(args) }
        };
        umasked_or_usual(&logged).ok();
        umasked(&["up", "memory", "--size", "16M", "--export", "nbd"]).ok();
        // All tests share `/dev/ztier`.
        let fuse = sandbox.device_name("modes");
        let by_fuse = umasked(&["up", &fuse, "--size", "16M", "--export", "fuse"]);
        if by_fuse.status != 0 {
            println!("by FUSE, skipped: {}", by_fuse.err.trim());
        }
        let files = sandbox.files();
        for end in ["lock", "json", "sock", "keep", "log", "nbd"] {
            assert!(files.contains(&format!("memory.{end}")), "no {end} in {files:?}");
        }
        assert!(fs::read_dir(sandbox.state_dir()).unwrap().count() > 0);
        assert!(sandbox.config_dir().join("logged.toml").exists());
        assert_eq!(wide(&sandbox), [""; 0], "umask {umask}");
        for name in ["logged", "memory"] {
            umasked(&["restart", name]).ok();
        }
        assert_eq!(wide(&sandbox), [""; 0], "umask {umask}, after restart");
        // Made anew after their removal.
        for file in ["memory.lock", "memory.json", "memory.sock"] {
            fs::remove_file(sandbox.run_dir().join(file)).unwrap();
        }
        umasked(&["status", "memory"]).ok();
        assert!(sandbox.run_dir().join("memory.json").exists());
        assert_eq!(wide(&sandbox), [""; 0], "umask {umask}, made anew");
    }
}

#[test]
fn directories_of_this_user_that_others_can_read_are_narrowed() {
    let sandbox = Sandbox::new();
    for dir in [sandbox.run_dir(), sandbox.state_dir()] {
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    }
    let (log, backing) = (file(&sandbox, "log"), file(&sandbox, "backing"));
    sandbox.ztier(&["up", "v", "--log", &log, "--backing", &backing, "--export", "nbd"]).ok();
    assert_eq!((mode(&sandbox.run_dir()), mode(&sandbox.state_dir())), (0o700, 0o700));
}

#[test]
fn a_run_directory_of_others_is_refused() {
    let sandbox = Sandbox::new();
    let run = sandbox.run_dir();
    let up = || sandbox.ztier(&["up", "v", "--size", "16M", "--export", "nbd"]);
    let target = sandbox.path().join("target");
    fs::create_dir(&target).unwrap();
    symlink(&target, &run).unwrap();
    let leads = format!("is a symbolic link to {}", target.display());
    up().refused(1, &["run directory", &leads, "ZTIER_RUN_DIR"]);
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    fs::remove_file(&run).unwrap();

    fs::create_dir(&run).unwrap();
    fs::write(run.join("of another program"), "").unwrap();
    for (mode, why) in [(0o755, "holds files of others"), (0o777, "is writable for others")] {
        fs::set_permissions(&run, Permissions::from_mode(mode)).unwrap();
        up().refused(1, &["run directory", why, &format!("mode {mode:o}"), "ZTIER_RUN_DIR"]);
        assert_eq!(self::mode(&run), mode);
    }
    fs::remove_file(run.join("of another program")).unwrap();
    match chown(&run, Some(65534), None) {
        Err(e) => println!("another user's, skipped: {e}"),
        Ok(()) => drop(up().refused(1, &["belongs to user 65534", "ZTIER_RUN_DIR"])),
    }
}
