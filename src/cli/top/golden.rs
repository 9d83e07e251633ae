//! Whole screens, compared with those in `tests/golden`. `ZTIER_GOLDEN=write` writes them anew.
#![allow(clippy::unwrap_used)]

use super::look::Look;
use super::paint::{Style, plain, width};
use super::render::{Size, render};
use super::slow;
use super::state::{Flow, Rates, State, Wait};
use crate::config::{Bounds, Plan};
use crate::control::Sample;
use crate::daemon::survey::{Seen, Volumes};
use crate::limit::{Change, Reason, Report, Waits};
use crate::remedy;
use crate::stats::{CacheStats, Distribution, Health, Latencies, LogStats, Requests, Spent, Stats};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// 2026-11-22T14:05:09Z
const NOW: u64 = 1_795_356_309;

/// Milliseconds between looks; the volumes do the same between any two.
const PACE: [u64; 9] = [1000, 700, 500, 400, 500, 800, 1600, 2000, 1000];

fn plan(name: &str, more: Value) -> Plan {
    let mut plan = json!({
        "name": name, "size_bytes": 1u64 << 30, "ram_limit_bytes": 512 << 20,
        "segment_bytes": 1 << 20, "algorithm": "lz4", "export": "ublk", "threads": 2,
    });
    plan.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(plan).unwrap()
}

fn sample(plan: Plan, stats: Stats) -> Sample {
    Sample {
        version: "1.2.3".into(),
        pid: 4711,
        started_unix_s: NOW - 11_000,
        restarts: 1,
        endpoints: vec![format!("/dev/ztier/{}", plan.name)],
        plan,
        adapting: None,
        ballast_bytes: 0,
        stats: Stats { disk_size_bytes: 1 << 30, ram_limit_bytes: 512 << 20, ..stats },
        latencies: Latencies::default(),
    }
}

fn requests(requests: u64) -> Requests {
    Requests { requests, bytes: requests * 4096, ..Requests::default() }
}

fn spent(count: u64, ns: u64) -> Spent {
    let of = |bound, count| Distribution { sum_ns: bound * count, buckets: vec![(bound, count)] };
    Spent { serving: of(ns, count), waiting: of(63, count) }
}

/// A volume in memory.
fn disk(n: u64) -> Sample {
    let stats = Stats {
        read: requests(n * 12_345),
        write: requests(n * 2_000),
        flush: Requests { bytes: 0, ..requests(n) },
        orig_data_bytes: 700 << 20,
        blocks_stored: 700 << 8,
        blocks_same: 12_800,
        compr_data_bytes: 265 << 20,
        mem_used_bytes: 290 << 20,
        mem_used_max_bytes: 300 << 20,
        frames_bytes: 280 << 20,
        metadata_bytes: 2 << 20,
        buffers_bytes: 8 << 20,
        ..Stats::default()
    };
    let latencies = Latencies {
        read: spent(n * 12_345, 2_047),
        write: spent(n * 2_000, 9_215),
        flush: spent(n, 511),
        ..Latencies::default()
    };
    Sample { latencies, ..sample(plan("disk", json!({})), stats) }
}

/// A write cache at work.
fn archive(n: u64) -> Sample {
    let log = LogStats {
        segments: 128,
        segments_used: 80 - 4 * n,
        segments_clean: 20,
        blocks_dirty: (80 - 4 * n) << 8,
        blocks_clean: 20 << 8,
        written_back_bytes: n * (4 << 20),
        ..LogStats::default()
    };
    let cache = CacheStats {
        limit_bytes: 512 << 20,
        used_bytes: 120 << 20,
        original_bytes: 300 << 20,
        stored_bytes: 115 << 20,
        hit_blocks: n * 930,
        missed_blocks: n * 70,
        ..CacheStats::default()
    };
    let stats = Stats {
        write: requests(n * 400),
        read: requests(n * 1_000),
        log: Some(log),
        mem_used_bytes: 120 << 20,
        cache: Some(cache),
        ..Stats::default()
    };
    let latencies = Latencies {
        write: Spent { waiting: spent(n * 400, 1_310_719).serving, ..spent(n * 400, 49_151) },
        read: spent(n * 1_000, 204_799),
        ..Latencies::default()
    };
    let log = json!({"log": {
        "log": "/dev/nvme0n1p3", "backing": "/dev/sdb", "sync": false,
        "writeback_threshold_percent": 70, "writeback_window_bytes": 1 << 20,
        "writeback": true, "commit_interval_ms": 1000, "accept_loss": false, "wipe": false,
        "moved": false, "abandon": false, "keep_percent": 50,
    }});
    Sample { latencies, ..sample(plan("archive", log), stats) }
}

