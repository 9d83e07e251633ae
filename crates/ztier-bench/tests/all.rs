//! `ztier-bench all` with tables that need no root: saved results, the effect of an interruption,
//! and the parts that run again.
#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Running, bench, until};

fn run_of(dir: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(dir.join("run.json")).unwrap()).unwrap()
}

/// State of the `n`th part.
fn state(run: &Value, n: usize) -> &str {
    run["parts"][n]["state"].as_str().unwrap()
}

#[test]
fn a_run_leaves_figures_logs_and_a_report_and_is_not_repeated() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("one");
    let ended = bench(work.path(), &["all", "--quick", "--only", "policy", "--dir", "one"]).end();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stdout.contains("report: one/report.html"), "{}", ended.stdout);
    assert!(ended.stderr.contains("[1 of 1] policy: "), "{}", ended.stderr);
    let run = run_of(&dir);
    assert_eq!((state(&run, 0), &run["quick"]), ("done", &Value::Bool(true)));
    let figures: Value =
        serde_json::from_str(&fs::read_to_string(dir.join("policy.json")).unwrap()).unwrap();
    // A ratio of the table is in all three reports, with every digit in the CSV.
    let (name, value) = figures["ratios"].as_object().unwrap().iter().next().unwrap();
    let value = value.as_f64().unwrap();
    let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let (html, markdown, csv) = (text("report.html"), text("report.md"), text("report.csv"));
    assert!(csv.contains(&format!("here,policy,ratios,,{name},{value},")), "{name}");
    for text in [&html, &markdown] {
        assert!(text.contains(name) && text.contains("policy --quick --json policy.json"));
        assert!(text.contains("was left out of this run"));
    }
    assert!(text("policy.log").starts_with("$ ztier-bench policy --quick --json "));

    let ended = bench(work.path(), &["all", "--resume", "one"]).end();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("0 of 1 tables to run"), "{}", ended.stderr);
    assert_eq!(run_of(&dir)["parts"], run["parts"]);

    let ended = bench(work.path(), &["all", "--quick", "--only", "policy", "--dir", "one"]).end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("cannot make one"), "{}", ended.stderr);
}

#[test]
fn an_interrupted_run_says_how_to_go_on_and_does() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("bench-results");
    let running = bench(work.path(), &["all", "--quick", "--only", "policy"]);
    let found = || Some(fs::read_dir(&dir).ok()?.next()?.ok()?.path());
    let log = || Some(found()?.join("policy.log"));
    until("policy works", || log().is_some_and(|log| log.exists()));
    let pid = Pid::from_raw(i32::try_from(running.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(1));
    let found = found().unwrap();
    let name = format!("bench-results/{}", found.file_name().unwrap().to_str().unwrap());
    let how = format!("go on with ./bench all --resume {name}");
    assert!(ended.stderr.contains(&how), "{}", ended.stderr);
    assert_eq!(state(&run_of(&found), 0), "failed");
    assert!(fs::read_to_string(found.join("report.md")).unwrap().contains("interrupted"));
    // The table is dead, too: its log is not locked.
    assert!(fs::File::open(found.join("policy.log")).unwrap().try_lock().is_ok());

    // Without a name: the newest.
    let ended = bench(work.path(), &["all", "--resume"]).end();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("1 of 1 tables to run"), "{}", ended.stderr);
    assert_eq!(state(&run_of(&found), 0), "done");
}

