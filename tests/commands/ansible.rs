//! The play in docs/ansible.md: it changes what is to be changed, and nothing when it runs again.
//!
//! ansible-core comes from PyPI, once, into a virtual environment in `~/.cache/ztier/ansible`
//! (`ZTIER_ANSIBLE_CACHE` names another directory). Without network or python3-venv the test prints
//! `skipped:` and the reason.
#![allow(clippy::unwrap_used)]

use crate::support::sandbox::{Done, Sandbox, finish_within};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Limit on the time of a play; importing Ansible alone takes seconds of a busy processor.
const PLAY: Duration = Duration::from_secs(180);
/// Limit on the time of a download.
const FETCH: Duration = Duration::from_secs(300);

/// The interpreter of a virtual environment with ansible-core.
///
/// # Errors
/// Why there is none.
fn python() -> Result<PathBuf, String> {
    let cache = match std::env::var_os("ZTIER_ANSIBLE_CACHE") {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(std::env::var_os("HOME").ok_or("there is no HOME")?)
            .join(".cache/ztier/ansible"),
    };
    let python = cache.join("bin/python");
    if python.exists() {
        return Ok(python);
    }
    if !is_there("python3") {
        return Err("there is no python3".into());
    }
    let parent = cache.parent().ok_or("the cache has no directory")?;
    fs::create_dir_all(parent).map_err(|e| format!("cannot make {}: {e}", parent.display()))?;
    // Complete or not there: another run may look at the same time. Programs are started by the
    // interpreter, so the directory can be renamed.
    let new = tempfile::Builder::new()
        .prefix("ansible-")
        .tempdir_in(parent)
        .map_err(|e| format!("cannot make a directory in {}: {e}", parent.display()))?;
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(new.path()).stdin(Stdio::null());
    let mut install = Command::new(new.path().join("bin/python"));
    install.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet"]);
    install.args(["--retries", "1", "ansible-core>=2.15"]).stdin(Stdio::null());
    for (command, what) in [(venv, "python3 -m venv"), (install, "pip install ansible-core")] {
        let done = finish_within(command, FETCH);
        if done.status != 0 {
            let why = done.err.lines().chain(done.out.lines()).last().unwrap_or_default();
            return Err(format!("{what}: {why}"));
        }
    }
    if fs::rename(new.path(), &cache).is_ok() {
        let _ = new.keep(); // it has another name now
    }
    if python.exists() { Ok(python) } else { Err(format!("cannot make {}", cache.display())) }
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// The play of the document.
fn play() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ansible.md");
    let text = fs::read_to_string(file).unwrap();
    let block = text.split("```yaml\n").nth(1).expect("the document has a play");
    block.split("```").next().unwrap().to_owned()
}

/// Runs the play with `volumes` up and `gone` down.
fn run(sandbox: &Sandbox, python: &Path, volumes: &Value, gone: &Value) -> Done {
    let file = sandbox.path().join("play.yml");
    fs::write(&file, play()).unwrap();
    let mut command = sandbox.command(&[]);
    let with = json!({
        "ansible_become": false,
        "ansible_connection": "local",
        "ansible_python_interpreter": python,
        "ztier_config": sandbox.config_dir(),
        "ztier_volumes": volumes,
        "ztier_gone": gone,
    });
    let program = Path::new(command.get_program()).parent().unwrap().to_owned();
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([program].into_iter().chain(std::env::split_paths(&old)));
    let envs: Vec<_> = command
        .get_envs()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
        .collect();
    command = Command::new(python);
    let own = sandbox.path().join("ansible");
    // Instead of this machine's configuration.
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("ansible.cfg"), "").unwrap();
    command
        .args(["-m", "ansible", "playbook", "--inventory", "localhost,", "--extra-vars"])
        .arg(with.to_string())
        .arg(&file)
        .envs(envs)
        .env("PATH", path.unwrap())
        .env("LC_ALL", "C.UTF-8")
        .env("ANSIBLE_CONFIG", own.join("ansible.cfg"))
        .env("ANSIBLE_NOCOLOR", "1")
        .env("ANSIBLE_HOME", &own)
        .env("ANSIBLE_LOCAL_TEMP", own.join("local"))
        .env("ANSIBLE_REMOTE_TEMP", own.join("remote"))
        .stdin(Stdio::null());
    finish_within(command, PLAY)
}

/// How many tasks of the play have changed something, or failed.
fn count(done: &Done, what: &str) -> u32 {
    let recap = done.out.lines().rfind(|line| line.contains(" unreachable=")).unwrap_or_default();
    let count = recap.split_whitespace().find_map(|word| word.strip_prefix(what));
    count.and_then(|n| n.strip_prefix('=')?.parse().ok()).unwrap_or_else(|| panic!("{done:?}"))
}

#[test]
fn a_play_that_runs_again_changes_nothing() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => {
            eprintln!("skipped: no ansible-core here: {why}");
            return;
        }
    };
    let sandbox = Sandbox::new();
    let volumes = |limit: &str| json!({"scratch": {"size": "64M", "ram-limit": limit, "threads": 3, "export": "nbd"}});
    let run = |volumes: &Value, gone: &Value| run(&sandbox, &python, volumes, gone);
    // The directory, the file and the volume are new; there was nothing to be taken down.
    let first = run(&volumes("48M"), &json!(["old"]));
    assert_eq!((first.status, count(&first, "changed")), (0, 3), "{first:?}");
    let (pid, status) = (sandbox.pid("scratch"), sandbox.status("scratch"));
    assert_eq!((&status["threads"], &status["ram_limit_bytes"]), (&3.into(), &(48 << 20).into()));
    let again = run(&volumes("48M"), &json!(["old"]));
    assert_eq!((again.status, count(&again, "changed")), (0, 0), "{again:?}");
    assert_eq!(sandbox.pid("scratch"), pid);

    // Other settings: the file is changed, the volume is not, and the play says why.
    let other = run(&volumes("40M"), &json!([]));
    assert_eq!((count(&other, "changed"), count(&other, "failed")), (1, 1), "{other:?}");
    let said = other.out.clone() + &other.err;
    assert!(said.contains("ram-limit is 48M (asked: 40M)"), "{other:?}");
    assert_eq!(sandbox.status("scratch")["ram_limit_bytes"], 48 << 20);
    sandbox.ztier(&["set", "scratch", "ram-limit=40M"]).ok();

    let down = run(&volumes("40M"), &json!(["scratch"]));
    assert_eq!((down.status, count(&down, "changed")), (0, 1), "{down:?}");
    assert_eq!(sandbox.files(), [""; 0]);
    let gone = run(&json!({}), &json!(["scratch"]));
    assert_eq!((gone.status, count(&gone, "changed")), (0, 0), "{gone:?}");
}
