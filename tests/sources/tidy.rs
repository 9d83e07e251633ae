//! The house rules that a compiler does not check: layers, headers, sizes, wording.
#![allow(clippy::unwrap_used)]

use super::circles::circles;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, top first. A layer uses itself and those below it.
const LAYERS: [&[&str]; 9] = [
    &["cli"],
    &["metrics"],
    &["daemon"],
    &["control", "config", "limit"],
    &["export"],
    &["device", "system"],
    &["cache", "log", "object", "ram"],
    &["media"],
    &["codec"],
];
/// Modules that use no other of their layer: the engines, and the base of front-ends.
const APART: [&str; 6] = ["device", "system", "cache", "log", "object", "ram"];
/// Modules beside the layers: every module may use them, and they use no layer.
const BESIDE: [&str; 12] = [
    "error",
    "escape",
    "intervals",
    "kernel_text",
    "patience",
    "places",
    "planted",
    "private",
    "remedy",
    "stats",
    "sync",
    "threadless",
];
/// The rooms of an engine, top first, all below the files outside of rooms: a room uses itself and
/// those below it, by their names, and nothing else of its engine. Tests may.
const ROOMS: [(&str, &[&str]); 2] =
    [("log", &["run", "recovery", "core", "disk", "planted"]), ("ram", &["store"])];
/// Files with `unsafe` outside of tests, by the classes of `ARCHITECTURE.md`.
const UNSAFE: [&[&str]; 6] = [
    &[
        "media/mapping",
        "media/interpreted",
        "media/part",
        "media/pool",
        "media/ring_buffers",
        "media/arena",
        "media/words",
        "media/prefetch",
        "ram/store/frames",
        "system/bpf/ring",
        "daemon/evicted/calibration",
        "daemon/swappable",
        "export/ublk/memory",
    ],
    &["log/core/fill", "device/volume/worker_pool"],
    &["media/ring/uring", "export/ublk/queue", "export/ublk/control"],
    &["media/ioctls"],
    &[
        "codec/mod",
        "system/bpf/mod",
        "media/claims",
        "system/reclaim",
        "export/nbd/listen",
        "export/nbd/connection",
        "device/volume/refill",
        "daemon/heap",
        "cli/doctor",
        "cli/run",
        "cli/run/relay",
    ],
    &["media/buffer"],
];
const LINES_MAX: usize = 800;
const COLUMNS_MAX: usize = 100;
const FUNCTION_MAX: usize = 70;

fn sources(dir: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The module below `src/` that a file belongs to.
fn module_of(path: &Path) -> String {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_string()
}

/// The lines that are not comments.
fn code_of(text: &str) -> String {
    text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Every `crate::module` in a text, also in grouped imports.
fn used_modules(text: &str) -> Vec<String> {
    used_below(text, "crate::")
}

/// The names behind a path in a text, also in grouped imports.
fn used_below(text: &str, path: &str) -> Vec<String> {
    let mut used = Vec::new();
    for (at, _) in text.match_indices(path) {
        let rest = &text[at + path.len()..];
        let names = match rest.strip_prefix('{') {
            Some(group) => {
                let mut depth = 0;
                let mut names = vec![String::new()];
                for c in group.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => names.push(String::new()),
                        _ if depth == 0 => names.last_mut().unwrap().push(c),
                        _ => {}
                    }
                }
                names
            }
            None => vec![rest.to_string()],
        };
        used.extend(names.iter().map(|name| {
            name.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
        }));
    }
    used
}

fn violation(module: &str, used: &str) -> bool {
    match (rank(module), rank(used)) {
        (Some(own), Some(other)) => {
            other < own || other == own && module != used && APART.contains(&module)
        }
        (None, Some(_)) => BESIDE.contains(&module),
        _ => false,
    }
}

/// Words that do not say which thread, process, user or number is meant, in halves, so that this
/// file contains none.
const VAGUE: [(&str, &str); 7] = [
    ("who", "ever"),
    ("some", "body"),
    ("no", "body"),
    ("every", "body"),
    ("any", "body"),
    (" so ", "many "),
    (" so ", "much "),
];
/// Words with the same fault, if they stand alone.
const PERSONS: [(&str, &str); 4] = [("h", "e"), ("h", "im"), ("h", "is"), ("hims", "elf")];

/// Whether a text has one of those words.
fn is_vague(text: &str) -> bool {
    let text = text.to_lowercase();
    let is_person = |word: &str| PERSONS.iter().any(|(a, b)| word == [*a, *b].concat());
    VAGUE.iter().any(|(a, b)| text.contains(&[*a, *b].concat()))
        || text.split(|c: char| !c.is_alphanumeric()).any(is_person)
}

