//! What `ztier --version` says: version, commit if the build knew it, what was built in, and which
//! interfaces of the kernel that can use.
//!
//! Invariant: the first line begins with the name and the version, whatever follows.

use std::sync::LazyLock;

/// Set by builds from a repository (`know_commit` in `scripts/setup.sh`); others leave it unset.
const COMMIT: Option<&str> = option_env!("ZTIER_COMMIT");

/// What depends on features of the build, with their names in Cargo.toml.
const FEATURES: [(&str, bool); 2] =
    [("fuse", cfg!(feature = "fuse")), ("object-store", cfg!(feature = "object-store"))];

/// Interfaces of the kernel, each with the first Linux with which ztier uses it (5.14 is the oldest
/// of all), and whether this build can use it. `ztier doctor` says what the running kernel has.
const INTERFACES: [(&str, bool); 4] = [
    ("FUSE and loop 5.14", cfg!(feature = "fuse")),
    ("io_uring 5.14", true),
    ("ublk 6.1", true),
    ("BPF 6.6", true),
];

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
    let interfaces = INTERFACES.iter().filter(|(_, built)| *built).map(|(name, _)| *name);
    text += "\nkernel interfaces, each from this Linux on: ";
    text + &interfaces.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_commit_and_features_are_told() {
        let version = env!("CARGO_PKG_VERSION");
        let features = [("fuse", true), ("object-store", false)];
        let all = "features: +fuse -object-store\nkernel interfaces, each from this Linux on: ";
        let begin = format!("{version} (commit abc)\n{all}");
        assert!(describe(Some("abc"), &features).starts_with(&begin));
        for none in [None, Some("")] {
            assert!(describe(none, &features).starts_with(&format!("{version}\n{all}")));
        }
        assert!(long().ends_with("io_uring 5.14, ublk 6.1, BPF 6.6"), "{}", long());
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
