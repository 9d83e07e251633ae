//! A volume opened over NBD, for tests of parts other than the protocol.
#![allow(clippy::unwrap_used)]

use super::nbd::{Client, go, request};
use std::io::{Read, Write};
use std::path::Path;
use ztier::export::nbd::proto;

pub struct Disk {
    client: Client,
    /// Size in bytes, as the server announced it.
    pub size: u64,
}

impl Disk {
    pub fn open(socket: &Path, name: &str) -> Self {
        let mut client = Client::connect(socket);
        client.greet(3);
        client.option(proto::opt::GO, &go(name, &[]));
        let answers = client.answers();
        assert_eq!(answers.last().unwrap().0, proto::rep::ACK);
        let export = answers.iter().find(|(_, data)| data.starts_with(&[0, 0])).unwrap();
        let size = u64::from_be_bytes(export.1[2..10].try_into().unwrap());
        Self { client, size }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.client.write(0, offset, data), 0);
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.client.read(offset, u32::try_from(len).unwrap()).unwrap()
    }

    /// The bytes of a read; `None` if the read failed.
    pub fn try_read(&mut self, offset: u64, len: usize) -> Option<Vec<u8>> {
        self.client.read(offset, u32::try_from(len).unwrap()).ok()
    }

    /// Whether the write was acknowledged; `false` if the server is gone.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> bool {
        let request = request(proto::cmd::WRITE, 0, 79, offset, data.len() as u32);
        let sent = self.client.stream.write_all(&[&request, data].concat());
        sent.is_ok() && self.acknowledged()
    }

    /// Whether the flush was acknowledged; `false` if the server is gone.
    pub fn try_flush(&mut self) -> bool {
        let request = request(proto::cmd::FLUSH, 0, 79, 0, 0);
        self.client.stream.write_all(&request).is_ok() && self.acknowledged()
    }

    /// Takes a simple reply and returns whether there was one; an error in the reply fails the
    /// test.
    fn acknowledged(&mut self) -> bool {
        let mut reply = [0; 16];
        if self.client.stream.read_exact(&mut reply).is_err() {
            return false;
        }
        assert_eq!(reply[4..8], [0; 4], "an error while the server lives");
        true
    }

    /// Zeroes a block at each of these offsets, with 64 requests in flight.
    pub fn zero_blocks(&mut self, offsets: &[u64]) {
        for some in offsets.chunks(64) {
            for offset in some {
                self.client.request(proto::cmd::WRITE_ZEROES, 0, *offset, *offset, 4096);
            }
            some.iter().for_each(|offset| assert_eq!(self.client.simple(*offset), 0));
        }
    }

    /// Makes a range read as zeros, and frees its space.
    pub fn zero(&mut self, offset: u64, len: u32) {
        assert_eq!(self.client.ask(proto::cmd::WRITE_ZEROES, 0, offset, len), 0);
    }

    pub fn flush(&mut self) {
        assert_eq!(self.client.ask(proto::cmd::FLUSH, 0, 0, 0), 0);
    }

    /// The error of a write; 0 on success.
    pub fn write_error(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.client.write(0, offset, data)
    }

    /// The error of a read; 0 on success.
    pub fn read_error(&mut self, offset: u64, len: u32) -> u32 {
        self.client.read(offset, len).err().unwrap_or(0)
    }

    /// The error of a flush; 0 on success.
    pub fn flush_error(&mut self) -> u32 {
        self.client.ask(proto::cmd::FLUSH, 0, 0, 0)
    }

    /// Whether the server has hung up by now.
    pub fn is_closed(&mut self) -> bool {
        self.client.stream.set_nonblocking(true).unwrap();
        let closed = self.client.is_closed();
        self.client.stream.set_nonblocking(false).unwrap();
        closed
    }
}
