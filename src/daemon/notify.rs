//! Notifies the service manager: `sd_notify` without its library.

use crate::escape::escape;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// How long the service manager should wait for the next notification, in microseconds.
const EXTEND_US: u32 = 20_000_000;

/// Reports the present step, and asks for more time.
pub fn extend(status: &str) {
    let status = escape(status);
    send(&format!("STATUS={status}\nEXTEND_TIMEOUT_USEC={EXTEND_US}\n"));
}

/// Sends `message` (lines of `KEY=value`) to `NOTIFY_SOCKET`, if set. A failure is only logged.
pub fn send(message: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(e) = deliver(&name, message) {
        super::log::line(&format!("cannot notify {}: {e}", name.display()));
    }
}

fn deliver(name: &OsString, message: &str) -> std::io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(hidden) => SocketAddr::from_abstract_name(hidden)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message.as_bytes(), &address).map(drop)
}
