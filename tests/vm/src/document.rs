//! Commands in documents, as readers paste them, and a check that they do what the document shows.
//!
//! A block fenced as `console` has commands behind `# ` (for root) or `$ ` (for any user), and
//! below each its output. `…` stands for anything; alone on a line, for any number of lines.
//! Numbers, units of size and widths of gaps may differ; a command without shown output may print
//! anything. A command with a shown error of ztier's has to fail, each other command has to
//! succeed.
//!
//! Invariant: all commands of a document for one kind of user run one after the other in one shell.

use std::fmt::Write;
use std::iter::Peekable;
use ztier::error::{Error, Result};

/// Beginning of the message of a command that fails.
const REFUSED: &str = "ztier: ";
/// Beginning of the lines that mark where a command begins or ends.
const MARK: &str = "@@document";

/// A command and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its line in the document, from 1.
    pub line: usize,
    /// Whether root runs it.
    pub root: bool,
    /// The command, as pasted.
    pub command: String,
    /// The output lines below it; empty if any output will do.
    pub shown: Vec<String>,
}

/// A fenced block of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    /// The language of its fence.
    pub kind: String,
    /// Its lines.
    pub lines: Vec<String>,
}

/// All blocks of a document.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => found.push(block),
            (Some(kind), None) => {
                let kind = kind.trim().to_owned();
                open = Some(Block { line: number + 1, kind, lines: Vec::new() });
            }
            (None, Some(mut block)) => {
                block.lines.push(line.to_owned());
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    found
}

/// The commands of a document.
///
/// # Errors
/// A block begins with output instead of a command.
pub fn steps(text: &str) -> Result<Vec<Step>> {
    let mut found = Vec::new();
    for block in blocks(text).iter().filter(|block| block.kind == "console") {
        let mut lines = (block.line + 1..).zip(&block.lines).peekable();
        while let Some((line, first)) = lines.next() {
            let command = first.strip_prefix("# ").map(|rest| (true, rest));
            let command = command.or_else(|| first.strip_prefix("$ ").map(|rest| (false, rest)));
            let Some((root, rest)) = command else {
                let what = format!("line {line} of a console block is no command's: {first}");
                return Err(Error::failure(what).hint("commands begin with `# ` or `$ `"));
            };
            let mut command = rest.to_owned();
            while command.ends_with('\\')
                && let Some((_, more)) = lines.next()
            {
                command = format!("{command}\n{more}");
            }
            found.push(Step { line, root, command, shown: shown(&mut lines) });
        }
    }
    Ok(found)
}

/// The lines up to the next command.
fn shown<'a>(lines: &mut Peekable<impl Iterator<Item = (usize, &'a String)>>) -> Vec<String> {
    let is_output = |line: &str| !line.starts_with("# ") && !line.starts_with("$ ");
    let mut shown = Vec::new();
    while let Some((_, line)) = lines.next_if(|(_, line)| is_output(line)) {
        shown.push(line.clone());
    }
    shown
}

impl Step {
    /// Whether the step shows an error.
    fn is_refused(&self) -> bool {
        self.shown.iter().any(|line| line.starts_with(REFUSED))
    }
}

/// A bash script that runs the commands in one shell and marks where each begins and ends, up to
/// the first with the wrong exit status.
pub fn script(steps: &[&Step]) -> String {
    let mut script = "exec 2>&1 </dev/null\n".to_owned();
    for (number, step) in steps.iter().enumerate() {
        let command = step.command.replace('\'', r"'\''");
        let wanted = if step.is_refused() { "-ne" } else { "-eq" };
        // Writing to a string cannot fail.
        let _ = write!(
            script,
            "echo '{MARK} {number}'\neval '{command}'\nended=$?\nprintf '\\n{MARK} {number} %s\\n' \
             $ended\n[ $ended {wanted} 0 ] || exit 1\n"
        );
    }
    script
}

