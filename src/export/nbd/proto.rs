//! The NBD protocol as bytes: constants, pure decoding of what clients send, encoding of replies.
//!
//! Names and numbers are those of the NBD project's `doc/proto.md`; all integers are big-endian.
//!
//! Invariant: nothing here does I/O, panics on any input, or allocates more than the length of the
//! input that it was given.

use crate::device::{Extent, ExtentKind};

/// `NBDMAGIC`, the first eight bytes of a server.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, the magic of the newstyle handshake and of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The magic of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The magic of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The magic of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag of either side: fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag of either side: no 124 zeros after `NBD_OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Options that a client may send while it shakes hands.
pub mod opt {
    #![allow(missing_docs)]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod rep {
    #![allow(missing_docs)]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
pub mod info {
    #![allow(missing_docs)]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Requests of the transmission phase.
pub mod cmd {
    #![allow(missing_docs)]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;

    pub const FLAG_FUA: u16 = 1 << 0;
    pub const FLAG_NO_HOLE: u16 = 1 << 1;
    pub const FLAG_DF: u16 = 1 << 2;
    pub const FLAG_REQ_ONE: u16 = 1 << 3;
    pub const FLAG_FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks of structured replies.
pub mod chunk {
    #![allow(missing_docs)]
    pub const FLAG_DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// Errors as they go over the wire.
pub mod errno {
    #![allow(missing_docs)]
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const ENOMEM: u32 = 12;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
    pub const ENOTSUP: u32 = 95;
}

/// What every export supports: flush, FUA, trim, (fast) zeroes, unfragmented reads, several
/// connections with one cache, prefetch. Not rotational, not read-only.
pub const TRANSMISSION_FLAGS: u16 = 1 << 0 // HAS_FLAGS
    | 1 << 2 // SEND_FLUSH
    | 1 << 3 // SEND_FUA
    | SEND_TRIM
    | 1 << 6 // SEND_WRITE_ZEROES
    | SEND_DF
    | 1 << 8 // CAN_MULTI_CONN
    | 1 << 10 // SEND_CACHE
    | SEND_FAST_ZERO;

/// Of those, left out for a client that has not negotiated structured replies.
pub const SEND_DF: u16 = 1 << 7;
/// Of those, left out for a device that takes no discards.
pub const SEND_TRIM: u16 = 1 << 5;
/// Also left out for such a device: it has to write zeros, which is as slow as any write.
pub const SEND_FAST_ZERO: u16 = 1 << 11;

/// The transmission flags of an export. `discards`: its device takes discards.
pub fn transmission_flags(discards: bool) -> u16 {
    let slow = if discards { 0 } else { SEND_TRIM | SEND_FAST_ZERO };
    TRANSMISSION_FLAGS & !slow
}

/// Most bytes that one request may carry or ask for.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// Most bytes of data that go with an option.
pub const MAX_OPTION: u32 = 64 << 10;
/// Longest string of the protocol, in bytes.
pub const MAX_STRING: usize = 4096;
/// The only metadata context, and the number that we give it.
pub const CONTEXT: &str = "base:allocation";
/// See [`CONTEXT`].
pub const CONTEXT_ID: u32 = 1;
/// Bytes of a request without its payload.
pub const REQUEST_LEN: usize = 28;
/// Bytes of an option without its data.
pub const OPTION_LEN: usize = 16;
/// Bytes of a simple reply without its payload.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of the head of a chunk.
pub const CHUNK_LEN: usize = 20;

const _: () = assert!(MAX_STRING < MAX_OPTION as usize);

/// The head of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// `NBD_CMD_FLAG_…`.
    pub flags: u16,
    /// `NBD_CMD_…`, known or not.
    pub command: u16,
    /// The client's name for this request, returned as it is.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// Decodes a request; `None` when the magic is wrong: then the stream can't be trusted any
    /// more.
    pub fn decode(b: &[u8; REQUEST_LEN]) -> Option<Self> {
        let mut f = Fields(b);
        if f.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: f.u16()?,
            command: f.u16()?,
            cookie: f.u64()?,
            offset: f.u64()?,
            len: f.u32()?,
        })
    }

