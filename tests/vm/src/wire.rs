//! Frames between a test and the agent in its machine: kind, number, length, payload.
//!
//! Every frame begins with a mark, by which a reader finds the next frame after a machine was reset
//! in the middle of one.

use std::io::{self, Read, Write};

const MARK: [u8; 4] = *b"zvm1";
/// Limit on the bytes of a payload; larger content takes several frames.
pub const PAYLOAD_MAX: usize = 1 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// From the agent: it is up.
    Ready = 1,
    /// To the agent: run this script; its output and its end come with the same number.
    Run = 2,
    /// To the agent: kill the task with this number, and all processes that it has started.
    Kill = 3,
    /// To the agent: the path of a file whose content follows in [`Kind::Data`]; an [`Kind::End`]
    /// ends it.
    Put = 4,
    /// To the agent: send the file with this path.
    Get = 5,
    /// In both directions: a piece of output or of a file.
    Data = 6,
    /// In both directions: the end, from the agent with a status of 4 bytes, little endian, and
    /// perhaps a reason.
    End = 7,
    /// To the agent: end, and switch the machine off.
    Off = 8,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::{Data, End, Get, Kill, Off, Put, Ready, Run};
        [Ready, Run, Kill, Put, Get, Data, End, Off].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: Kind,
    /// The number of its task.
    pub id: u32,
    /// Its content.
    pub payload: Vec<u8>,
}

/// Writes a frame with a single write.
///
/// # Errors
/// Those of `to`; the payload is too large.
pub fn send(mut to: impl Write, kind: Kind, id: u32, payload: &[u8]) -> io::Result<()> {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    if payload.len() > PAYLOAD_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut bytes = Vec::with_capacity(13 + payload.len());
    bytes.extend(MARK);
    bytes.push(kind as u8);
    bytes.extend(id.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend(payload);
    to.write_all(&bytes)
}

/// Reads the next frame; skips bytes before its mark.
///
/// # Errors
/// Those of `from`, including its end.
pub fn receive(mut from: impl Read) -> io::Result<Frame> {
    loop {
        let mut mark = [0; 4];
        from.read_exact(&mut mark)?;
        while mark != MARK {
            mark.rotate_left(1);
            from.read_exact(&mut mark[3..])?;
        }
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [kind, i0, i1, i2, i3, l0, l1, l2, l3] = head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let Some(kind) = Kind::from_byte(kind).filter(|_| len <= PAYLOAD_MAX) else { continue };
        let mut payload = vec![0; len];
        from.read_exact(&mut payload)?;
        return Ok(Frame { kind, id: u32::from_le_bytes([i0, i1, i2, i3]), payload });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_are_found_behind_rubbish() {
        let mut bytes = b"xzvzvm".to_vec();
        send(&mut bytes, Kind::Run, 7, b"true").unwrap();
        send(&mut bytes, Kind::Off, 8, b"").unwrap();
        let mut rest = &bytes[..];
        let first = receive(&mut rest).unwrap();
        assert_eq!(first, Frame { kind: Kind::Run, id: 7, payload: b"true".to_vec() });
        assert_eq!(receive(&mut rest).unwrap().kind, Kind::Off);
        assert!(receive(&mut rest).is_err());
    }
}
