//! What `ztier --version` says: version, commit if the build knew it, and what was built in.
//!
//! Invariant: the first line begins with the name and the version, whatever follows.

use std::sync::LazyLock;

/// Set by builds from a repository (`scripts/package`); others leave it unset.
const COMMIT: Option<&str> = option_env!("ZTIER_COMMIT");

/// What depends on features of the build, with their names in Cargo.toml.
const FEATURES: [(&str, bool); 2] =
    [("fuse", cfg!(feature = "fuse")), ("object-store", cfg!(feature = "object-store"))];

static LONG: LazyLock<String> = LazyLock::new(|| describe(COMMIT, &FEATURES));

/// The version without the name, which the parser puts before it.
pub(super) fn long() -> &'static str {
    &LONG
}

fn describe(commit: Option<&str>, features: &[(&str, bool)]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let commit = commit.filter(|commit| !commit.is_empty());
    let commit = commit.map_or(String::new(), |commit| format!(" (commit {commit})"));
    let mut text = format!("{version}{commit}\nfeatures:");
    for (name, built) in features {
        text += &format!(" {}{name}", if *built { '+' } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_commit_and_features_are_told() {
        let version = env!("CARGO_PKG_VERSION");
        let features = [("fuse", true), ("object-store", false)];
        let all = "features: +fuse -object-store";
        assert_eq!(describe(Some("abc"), &features), format!("{version} (commit abc)\n{all}"));
        for none in [None, Some("")] {
            assert_eq!(describe(none, &features), format!("{version}\n{all}"));
        }
        assert!(long().starts_with(version));
    }

    #[test]
    fn every_feature_of_the_build_is_known() {
        let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let manifest: toml::Table = std::fs::read_to_string(manifest).unwrap().parse().unwrap();
        let named =
            manifest["features"].as_table().unwrap().keys().filter(|name| *name != "default");
        assert!(named.eq(FEATURES.map(|(name, _)| name.to_owned()).iter()));
    }
}
