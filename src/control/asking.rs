//! The connection to a caller whose request is being carried out.
//!
//! Invariants: a request that changes something changes nothing before [`Asking::agree`] has
//! confirmed that its caller still wants it; after that it is carried out, whatever becomes of the
//! caller. So a caller that hangs up before it has sent `go` knows that nothing was changed.

use super::kind::Kind;
use super::protocol::{
    Envelope, LONGEST_REQUEST, Reply, Request, Word, boot_ms, receive_next, receive_whole, send,
};
use crate::error::{Error, Result};
use crate::patience::readable;
use crate::places::{Heard, Place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a caller may take to send `go`. The request may hold locks that others wait for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Work for after an answer was sent, or could not be delivered.
pub(super) type After = Option<Box<dyn FnOnce()>>;

/// The caller of a request that is being carried out.
pub struct Asking<'a> {
    place: &'a Place<UnixStream>,
    /// Received bytes behind the last line.
    rest: Vec<u8>,
    /// When the caller gives up, in milliseconds of `CLOCK_BOOTTIME`.
    until_ms: Option<u64>,
    kind: Kind,
    agreed: bool,
    after: After,
}

impl<'a> Asking<'a> {
    /// Receives a request, which must arrive by `deadline`.
    ///
    /// # Errors
    /// The request does not arrive, is not understood, or too many of its kind are being carried
    /// out.
    pub(super) fn hear(place: &'a Place<UnixStream>, deadline: Instant) -> Result<(Request, Self)> {
        let mut rest = Vec::new();
        let Envelope { until_ms, body, .. } =
            receive_whole::<Request>(place.socket(), &mut rest, LONGEST_REQUEST, deadline)?;
        let kind = Kind::of(&body);
        let asking = Self { place, rest, until_ms, kind, agreed: false, after: None };
        asking.begins(kind.most())?;
        Ok((body, asking))
    }

    /// Marks the request as being carried out, if fewer than `most` of its kind are. From now on
    /// its caller is not cut off for silence.
    fn begins(&self, most: usize) -> Result<()> {
        match self.place.works(self.kind as u8, most) {
            Heard::Begins => Ok(()),
            Heard::TooMany => {
                let what = format!("{most} requests like this one are at work already");
                Err(Error::busy(what).hint("try again soon, or end one of them"))
            }
            Heard::CutOff => Err(Error::failure("it said nothing while other clients came")),
        }
    }

    /// Whether the caller has hung up.
    pub fn is_gone(&self) -> bool {
        let mut looked = [PollFd::new(self.place.socket(), PollFlags::empty())];
        let at_once = Timespec::default();
        let done = retry_on_intr(|| poll(&mut looked, Some(&at_once)));
        done.is_ok() && looked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Asks the caller whether it still wants the request: everything is checked, and nothing was
    /// changed. Call this right before the first change; a second call asks nothing.
    ///
    /// # Errors
    /// The caller has hung up, does not answer in time, or its deadline has passed. Then the
    /// request must change nothing.
    pub fn agree(&mut self) -> Result<()> {
        if self.agreed {
            return Ok(());
        }
        // A `go` from before the checks only counts until the caller's deadline.
        let early = !self.rest.is_empty() || self.says(Duration::ZERO);
        self.refuse_late()?;
        self.hear_go()
            .and_then(|()| if early { self.refuse_late() } else { Ok(()) })
            .map_err(|e| e.after("the caller gave up, so nothing was changed: "))?;
        self.agreed = true;
        Ok(())
    }

    /// Sets work for after the answer was sent, or could not be delivered.
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

    /// Tells the caller that everything is ready, and receives its `go`. All that has arrived when
    /// this process looks counts: this process may have been stopped meanwhile.
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
            // Its kind had room when it began.
            Word::Go {} => self.begins(usize::MAX),
        }
    }

    /// Whether the caller sends anything or hangs up within `patience`.
    fn says(&self, patience: Duration) -> bool {
        readable(self.place.socket(), Instant::now() + patience).unwrap_or(false)
    }
}
