//! Packets with descriptors: one JSON value each, over Unix sockets that keep packet boundaries.

use super::VERSION;
use crate::error::{Context, Error, Result};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The most descriptors in a packet.
const FILES_MAX: usize = 16;
/// The most bytes in a packet.
const LONGEST: usize = 16 << 10;

#[derive(Serialize, Deserialize)]
struct Packet<T> {
    v: u32,
    #[serde(flatten)]
    body: T,
}

/// Limits how long [`send`] and [`receive`] on `socket` wait.
pub(super) fn bound(socket: &OwnedFd, patience: Duration) -> Result<()> {
    let what = "cannot bound the waiting on a socket";
    set_socket_timeout(socket, Timeout::Send, Some(patience)).context(what)?;
    set_socket_timeout(socket, Timeout::Recv, Some(patience)).context(what)
}

/// Lets [`receive`] on `socket` wait without limit.
pub(super) fn unbound(socket: &OwnedFd) -> Result<()> {
    set_socket_timeout(socket, Timeout::Recv, None).context("cannot wait on a socket")
}

/// Sends one packet.
///
/// # Errors
/// The system call fails.
///
/// # Panics
/// More files than fit in a packet.
pub(super) fn send(socket: &OwnedFd, body: impl Serialize, files: &[BorrowedFd<'_>]) -> Result<()> {
    let what = "cannot send to the memory holder";
    let text = serde_json::to_vec(&Packet { v: VERSION, body }).context(what)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files));
    assert!(fits && text.len() <= LONGEST, "a packet holds {FILES_MAX} files");
    // A signal ends a wait with a timeout: the kernel does not restart it, even with `SA_RESTART`.
    // The same holds in `receive`.
    let mut send = || sendmsg(socket, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL);
    retry_on_intr(&mut send).context(what)?;
    Ok(())
}

/// Receives one packet; `None` if the peer is gone.
///
/// # Errors
/// The system call fails, or the packet is of another version or not understood.
pub(super) fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let what = "cannot hear the memory holder";
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut receive = || recvmsg(socket.as_fd(), &mut parts, &mut control, flags);
    let received = match retry_on_intr(&mut receive) {
        Err(Errno::CONNRESET) => return Ok(None),
        received => received.context(what)?,
    };
    let files = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Error::failure(format!("{what}: a packet was cut short")));
    }
    let packet = &text[..received.bytes];
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let version: Version = serde_json::from_slice(packet).context(what)?;
    if version.v != VERSION {
        return Err(Error::failure(format!(
            "{what}: it speaks version {}, this program {VERSION}",
            version.v
        ))
        .hint("go on with the program that made the volume"));
    }
    let packet: Packet<T> = serde_json::from_slice(packet).context(what)?;
    Ok(Some((packet.body, files)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Answer;
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (a, b) = socketpair(kind.0, kind.1, kind.2, None).unwrap();
        bound(&a, Duration::from_secs(5)).unwrap();
        bound(&b, Duration::from_millis(100)).unwrap();
        (a, b)
    }

    #[test]
    fn descriptors_arrive_with_their_packet() {
        let (a, b) = pair();
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 12345).unwrap();
        send(&a, Answer::Done, &[file.as_fd(), file.as_fd()]).unwrap();
        send(&a, Answer::Failed { why: "no".into() }, &[]).unwrap();
        let (answer, files) = receive::<Answer>(&b).unwrap().unwrap();
        assert!(matches!(answer, Answer::Done));
        assert_eq!(files.len(), 2);
        assert_eq!(rustix::fs::fstat(&files[1]).unwrap().st_size, 12345);
        let (answer, files) = receive::<Answer>(&b).unwrap().unwrap();
        assert!(matches!(answer, Answer::Failed { why } if why == "no") && files.is_empty());
        assert!(receive::<Answer>(&b).is_err(), "nothing comes in time");
        drop(a);
        assert!(receive::<Answer>(&b).unwrap().is_none());
    }

    #[test]
    fn signals_do_not_end_the_waiting() {
        use std::os::unix::thread::JoinHandleExt;
        let (a, b) = pair();
        bound(&b, Duration::from_secs(20)).unwrap();
        let came = std::sync::Arc::default();
        signal_hook::flag::register(libc::SIGUSR2, std::sync::Arc::clone(&came)).unwrap();
        let waits = std::thread::spawn(move || receive::<Answer>(&b));
        for _ in 0..50 {
            // An integer or a pointer, as the C library has it.
            let thread = waits.as_pthread_t() as libc::pthread_t;
            // SAFETY: the thread is not joined yet, so this is its handle.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(2));
        }
        send(&a, Answer::Done, &[]).unwrap();
        assert!(matches!(waits.join().unwrap().unwrap(), Some((Answer::Done, _))));
        assert!(came.load(std::sync::atomic::Ordering::Relaxed));
    }

    #[test]
    fn another_version_is_refused() {
        let (a, b) = pair();
        for text in [r#"{"v":2,"answer":"done"}"#, "{", r#"{"v":1,"answer":"what"}"#] {
            rustix::net::send(&a, text.as_bytes(), SendFlags::empty()).unwrap();
            let text = receive::<Answer>(&b).unwrap_err().to_string();
            assert!(text.contains("cannot hear the memory holder"), "{text}");
        }
    }
}
