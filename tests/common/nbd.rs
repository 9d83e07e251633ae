//! As much of an NBD client as it takes to use a volume.
#![allow(dead_code)] // each test program uses its part

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub struct Nbd {
    stream: UnixStream,
    pub size: u64,
}

impl Nbd {
    pub fn connect(socket: &Path, name: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(super::sandbox::PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut hello = 3u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
        hello.extend(b"IHAVEOPT");
        hello.extend(1u32.to_be_bytes()); // EXPORT_NAME
        hello.extend((name.len() as u32).to_be_bytes());
        hello.extend(name.as_bytes());
        stream.write_all(&hello).unwrap();
        let mut agreed = [0; 10];
        stream.read_exact(&mut agreed).unwrap();
        let size = u64::from_be_bytes(agreed[..8].try_into().unwrap());
        Self { stream, size }
    }

    fn request(&mut self, kind: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend(0u16.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(7u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.request(1, offset, data.len() as u32, data), 0);
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        assert_eq!(self.request(0, offset, len as u32, &[]), 0);
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    /// Whether the server still talks to us.
    pub fn is_open(&mut self) -> bool {
        let mut byte = [0];
        self.stream.set_nonblocking(true).unwrap();
        let open = !matches!(self.stream.read(&mut byte), Ok(0) | Ok(1))
            && self.stream.peer_addr().is_ok();
        self.stream.set_nonblocking(false).unwrap();
        open
    }
}
