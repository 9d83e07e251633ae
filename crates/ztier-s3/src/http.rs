//! HTTP/1.1 messages as a proxy needs them: head and body, unchanged, and where they end.

use std::io::{self, BufRead, Read};

/// Limit on the bytes of a head, and of a line of a chunk's length.
const HEAD_MAX: u64 = 64 << 10;
/// Limit on the bytes of a body; objects of volumes are much smaller.
const BODY_MAX: u64 = 1 << 30;

/// A request or an answer.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// All up to the empty line, which it has, too.
    pub head: Vec<u8>,
    /// All behind it, as it was sent.
    pub body: Vec<u8>,
    /// The connection ends behind it.
    pub closes: bool,
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A field of a head, with any spelling of its name.
pub fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

impl Message {
    /// Reads a request. `continues` is called if the sender waits for it before it sends the body.
    pub fn request(
        from: &mut impl BufRead,
        continues: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Self> {
        let head = head(from)?;
        if field(&head, "expect").is_some_and(|v| v.eq_ignore_ascii_case("100-continue")) {
            continues()?;
        }
        let body = match length(&head)? {
            Some(bytes) => exactly(from, bytes)?,
            None if is_chunked(&head) => chunks(from)?,
            None => Vec::new(),
        };
        Ok(Self { closes: closes(&head), head, body })
    }

    /// Reads the answer to a request of this method.
    pub fn answer(from: &mut impl BufRead, method: &str) -> io::Result<Self> {
        loop {
            let head = head(from)?;
            let status = status(&head).ok_or_else(|| bad("an answer without a status"))?;
            if (100..200).contains(&status) {
                continue;
            }
            let mut closes = closes(&head);
            let body = if method == "HEAD" || status == 204 || status == 304 {
                Vec::new()
            } else if let Some(bytes) = length(&head)? {
                exactly(from, bytes)?
            } else if is_chunked(&head) {
                chunks(from)?
            } else {
                closes = true;
                let mut all = Vec::new();
                from.take(BODY_MAX).read_to_end(&mut all)?;
                all
            };
            return Ok(Self { head, body, closes });
        }
    }

    /// The first word of a request.
    pub fn method(&self) -> &str {
        let end = self.head.iter().position(|b| *b == b' ').unwrap_or(0);
        std::str::from_utf8(&self.head[..end]).unwrap_or_default()
    }
}

/// The number in the first line of an answer.
pub fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|b| *b == b'\r').next()?;
    std::str::from_utf8(line).ok()?.split(' ').nth(1)?.parse().ok()
}

fn head(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let (mut head, mut limited) = (Vec::new(), from.take(HEAD_MAX));
    loop {
        let before = head.len();
        limited.read_until(b'\n', &mut head)?;
        match &head[before..] {
            b"\r\n" => return Ok(head),
            line if !line.ends_with(b"\n") => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}

fn closes(head: &[u8]) -> bool {
    field(head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
}

fn is_chunked(head: &[u8]) -> bool {
    field(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
}

fn length(head: &[u8]) -> io::Result<Option<u64>> {
    let length = field(head, "content-length").map(str::parse).transpose();
    length.map_err(|_| bad("a length that is no number"))
}

fn exactly(from: &mut impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    if bytes > BODY_MAX {
        return Err(bad("a body that is too long"));
    }
    let mut body = Vec::with_capacity(bytes as usize);
    from.take(bytes).read_to_end(&mut body)?;
    if body.len() as u64 == bytes { Ok(body) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Chunks with their lengths, as they were sent; trailers are not expected.
fn chunks(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let before = body.len();
        from.take(HEAD_MAX).read_until(b'\n', &mut body)?;
        let line = std::str::from_utf8(&body[before..]).unwrap_or_default();
        let digits = line.split(';').next().unwrap_or_default().trim();
        let bytes = u64::from_str_radix(digits, 16).map_err(|_| bad("a chunk without a length"))?;
        if body.len() as u64 + bytes > BODY_MAX {
            return Err(bad("a body that is too long"));
        }
        body.extend(exactly(from, bytes + 2)?);
        if bytes == 0 {
            return Ok(body);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_message_ends_where_its_head_says() {
        let text = b"PUT /a HTTP/1.1\r\ncontent-LENGTH: 3\r\n\r\nabcGET /b HTTP/1.1\r\n\r\n";
        let mut from = &text[..];
        let put = Message::request(&mut from, || panic!("nothing waits")).unwrap();
        assert_eq!((put.method(), &put.body[..], put.closes), ("PUT", &b"abc"[..], false));
        let get = Message::request(&mut from, || panic!("nothing waits")).unwrap();
        assert_eq!((get.method(), get.body.len(), from.len()), ("GET", 0, 0));
        assert!(Message::request(&mut from, || Ok(())).is_err());
    }

    #[test]
    fn a_sender_that_waits_is_told_to_go_on() {
        let text = b"PUT /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx";
        let mut told = false;
        let go_on = || {
            told = true;
            Ok(())
        };
        assert_eq!(Message::request(&mut &text[..], go_on).unwrap().body, b"x");
        assert!(told);
    }

    #[test]
    fn answers_without_a_length_are_read_too() {
        let read = |text: &[u8], method| Message::answer(&mut &text[..], method).unwrap();
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            a;x=y\r\n0123456789\r\n0\r\n\r\n";
        assert!(read(chunked, "GET").body.ends_with(b"\r\n0\r\n\r\n"));
        let open = read(b"HTTP/1.1 200 OK\r\n\r\nto the end", "GET");
        assert_eq!((&open.body[..], open.closes), (&b"to the end"[..], true));
        let head = read(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HEAD");
        assert_eq!((head.body.len(), head.closes), (0, false));
        let after = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(status(&read(after, "PUT").head), Some(404));
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nxy";
        assert!(Message::answer(&mut &cut[..], "GET").is_err());
    }
}
