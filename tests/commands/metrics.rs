//! Metrics of real volumes, parsed strictly; their documentation; the exporter's clients.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::exposition::{Family, parse};
use crate::support::promql::{check_expression, table};
use crate::support::sandbox::{Guard, PATIENCE, Sandbox, eventually, stop};
use rustix::process::{Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use ztier::metrics::{GROUPS, Kind, Metric};

fn families(text: &str) -> BTreeMap<String, Family> {
    let all = parse(text).unwrap_or_else(|what| panic!("{what}\n{text}"));
    all.into_iter().map(|family| (family.name.clone(), family)).collect()
}

fn scrape(sandbox: &Sandbox) -> BTreeMap<String, Family> {
    families(&sandbox.ztier(&["metrics", "--once"]).ok())
}

/// The value of the only sample of `name` with these labels.
fn value(all: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let family = name.trim_end_matches("_count").trim_end_matches("_sum");
    let family = all.get(name).or_else(|| all.get(family))?;
    let mut fit = family.samples.iter().filter(|sample| {
        sample.name == name
            && labels
                .iter()
                .all(|(label, value)| sample.labels.get(*label).is_some_and(|v| v == value))
    });
    let first = fit.next().map(|sample| sample.value);
    assert!(fit.next().is_none(), "{name} {labels:?} is ambiguous");
    first
}

fn file(path: &Path, bytes: u64) -> &str {
    File::create(path).unwrap().set_len(bytes).unwrap();
    path.to_str().unwrap()
}

#[test]
fn names_follow_the_conventions() {
    let mut names = BTreeSet::new();
    for metric in GROUPS.iter().flat_map(|group| &group.metrics) {
        let Metric { name, kind, help, labels, .. } = metric;
        assert!(names.insert(*name), "{name} is there twice");
        let plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.starts_with("ztier_") && name.chars().all(plain), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        let distribution = matches!(kind, Kind::Histogram | Kind::Summary);
        assert!(!distribution || name.ends_with("_seconds"), "{name}");
        // Only base units, and no names that parts of a histogram have.
        let words: Vec<&str> = name.split('_').collect();
        for word in ["ms", "us", "ns", "kb", "mb", "percent", "count", "sum", "bucket", "ratios"] {
            assert!(!words.contains(&word), "{name} has {word}");
        }
        assert!(help.ends_with('.') && help.len() > 8, "{name}: {help}");
        for label in *labels {
            assert!(label.chars().all(plain), "{name} {label}");
            assert!(!["le", "quantile", "volume", "job", "instance"].contains(label), "{label}");
        }
    }
}

#[test]
fn the_documentation_has_the_table_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- ztier metrics --describe -->\n", "<!-- end -->");
    let at = text.find(begin).unwrap() + begin.len();
    let to = at + text[at..].find(end).unwrap();
    let table = ztier::metrics::describe() + "\n";
    if std::env::var_os("ZTIER_GOLDEN").is_some_and(|how| how == "write") {
        fs::write(&path, [&text[..at], &table, &text[to..]].concat()).unwrap();
        return;
    }
    assert!(
        text[at..to] == table,
        "docs/metrics.md is out of date; ZTIER_GOLDEN=write cargo test --test commands metrics:: mends it"
    );
}

#[test]
fn the_dashboard_uses_only_what_there_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("etc/grafana/ztier.json");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut expressions = Vec::new();
    collect(&json, &mut expressions);
    assert!(expressions.len() > 15, "{expressions:?}");
    let mut used = BTreeSet::new();
    for expression in &expressions {
        used.extend(check_expression(expression).unwrap_or_else(|e| panic!("{e}: {expression}")));
    }
    assert!(used.len() > 25, "{used:?}");
    // The check can fail.
    for wrong in [
        "rate(ztier_request_total[5m])",
        "ztier_requests_total{kind=\"read\"}",
        "ztier_request_service_duration_seconds",
        "ztier_requests_total_bucket",
        "sum by (role) (ztier_size_bytes)",
        "ztier_size_bytes{volume=\"a\"",
        "rate(ztier_size_bytes[5m])",
    ] {
        assert!(check_expression(wrong).is_err(), "{wrong}");
    }
}

