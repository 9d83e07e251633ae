//! Standard NBD URIs (`doc/uri.md` of the NBD project), percent-encoded.

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `nbd+unix:///NAME?socket=/path`.
pub fn unix(name: &str, socket: &Path) -> String {
    let mut uri = String::from("nbd+unix:///");
    encode(&mut uri, name.as_bytes(), b"");
    uri.push_str("?socket=");
    encode(&mut uri, socket.as_os_str().as_bytes(), b"/");
    uri
}

/// `nbd://ADDRESS:PORT/NAME`.
pub fn tcp(name: &str, address: SocketAddr) -> String {
    let mut uri = format!("nbd://{address}/");
    encode(&mut uri, name.as_bytes(), b"");
    uri
}

/// Appends `bytes`: unreserved characters (RFC 3986) and those in `also` as they are.
fn encode(uri: &mut String, bytes: &[u8], also: &[u8]) {
    for &b in bytes {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) || also.contains(&b) {
            uri.push(char::from(b));
        } else {
            // Writing to a string can't fail.
            let _ = write!(uri, "%{b:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn plain_names_stay_readable() {
        assert_eq!(
            unix("scratch", Path::new("/run/ztier/scratch.sock")),
            "nbd+unix:///scratch?socket=/run/ztier/scratch.sock"
        );
        assert_eq!(
            tcp("scratch", "127.0.0.1:10809".parse().unwrap()),
            "nbd://127.0.0.1:10809/scratch"
        );
        assert_eq!(tcp("", "[::1]:7".parse().unwrap()), "nbd://[::1]:7/");
    }

    #[test]
    fn anything_else_is_encoded() {
        assert_eq!(
            unix("a b/ü?", Path::new("/tmp/x&y #1.sock")),
            "nbd+unix:///a%20b%2F%C3%BC%3F?socket=/tmp/x%26y%20%231.sock"
        );
    }
}
