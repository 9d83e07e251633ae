//! What documents say about the project is true: quoted messages are in the program, links have
//! targets, the index is complete. `tests/vm/tests/package.rs` runs their commands.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All documents, with their paths in the project.
fn documents() -> Vec<(PathBuf, String)> {
    let directories =
        ["docs", "docs/notes"].map(|name| fs::read_dir(project().join(name)).unwrap());
    let docs = directories.into_iter().flatten().flatten().map(|entry| entry.path());
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let all = docs.chain(top.map(|name| project().join(name)));
    let documents = all.filter(|path| path.extension().is_some_and(|e| e == "md"));
    documents.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The string literals of a source file, with `…` for each placeholder.
fn texts(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut chars = source.chars().peekable();
    let mut open: Option<String> = None;
    while let Some(c) = chars.next() {
        match (&mut open, c) {
            (None, '"') => open = Some(String::new()),
            // A character literal with a quotation mark.
            (None, '\'') if chars.peek() == Some(&'"') => {
                chars.next();
            }
            (None, _) => {}
            (Some(_), '"') => found.extend(open.take()),
            (Some(text), '\\') => match chars.next() {
                Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                Some(escaped) => text.push(escaped),
                None => {}
            },
            (Some(text), '{') if chars.peek() != Some(&'{') => {
                while chars.next().is_some_and(|c| c != '}') {}
                text.push('…');
            }
            (Some(text), c) => text.push(c),
        }
    }
    found
}

/// The quoted first cells of a document's tables: messages.
fn quoted(text: &str) -> Vec<String> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let quoted = cells.filter(|cell| cell.starts_with('`'));
    quoted.map(|cell| cell.trim_matches('`').trim().trim_end_matches('`').to_owned()).collect()
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(dirs.iter().flat_map(|dir| sources(dir))).collect()
}

#[test]
fn messages_that_are_explained_exist() {
    let mut known = BTreeSet::new();
    for path in sources(&project().join("src")) {
        let source = fs::read_to_string(path).unwrap();
        let code: Vec<_> =
            source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        known.extend(texts(&code.join("\n")));
    }
    let text = fs::read_to_string(project().join("docs/troubleshooting.md")).unwrap();
    // The last table has messages of other programs.
    let ours = text.split("## What programs and the kernel say").next().unwrap();
    let messages = quoted(ours);
    assert!(messages.len() > 40, "{messages:?}");
    let is_known = |message: &str| {
        let end = message.trim_end_matches("…").trim_end_matches([' ', ':']);
        known.iter().any(|text| text.contains(message) || (text.ends_with(end) && end.len() > 15))
    };
    let unknown: Vec<_> = messages.iter().filter(|message| !is_known(message)).collect();
    assert!(unknown.is_empty(), "no message of the program: {unknown:#?}");
    assert!(!is_known("volume `…` has gone fishing"));
}

/// Only one place advises flags that give data up, where tests check the advice.
#[test]
fn advice_that_loses_data_is_in_one_table() {
    let lossy = [
        "--discard-log",
        "--accept-changed-backing",
        "--accept-loss",
        "--accept-older-log",
        "--discard",
        "--force",
        "--wipe",
    ];
    // Arguments for other programs, and messages about a useless flag.
    let others = ["--force", "--discard"];
    let of_flags = |text: &str| {
        ["leave out --", "is for ", "--log needs", "--export "]
            .iter()
            .any(|words| text.contains(words))
            || lossy.contains(&text)
    };
    let mut wrong = Vec::new();
    for path in sources(&project().join("src")) {
        // Examples of the manual say beside the flag what is given up.
        if path.ends_with("src/remedy.rs") || path.ends_with("src/cli/manual.rs") {
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap();
        let code: Vec<_> = code.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
        for text in texts(&code.join("\n")) {
            let names = lossy.iter().any(|flag| text.contains(flag));
            if names && !of_flags(&text) && !others.contains(&text.as_str()) {
                wrong.push(format!("{}: {text}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "advice that is not in src/remedy.rs: {}", wrong.join("; "));
}

#[test]
fn texts_are_found_in_sources() {
    let source = "f(\"one {a:?} two \\\n    three\", '\"', \"a \\\"b\\\"\")";
    assert_eq!(texts(source), ["one … two three", "a \"b\""]);
    assert_eq!(quoted("| `a …` | b |\n| ``c `…` d`` | e |\n| f | g |\n"), ["a …", "c `…` d"]);
}

/// The anchor of a heading in links.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let there = match fs::read_to_string(&target) {
                Ok(text) => {
                    let headings = text.lines().filter(|line| line.starts_with('#'));
                    part.is_empty() || headings.map(anchor).any(|anchor| anchor == part)
                }
                Err(_) => target.is_dir() && part.is_empty(),
            };
            if !there {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

/// As many as are read before a decision.
const README_WORDS: usize = 700;

#[test]
fn the_first_page_is_short() {
    let readme = fs::read_to_string(project().join("README.md")).unwrap();
    let words = readme.split_whitespace().count();
    assert!(words <= README_WORDS, "README.md has {words} words, more than {README_WORDS}");
}

#[test]
fn the_index_lists_every_document() {
    let index = fs::read_to_string(project().join("docs/README.md")).unwrap();
    for (path, _) in documents() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let in_docs = path.parent().unwrap().ends_with("docs") && name != "README.md";
        assert!(
            !in_docs || index.contains(&format!("]({name}")),
            "{name} is not in docs/README.md"
        );
    }
}

/// The rows of the table that begins with `head`.
fn rows_below<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let from = text.find(head).unwrap_or_else(|| panic!("no table begins with {head:?}"));
    text[from..].lines().skip(2).take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_results_are_those_of_the_report() {
    let readme = fs::read_to_string(project().join("docs/results/README.md")).unwrap();
    let report = fs::read_to_string(project().join("docs/results/report.md")).unwrap();
    let shown = rows_below(&readme, "| ratio | source | here |");
    let measured = rows_below(&report, "| ratio | source | here |");
    assert!(shown.len() > 10, "{shown:#?}");
    let other: Vec<_> = shown.iter().filter(|row| !measured.contains(row)).collect();
    assert!(other.is_empty(), "not as in docs/results/report.md: {other:#?}");
    let count = rows_below(&report, "| document | targets |").into_iter();
    let all: usize =
        count.map(|row| row.split(" | ").nth(1).unwrap().parse::<usize>().unwrap()).sum();
    assert!(readme.contains(&format!("all {all} of them")), "the report has {all} targets");
}

#[test]
fn the_package_has_the_version_of_the_program() {
    let log = fs::read_to_string(project().join("etc/debian/changelog")).unwrap();
    let first = log.lines().next().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        first.starts_with(&format!("ztier ({version}-")),
        "{first}: write an entry for {version}"
    );
}