/// Every expression of a dashboard: of panels, and of variables.
fn collect(json: &serde_json::Value, to: &mut Vec<String>) {
    match json {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                match value.as_str() {
                    Some(text) if key == "expr" => to.push(text.to_owned()),
                    Some(text) if text.starts_with("label_values(") => {
                        let inside = text.trim_start_matches("label_values(").trim_end_matches(')');
                        let (metric, label) = inside.rsplit_once(',').unwrap();
                        to.push(format!("sum by ({}) ({metric})", label.trim()));
                    }
                    _ => collect(value, to),
                }
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|value| collect(value, to)),
        _ => {}
    }
}

#[test]
fn the_reader_is_strict() {
    let good =
        "# HELP a_total b\n# TYPE a_total counter\na_total{x=\"\\\\\\\"\\n\"} 1\na_total 2.5\n";
    let read = parse(good).unwrap();
    assert_eq!(read[0].samples[0].labels["x"], "\\\"\n");
    let histogram = "# HELP h b\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\n\
                     h_sum 3\nh_count 2\n";
    assert_eq!(parse(histogram).unwrap()[0].samples.len(), 4);
    for (from, to) in [
        ("a_total 2.5\n", "a_total 2.5"),
        ("a_total 2.5", "a_total -1"),
        ("a_total 2.5", "a_total  1"),
        ("a_total 2.5", "a_total 1 17"),
        ("a_total 2.5", "b_total 1"),
        ("a_total 2.5", "a_total{x=\"\\\\\\\"\\n\"} 1"),
        ("a_total 2.5", "a_total{x=\"\\t\"} 1"),
        ("a_total 2.5", "a_total{x=\"a\",x=\"b\"} 1"),
        ("a_total 2.5", "a_total{x=\"a\"} NaN"),
        ("# TYPE a_total counter\n", ""),
        ("counter", "count"),
        ("# HELP", "# HLEP"),
    ] {
        let bad = good.replace(from, to);
        assert!(parse(&bad).is_err(), "{bad}");
    }
    assert!(parse(&(good.to_owned() + good)).is_err());
    for (from, to) in [
        ("h_sum 3\n", ""),
        ("h_count 2", "h_count 3"),
        ("le=\"1\"", "le=\"x\""),
        ("\"} 1", "\"} 5"),
        ("h_bucket{le=\"+Inf\"} 2\n", ""),
    ] {
        let bad = histogram.replace(from, to);
        assert!(parse(&bad).is_err(), "{bad}");
    }
}

/// Volumes of every kind, written and read, and one whose daemon died.
fn volumes(sandbox: &Sandbox, odd: &Path) {
    let path = |name: &str| sandbox.path().join(name);
    let (slow, fast, cold) = (path("slow"), path("fast"), path("cold"));
    let up = |args: &[&str]| sandbox.ztier(&[args, &["--export", "nbd"]].concat()).ok();
    up(&["up", "ram", "--size", "64M"]);
    up(&["up", "cached", "--backing", file(odd, 64 << 20)]);
    up(&["up", "wc", "--log", file(&fast, 64 << 20), "--backing", file(&slow, 64 << 20)]);
    up(&["up", "sp", "--size", "64M", "--ram-limit", "auto", "--spill", file(&cold, 64 << 20)]);
    let store = format!("file://{}", path("store").display());
    up(&["up", "stored", "--size", "64M", "--backing", &store, "--log", "none"]);
    up(&["up", "gone", "--size", "64M"]);
    for name in ["ram", "cached", "wc", "sp", "stored"] {
        let mut disk = Disk::open(&sandbox.run_dir().join(format!("{name}.nbd")), name);
        disk.write(0, &[7; 8192]);
        disk.write(8192, &(0..=255).cycle().take(4096).collect::<Vec<u8>>());
        disk.flush();
        assert_eq!(disk.read(0, 4096), [7; 4096]);
    }
    sandbox.kill("gone");
}

/// Every metric seen is in the table, and vice versa, except those that these volumes do not
/// produce.
fn is_the_table(all: &BTreeMap<String, Family>) {
    let table = table();
    for family in all.values() {
        let metric = table.get(family.name.as_str()).unwrap_or_else(|| panic!("{}", family.name));
        assert_eq!((family.kind.as_str(), family.help.as_str()), (metric.kind.name(), metric.help));
        let own = ["volume", "le", "quantile"];
        for label in family.samples.iter().flat_map(|sample| sample.labels.keys()) {
            let known = own.contains(&label.as_str()) || metric.labels.contains(&label.as_str());
            assert!(known, "{} has {label}", family.name);
        }
    }
    let absent = [
        "ztier_spill_allowance_bytes",
        "ztier_backing_mixture_since_seconds",
        "ztier_limit_last_change_timestamp_seconds",
        "ztier_limit_available_bytes",
        "ztier_limit_stalled_ratio",
        // `tests/commands/daemon.rs` has a volume that fills up.
        "ztier_room_bytes",
        // `tests/commands/swap.rs` has a volume that is swap.
        "ztier_swap_room_bytes",
        // `tests/commands/failing.rs` has drives that fail.
        "ztier_drive_errors_total",
        "ztier_drive_last_error_timestamp_seconds",
    ];
    for name in table.keys().filter(|name| !absent.contains(name)) {
        assert!(all.contains_key(*name), "{name} was never seen");
    }
}