/// Swap that spills, whose limit adapts.
fn swap(n: u64) -> Sample {
    let bounds = Bounds { min_bytes: 64 << 20, max_bytes: 2 << 30 };
    let reason = Reason::FileCache { files: 0.312, own: 0.004 };
    let change = Change {
        from_bytes: 612 << 20,
        to_bytes: 551 << 20,
        unix_s: NOW - 4,
        reason: Reason::Floor { available: 20 << 20, floor: 25 << 20 },
    };
    let adapting = Report {
        bounds,
        reason,
        why: reason.to_string(),
        last_change: Some(change),
        changes: 7,
        turns: 0,
        waits: Waits::default(),
        available_bytes: None,
        floor_bytes: 25 << 20,
        stalled: None,
        missing: Vec::new(),
    };
    let stats = Stats {
        orig_data_bytes: 800 << 20,
        compr_data_bytes: 300 << 20,
        mem_used_bytes: 500 << 20,
        spilled_blocks: 100 << 8,
        spill_slots: 200,
        spill_slots_used: 61,
        spill_written_bytes: (60 + n) << 20,
        recompressing: true,
        blocks_clustered: 100 << 8,
        no_space: 3,
        ..Stats::default()
    };
    let more = json!({
        "spill": {"device": "/dev/sdb2", "daily_bytes": 0, "wipe": false},
        "ram_auto": {"min_bytes": 64 << 20, "max_bytes": 2u64 << 30},
    });
    Sample { adapting: Some(adapting), ..sample(plan("swap", more), stats) }
}

fn volumes(n: u64, began: Instant) -> Volumes {
    let at = began + Duration::from_millis(PACE[..n as usize].iter().sum());
    let up = |sample: Sample| (sample.plan.name.clone(), Seen::Up { sample: Box::new(sample), at });
    let named = |name: &str, seen| (name.to_owned(), seen);
    let plan = Box::new(plan("gone", json!({})));
    Volumes::from([
        up(archive(n)),
        up(disk(n)),
        up(swap(n)),
        named("gone", Seen::Dead { kept: true, plan }),
        named("slow", Seen::Silent { since: began, why: None, plan: None }),
        named(
            "young",
            Seen::Starting { step: Some("reading the log, segment 3 of at most 128".into()) },
        ),
    ])
}

/// The state after some looks, with the volume `chosen` selected.
fn state(chosen: &str) -> State {
    let began = Instant::now();
    let mut state = State::default();
    state.interval = Some(Duration::from_secs(1));
    for n in 0..=PACE.len() as u64 {
        state.update(&volumes(n, began), began + Duration::from_secs(13), NOW);
    }
    while state.rows()[state.selected()].name != chosen {
        state.go(1);
    }
    state
}

fn screen(chosen: &str, size: Size, look: &Look) -> String {
    let lines = render(&state(chosen), size, look);
    assert!(size.rows.is_none_or(|rows| lines.len() == rows));
    assert!(lines.iter().all(|line| width(&plain(line)) <= size.columns));
    lines.iter().map(|line| plain(line) + "\n").collect()
}

fn compare(name: &str, chosen: &str, size: (usize, Option<usize>), unicode: bool) {
    let look = Look { colours: true, unicode };
    let found = screen(chosen, Size { columns: size.0, rows: size.1 }, &look);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/top-{name}.txt"));
    if std::env::var_os("ZTIER_GOLDEN").is_some_and(|how| how == "write") {
        std::fs::write(&path, &found).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, golden, "{} is not what is shown:\n{found}", path.display());
}

#[test]
fn screens_are_what_they_were() {
    compare("80x24", "archive", (80, Some(24)), true);
    // The documentation shows this screen.
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shown = std::fs::read_to_string(path.join("tests/golden/top-80x24.txt")).unwrap();
    assert!(std::fs::read_to_string(path.join("docs/top.md")).unwrap().contains(&shown));
    compare("80x24-swap", "swap", (80, Some(24)), true);
    compare("80x24-ascii", "disk", (80, Some(24)), false);
    compare("120x40", "disk", (120, Some(40)), true);
    compare("40x12", "gone", (40, Some(12)), true);
    compare("80", "archive", (80, None), true);
}

