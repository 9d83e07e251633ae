//! A client of NBD servers on Unix sockets, for loads that fio can't make: blocks with stamps, and
//! the first request after a server came up.
//!
//! Invariant: a request counts as answered when its reply has arrived; an error of the server is an
//! error here.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use ztier::BLOCK_SIZE;
use ztier::error::{Context, Error, Result};
use ztier::export::nbd::proto::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_LEN,
    REQUEST_MAGIC, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC, cmd, opt, rep,
};

/// Limit on the time of a request: longer than the product tries to reach a store.
const PATIENCE: Duration = Duration::from_secs(90);

/// A connection.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the export `name` of the server at `socket`.
    ///
    /// # Errors
    /// There is no server, or none with this export.
    pub fn connect(socket: &Path, name: &str) -> Result<Self> {
        let what = || format!("cannot connect to {}", socket.display());
        let stream = UnixStream::connect(socket).context(what())?;
        stream.set_read_timeout(Some(PATIENCE)).context(what())?;
        stream.set_write_timeout(Some(PATIENCE)).context(what())?;
        let mut client = Self { stream };
        client.greet(name).context(what())?;
        Ok(client)
    }

    fn greet(&mut self, name: &str) -> Result<()> {
        let greeting: [u8; 18] = self.take()?;
        if greeting[..8] != MAGIC.to_be_bytes() || greeting[8..16] != OPTION_MAGIC.to_be_bytes() {
            return Err(Error::failure("it is no NBD server"));
        }
        let flags = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        let mut go = (name.len() as u32).to_be_bytes().to_vec();
        go.extend_from_slice(name.as_bytes());
        go.extend_from_slice(&0_u16.to_be_bytes());
        let mut bytes = flags.to_be_bytes().to_vec();
        bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&opt::GO.to_be_bytes());
        bytes.extend_from_slice(&(go.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&go);
        self.send(&bytes)?;
        loop {
            let head: [u8; 20] = self.take()?;
            if head[..8] != OPTION_REPLY_MAGIC.to_be_bytes() {
                return Err(Error::failure("it is no NBD server"));
            }
            let kind = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
            let len = u32::from_be_bytes([head[16], head[17], head[18], head[19]]);
            let mut data = vec![0; len as usize];
            self.stream.read_exact(&mut data).context("the server hung up")?;
            match kind {
                rep::ACK => return Ok(()),
                rep::INFO => {}
                other => return Err(Error::failure(format!("the server refuses: {other:#x}"))),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("the server hung up")
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).context("the server hung up")?;
        Ok(bytes)
    }

    /// The reply to one of the requests with these cookies, which may come in any order.
    fn reply(&mut self, cookies: std::ops::Range<u64>) -> Result<()> {
        let head: [u8; SIMPLE_REPLY_LEN] = self.take()?;
        let (start, cookie) = head.split_at(8);
        let cookie = cookie.try_into().map_or(u64::MAX, u64::from_be_bytes);
        if start[..4] != SIMPLE_REPLY_MAGIC.to_be_bytes() || !cookies.contains(&cookie) {
            return Err(Error::failure("the server replies to another request"));
        }
        match u32::from_be_bytes([start[4], start[5], start[6], start[7]]) {
            0 => Ok(()),
            errno => Err(Error::failure(format!("the server replies with error {errno}"))),
        }
    }

    /// Writes a block at each of these, all at once, and waits for all replies. `fill` makes the
    /// content of the `n`th.
    ///
    /// # Errors
    /// The server fails or is gone: then any part may have been written.
    pub fn write_blocks(
        &mut self,
        blocks: &[u64],
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        let mut bytes = vec![0; blocks.len() * (REQUEST_LEN + BLOCK_SIZE)];
        let each = bytes.chunks_exact_mut(REQUEST_LEN + BLOCK_SIZE);
        for (n, (block, bytes)) in blocks.iter().zip(each).enumerate() {
            let (head, data) = bytes.split_at_mut(REQUEST_LEN);
            let offset = block * BLOCK_SIZE as u64;
            head.copy_from_slice(&request(cmd::WRITE, n as u64, offset, BLOCK_SIZE as u32));
            fill(n, data);
        }
        self.send(&bytes)?;
        blocks.iter().try_for_each(|_| self.reply(0..blocks.len() as u64))
    }

    /// Reads from `offset` on.
    ///
    /// # Errors
    /// The server fails or is gone.
    pub fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.send(&request(cmd::READ, 0, offset, buf.len() as u32))?;
        self.reply(0..1)?;
        self.stream.read_exact(buf).context("the server hung up")
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// The server fails or is gone.
    pub fn flush(&mut self) -> Result<()> {
        self.send(&request(cmd::FLUSH, 0, 0, 0))?;
        self.reply(0..1)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A server that is gone needs no goodbye.
        let _ = self.stream.write_all(&request(cmd::DISC, 0, 0, 0));
    }
}

fn request(command: u16, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::{Kind, ModelDrive, Name};
    use crate::rival::raw::RawDevice;
    use crate::sys::workdir::WorkDir;
    use std::sync::Arc;
    use std::time::Instant;
    use ztier::export::Export;
    use ztier::export::nbd::{Listen, MAX_CONNECTIONS, Options, Server};

    #[test]
    fn blocks_are_read_as_they_were_written() {
        let name = Name { size: 16 << 20, ..Kind::SsdNull.into() };
        let device = Arc::new(RawDevice(Arc::new(ModelDrive::real_time(name))));
        let dir = WorkDir::new("client").unwrap();
        let socket = dir.path().join("socket");
        let listen = vec![Listen::Unix(socket.clone())];
        let options = Options { name: "disk".into(), listen, max_connections: MAX_CONNECTIONS };
        let mut server = Server::start(device, options).unwrap();
        let mut client = Client::connect(&socket, "disk").unwrap();
        client.write_blocks(&[7, 3, 9], |n, data| data.fill(n as u8 + 1)).unwrap();
        client.flush().unwrap();
        let mut found = vec![0; 7 * BLOCK_SIZE];
        client.read(3 * BLOCK_SIZE as u64, &mut found).unwrap();
        let of = |block: usize| found[(block - 3) * BLOCK_SIZE];
        assert_eq!((of(3), of(7), of(9)), (2, 1, 3));
        assert!(client.read(16 << 20, &mut [0; 4096]).is_err());
        assert!(Client::connect(&socket, "no such").is_err());
        drop(client);
        // The server may not have seen yet that its client is gone.
        let end = Instant::now() + PATIENCE;
        while let Err(e) = server.stop() {
            assert!(Instant::now() < end, "{e}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(Client::connect(&socket, "disk").is_err());
    }
}
