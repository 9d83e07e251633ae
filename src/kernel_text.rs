//! Reads texts of the kernel in which programs, users and file systems have chosen names.
//!
//! Invariant: a name that is not UTF-8 makes no other line unreadable, and no name is lost.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

/// The text of a file in `/proc` or `/sys`. A byte that is not UTF-8 is written as `\ooo`, in octal
/// digits, as the kernel writes blanks in its tables of mounts and swap areas.
///
/// # Errors
/// The file can't be read.
pub fn kernel_text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(escaped(&fs::read(path)?))
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\{byte:03o}"); // into a string, which takes all
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_written_out() {
        assert_eq!(escaped("État\\040".as_bytes()), "État\\040");
        assert_eq!(escaped(b"a \xc9tat\n\xff"), "a \\311tat\n\\377");
    }
}
