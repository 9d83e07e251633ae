//! Commands of a log and its writeback to drives, and their outcomes.

use crate::media::{Buffer, Drive, DriveError, PackedRun};
use std::ops::Range;
use std::sync::Arc;

/// Which drive a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The log's drive.
    Log,
    /// The backing store.
    Backing,
}

/// Buffers, each with the number of its first bytes that count.
pub type Parts = Vec<(Arc<Buffer>, usize)>;

/// The operation of a command.
#[derive(Clone, Debug)]
pub enum Op {
    /// Read this many bytes.
    Read(usize),
    /// Write these bytes of the buffer.
    Write(Arc<Buffer>, Range<usize>),
    /// Write these blocks, which may be packed already; to the backing store alone.
    WritePacked(Arc<PackedRun>),
    /// Write these parts contiguously, in order.
    Join(Parts),
    /// Make this many bytes read as zeros.
    Zero(u64),
    /// Make all completed writes durable.
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

/// A command to a drive. Commands in flight at the same time may be carried out in any order.
#[derive(Clone, Debug)]
pub struct Command {
    /// The id that [`Core::complete`](super::state::Core::complete) takes.
    pub id: u64,
    /// Which drive.
    pub device: Device,
    /// Offset on the drive, in bytes.
    pub at: u64,
    /// The operation.
    pub op: Op,
}

/// How a command ended.
#[derive(Debug)]
pub enum Outcome {
    /// The command succeeded.
    Done,
    /// The read succeeded; these are its bytes.
    Bytes(Buffer),
    /// The drive failed.
    Failed(DriveError),
}

impl Command {
    /// Carries the command out, and waits until it ends.
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
            Op::WritePacked(run) => drive.write_packed(self.at, run.blocks()),
            Op::Zero(len) => drive.zero(self.at, *len),
            Op::Flush => drive.flush(),
        };
        done.map_or_else(Outcome::Failed, |()| Outcome::Done)
    }
}
