//! Makes foreign text (paths, names of processes, labels, output of programs) safe for a terminal
//! or a log.
//!
//! Invariant: the result has no control character, no line break, no character without width and
//! none that changes the direction of writing; all other text is unchanged. Escaping a second time
//! changes nothing.

use std::borrow::Cow;

/// Escapes characters that steer a terminal as in a Rust literal: `\n`, `\u{1b}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_but(text, &[])
}

/// As [`escape`], for a text of several lines: keeps line breaks and tabs.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_but(text, &['\n', '\t'])
}

/// Joins a program's output into one line, escaped.
pub fn join_lines(text: &str) -> String {
    let lines = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty());
    escape(&lines.collect::<Vec<_>>().join(" ")).into_owned()
}

fn escape_but<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let bad = |c: char| steers(c) && !kept.contains(&c);
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if bad(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Escapes the characters of [`escape`] in JSON's own way. Only strings contain such characters,
/// besides the line breaks between values.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let bad = |c: char| steers(c) && c != '\n';
    if !json.contains(bad) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        // All characters that steer are in the first plane.
        if bad(c) { out += &format!("\\u{:04x}", c as u32) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Whether a character does more on a terminal than show itself.
pub fn steers(c: char) -> bool {
    let hidden =
        matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}');
    c.is_control() || hidden || c == '\u{FEFF}'
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_steers_is_written_out_and_nothing_else() {
        assert!(matches!(escape("a\\b é日\u{FFFD}"), Cow::Borrowed("a\\b é日\u{FFFD}")));
        let text = "\u{1b}[31m\n\r\t\0\u{7f}\u{9b}x\u{202E}";
        let escaped = r"\u{1b}[31m\n\r\t\u{0}\u{7f}\u{9b}x\u{202e}";
        assert_eq!(escape(text), escaped);
        assert_eq!(escape(escaped), escaped);
        assert_eq!(escape_lines("a\tb\n\u{7}"), "a\tb\n\\u{7}");
        assert_eq!(join_lines("a\n  b\u{1b}\r\n\n"), r"a b\u{1b}");
        for c in '\0'..=char::MAX {
            let one = escape(c.encode_utf8(&mut [0; 4])).into_owned();
            assert!(!one.contains(steers) && (one.len() == c.len_utf8()) != steers(c), "{c:?}");
            assert!(!steers(c) || (c as u32) < 0x1_0000);
        }
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::json!({ "a\u{9b}": ["\u{1b}\n\u{202E}\u{7f}é"] });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let escaped = escape_json(&text);
        assert!(!escaped.contains(|c| steers(c) && c != '\n'), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
