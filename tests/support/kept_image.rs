//! The memory and drives that a dead daemon leaves, in one file; and a thread that plays the memory
//! holder of such a daemon.
#![allow(clippy::unwrap_used)]

use super::sandbox::eventually;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

const PAGE: u64 = 4096;
/// Limit on the descriptors in a packet.
const FILES_MAX: usize = 16;
/// Limit on the time that either side of a memory holder's socket may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A sparse file.
#[derive(Serialize, Deserialize)]
struct Sparse {
    name: String,
    bytes: u64,
    /// Numbers of the pages that are not zero; their bytes follow the header, in this order.
    pages: Vec<u64>,
}

/// The first part of an image, a line of JSON. The pages of memory follow, then those of drives;
/// all of it is one frame of zstd.
#[derive(Serialize, Deserialize)]
struct Header {
    /// The memory holder's description of the memory.
    manifest: Value,
    memory: Vec<Sparse>,
    drives: Vec<Sparse>,
}

/// Memory files and drives of a volume.
pub struct Image {
    pub manifest: Value,
    pub memory: Vec<(String, OwnedFd)>,
}

impl Image {
    /// Writes an image of `memory`, and of the files `drives` in `dir`.
    pub fn write(&self, to: &Path, dir: &Path, drives: &[&str]) {
        let mut pages = Vec::new();
        let memory = self.memory.iter();
        let memory = memory.map(|(name, file)| sparse(name, file, &mut pages)).collect();
        let drives = drives.iter().map(|name| {
            let file = File::open(dir.join(name)).unwrap();
            sparse(name, &file.into(), &mut pages)
        });
        let drives = drives.collect();
        let header = Header { manifest: self.manifest.clone(), memory, drives };
        let mut plain = serde_json::to_vec(&header).unwrap();
        plain.push(b'\n');
        plain.extend_from_slice(&pages);
        let mut packed = vec![0; zstd_safe::compress_bound(plain.len())];
        let len = zstd_safe::compress(&mut packed[..], &plain, 19).unwrap();
        fs::write(to, [&(plain.len() as u64).to_le_bytes(), &packed[..len]].concat()).unwrap();
    }

    /// Reads an image: writes its drives to files in `dir`, and its memory to memory files of this
    /// process.
    pub fn read(from: &Path, dir: &Path) -> Self {
        let packed = fs::read(from).unwrap();
        let (len, packed) = packed.split_first_chunk().unwrap();
        let mut plain = vec![0; u64::from_le_bytes(*len) as usize];
        assert_eq!(zstd_safe::decompress(&mut plain[..], packed).unwrap(), plain.len());
        let end = plain.iter().position(|byte| *byte == b'\n').unwrap();
        let Header { manifest, memory, drives } = serde_json::from_slice(&plain[..end]).unwrap();
        let mut pages = plain[end + 1..].chunks_exact(PAGE as usize);
        let fill = |file: File, sparse: &Sparse, pages: &mut std::slice::ChunksExact<'_, u8>| {
            file.set_len(sparse.bytes).unwrap();
            for page in &sparse.pages {
                file.write_all_at(pages.next().unwrap(), page * PAGE).unwrap();
            }
            OwnedFd::from(file)
        };
        let made = |sparse: Sparse| {
            let file = memfd_create("golden", MemfdFlags::CLOEXEC).unwrap();
            let file = fill(file.into(), &sparse, &mut pages);
            (sparse.name, file)
        };
        let memory = memory.into_iter().map(made).collect();
        for drive in &drives {
            fill(File::create(dir.join(&drive.name)).unwrap(), drive, &mut pages);
        }
        Self { manifest, memory }
    }

    /// Bytes of memory in use.
    pub fn memory_bytes(&self) -> u64 {
        let blocks = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512;
        self.memory.iter().map(|(_, file)| blocks(file)).sum()
    }

    /// The content of the memory holder on `socket`, as the next daemon gets it.
    pub fn kept(socket: &Path) -> Self {
        let link = seqpacket();
        rustix::net::connect(&link, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        rustix::net::send(&link, GIVE, SendFlags::empty()).unwrap();
        let (text, files) = receive(&link);
        let answer: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&answer["v"], &answer["answer"]), (&json!(1), &json!("given")));
        let names = answer["names"].as_array().unwrap().iter();
        let memory = names.map(|name| name.as_str().unwrap().to_owned()).zip(files).collect();
        Self { manifest: answer["manifest"].clone(), memory }
    }
}

