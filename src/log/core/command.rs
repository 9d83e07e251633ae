//! What a log and its writeback ask of drives, and what they are told of it.

use crate::media::{Buffer, Drive, DriveError};
use std::ops::Range;
use std::sync::Arc;

/// Which drive a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The log's.
    Log,
    /// The backing store.
    Backing,
}

/// Beginnings of buffers, each of so many bytes.
pub type Parts = Vec<(Arc<Buffer>, usize)>;

/// What a drive shall do.
#[derive(Clone, Debug)]
pub enum Op {
    /// Read so many bytes.
    Read(usize),
    /// Write these bytes of the buffer.
    Write(Arc<Buffer>, Range<usize>),
    /// Write these, one after the other.
    Join(Parts),
    /// Make so many bytes read as zeros.
    Zero(u64),
    /// Make all writes durable that have ended.
    Flush,
}

/// The bytes of [`Op::Join`] in one buffer.
pub fn join(parts: &[(Arc<Buffer>, usize)]) -> Buffer {
    let mut whole = Buffer::new(parts.iter().map(|(_, len)| len).sum());
    let mut at = 0;
    for (bytes, len) in parts {
        whole[at..at + len].copy_from_slice(&bytes[..*len]);
        at += len;
    }
    whole
}

/// Something to do; commands that are out at the same time may be done in any order.
#[derive(Clone, Debug)]
pub struct Command {
    /// What [`Core::complete`](super::state::Core::complete) is told.
    pub id: u64,
    /// Which drive.
    pub device: Device,
    /// From where on, in bytes.
    pub at: u64,
    /// What.
    pub op: Op,
}

/// What became of a command.
#[derive(Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It is done, and these are the bytes.
    Bytes(Buffer),
    /// It failed.
    Failed(DriveError),
}

impl Command {
    /// Does it, and waits until it is done.
    pub fn carry_out(&self, log: &dyn Drive, backing: &dyn Drive) -> Outcome {
        let drive = match self.device {
            Device::Log => log,
            Device::Backing => backing,
        };
        let done = match &self.op {
            Op::Read(len) => {
                let mut bytes = Buffer::new(*len);
                return match drive.read(self.at, &mut bytes) {
                    Ok(()) => Outcome::Bytes(bytes),
                    Err(e) => Outcome::Failed(e),
                };
            }
            Op::Join(parts) => drive.write(self.at, &join(parts)),
            Op::Write(bytes, range) => drive.write(self.at, &bytes[range.clone()]),
            Op::Zero(len) => drive.zero(self.at, *len),
            Op::Flush => drive.flush(),
        };
        done.map_or_else(Outcome::Failed, |()| Outcome::Done)
    }
}
