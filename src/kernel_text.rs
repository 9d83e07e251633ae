//! Reads files of `/proc` and `/sys` that contain names: of mount points, files, processes.
//!
//! Invariant: names are any bytes. One that is not UTF-8 makes no other line unreadable, and
//! `media::mounts::unescape` gives it back.

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
    fn bytes_that_are_not_utf_8_are_written_in_octal() {
        assert_eq!(escaped("État\\040".as_bytes()), "État\\040");
        assert_eq!(escaped(b"a \xc9tat\n\xff"), "a \\311tat\n\\377");
    }
}