#[test]
fn every_kind_of_volume_is_told_of() {
    let sandbox = Sandbox::new();
    let nothing = scrape(&sandbox);
    assert_eq!(
        nothing.keys().collect::<Vec<_>>(),
        ["ztier_build_info", "ztier_scrape_duration_seconds"]
    );
    // A path that has to be escaped.
    let odd = sandbox.path().join("we\"ird\\\n");
    volumes(&sandbox, &odd);
    let all = scrape(&sandbox);
    is_the_table(&all);

    let of = |name: &str, labels: &[(&str, &str)]| value(&all, name, labels).unwrap();
    assert_eq!(of("ztier_volume_up", &[("volume", "gone")]), 0.0);
    assert_eq!(of("ztier_volume_state", &[("volume", "gone"), ("state", "dead")]), 1.0);
    assert_eq!(of("ztier_volume_memory_kept", &[("volume", "gone")]), 1.0);
    assert!(value(&all, "ztier_size_bytes", &[("volume", "gone")]).is_none());
    let backing = odd.to_str().unwrap();
    let labels = [("volume", "cached"), ("role", "cache"), ("export", "nbd"), ("backing", backing)];
    assert_eq!(of("ztier_volume_info", &labels), 1.0);
    for name in ["ram", "cached", "wc", "sp"] {
        assert_eq!(of("ztier_volume_up", &[("volume", name)]), 1.0);
        assert_eq!(of("ztier_size_bytes", &[("volume", name)]), f64::from(64 << 20));
        for (operation, requests, bytes) in [("write", 2.0, 12288.0), ("read", 1.0, 4096.0)] {
            let labels = [("volume", name), ("operation", operation)];
            assert_eq!(of("ztier_requests_total", &labels), requests, "{name} {operation}");
            assert_eq!(of("ztier_request_bytes_total", &labels), bytes, "{name} {operation}");
            for took in ["service", "wait"] {
                let count = format!("ztier_request_{took}_duration_seconds_count");
                assert_eq!(of(&count, &labels), requests, "{name} {operation}");
            }
            let sum = "ztier_request_service_duration_seconds_sum";
            assert!((0.0..60.0).contains(&of(sum, &labels)), "{name} {operation}");
        }
    }
    assert_eq!(of("ztier_same_filled_blocks", &[("volume", "ram")]), 2.0);
    assert_eq!(of("ztier_stored_blocks", &[("volume", "ram")]), 1.0);
    assert_eq!(of("ztier_home_bytes", &[("volume", "ram"), ("home", "ram")]), 4096.0);
    assert_eq!(of("ztier_log_segments", &[("volume", "wc")]), 61.0);
    let one = sandbox.ztier(&["stats", "wc", "--format", "prometheus"]).ok();
    assert_eq!(value(&families(&one), "ztier_log_segments", &[]), Some(61.0));
}

#[test]
fn who_hangs_is_down_and_the_others_are_not() {
    let sandbox = Sandbox::new();
    for name in ["hangs", "works"] {
        sandbox.ztier(&["up", name, "--size", "1M", "--export", "nbd"]).ok();
    }
    let exporter = Exporter::start(&sandbox);
    let state = |volume: &str, state: &str| {
        let all = families(&exporter.get("/metrics").1);
        value(&all, "ztier_volume_state", &[("volume", volume), ("state", state)]).unwrap()
    };
    assert_eq!(state("hangs", "up"), 1.0);
    let daemon = sandbox.pid("hangs");
    stop(daemon);
    // More queries than its queue holds: the daemon is asked once.
    for _ in 0..3 {
        assert_eq!(state("hangs", "busy"), 1.0);
        assert_eq!(state("works", "up"), 1.0);
    }
    kill_process(daemon, Signal::CONT).unwrap();
    eventually("it answers", || state("hangs", "up") == 1.0);
    sandbox.kill("hangs");
    assert_eq!(state("hangs", "dead"), 1.0);
    sandbox.ztier(&["down", "hangs", "--discard"]).ok();
    let all = families(&exporter.get("/metrics").1);
    assert!(value(&all, "ztier_volume_up", &[("volume", "hangs")]).is_none());
}

