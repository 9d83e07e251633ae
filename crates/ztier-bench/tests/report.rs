//! The report in a real browser: nothing wider than its page, no empty chart, no overlapping text,
//! all text readable, on narrow and wide screens, in light and dark mode.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Running, bench};

/// A real quick run, shortened: for tests only.
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sample");
const PROBE: &str = include_str!("probe.html");
const WIDTHS: [u32; 5] = [320, 400, 768, 1280, 1600];
/// Screens of 1280 × 800 that a report may have, without what is folded.
const SCREENS: u64 = 12;
const REPORT_MAX: u64 = 2 << 20;

/// A copy of the sample with its report.
fn sample(work: &Path) -> PathBuf {
    let dir = work.join("run");
    fs::create_dir(&dir).unwrap();
    for entry in fs::read_dir(SAMPLE).unwrap().flatten() {
        fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    let ended = bench(work, &["report", "run"]).end();
    assert!(ended.status.success(), "{}", ended.stderr);
    dir
}

/// The browser; prints a message if there is none.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let named = |name: &str| all.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(named);
    if found.is_none() {
        println!("skipped: no chromium to look at reports with");
    }
    found
}

/// Runs the browser with arguments on a page; returns its standard output.
fn browse(browser: &Path, work: &Path, dark: bool, args: &[String], page: &Path) -> String {
    let profile = work.join("profile");
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--disable-extensions", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", profile.display()))
        // 0 is dark, 1 light.
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .args(args)
        .arg(format!("file://{}", page.display()))
        // The browser's settings and caches are removed with the test, too.
        .env("HOME", work)
        .env("TMPDIR", work)
        .env("XDG_CONFIG_HOME", work)
        .env("XDG_CACHE_HOME", work);
    let ended = Running::start(command, work).end();
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.stdout
}

/// The probe's results for a page in a frame of `width`.
fn look(browser: &Path, work: &Path, html: &str, width: u32, dark: bool) -> Value {
    let attribute = html.replace('&', "&amp;").replace('"', "&quot;");
    let page = work.join("probe.html");
    fs::write(&page, PROBE.replace("WIDTH", &width.to_string()).replace("PAGE", &attribute))
        .unwrap();
    let args = ["--dump-dom".to_owned(), "--window-size=1700,1300".to_owned()];
    let dom = browse(browser, work, dark, &args, &page);
    let (_, found) = dom.rsplit_once("<pre id=\"found\">").unwrap();
    let (found, _) = found.split_once("</pre>").unwrap();
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&found).unwrap_or_else(|e| panic!("{e}: {found}"))
}

#[test]
fn it_is_readable_on_all_screens_in_light_and_dark() {
    let Some(browser) = browser() else { return };
    let work = tempfile::tempdir().unwrap();
    let html = fs::read_to_string(sample(work.path()).join("report.html")).unwrap();
    for (width, dark) in WIDTHS.into_iter().flat_map(|width| [(width, false), (width, true)]) {
        let found = look(&browser, work.path(), &html, width, dark);
        let troubles = found["troubles"].as_array().unwrap();
        assert!(troubles.is_empty(), "{width}, dark {dark}: {troubles:#?}");
        // The results are for this page, at this width and in these colours.
        assert_eq!((&found["width"], &found["dark"]), (&width.into(), &dark.into()));
        let count = |of: &str| found[of].as_u64().unwrap();
        assert!(count("charts") >= 40 && count("tables") >= 20, "{found}");
        assert!(count("texts") > count("charts"), "{found}");
        if width == 1280 {
            assert!(count("height") <= SCREENS * 800, "{} px", count("height"));
            assert!(count("glance") <= 800, "the first chart ends at {} px", count("glance"));
        }
    }
}

