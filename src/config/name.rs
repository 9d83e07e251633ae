//! Names of volumes, and the nearest of what exists when a name is wrong.

/// The longest name, in bytes: it becomes part of socket paths, which end at 107 bytes.
pub const LONGEST: usize = 48;

/// Endings that the files of a volume in the run directory have.
const TAKEN: [&str; 8] = [".lock", ".json", ".sock", ".log", ".nbd", ".new", ".toml", ".fuse"];

/// Checks a volume's name: letters, digits, `-`, `_` and `.`, at most [`LONGEST`] of them,
/// beginning with a letter or digit.
///
/// # Errors
/// One line: the name, the rule it breaks, and what would do.
pub fn check(name: &str) -> Result<(), String> {
    let rule = "use letters, digits, `-`, `_` and `.`, beginning with a letter or digit";
    let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if name.is_empty() {
        return Err(format!("a volume's name can't be empty; {rule}"));
    }
    if name.len() > LONGEST {
        let long = name.len();
        return Err(format!("a volume's name of {long} bytes is too long; use at most {LONGEST}"));
    }
    if let Some(c) = name.chars().find(|c| odd(*c)) {
        return Err(format!("name {name:?} contains {c:?}; {rule}"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(format!("name {name:?} does not begin with a letter or digit; {rule}"));
    }
    if let Some(end) = TAKEN.iter().find(|end| name.ends_with(**end)) {
        return Err(format!(
            "name {name:?} ends with {end}, as ztier's own files do; leave it out"
        ));
    }
    Ok(())
}

/// The entry of `known` that is nearest to `word`, if any is near.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.72)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// What to say about an unknown `word`: the nearest of `known`, or all of them.
pub fn suggest(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names() {
        for name in ["a", "scratch", "vm-1.disk_0", "0"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let long = "x".repeat(LONGEST + 1);
        for name in ["", ".", "..", "a/b", "-x", "a b", "ä", "a\n", "a\0", "a.sock", &long] {
            let error = check(name).unwrap_err();
            assert!(error.contains("; ") && !error.contains('\n'), "{name:?}: {error}");
        }
    }

    #[test]
    fn the_nearest() {
        assert_eq!(nearest("lz5", ["lz4", "zstd", "none"]), Some("lz4"));
        assert_eq!(nearest("ramlimit", ["ram-limit", "size"]), Some("ram-limit"));
        assert_eq!(nearest("qqqq", ["lz4", "zstd", "none"]), None);
        assert_eq!(suggest("qqqq", &["lz4", "none"]), "known are lz4, none");
    }
}