/// `ztier metrics` on a port of its own.
struct Exporter {
    address: String,
    _process: Guard,
}

impl Exporter {
    fn start(sandbox: &Sandbox) -> Self {
        let mut command = sandbox.command(&["metrics", "--listen", "0"]);
        let mut process = Guard(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
        assert!(address.starts_with("127.0.0.1:"), "{line}");
        Self { address: address.to_owned(), _process: process }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The head and the body of the reply to these bytes.
    fn ask(&self, request: &[u8]) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let length: usize = length.parse().unwrap();
        assert!(
            body.len() == length || (body.is_empty() && request.starts_with(b"HEAD")),
            "{head}"
        );
        (head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str) -> (String, String) {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    }
}

#[test]
fn as_much_of_http_as_a_scraper_needs() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "vol", "--size", "1M", "--export", "nbd"]).ok();
    let exporter = Exporter::start(&sandbox);
    let (head, body) = exporter.get("/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    assert_eq!(value(&families(&body), "ztier_volume_up", &[]), Some(1.0));
    let (head, body) = exporter.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.is_empty(), "{head}");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404 "),
        (b"GET /metrics/x HTTP/1.1\r\n\r\n", "404 "),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\nsome data", "405 "),
        (b"\x16\x03\x01\x02\r\n\r\n", "400 "),
        (long.as_bytes(), "431 "),
    ] {
        let (head, body) = exporter.ask(request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert!(body.contains("/metrics"), "{body}");
        assert_eq!(head.contains("Allow: GET, HEAD"), status == "405 ", "{head}");
    }
    // Clients that do not hang up hold places for a while, and no more places than there are.
    eventually("one too many is sent away", || {
        let ask = |_| {
            let mut stream = exporter.connect();
            stream.write_all(b"HEAD /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        };
        let _slow: Vec<TcpStream> = (0..8).map(ask).collect();
        let mut more = exporter.connect();
        let mut answer = String::new();
        more.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        // A client without a reply within that time has a place.
        let _ = more.read_to_string(&mut answer);
        answer.starts_with("HTTP/1.1 503 ")
    });
    eventually("there is room again", || {
        let mut again = exporter.connect();
        let _ = again.write_all(b"HEAD /metrics HTTP/1.1\r\n\r\n");
        let mut answer = String::new();
        let _ = again.read_to_string(&mut answer);
        answer.starts_with("HTTP/1.1 200 ")
    });
    let address = exporter.address.as_str();
    sandbox.ztier(&["metrics", "--listen", address]).refused(1, &["cannot listen on", address]);
}

#[test]
fn a_file_for_the_collector_is_replaced_in_one_step() {
    let sandbox = Sandbox::new();
    sandbox.ztier(&["up", "vol", "--size", "1M", "--export", "nbd"]).ok();
    let to = sandbox.path().join("ztier.prom");
    fs::write(&to, "old").unwrap();
    let path = to.to_str().unwrap();
    assert_eq!(sandbox.ztier(&["metrics", "--once", "--output", path]).ok(), "");
    let text = fs::read_to_string(&to).unwrap();
    assert_eq!(value(&families(&text), "ztier_volume_up", &[("volume", "vol")]), Some(1.0));
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o644);
    // A missing directory, and a directory in place of the file: one line, and nothing is left
    // behind.
    let nowhere = sandbox.path().join("nowhere/ztier.prom");
    let nowhere = nowhere.to_str().unwrap();
    sandbox
        .ztier(&["metrics", "--once", "--output", nowhere])
        .refused(1, &["cannot write", nowhere]);
    let taken = sandbox.path().join("taken.prom");
    fs::create_dir(&taken).unwrap();
    let taken = taken.to_str().unwrap();
    sandbox.ztier(&["metrics", "--once", "--output", taken]).refused(1, &["cannot write", taken]);
    let left = fs::read_dir(sandbox.path()).unwrap().flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().ends_with(".new"));
    assert_eq!(left.count(), 0);
    sandbox.ztier(&["metrics", "--output", path]).refused(2, &["--once"]);
    sandbox.ztier(&["metrics", "--listen", "there"]).refused(2, &["`there` is not an address"]);
}
