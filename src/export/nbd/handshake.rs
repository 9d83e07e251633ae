//! Fixed newstyle negotiation: from the greeting to the choice of the export, or to the end.
//!
//! Invariants: whatever a client sends, memory is bounded by [`proto::MAX_OPTION`], the number of
//! options by [`MAX_OPTIONS`], and time by the deadline of [`Input`].

use super::proto::{self, ContextRequest, InfoRequest, info, opt, rep};
use super::wire::{Hangup, Input, Outcome, Output};

/// Most options that one client may send.
const MAX_OPTIONS: u32 = 1024;
/// Option data up to this length is read and refused; longer data ends the connection.
const DRAIN_MAX: u32 = 1 << 20;

/// What a server shows of its only export.
pub struct Export<'a> {
    /// Its name; the default (empty) name means it too.
    pub name: &'a str,
    /// A line about it.
    pub description: &'a str,
    /// Size in bytes, now.
    pub size: u64,
    /// Its transmission flags: see [`proto::transmission_flags`].
    pub flags: u16,
}

impl Export<'_> {
    fn is_called(&self, name: &str) -> bool {
        name.is_empty() || name == self.name
    }
}

/// What was agreed upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Reads are answered in chunks.
    pub structured: bool,
    /// The client may ask for `base:allocation`.
    pub allocation: bool,
}

/// Negotiates with a client. `None`: the client left in good order, without transmission. `admit`
/// is called just before the client may transmit; `false` ends the connection.
pub fn negotiate(
    input: &mut Input,
    output: &mut Output,
    export: &Export<'_>,
    admit: impl FnOnce() -> bool,
) -> Outcome<Option<Agreed>> {
    output.put(&proto::greeting());
    output.flush()?;
    let flags = u32::from_be_bytes(input.take()?);
    if flags & !u32::from(proto::FLAG_FIXED_NEWSTYLE | proto::FLAG_NO_ZEROES) != 0 {
        return Err(Hangup::Refused);
    }
    let mut session = Session {
        export,
        output,
        fixed: flags & u32::from(proto::FLAG_FIXED_NEWSTYLE) != 0,
        zeroes: flags & u32::from(proto::FLAG_NO_ZEROES) == 0,
        structured: false,
        allocation: None,
    };
    for _ in 0..MAX_OPTIONS {
        let head = input.take()?;
        let (option, len) = proto::decode_option(&head).ok_or(Hangup::Refused)?;
        if len > proto::MAX_OPTION {
            session.too_long(option, len, input)?;
            continue;
        }
        let data = input.fill(len as usize)?;
        let step = session.option(option, data);
        input.consume(len as usize);
        match step? {
            Step::More => session.output.flush()?,
            Step::Quit => {
                // The client may have gone without waiting for the reply.
                let _ = session.output.flush();
                return Ok(None);
            }
            Step::Transmit(agreed) => {
                if !admit() {
                    return Err(Hangup::Refused);
                }
                session.output.flush()?;
                return Ok(Some(agreed));
            }
        }
    }
    Err(Hangup::Refused)
}

/// What comes after an option.
enum Step {
    More,
    Quit,
    Transmit(Agreed),
}

struct Session<'a> {
    export: &'a Export<'a>,
    output: &'a mut Output,
    /// The client understands replies to options.
    fixed: bool,
    /// The client wants the 124 zeros.
    zeroes: bool,
    structured: bool,
    /// The export name for which `base:allocation` was chosen.
    allocation: Option<String>,
}

