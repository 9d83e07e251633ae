//! Which files use each other in a circle: by `use` and by paths in the code, tests left out.
//!
//! The caller leaves out each room's `mod.rs`, which names all its files, and may hold the type to
//! which they add methods.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

/// A file as the words of its module's path.
type Module = Vec<String>;

/// The paths behind `prefix` (`crate::`, `super::`) at the start of `text`, with its groups taken
/// apart: `a::{b, c::d}` are `a b` and `a c d`.
fn tree(text: &str) -> Vec<Module> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut depth, mut parts) = (0, vec![String::new()]);
        for c in group.chars() {
            match c {
                '}' if depth == 0 => break,
                ',' if depth == 0 => parts.push(String::new()),
                c => {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    parts.last_mut().unwrap().push(c);
                }
            }
        }
        return parts.iter().flat_map(|part| tree(part)).collect();
    }
    let word: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if word.is_empty() {
        return vec![];
    }
    match text[word.len()..].strip_prefix("::") {
        None => vec![vec![word]],
        Some(rest) => {
            let below = tree(rest);
            let below = if below.is_empty() { vec![vec![]] } else { below };
            below.into_iter().map(|path| [vec![word.clone()], path].concat()).collect()
        }
    }
}

/// The paths that a text names from `crate` or `super` on, as paths from the crate's root.
fn paths(module: &Module, text: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            for path in tree(&text[at..]) {
                let ups = path.iter().take_while(|word| *word == "super").count();
                let base = match path[0].as_str() {
                    "crate" => vec![],
                    _ => module[..module.len().saturating_sub(ups)].to_vec(),
                };
                found.push([&base, &path[ups.max(1)..]].concat());
            }
        }
    }
    found
}

/// The files that use each other in circles, given each file's module and text.
pub fn circles(files: &[(String, String)]) -> BTreeSet<BTreeSet<String>> {
    let words = |path: &str| path.split('/').map(str::to_owned).collect::<Module>();
    let known: BTreeSet<Module> = files.iter().map(|(path, _)| words(path)).collect();
    let file_of = |path: Module| {
        let mut ends = (1..=path.len()).rev().map(|len| path[..len].to_vec());
        ends.find(|path| known.contains(path))
    };
    let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (path, text) in files {
        let module = words(path);
        let used = paths(&module, text).into_iter().filter_map(file_of);
        let used = used.filter(|other| *other != module).collect();
        uses.insert(module, used);
    }
    let reached = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut todo = vec![from];
        while let Some(module) = todo.pop() {
            todo.extend(uses[module].iter().filter(|next| seen.insert((*next).clone())));
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        uses.keys().map(|module| (module, reached(module))).collect();
    let of = |module: &Module| {
        let mutual = reach[module].iter().filter(|other| reach[other].contains(module));
        mutual.map(|other| other.join("/")).collect::<BTreeSet<_>>()
    };
    uses.keys().map(of).filter(|circle| circle.len() > 1).collect()
}
