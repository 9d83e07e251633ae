//! The part of HTTP that a scraper needs: one request a connection, of which only the first line
//! counts.
//!
//! Invariant: what is read is bounded in length and time, whatever the other side sends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The longest head of a request, in bytes.
const LONGEST: usize = 8 << 10;
/// How long a client may take to ask.
const ASKING: Duration = Duration::from_secs(5);
/// How long it may take to receive the answer.
const RECEIVING: Duration = Duration::from_secs(10);
/// How long it may take to see that the answer is complete.
const LEAVING: Duration = Duration::from_secs(1);
/// The path that metrics are at.
const PATH: &str = "/metrics";

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The metrics.
    Metrics {
        /// Whether only the head of the answer is wanted.
        head: bool,
    },
    /// A request that is refused, and why.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not an HTTP request.
    Bad,
    /// There is nothing at that path.
    NotFound,
    /// The method is neither GET nor HEAD.
    NotAllowed,
    /// It did not come in time.
    Late,
    /// It is too long.
    Long,
    /// Too many clients are connected.
    Busy,
    /// The volumes can't be looked at.
    Broken,
}

impl Refusal {
    fn status(self) -> &'static str {
        match self {
            Self::Bad => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::NotAllowed => "405 Method Not Allowed",
            Self::Late => "408 Request Timeout",
            Self::Long => "431 Request Header Fields Too Large",
            Self::Busy => "503 Service Unavailable",
            Self::Broken => "500 Internal Server Error",
        }
    }
}

/// Receives a request.
pub fn receive(mut stream: &TcpStream) -> io::Result<Asked> {
    let deadline = Instant::now() + ASKING;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Asked::Refused(Refusal::Late));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => head.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(e) => return Err(e),
        }
        if ends(&head) {
            return Ok(understand(&head));
        }
        if head.len() > LONGEST {
            return Ok(Asked::Refused(Refusal::Long));
        }
    }
}

/// Whether the head of a request is complete.
fn ends(head: &[u8]) -> bool {
    head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n")
}

/// What the first line asks for. Header fields change nothing.
fn understand(head: &[u8]) -> Asked {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let &[method, target, version] = &words[..] else { return Asked::Refused(Refusal::Bad) };
    let is_method = !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase());
    if !is_method || !target.starts_with('/') || !version.starts_with("HTTP/1.") {
        return Asked::Refused(Refusal::Bad);
    }
    match (method, target.split('?').next()) {
        ("GET" | "HEAD", Some(PATH)) => Asked::Metrics { head: method == "HEAD" },
        (_, Some(PATH)) => Asked::Refused(Refusal::NotAllowed),
        _ => Asked::Refused(Refusal::NotFound),
    }
}

/// Sends the metrics, or only the head of such an answer.
pub fn send(stream: &TcpStream, text: &str, head_alone: bool) -> io::Result<()> {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    answer(stream, &head("200 OK", kind, text.len(), ""), if head_alone { "" } else { text })
}

/// Sends a refusal.
pub fn refuse(stream: &TcpStream, why: Refusal) -> io::Result<()> {
    let (head, body) = refusal(why);
    answer(stream, &head, &body)
}

/// Refuses a client because there are too many, without waiting for it to read.
pub fn send_away(mut stream: TcpStream) {
    let (head, body) = refusal(Refusal::Busy);
    // A client that does not get the answer sees the connection end.
    let _ = stream
        .set_nonblocking(true)
        .and_then(|()| stream.write(&[head, body].concat().into_bytes()));
}

fn refusal(why: Refusal) -> (String, String) {
    let status = why.status();
    let more = match why {
        Refusal::NotAllowed => "Allow: GET, HEAD\r\n",
        Refusal::Busy => "Retry-After: 1\r\n",
        _ => "",
    };
    let body = format!("{status}; metrics of ztier are at {PATH}\n");
    (head(status, "text/plain; charset=utf-8", body.len(), more), body)
}

fn head(status: &str, kind: &str, length: usize, more: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}\
         Connection: close\r\n\r\n"
    )
}

/// Sends an answer, and lets the client take all of it before the connection ends.
fn answer(mut stream: &TcpStream, head: &str, body: &str) -> io::Result<()> {
    let deadline = Instant::now() + RECEIVING;
    // The end of a long answer must not wait for the client to confirm what came before.
    stream.set_nodelay(true)?;
    for part in [head, body] {
        let mut rest = part.as_bytes();
        while !rest.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            stream.set_write_timeout(Some(left))?;
            match stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
    // Closing now would reset the connection, and lose the answer, if a part of the request is
    // unread.
    stream.shutdown(Shutdown::Write)?;
    let deadline = Instant::now() + LEAVING;
    let mut rest = [0; 1024];
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        if stream.read(&mut rest)? == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_getting_metrics_is_understood() {
        use Refusal::{Bad, NotAllowed, NotFound};
        let refused = Asked::Refused;
        for (head, asked) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Asked::Metrics { head: false }),
            ("GET /metrics?a=b HTTP/1.0\n\n", Asked::Metrics { head: false }),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Asked::Metrics { head: true }),
            ("POST /metrics HTTP/1.1\r\n\r\n", refused(NotAllowed)),
            ("GET / HTTP/1.1\r\n\r\n", refused(NotFound)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", refused(NotFound)),
            ("DELETE /x HTTP/1.1\r\n\r\n", refused(NotFound)),
            ("GET /metrics\r\n\r\n", refused(Bad)),
            ("GET  /metrics HTTP/1.1\r\n\r\n", refused(Bad)),
            ("get /metrics HTTP/1.1\r\n\r\n", refused(Bad)),
            ("GET http://x/metrics HTTP/1.1\r\n\r\n", refused(Bad)),
            ("GET /metrics HTTP/2\r\n\r\n", refused(Bad)),
            ("\r\n\r\n", refused(Bad)),
            ("\u{0}\u{1}\n\n", refused(Bad)),
        ] {
            assert!(ends(head.as_bytes()), "{head:?}");
            assert_eq!(understand(head.as_bytes()), asked, "{head:?}");
        }
        assert_eq!(understand(b"GET /\xff\xfe HTTP/1.1\r\n\r\n"), refused(Bad));
        assert!(!ends(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"));
    }
}