#[test]
fn a_table_that_fails_is_named_and_its_reason_is_kept() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("one");
    // A directory in place of the table's figures.
    fs::create_dir_all(dir.join("policy.json/in the way")).unwrap();
    let build = "none";
    let part = |name: &str| {
        serde_json::json!({
            "name": name, "args": ["policy", "--quick"], "typical_s": 5.0, "state": "waiting",
        })
    };
    let run = serde_json::json!({
        "format": 1, "begun": "2026-01-01T00:00:00Z", "quick": true, "commands": [], "build": build,
        "machine": {}, "versions": {}, "parts": [part("policy")],
    });
    fs::write(dir.join("run.json"), run.to_string()).unwrap();
    let ended = bench(work.path(), &["all", "--resume", "one"]).end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.stderr.contains("failed: policy; the report and logs in one"),
        "{}",
        ended.stderr
    );
    let run = run_of(&dir);
    assert_eq!(state(&run, 0), "failed");
    let reason = run["parts"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("cannot write ") && reason.contains("policy.json"), "{reason}");
    assert!(fs::read_to_string(dir.join("report.html")).unwrap().contains("policy.json"));
}

#[test]
fn a_table_ends_in_order_when_its_suite_is_killed() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("one");
    let suite = bench(work.path(), &["all", "--only", "policy", "--dir", "one"]);
    let log = || fs::read_to_string(dir.join("policy.log")).unwrap_or_default();
    until("policy works", || log().lines().count() > 1);
    suite.kill();
    // While the table runs, no other run measures.
    let ended = bench(work.path(), &["models", "--wait"]).end();
    assert!(ended.status.success(), "{}", ended.stderr);
    let waited = ended.stderr.contains("(ztier-bench all --only policy --dir one), which measures");
    assert!(fs::File::open(dir.join("policy.log")).unwrap().try_lock().is_ok(), "{waited}");
    assert!(log().trim_end().ends_with("ztier-bench: interrupted"), "{}", log());
    assert!(!dir.join("policy.json").exists());

    let ended = bench(work.path(), &["--suite", "1", "models"]).end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("the run that has started this table is gone"));
}

#[test]
fn one_measures_at_a_time() {
    let work = tempfile::tempdir().unwrap();
    let first = bench(work.path(), &["soak", "--minutes", "30", "--mib", "16"]);
    let lock = work.path().join("lock");
    let who = format!("process {} (ztier-bench soak --minutes 30 --mib 16)", first.id());
    until("the first has it", || fs::read_to_string(&lock).is_ok_and(|text| text.contains(&who)));
    for args in [&["models"][..], &["all", "--only", "policy", "--dir", "one"]] {
        let ended = bench(work.path(), args).end();
        assert_eq!(ended.status.code(), Some(1));
        let how = "measures on this machine; wait until it has ended, or add --wait";
        assert_eq!(ended.stderr, format!("ztier-bench: {who} {how}\n"));
    }
    assert!(!work.path().join("one").exists());
    let mut second = bench(work.path(), &["models", "--wait"]);
    let mut said = String::new();
    until("the second waits", || {
        said += &second.said();
        said.contains(&format!("waiting for {who}, which measures"))
    });
    first.kill();
    let ended = second.end();
    assert!(ended.status.success(), "{}", ended.stderr);
}

#[test]
fn what_this_machine_lacks_is_no_failure() {
    let work = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ztier-bench"));
    command.args(["all", "--quick", "--only", "scan-vm", "--dir", "one"]);
    command.current_dir(work.path()).env("PATH", "/nonexistent");
    let ended = Running::start(command, work.path()).end();
    assert!(ended.status.success(), "{}", ended.stderr);
    let run = run_of(&work.path().join("one"));
    assert_eq!(state(&run, 0), "absent");
    let reason = run["parts"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("no ") && reason.ends_with(" for virtual machines"), "{reason}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_made() {
    let work = tempfile::tempdir().unwrap();
    for (args, status, why) in [
        (&["all", "--resume"][..], 1, "there is no run in bench-results; name its directory"),
        (&["all", "--resume", "nowhere"], 1, "cannot read nowhere/run.json"),
        (&["all", "--only", "policy", "--skip", "policy"], 2, "no table is left to run"),
        (&["report", "nowhere"], 1, "cannot read nowhere/run.json"),
    ] {
        let ended = bench(work.path(), args).end();
        assert_eq!(ended.status.code(), Some(status), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    assert!(!work.path().join("bench-results").exists());
}