    /// Bytes of data that follow the head.
    pub fn payload(&self) -> usize {
        if self.command == cmd::WRITE { self.len as usize } else { 0 }
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The head of one option: its number and the length of its data. `None`: wrong magic.
pub fn decode_option(b: &[u8; OPTION_LEN]) -> Option<(u32, u32)> {
    let mut f = Fields(b);
    if f.u64()? != OPTION_MAGIC {
        return None;
    }
    Some((f.u32()?, f.u32()?))
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export asked for; empty: the default one.
    pub name: &'a str,
    /// The kinds of information asked for, known or not, as big-endian pairs of bytes.
    kinds: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Decodes it; `None` when it is malformed.
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut f = Fields(data);
        let name = f.string()?;
        let count = f.u16()?;
        let kinds = f.take(usize::from(count) * 2)?;
        f.end()?;
        Some(Self { name, kinds })
    }

    /// Whether `kind` is asked for.
    pub fn wants(&self, kind: u16) -> bool {
        self.kinds.chunks_exact(2).any(|k| k == kind.to_be_bytes())
    }
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug, PartialEq, Eq)]
pub struct ContextRequest<'a> {
    /// The export asked about; empty: the default one.
    pub name: &'a str,
    /// How many queries there were.
    pub queries: u32,
    /// One of them was exactly [`CONTEXT`].
    pub exact: bool,
    /// One of them was `base:`, which in a list (only) stands for everything in that namespace.
    pub namespace: bool,
}

impl<'a> ContextRequest<'a> {
    /// Decodes it; `None` when it is malformed.
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut f = Fields(data);
        let name = f.string()?;
        let queries = f.u32()?;
        let (mut exact, mut namespace) = (false, false);
        for _ in 0..queries {
            // Ends with `None` as soon as the data ends, whatever the count says.
            let query = f.string()?;
            exact |= query == CONTEXT;
            namespace |= query == "base:";
        }
        f.end()?;
        Some(Self { name, queries, exact, namespace })
    }
}

