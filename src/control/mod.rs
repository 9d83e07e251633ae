//! The control socket: a request and its answer are one line of JSON each. In between, a request
//! that changes something waits for its caller's `go` ([`Asking`]).
//!
//! Every line carries the protocol's [`VERSION`]. Invariants: the length of lines and the waits of
//! both sides are bounded; only the daemon's own user and root are admitted.

mod asking;
mod client;
mod event;
mod kind;
mod protocol;
mod question;
mod sample;
mod server;

pub use asking::Asking;
pub use client::Client;
pub use event::{EventKind, Events, Since, VolumeEvent};
pub use protocol::{
    AdaptChange, Ended, LeftInLog, NewLog, NewSpill, Noted, RecompressChange, Request, Status,
    Swapon,
};
pub(crate) use protocol::{Envelope, LONGEST_REPLY, LONGEST_REQUEST, Reply, receive_next, send};
pub use protocol::{Swapping, VERSION, Version, VolumeChange};
pub use question::Question;
pub use sample::{Homes, Role, Sample};
pub use server::{Handler, Server};
