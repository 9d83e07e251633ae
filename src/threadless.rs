//! Runs tests in a process that cannot start threads.

use std::process::Command;

const ALONE: &str = "ZTIER_TEST_ALONE";

/// Runs the test `test` of `module` again in a process that cannot start threads, because there is
/// no room for a stack of the requested size. Returns `true` in that process, where the test should
/// run.
#[allow(clippy::unwrap_used)]
pub(crate) fn is_alone(module: &str, test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err());
        return true;
    }
    let name = format!("{}::{test}", module.split_once("::").unwrap().1);
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", &name]).env(ALONE, "").env("RUST_MIN_STACK", (1u64 << 60).to_string());
    let ended = alone.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    false
}