#[test]
fn screenshots_show_something() {
    let Some(browser) = browser() else { return };
    let work = tempfile::tempdir().unwrap();
    let page = sample(work.path()).join("report.html");
    // Saved to the directory in ZTIER_SCREENSHOTS, for inspection.
    let kept = std::env::var_os("ZTIER_SCREENSHOTS").map(PathBuf::from);
    for (width, dark) in [(500, false), (500, true), (1400, false), (1400, true)] {
        let name = format!("report-{width}-{}.png", if dark { "dark" } else { "light" });
        let file = kept.as_deref().unwrap_or(work.path()).join(name);
        let args =
            [format!("--screenshot={}", file.display()), format!("--window-size={width},3000")];
        browse(&browser, work.path(), dark, &args, &page);
        let picture = fs::read(&file).unwrap();
        assert!(picture.starts_with(b"\x89PNG"));
        let side = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
        assert_eq!((side(16), side(20)), (width, 3000));
        // An empty page of this size takes some ten KiB.
        assert!(picture.len() > 100_000, "{} bytes", picture.len());
    }
}

#[test]
fn the_probe_finds_what_is_wrong() {
    let Some(browser) = browser() else { return };
    let work = tempfile::tempdir().unwrap();
    let broken = "<!doctype html><style>body{background:#fff;color:#000}</style>\
        <div style=\"width:900px\">wide</div><table><tr><td>x</td></tr></table>\
        <p style=\"color:#ddd\">pale</p>\
        <figure><figcaption>one</figcaption><svg viewBox=\"0 0 300 100\">\
        <text x=\"10\" y=\"50\">left</text><text x=\"20\" y=\"50\">right</text></svg></figure>";
    let found = look(&browser, work.path(), broken, 320, false);
    let troubles = found["troubles"].to_string();
    for trouble in [
        "wider than the page by",
        "an empty chart: one",
        "overlapping: one / left / right",
        "may be wider than the page: <table>",
        "hard to read, 221,221,221 on 255,255,255: pale",
    ] {
        assert!(troubles.contains(trouble), "{trouble}: {troubles}");
    }
    let fine = "<!doctype html><style>body{background:#fff;color:#000}</style><p>fine</p>";
    let found = look(&browser, work.path(), fine, 320, false);
    assert_eq!(found["troubles"], serde_json::json!([]));
}

#[test]
fn it_has_what_the_sources_have_and_is_small() {
    let work = tempfile::tempdir().unwrap();
    let dir = sample(work.path());
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let (html, markdown, csv) = (read("report.html"), read("report.md"), read("report.csv"));
    for name in ["report.html", "report.md", "report.csv"] {
        assert!(fs::metadata(dir.join(name)).unwrap().len() <= REPORT_MAX, "{name}");
    }
    // A picture for each source document.
    for name in ["zram", "swap", "zcache", "worst-case", "log", "object"] {
        let svg = read(&format!("report-{name}.svg"));
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{name}: {svg}");
        assert!(svg.contains("class=\"mark\"") && svg.len() < 256 << 10, "{name}");
    }
    for what in [
        // Means of zcache, of ramzswap, of dm-lc; tables as IOzone prints them.
        "85,031",
        "206",
        "1579",
        "1048576      64  309500  346052   741827   692543",
        "Test to measure effects of zcache on I/O performance using IOzone benchmark",
        "“Performance”, “(1) Measuring throughput by fio tool”",
    ] {
        assert!(html.contains(what) && markdown.contains(what), "{what}");
    }
    for what in ["<script", "<link", "src=", "http://", "https://"] {
        assert!(!html.contains(what), "{what}");
    }
    // The nine tests of both documents.
    for test in ["write", "rewrite", "read", "reread", "random read", "stride read"] {
        let of = |unit| html.matches(&format!("aria-label=\"{test}, {unit}/s\"")).count();
        let charts = ["KiB", "MiB", "GiB"].map(of).iter().sum::<usize>();
        assert!(charts >= 2, "{test}: {charts}");
    }
    assert!(csv.lines().count() > 1000);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert_eq!(columns, 14);
}