/// A volume whose log failed and is nearly full, and whose reads wait for the backing store.
fn ill(n: u64) -> Sample {
    let mut ill = archive(n);
    ill.plan.name = "ill".into();
    ill.stats.health = Health::Degraded;
    let log = ill.stats.log.as_mut().unwrap();
    (log.failed, log.rescuing, log.segments_used) = (true, true, 120);
    ill.stats.cache.as_mut().unwrap().missed_ns = n * 180_000_000;
    ill.stats.stalls = n * 12;
    ill
}

#[test]
fn a_trouble_has_its_remedy_and_slowness_its_reasons() {
    let began = Instant::now();
    let mut state = State::default();
    for n in 0..2 {
        let at = began + Duration::from_secs(n);
        let seen = Seen::Up { sample: Box::new(ill(n)), at };
        state.update(&Volumes::from([("ill".to_owned(), seen)]), at, NOW);
    }
    let lines = |columns| {
        let size = Size { columns, rows: Some(40) };
        render(&state, size, &Look { colours: true, unicode: true })
    };
    let text: String = lines(80).iter().map(|line| plain(line) + "\n").collect();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "TROUBLE the log failed: what it holds is being brought to the backing store; ",
        &remedy::LOG_WORN.of("ill"),
        "SLOW 12 writes/s wait for room: memory is nearly full",
        "SLOW the log is full, 120 of 128 segments: writes wait for writeback, 4 MiB/s",
        "SLOW reads wait for the backing store, 2.6ms each: 88 % of their time",
        "SLOW requests wait p99 1.3ms until they are served",
    ] {
        assert!(words.contains(part), "{part} is missing in\n{text}");
    }
    let styles = |columns: usize, at: usize| lines(columns)[at][0].0;
    assert_eq!(styles(80, 2), Style::Chosen);
    // Beside another volume that is chosen, its name has a colour.
    let seen = Seen::Up { sample: Box::new(ill(1)), at: began };
    let gone = Seen::Dead { kept: true, plan: Box::new(plan("z", json!({}))) };
    let all = [("a".to_owned(), Seen::Starting { step: None }), ("ill".to_owned(), seen)];
    let mut state = State::default();
    state.update(&Volumes::from_iter(all.into_iter().chain([("z".to_owned(), gone)])), began, NOW);
    let look = Look { colours: true, unicode: true };
    let lines = render(&state, Size { columns: 80, rows: Some(24) }, &look);
    assert_eq!([lines[3][0].0, lines[4][0].0], [Style::Warn, Style::Bad]);
}

#[test]
fn busy_threads_and_slow_spills_are_named() {
    let look = Look { colours: false, unicode: false };
    let reasons = |sample: &Sample, rates: Rates| slow::reasons(sample, &rates, &look);
    let busy = Rates { threads_busy: 0.93, ..Rates::default() };
    let zstd = Sample { plan: plan("zstd", json!({"algorithm": "zstd"})), ..disk(1) };
    assert_eq!(
        reasons(&zstd, busy),
        ["its threads are busy for 93 % of the time, with zstd and copies; lz4 takes less time"]
    );
    let spills = Rates {
        spill_wait: Some(Wait { mean_ns: 400_000, share: 0.7 }),
        refused_per_s: 3.0,
        ..Rates::default()
    };
    assert_eq!(
        reasons(&swap(1), spills),
        [
            "memory is full: 3 writes/s are refused",
            "reads wait for the spill device, 400us each: 70 % of their time"
        ]
    );
    let flushes = Flow { p99_ns: Some(30_000_000), ..Flow::default() };
    let rates = Rates { flush: flushes, ..Rates::default() };
    assert_eq!(reasons(&archive(1), rates.clone()), ["flushes wait for the log's drive, p99 30ms"]);
    assert_eq!(reasons(&disk(1), rates), [""; 0]);
}

#[test]
fn the_help_fits_and_names_each_column() {
    let look = Look { colours: true, unicode: true };
    let mut state = state("disk");
    let wide = render(&state, Size { columns: 120, rows: Some(24) }, &look);
    let heads = plain(&wide[1]);
    state.help = true;
    let lines = render(&state, Size { columns: 80, rows: Some(24) }, &look);
    assert_eq!(lines.len(), 24);
    let text: String = lines.iter().map(|line| plain(line) + "\n").collect();
    for head in heads.split_whitespace().filter(|head| *head != "NAME") {
        assert!(text.contains(head), "{head} is missing in\n{text}");
    }
    assert!(text.contains("any key goes back"));
    for (columns, rows) in [(1, 1), (20, 3), (40, 12), (200, 60)] {
        let lines = render(&state, Size { columns, rows: Some(rows) }, &look);
        assert_eq!(lines.len(), rows);
        assert!(lines.iter().all(|line| width(&plain(line)) <= columns));
    }
}