/// All texts of the project for readers, except benchmark results.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<_> =
        ["src", "crates", "tests"].iter().flat_map(|dir| sources(dir)).collect();
    for dir in ["", "docs", "docs/notes", "docs/results", "etc", "etc/debian", "scripts"] {
        let entries = fs::read_dir(root.join(dir)).unwrap().map(|entry| entry.unwrap().path());
        let generated = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == "report");
        found.extend(entries.filter(|path| path.is_file() && !generated(path)));
    }
    found
}

#[test]
fn things_have_their_names() {
    let mut wrong = Vec::new();
    for path in pages() {
        // Archives and images are no texts.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| is_vague(line));
        wrong.extend(lines.map(|(n, line)| format!("{}:{n}: {line}", path.display())));
    }
    assert!(wrong.is_empty(), "name the thread, process, request or user: {}", wrong.join("; "));
    let [(a, b), ..] = VAGUE;
    assert!(is_vague(&format!("for {a}{b} asks")));
    let [(a, b), ..] = PERSONS;
    assert!(is_vague(&format!("what {a}{b} asks")) && !is_vague("what the user asks"));
}

#[test]
fn a_layer_uses_only_those_below() {
    let mut wrong = Vec::new();
    for path in sources("src") {
        let module = module_of(&path);
        if ["main", "lib"].contains(&module.as_str()) {
            continue;
        }
        assert!(
            rank(&module).is_some() || BESIDE.contains(&module.as_str()),
            "{module} has no place among the layers"
        );
        for used in used_modules(&code_of(&fs::read_to_string(&path).unwrap())) {
            if violation(&module, &used) {
                wrong.push(format!("{} uses {used}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

/// A text without its tests, which are last in a file.
fn without_tests(text: &str) -> &str {
    let tests = text.find("\nmod tests {").unwrap_or(text.len());
    &text[..tests]
}

/// Forbidden uses of a room in its engine: rooms above it, and files outside of rooms.
fn strays(rooms: &[&str], room: &str, used: &[String]) -> Vec<String> {
    let below = rooms.iter().skip_while(|r| **r != room).collect::<Vec<_>>();
    used.iter().filter(|u| !below.iter().any(|r| *r == u)).cloned().collect()
}

#[test]
fn a_room_uses_only_those_below() {
    let mut wrong = Vec::new();
    for (engine, rooms) in ROOMS {
        for room in rooms {
            let dir = format!("src/{engine}/{room}");
            let is_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(&dir).is_dir();
            let files = if is_dir {
                sources(&dir)
            } else {
                vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{dir}.rs"))]
            };
            for path in files {
                let text = code_of(&fs::read_to_string(&path).unwrap());
                let text = without_tests(&text);
                // If the room itself is the parent, its parent is the engine.
                let is_root = path.ends_with("mod.rs") || !is_dir;
                let up = if is_root { "super::" } else { "super::super::" };
                let mut used = used_below(text, &format!("crate::{engine}::"));
                used.extend(used_below(text, up));
                for stray in strays(rooms, room, &used) {
                    wrong.push(format!("{} uses {engine}::{stray}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files: Vec<(String, String)> = sources("src")
        .into_iter()
        .filter(|path| !["mod.rs", "lib.rs", "main.rs"].iter().any(|root| path.ends_with(root)))
        .map(|path| {
            let text = code_of(&fs::read_to_string(&path).unwrap());
            let name = path.strip_prefix(&root).unwrap().with_extension("");
            (name.to_str().unwrap().to_owned(), without_tests(&text).to_owned())
        })
        .collect();
    let found = circles(&files);
    assert!(found.is_empty(), "circles: {found:?}");
}

#[test]
fn unsafe_code_is_where_the_table_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let has_some = |text: &str| text.split(|c| !is_letter(c)).any(|word| word == "unsafe");
    let found: BTreeSet<String> = sources("src")
        .into_iter()
        .filter(|path| has_some(without_tests(&code_of(&fs::read_to_string(path).unwrap()))))
        .map(|path| path.strip_prefix(&root).unwrap().with_extension("").display().to_string())
        .collect();
    let known = UNSAFE.iter().flat_map(|files| files.iter()).map(|file| (*file).to_owned());
    assert_eq!(found, known.collect());
}

#[test]
fn the_check_of_circles_can_fail() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file("a/one", "use super::{two::{X, Y}, three};"),
        file("a/two", "use crate::a::three::Z;"),
        file("a/three", "fn f() { super::one::g() }"),
        file("b", "use crate::a::one::{self, G};"),
    ];
    let all = ["a/one", "a/two", "a/three"].map(str::to_owned);
    assert_eq!(circles(&files), BTreeSet::from([BTreeSet::from(all)]));
    assert!(circles(&files[1..]).is_empty());
}

#[test]
fn the_layering_check_can_fail() {
    assert_eq!(used_modules("use crate::{log::{a, b}, cli::x};"), ["log", "cli"]);
    assert_eq!(used_modules("crate::daemon::run()"), ["daemon"]);
    assert!(violation("log", "cli") && violation("stats", "log"));
    assert!(violation("log", "ram") && violation("cache", "log"));
    assert!(!violation("cli", "log") && !violation("log", "log"));
    assert!(!violation("log", "stats") && !violation("control", "config"));
    let rooms = ["run", "core", "disk"];
    let used =
        used_below("use crate::log::{core::A, run::B}; use crate::log::Log;", "crate::log::");
    assert_eq!(strays(&rooms, "core", &used), ["run", "Log"]);
    assert_eq!(strays(&rooms, "run", &used), ["Log"]);
}

#[test]
fn every_file_says_what_it_is_and_fits() {
    let mut wrong = Vec::new();
    for path in [sources("src"), sources("tests"), sources("crates")].concat() {
        let text = fs::read_to_string(&path).unwrap();
        let mut say = |what: String| wrong.push(format!("{}: {what}", path.display()));
        if !text.starts_with("//! ") {
            say("has no //! header".into());
        }
        if text.lines().count() > LINES_MAX {
            say(format!("has more than {LINES_MAX} lines"));
        }
        for (n, line) in text.lines().enumerate() {
            // rustfmt leaves text alone that cannot be broken.
            if line.chars().count() > COLUMNS_MAX && !line.contains('"') {
                say(format!("line {} is longer than {COLUMNS_MAX}", n + 1));
            }
        }
        for (name, lines) in functions(&text) {
            if lines > FUNCTION_MAX {
                say(format!("{name} has {lines} lines"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

/// Tables of the kernel with names that any user or program of the machine chose, and texts about
/// one process or device: read as UTF-8, all of it is lost as soon as one name is not.
const TABLES: [&str; 3] = ["mountinfo", "mounts\"", "/swaps\""];
const TEXTS: [&str; 7] =
    ["cmdline", "/stat\"", "status\"", "maps\"", "/cgroup\"", "uevent", "backing_file"];

#[test]
fn names_in_the_kernels_tables_may_have_any_bytes() {
    let in_program =
        |path: &Path| path.starts_with(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let tests_begin = |line: &str| line.starts_with("#[cfg(") && line.contains("test");
    let named = |line: &str, parts: &[&str]| parts.iter().any(|part| line.contains(part));
    let mut wrong = Vec::new();
    for path in [sources("src"), sources("tests"), sources("crates")].concat() {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().take_while(|line| !tests_begin(line));
        let reads = lines.filter(|line| line.contains("read_to_string("));
        let refused =
            reads.filter(|line| named(line, &TABLES) || (in_program(&path) && named(line, &TEXTS)));
        wrong.extend(refused.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    assert!(wrong.is_empty(), "kernel_text reads these: {wrong:#?}");
}

/// Functions and their lengths: from `fn` to the closing brace at the same indentation, which is
/// where rustfmt puts it.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some(at) = code.find("fn ").filter(|at| {
            let before = &code[..*at];
            let words = [
                "pub",
                "pub(super)",
                "pub(crate)",
                "pub(in",
                "crate::log)",
                "const",
                "unsafe",
                "extern",
                "async",
            ];
            before.split_whitespace().all(|w| words.contains(&w) || w.starts_with('"'))
        }) else {
            continue;
        };
        let indent = line.len() - code.len();
        let end = lines[start..].iter().position(|l| {
            l.len() - l.trim_start().len() == indent
                && (l.trim() == "}" || l.trim_end().ends_with(';'))
        });
        let name = code[at + 3..].split(['(', '<']).next().unwrap_or_default();
        found.push((name.to_string(), end.map_or(0, |n| n + 1)));
    }
    found
}

#[test]
fn the_function_check_can_fail() {
    let long = format!("pub fn long() {{\n{}}}\n", "    x();\n".repeat(80));
    assert_eq!(functions(&long), [("long".to_string(), 82)]);
}