/// The messages of version 1, byte for byte.
const GIVE: &[u8] = br#"{"v":1,"op":"give"}"#;
const END: &[u8] = br#"{"v":1,"op":"end"}"#;
const DONE: &[u8] = br#"{"v":1,"answer":"done"}"#;

/// A memory holder as in version 0.2.0, until it gets the order to end.
pub struct Holder {
    thread: Option<JoinHandle<()>>,
    stop: OwnedFd,
}

impl Holder {
    /// Holds the memory of `image`, on `socket`.
    pub fn new(image: Image, socket: &Path) -> Self {
        let listener = seqpacket();
        rustix::net::bind(&listener, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        let stop = listener.try_clone().unwrap();
        let path = socket.to_owned();
        let thread = std::thread::spawn(move || serve(&image, &listener, &path));
        Self { thread: Some(thread), stop }
    }

    /// Waits until the thread got the order to end.
    pub fn ended(mut self) {
        let thread = self.thread.take().unwrap();
        eventually("the memory holder was told to end", || thread.is_finished());
        thread.join().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The test failed, or sent no order: nothing else ends the thread.
        let _ = rustix::net::shutdown(&self.stop, rustix::net::Shutdown::Both);
    }
}

fn serve(image: &Image, listener: &OwnedFd, path: &Path) {
    // While a daemon has the link, the memory holder serves that daemon.
    let mut daemons = Vec::new();
    while let Ok(link) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
        set_socket_timeout(&link, Timeout::Recv, Some(PATIENCE)).unwrap();
        let (said, _) = receive(&link);
        match &said[..] {
            // A daemon only checked whether there is a memory holder.
            b"" => {}
            GIVE => {
                let names: Vec<_> = image.memory.iter().map(|(name, _)| name).collect();
                let given =
                    json!({"v": 1, "answer": "given", "manifest": image.manifest, "names": names});
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let files: Vec<_> = image.memory.iter().map(|(_, file)| file.as_fd()).collect();
                assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
                let text = serde_json::to_vec(&given).unwrap();
                let parts = [IoSlice::new(&text)];
                rustix::net::sendmsg(&link, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
                daemons.push(link);
            }
            END => {
                fs::remove_file(path).unwrap();
                rustix::net::send(&link, DONE, SendFlags::NOSIGNAL).unwrap();
                return;
            }
            other => panic!("not what 0.2.0 says: {}", String::from_utf8_lossy(other)),
        }
    }
}

fn seqpacket() -> OwnedFd {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    rustix::net::socket_with(kind.0, kind.1, kind.2, None).unwrap()
}

fn receive(link: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut text = vec![0; 16 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(link, &mut parts, &mut control, flags);
    let bytes = received.map_or(0, |received| received.bytes);
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files = files.flatten().collect();
    text.truncate(bytes);
    (text, files)
}

/// Describes a file, and appends its nonzero pages. Skips holes, as reading a hole of a memory file
/// would fill it.
fn sparse(name: &str, file: &OwnedFd, pages: &mut Vec<u8>) -> Sparse {
    let bytes = rustix::fs::fstat(file).unwrap().st_size as u64;
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap();
        for page in start / PAGE..end.div_ceil(PAGE) {
            let mut buf = [0; PAGE as usize];
            let len = rustix::io::pread(file, &mut buf, page * PAGE).unwrap();
            if buf[..len].iter().any(|byte| *byte != 0) {
                found.push(page);
                pages.extend_from_slice(&buf);
            }
        }
        at = end;
    }
    Sparse { name: name.to_owned(), bytes, pages: found }
}
