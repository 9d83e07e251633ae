//! Decodes typed bytes into keys.

/// What the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// End the program.
    Quit,
    /// The volume above.
    Up,
    /// The volume below.
    Down,
    /// The first volume.
    First,
    /// The last one.
    Last,
    /// The next sort order.
    Sort,
    /// Look less often.
    Slower,
    /// Look more often.
    Faster,
    /// Show the keys and columns.
    Help,
    /// Draw the whole screen again.
    Redraw,
}

/// Decodes keys from bytes that arrive in pieces of any size.
#[derive(Debug, Default)]
pub struct Keys {
    /// The beginning of an incomplete escape sequence.
    rest: Vec<u8>,
}

impl Keys {
    /// The keys that `bytes` complete.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let (mut at, mut keys) = (0, Vec::new());
        while at < all.len() {
            let Some((key, length)) = key(&all[at..]) else {
                self.rest = all[at..].to_vec();
                break;
            };
            keys.extend(key);
            at += length;
        }
        keys
    }
}

/// The first key in `bytes`, if it has a meaning, and its length in bytes; `None` while it is
/// incomplete.
fn key(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let plain = |key| Some((key, 1));
    match bytes[0] {
        b'q' | b'Q' | 3 => plain(Some(Key::Quit)),
        b'k' => plain(Some(Key::Up)),
        b'j' => plain(Some(Key::Down)),
        b'g' => plain(Some(Key::First)),
        b'G' => plain(Some(Key::Last)),
        b's' => plain(Some(Key::Sort)),
        b'+' | b'=' => plain(Some(Key::Slower)),
        b'-' => plain(Some(Key::Faster)),
        b'?' | b'h' => plain(Some(Key::Help)),
        0x0C | b' ' => plain(Some(Key::Redraw)), // Ctrl-L
        0x1B => sequence(bytes),
        _ => plain(None),
    }
}

/// Like `key`, for an escape sequence: `ESC [ … final` or `ESC O final`.
fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match bytes.get(1)? {
        b'[' | b'O' => {}
        // Escape alone, followed by another key.
        _ => return Some((None, 1)),
    }
    // Terminals send no sequence longer than 16 bytes.
    let end = bytes.iter().skip(2).position(|byte| (0x40..=0x7E).contains(byte));
    let Some(end) = end.map(|end| end + 2) else {
        return (bytes.len() > 16).then_some((None, bytes.len()));
    };
    let key = match (&bytes[2..end], bytes[end]) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'H') | (b"1" | b"7", b'~') => Some(Key::First),
        (_, b'F') | (b"4" | b"8", b'~') => Some(Key::Last),
        _ => None,
    };
    Some((key, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_any_pieces() {
        let typed = b"jk\x1b[A\x1bOB\x1b[1;5A\x1b[H\x1b[4~\x1b[3~x\x1bs\x0cgG+-?q";
        let expected = [
            Key::Down,
            Key::Up,
            Key::Up,
            Key::Down,
            Key::Up,
            Key::First,
            Key::Last,
            Key::Sort,
            Key::Redraw,
            Key::First,
            Key::Last,
            Key::Slower,
            Key::Faster,
            Key::Help,
            Key::Quit,
        ];
        for size in 1..=typed.len() {
            let mut keys = Keys::default();
            let all: Vec<Key> = typed.chunks(size).flat_map(|part| keys.take(part)).collect();
            assert_eq!(all, expected, "{size}");
        }
        assert_eq!(Keys::default().take(&[b"\x1b[".as_slice(), &[b'1'; 40]].concat()), []);
    }
}