impl Session<'_> {
    fn option(&mut self, option: u32, data: &[u8]) -> Outcome<Step> {
        if option == opt::EXPORT_NAME {
            return self.export_name(data);
        }
        if !self.fixed {
            // Such a client can't read a reply to anything else.
            return Err(Hangup::Refused);
        }
        match option {
            opt::ABORT => {
                self.reply(option, rep::ACK, &[]);
                return Ok(Step::Quit);
            }
            opt::LIST if data.is_empty() => {
                let name = self.export.name.as_bytes();
                let len = (name.len() as u32).to_be_bytes();
                self.reply(option, rep::SERVER, &[&len, name, self.export.description.as_bytes()]);
                self.reply(option, rep::ACK, &[]);
            }
            opt::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(option, rep::ACK, &[]);
            }
            opt::LIST | opt::STRUCTURED_REPLY => self.error(option, rep::ERR_INVALID),
            opt::INFO | opt::GO => return Ok(self.info(option, data)),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.contexts(option, data),
            // There is no TLS here, so its option is unknown, like any other unsupported one.
            _ => self.error(option, rep::ERR_UNSUP),
        }
        Ok(Step::More)
    }

    /// `NBD_OPT_EXPORT_NAME`: hanging up is the only way to report an error.
    fn export_name(&mut self, data: &[u8]) -> Outcome<Step> {
        let name = proto::decode_name(data).ok_or(Hangup::Refused)?;
        if !self.export.is_called(name) {
            return Err(Hangup::Refused);
        }
        self.output.put(&self.export.size.to_be_bytes());
        self.output.put(&self.flags().to_be_bytes());
        if self.zeroes {
            self.output.put(&[0; 124]);
        }
        Ok(Step::Transmit(self.agreed(name)))
    }

    fn flags(&self) -> u16 {
        let unasked = if self.structured { 0 } else { proto::SEND_DF };
        self.export.flags & !unasked
    }

    fn info(&mut self, option: u32, data: &[u8]) -> Step {
        let Some(request) = InfoRequest::decode(data) else {
            self.error(option, rep::ERR_INVALID);
            return Step::More;
        };
        if !self.export.is_called(request.name) {
            self.error(option, rep::ERR_UNKNOWN);
            return Step::More;
        }
        self.reply(option, rep::INFO, &[&proto::info_export(self.export.size, self.flags())]);
        for (kind, text) in
            [(info::NAME, self.export.name), (info::DESCRIPTION, self.export.description)]
        {
            if request.wants(kind) {
                self.reply(option, rep::INFO, &[&kind.to_be_bytes(), text.as_bytes()]);
            }
        }
        if request.wants(info::BLOCK_SIZE) {
            self.reply(option, rep::INFO, &[&proto::info_block_size()]);
        }
        self.reply(option, rep::ACK, &[]);
        if option == opt::GO { Step::Transmit(self.agreed(request.name)) } else { Step::More }
    }

    fn contexts(&mut self, option: u32, data: &[u8]) {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            // A new choice replaces the former one, also when it fails.
            self.allocation = None;
        }
        let Some(request) = ContextRequest::decode(data).filter(|_| self.structured) else {
            return self.error(option, rep::ERR_INVALID);
        };
        if !self.export.is_called(request.name) {
            return self.error(option, rep::ERR_UNKNOWN);
        }
        let listed = !set && (request.queries == 0 || request.namespace);
        if request.exact || listed {
            // In a list the number means nothing and is 0.
            let id = if set { proto::CONTEXT_ID } else { 0 };
            let parts = [&id.to_be_bytes()[..], proto::CONTEXT.as_bytes()];
            self.reply(option, rep::META_CONTEXT, &parts);
            if set {
                self.allocation = Some(request.name.to_owned());
            }
        }
        self.reply(option, rep::ACK, &[]);
    }

    /// Contexts count only for the export name for which they were chosen.
    fn agreed(&self, name: &str) -> Agreed {
        Agreed { structured: self.structured, allocation: self.allocation.as_deref() == Some(name) }
    }

    /// Refuses an option whose data is too long to look at.
    fn too_long(&mut self, option: u32, len: u32, input: &mut Input) -> Outcome<()> {
        if len > DRAIN_MAX || !self.fixed || option == opt::EXPORT_NAME {
            return Err(Hangup::Refused);
        }
        input.drain(u64::from(len))?;
        self.error(option, rep::ERR_TOO_BIG);
        self.output.flush()
    }

    fn error(&mut self, option: u32, kind: u32) {
        self.reply(option, kind, &[]);
    }

    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.output.put(&proto::option_reply(option, kind, len as u32));
        for part in parts {
            self.output.put(part);
        }
    }
}