/// Checks the output of the script of `steps` against what the steps show.
///
/// # Errors
/// Names the line of the first command with the wrong exit status or output, and the output.
pub fn judge(steps: &[&Step], output: &str) -> Result<()> {
    for (number, step) in steps.iter().enumerate() {
        let wrong = |what: &str, printed: &str| {
            let Step { line, command, .. } = step;
            Error::failure(format!("line {line}: `{command}` {what}: {printed}"))
        };
        let begin = format!("{MARK} {number}\n");
        let end = format!("\n{MARK} {number} ");
        let rest = output.find(&begin).map(|at| &output[at + begin.len()..]);
        let Some(rest) = rest else { return Err(wrong("was not reached", output)) };
        let Some(at) = rest.find(&end) else { return Err(wrong("did not end", rest)) };
        let printed = &rest[..at];
        let status = rest[at + end.len()..].lines().next().unwrap_or_default();
        if (status == "0") == step.is_refused() {
            return Err(wrong(&format!("ended with status {status}"), printed));
        }
        let lines: Vec<_> = printed.lines().collect();
        let shown: Vec<_> = step.shown.iter().map(String::as_str).collect();
        if !shown.is_empty() && !lines_fit(&shown, &lines) {
            return Err(wrong("printed something else", printed));
        }
    }
    Ok(())
}

/// Whether `lines` match `pattern`.
fn lines_fit(pattern: &[&str], lines: &[&str]) -> bool {
    match (pattern.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((&"…", rest)), _) => (0..=lines.len()).any(|skip| lines_fit(rest, &lines[skip..])),
        (Some((first, rest)), Some((line, others))) => {
            line_fits(&plain(first), &plain(line)) && lines_fit(rest, others)
        }
        _ => false,
    }
}

/// Whether a line matches a pattern, in which `…` stands for anything.
fn line_fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Normalizes what differs between machines: each number becomes 0, each unit of size a byte, each
/// gap one space.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut number = false;
    for word in line.split_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        if ["KiB", "MiB", "GiB", "TiB"]
            .iter()
            .any(|unit| word.trim_end_matches([',', ';']) == *unit)
        {
            text.push_str(&word[2..]);
            continue;
        }
        for c in word.chars() {
            match c {
                '0'..='9' if !number => text.push('0'),
                '0'..='9' => {}
                '.' if number => {}
                _ => text.push(c),
            }
            number = c.is_ascii_digit() || (number && c == '.');
        }
        number = false;
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TEXT: &str = "\
Text
```console
# one \\
  --more    # why
first 12.5 MiB, more
…
last
$ two
```
```toml
# no command
```
";

    #[test]
    fn commands_and_what_they_print_are_found() {
        let found = steps(TEXT).unwrap();
        let one = "one \\\n  --more    # why";
        let shown = ["first 12.5 MiB, more", "…", "last"].map(str::to_owned).to_vec();
        assert_eq!(found[0], Step { line: 3, root: true, command: one.into(), shown });
        assert_eq!(found[1].command, "two");
        assert!(!found[1].root && found.len() == 2 && found[1].line == 8);
        assert_eq!(blocks(TEXT)[1].kind, "toml");
        assert!(steps("```console\nnothing\n```\n").is_err());
    }

    #[test]
    fn numbers_may_differ_and_words_may_not() {
        let found = steps(TEXT).unwrap();
        let steps: Vec<_> = found.iter().collect();
        let printed = |text: &str, status| {
            format!("{MARK} 0\n{text}\n{MARK} 0 {status}\n{MARK} 1\n\n{MARK} 1 0\n")
        };
        judge(&steps, &printed("first   7 GiB, more\nx\ny\nlast\n", 0)).unwrap();
        judge(&steps, &printed("first 7 GiB, more\nlast\n", 0)).unwrap();
        for wrong in ["first 7 GiB, less\nlast\n", "first 7 GiB, more\n", "last\n", ""] {
            assert!(judge(&steps, &printed(wrong, 0)).is_err(), "{wrong}");
        }
        let error = judge(&steps, &printed("first 7 GiB, more\nlast\n", 3)).unwrap_err();
        assert!(error.to_string().starts_with("line 3: `one"), "{error}");
        let cut = printed("first 7 GiB, more\nlast\n", 0);
        let cut = &cut[..cut.rfind(MARK).unwrap()];
        assert!(judge(&steps, cut).unwrap_err().to_string().contains("did not end"));
        assert!(line_fits("a … c", "a b c") && !line_fits("a … c", "a b d"));
        assert!(line_fits("a … b …", "a x b y") && !line_fits("a b", "a b c"));
    }

    #[test]
    fn an_error_that_is_shown_has_to_come() {
        let found = steps("```console\n# down x\nztier: no …\n```\n").unwrap();
        let steps: Vec<_> = found.iter().collect();
        judge(&steps, &format!("{MARK} 0\nztier: no way\n\n{MARK} 0 1\n")).unwrap();
        assert!(judge(&steps, &format!("{MARK} 0\nztier: no way\n\n{MARK} 0 0\n")).is_err());
        assert!(script(&steps).contains("-ne 0"));
    }
}
