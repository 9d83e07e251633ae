//! The side that asked, while its request is at work.
//!
//! Invariants: a request that changes something changes nothing before [`Asking::agree`] has said
//! that its caller still wants it; after that it is carried out, whatever becomes of the caller. So
//! a caller that hangs up before it has said `go` knows that nothing was changed.

use super::protocol::{
    Envelope, LONGEST_REQUEST, Reply, Request, Word, boot_ms, receive_next, receive_whole, send,
};
use super::server::{After, Kind, MOST_ALIKE};
use crate::error::{Error, Result};
use crate::places::{Heard, Place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a caller may take to say `go`. Others may wait for what the request holds meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// A caller whose request is at work.
pub struct Asking<'a> {
    place: &'a Place<UnixStream>,
    /// What came behind the last line.
    rest: Vec<u8>,
    /// When the caller gives up, in milliseconds of `CLOCK_BOOTTIME`.
    until_ms: Option<u64>,
    kind: Kind,
    agreed: bool,
    after: After,
}

impl<'a> Asking<'a> {
    /// Hears a request, which must have come by `deadline`.
    ///
    /// # Errors
    /// It does not come, is not understood, or too many of its kind are at work.
    pub(super) fn hear(place: &'a Place<UnixStream>, deadline: Instant) -> Result<(Request, Self)> {
        let mut rest = Vec::new();
        let Envelope { until_ms, body, .. } =
            receive_whole::<Request>(place.socket(), &mut rest, LONGEST_REQUEST, deadline)?;
        let kind = Kind::of(&body);
        let asking = Self { place, rest, until_ms, kind, agreed: false, after: None };
        asking.begins(kind.most())?;
        Ok((body, asking))
    }

    /// The caller has said what it has to, and is not cut off any more, if `most` of its kind
    /// leave room.
    fn begins(&self, most: usize) -> Result<()> {
        match self.place.works(self.kind as u8, most) {
            Heard::Begins => Ok(()),
            Heard::TooMany => {
                let what = format!("{MOST_ALIKE} requests like this one are at work already");
                Err(Error::busy(what).hint("try again soon, or end one of them"))
            }
            Heard::CutOff => Err(Error::failure("it said nothing while other clients came")),
        }
    }

    /// Whether the caller has hung up.
    pub fn is_gone(&self) -> bool {
        self.polled(PollFlags::empty(), Duration::ZERO).intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Asks the caller whether the request still holds: everything is checked, and nothing was
    /// changed. To be called right before the first change; a second call asks nothing.
    ///
    /// # Errors
    /// The caller has hung up, does not answer in time, or its deadline has passed. Then nothing
    /// may be changed.
    pub fn agree(&mut self) -> Result<()> {
        if self.agreed {
            return Ok(());
        }
        // A word that was said before anything was checked is worth no more than its deadline.
        let early = !self.rest.is_empty() || self.says(Duration::ZERO);
        self.refuse_late()?;
        self.hear_go()
            .and_then(|()| if early { self.refuse_late() } else { Ok(()) })
            .map_err(|e| e.after("the caller gave up, so nothing was changed: "))?;
        self.agreed = true;
        Ok(())
    }

    /// What is to be done once the answer is out, or could not be delivered.
    pub fn afterwards(&mut self, work: impl FnOnce() + 'static) {
        self.after = Some(Box::new(work));
    }

    pub(super) fn into_after(self) -> After {
        self.after
    }

    fn refuse_late(&self) -> Result<()> {
        if self.is_gone() {
            return Err(Error::failure("the caller has hung up"));
        }
        if self.until_ms.is_some_and(|until| boot_ms() >= until) {
            return Err(Error::failure("the deadline of the request has passed"));
        }
        Ok(())
    }

    /// Says that everything is ready, and hears whether to go ahead. Whatever has come by the time
    /// that this process looks counts: it may have been stopped meanwhile.
    fn hear_go(&mut self) -> Result<()> {
        let stream = self.place.socket();
        send(stream, &Envelope::new(Reply::Ready(())), Instant::now() + PATIENCE)?;
        self.place.awaits();
        if self.rest.is_empty() && !self.says(PATIENCE) {
            return Err(Error::failure(format!("it said nothing for {} s", PATIENCE.as_secs())));
        }
        let deadline = Instant::now() + PATIENCE;
        let word = receive_next(stream, &mut self.rest, LONGEST_REQUEST, deadline)?;
        match word {
            // It was let in before.
            Word::Go {} => self.begins(usize::MAX),
        }
    }

    /// Whether the caller says something within `patience`, be it that it hangs up.
    fn says(&self, patience: Duration) -> bool {
        !self.polled(PollFlags::IN, patience).is_empty()
    }

    fn polled(&self, flags: PollFlags, patience: Duration) -> PollFlags {
        let mut fds = [PollFd::new(self.place.socket(), flags)];
        let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
        match rustix::io::retry_on_intr(|| poll(&mut fds, Some(&patience))) {
            Ok(_) => fds[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }
}
