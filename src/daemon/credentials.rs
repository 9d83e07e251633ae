//! The credentials of a volume's store that the service has: `/etc/ztier/NAME.env`.
//!
//! The service manager reads the file when it starts the daemon. A daemon that replaces itself
//! reads it again, so that `ztier restart` takes new credentials. Only variables `AWS_…` count.

use std::fs;
use std::path::Path;

/// What begins the name of each variable.
const PREFIX: &str = "AWS_";
/// Of a key that goes with a session, and has to go with the key.
const KEY: &str = "AWS_ACCESS_KEY_ID";
const TOKEN: &str = "AWS_SESSION_TOKEN";

/// Variables with their values; `None`: it is to be removed. Nothing if there is no such file, or
/// it can't be read: then the environment stays.
pub(super) fn read(file: &Path) -> Vec<(String, Option<String>)> {
    parse(&fs::read_to_string(file).unwrap_or_default())
}

/// Lines `NAME=VALUE` as the service manager takes them: values may be in quotes.
fn parse(text: &str) -> Vec<(String, Option<String>)> {
    let line = |line: &str| {
        let (name, value) = line.trim().split_once('=')?;
        let (name, value) = (name.trim_end(), value.trim());
        let bare = ['"', '\''].iter().find_map(|&quote| {
            value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote))
        });
        let value = bare.unwrap_or(value).to_owned();
        name.starts_with(PREFIX).then(|| (name.to_owned(), Some(value)))
    };
    let mut found: Vec<_> = text.lines().filter_map(line).collect();
    let has = |name: &str| found.iter().any(|(known, _)| known == name);
    if has(KEY) && !has(TOKEN) {
        found.push((TOKEN.to_owned(), None));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_as_the_service_manager_takes_them() {
        let text = "# AWS_REGION=no\n; AWS_REGION=no\n\nAWS_REGION = \"us-east-1\"\nPATH=/tmp\n\
                    AWS_ACCESS_KEY_ID='a=b'\n AWS_SECRET_ACCESS_KEY=c\n";
        let is = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        let expected = [
            is("AWS_REGION", "us-east-1"),
            is("AWS_ACCESS_KEY_ID", "a=b"),
            is("AWS_SECRET_ACCESS_KEY", "c"),
            ("AWS_SESSION_TOKEN".to_owned(), None),
        ];
        assert_eq!(parse(text), expected);
        assert_eq!(parse("AWS_ACCESS_KEY_ID=a\nAWS_SESSION_TOKEN=t\n").len(), 2);
        assert_eq!(parse(""), []);
    }
}