/// Reads fields off the front of a slice; `None` once too few bytes are left.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string after its length; see [`decode_name`] for its limits.
    fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        decode_name(self.take(len)?)
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// A string of the protocol: UTF-8, at most [`MAX_STRING`] bytes, no NUL.
pub fn decode_name(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > MAX_STRING || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// The greeting of the server.
pub fn greeting() -> [u8; 18] {
    let mut b = [0; 18];
    b[..8].copy_from_slice(&MAGIC.to_be_bytes());
    b[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    b[16..].copy_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    b
}

/// The head of a reply to `option`, before `len` bytes of data.
pub fn option_reply(option: u32, kind: u32, len: u32) -> [u8; 20] {
    let mut b = [0; 20];
    b[..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    b[8..12].copy_from_slice(&option.to_be_bytes());
    b[12..16].copy_from_slice(&kind.to_be_bytes());
    b[16..].copy_from_slice(&len.to_be_bytes());
    b
}

/// `NBD_INFO_EXPORT`.
pub fn info_export(size: u64, flags: u16) -> [u8; 12] {
    let mut b = [0; 12];
    b[..2].copy_from_slice(&info::EXPORT.to_be_bytes());
    b[2..10].copy_from_slice(&size.to_be_bytes());
    b[10..].copy_from_slice(&flags.to_be_bytes());
    b
}

/// `NBD_INFO_BLOCK_SIZE`: any byte range works, blocks of 4096 are best, [`MAX_PAYLOAD`] is most.
pub fn info_block_size() -> [u8; 14] {
    let mut b = [0; 14];
    b[..2].copy_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    b[2..6].copy_from_slice(&1u32.to_be_bytes());
    b[6..10].copy_from_slice(&(crate::BLOCK_SIZE as u32).to_be_bytes());
    b[10..].copy_from_slice(&MAX_PAYLOAD.to_be_bytes());
    b
}

/// A simple reply; after a read that went well (`error` 0) the data follows.
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_LEN] {
    let mut b = [0; SIMPLE_REPLY_LEN];
    b[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    b[4..8].copy_from_slice(&error.to_be_bytes());
    b[8..].copy_from_slice(&cookie.to_be_bytes());
    b
}

/// The head of a chunk of a structured reply, before `len` bytes.
pub fn chunk_head(flags: u16, kind: u16, cookie: u64, len: u32) -> [u8; CHUNK_LEN] {
    let mut b = [0; CHUNK_LEN];
    b[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    b[4..6].copy_from_slice(&flags.to_be_bytes());
    b[6..8].copy_from_slice(&kind.to_be_bytes());
    b[8..16].copy_from_slice(&cookie.to_be_bytes());
    b[16..].copy_from_slice(&len.to_be_bytes());
    b
}

/// A structured error without text, which ends its reply.
pub fn chunk_error(error: u32, cookie: u64) -> [u8; CHUNK_LEN + 6] {
    let mut b = [0; CHUNK_LEN + 6];
    b[..CHUNK_LEN].copy_from_slice(&chunk_head(chunk::FLAG_DONE, chunk::ERROR, cookie, 6));
    b[CHUNK_LEN..CHUNK_LEN + 4].copy_from_slice(&error.to_be_bytes());
    b
}

/// The head of a chunk of `len` bytes of data from `offset` on.
pub fn chunk_data(flags: u16, cookie: u64, offset: u64, len: u32) -> [u8; CHUNK_LEN + 8] {
    let mut b = [0; CHUNK_LEN + 8];
    b[..CHUNK_LEN].copy_from_slice(&chunk_head(flags, chunk::OFFSET_DATA, cookie, len + 8));
    b[CHUNK_LEN..].copy_from_slice(&offset.to_be_bytes());
    b
}

/// A chunk that says that `len` bytes from `offset` on are zeros.
pub fn chunk_hole(flags: u16, cookie: u64, offset: u64, len: u32) -> [u8; CHUNK_LEN + 12] {
    let mut b = [0; CHUNK_LEN + 12];
    b[..CHUNK_LEN].copy_from_slice(&chunk_head(flags, chunk::OFFSET_HOLE, cookie, 12));
    b[CHUNK_LEN..CHUNK_LEN + 8].copy_from_slice(&offset.to_be_bytes());
    b[CHUNK_LEN + 8..].copy_from_slice(&len.to_be_bytes());
    b
}

/// The flags of `base:allocation` for a kind of extent: 1 hole, 2 reads as zeros.
pub fn status_flags(kind: ExtentKind) -> u32 {
    match kind {
        ExtentKind::Data => 0,
        ExtentKind::Zero => 2,
        ExtentKind::Hole => 3,
    }
}

/// Joins neighbours of the same kind, drops empty runs, and cuts at `len` bytes.
pub fn coalesce(extents: Vec<Extent>, len: u64) -> Vec<Extent> {
    let mut left = len;
    let mut joined: Vec<Extent> = Vec::with_capacity(extents.len());
    for mut extent in extents {
        extent.len = extent.len.min(left);
        left -= extent.len;
        match joined.last_mut() {
            _ if extent.len == 0 => {}
            Some(last) if last.kind == extent.kind => last.len += extent.len,
            _ => joined.push(extent),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn string(s: &str) -> Vec<u8> {
        [&(s.len() as u32).to_be_bytes()[..], s.as_bytes()].concat()
    }

    #[test]
    fn request_is_read_field_by_field() {
        let mut b = [0u8; REQUEST_LEN];
        b[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        b[4..8].copy_from_slice(&[0, 3, 0, 6]);
        b[8..16].copy_from_slice(b"a cookie");
        b[16..24].copy_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
        b[24..].copy_from_slice(&[0, 0, 0x10, 0]);
        let r = Request::decode(&b).unwrap();
        assert_eq!(
            (r.flags, r.command, r.cookie, r.offset, r.len),
            (3, cmd::WRITE_ZEROES, u64::from_be_bytes(*b"a cookie"), 0x0102_0304_0506_0708, 4096)
        );
        assert!(r.has(cmd::FLAG_FUA) && r.has(cmd::FLAG_NO_HOLE) && !r.has(cmd::FLAG_DF));
        assert_eq!(r.payload(), 0, "only writes carry data");
        b[0] = 0;
        assert_eq!(Request::decode(&b), None);
    }

    #[test]
    fn info_request_is_exact() {
        let mut b = string("disk");
        b.extend([0, 2, 0, 3, 0, 1]);
        let r = InfoRequest::decode(&b).unwrap();
        assert_eq!(r.name, "disk");
        assert!(r.wants(info::BLOCK_SIZE) && r.wants(info::NAME) && !r.wants(info::DESCRIPTION));
        for cut in 0..b.len() {
            assert_eq!(InfoRequest::decode(&b[..cut]), None, "cut at {cut}");
        }
        b.push(0);
        assert_eq!(InfoRequest::decode(&b), None, "a byte too many");
    }

    #[test]
    fn context_request_counts_and_matches() {
        let b = [
            string(""),
            3u32.to_be_bytes().to_vec(),
            string("x:y"),
            string("base:"),
            string(CONTEXT),
        ]
        .concat();
        let r = ContextRequest::decode(&b).unwrap();
        assert!(r.exact && r.namespace && r.queries == 3 && r.name.is_empty());
        for cut in 0..b.len() {
            assert_eq!(ContextRequest::decode(&b[..cut]), None, "cut at {cut}");
        }
        let lying = [string("d"), u32::MAX.to_be_bytes().to_vec(), string(CONTEXT)].concat();
        assert_eq!(ContextRequest::decode(&lying), None);
    }

    #[test]
    fn names_have_limits() {
        assert_eq!(decode_name(b"a\0b"), None);
        assert_eq!(decode_name(&[0xff, 0xfe]), None);
        assert_eq!(decode_name(&vec![b'a'; MAX_STRING + 1]), None);
        assert_eq!(decode_name("Platte-ü".as_bytes()), Some("Platte-ü"));
    }

    #[test]
    fn replies_have_the_lengths_that_they_state() {
        let stated = |b: &[u8], at: usize| u32::from_be_bytes(b[at..at + 4].try_into().unwrap());
        assert_eq!(stated(&chunk_error(5, 9), 16), 6);
        assert_eq!(stated(&chunk_data(1, 9, 0, 4096), 16), 4096 + 8);
        assert_eq!(stated(&chunk_hole(1, 9, 7, 512), 16), 12);
        assert_eq!(stated(&chunk_hole(1, 9, 7, 512), 28), 512);
        assert_eq!(&greeting()[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(TRANSMISSION_FLAGS, 0b1101_1110_1101);
    }

    #[test]
    fn extents_are_joined_and_cut() {
        let e = |len, kind| Extent { len, kind };
        let joined = coalesce(
            vec![
                e(10, ExtentKind::Data),
                e(0, ExtentKind::Hole),
                e(5, ExtentKind::Data),
                e(20, ExtentKind::Hole),
                e(20, ExtentKind::Zero),
            ],
            30,
        );
        assert_eq!(joined, [e(15, ExtentKind::Data), e(15, ExtentKind::Hole)]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            if let Some(r) = InfoRequest::decode(&bytes) {
                prop_assert_eq!(bytes.len(), 4 + r.name.len() + 2 + r.kinds.len());
            }
            if let Some(r) = ContextRequest::decode(&bytes) {
                prop_assert!(bytes.len() >= 8 + r.name.len() + 4 * r.queries as usize);
            }
            if let Some(head) = bytes.first_chunk::<REQUEST_LEN>() {
                let _ = Request::decode(head);
            }
            if let Some(head) = bytes.first_chunk::<OPTION_LEN>() {
                let _ = decode_option(head);
            }
        }
    }
}