#[test]
fn sparklines_end_with_the_newest() {
    let look = |unicode| Look { colours: false, unicode };
    let values = [9.0, 0.0, 0.01, 4.0, 8.0];
    assert_eq!(look(true).sparkline(4, values.into_iter()), " ▁▄█");
    assert_eq!(look(false).sparkline(7, values.into_iter()), "  # .-#");
    assert_eq!(look(true).sparkline(3, [0.0; 0].into_iter()), "   ");
}

#[test]
fn load_is_what_requests_took() {
    let (before, after) = (disk(0), disk(1));
    let rates = Rates::between(&before, &after, 2.0).unwrap();
    // 12345 reads of 2047 ns, 2000 writes of 9215 ns, a flush of 511 ns; each waited 63 ns.
    let serving = 12_345.0 * 2_047.0 + 2_000.0 * 9_215.0 + 511.0;
    let waiting = 14_346.0 * 63.0;
    assert!((rates.queue_depth - (serving + waiting) / 2e9).abs() < 1e-9);
    // By two threads.
    assert!((rates.threads_busy - serving / 4e9).abs() < 1e-9);
    assert_eq!((rates.backing_wait, rates.spill_wait), (None, None));
}

#[test]
fn any_size_is_enough() {
    let look = Look { colours: false, unicode: true };
    for columns in [1, 2, 9, 20, 29, 39, 51, 52, 79, 80, 99, 250] {
        for rows in [1, 2, 3, 4, 5, 8, 24, 100] {
            for chosen in ["archive", "gone", "young"] {
                let text = screen(chosen, Size { columns, rows: Some(rows) }, &look);
                assert!(!text.contains('\u{1b}'), "{text:?}");
                // The selected volume is visible wherever there is room for a row.
                let seen = text.contains(&chosen[..4]);
                assert!(rows < 4 || columns < 9 || seen, "{columns} x {rows}:\n{text}");
            }
        }
    }
}

#[test]
fn what_steers_a_terminal_is_written_out() {
    let began = Instant::now();
    let mut state = State::default();
    let (name, why) = ("a\u{1b}[2J".to_owned(), Some("\u{9b}31m\nold".to_owned()));
    let silent = Seen::Silent { since: began, why, plan: None };
    state.update(&Volumes::from([(name, silent)]), began, NOW);
    let look = Look { colours: false, unicode: true };
    let lines = render(&state, Size { columns: 100, rows: Some(24) }, &look);
    let text: String = lines.iter().map(|line| plain(line) + "\n").collect();
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    assert!(!text.lines().any(|line| line.starts_with("old")), "{text:?}");
    for shown in [r"a\u{1b}[2J", r"\u{9b}31m\nold"] {
        assert!(text.contains(shown), "{shown} is missing in {text}");
    }
}

#[test]
fn orders_keep_the_choice() {
    let mut state = state("disk");
    let names = |state: &State| state.rows().iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&state)[..3], ["archive", "disk", "gone"]);
    state.sort();
    assert_eq!(names(&state)[..2], ["disk", "archive"]);
    assert_eq!(state.selected(), 0);
    state.sort();
    assert_eq!(names(&state)[..2], ["swap", "disk"]);
    assert_eq!(state.selected(), 1);
    state.sort();
    assert_eq!(state.selected(), 1);
    state.go(isize::MAX);
    assert_eq!(state.selected(), 5);
    state.go(isize::MIN);
    assert_eq!(state.selected(), 0);
    // When the selected volume goes away, the first one is selected.
    let began = Instant::now();
    let mut left = volumes(3, began);
    left.remove("archive");
    state.update(&left, began, NOW);
    assert_eq!((state.rows().len(), state.selected()), (5, 0));
    // A restarted daemon has no rates.
    let mut anew = disk(0);
    anew.pid = 5;
    let at = began + Duration::from_secs(9);
    left.insert("disk".into(), Seen::Up { sample: Box::new(anew), at });
    state.update(&left, began, NOW);
    assert!(state.rows().iter().any(|row| row.name == "disk" && row.rates.is_none()));
    state.update(&Volumes::new(), began, NOW);
    assert!(state.rows().is_empty());
    state.go(1);
    state.sort();
}
