//! Our own record layer for data connections: TLS 1.3 after its handshake (RFC 8446 sections 4.6, 5 and 6).
//!
//! OpenSSL makes the handshake, `ring` computes the ciphers; what is between is here, because a record that goes through OpenSSL
//! is copied twice more. Nothing but application data, tickets (passed over), key updates and alerts may come. Whatever
//! else comes, or does not verify, ends the connection: after an error nothing is opened any more.

use std::io::IoSlice;

use openssl::error::ErrorStack;

use crate::messages::{MalformedMessage, Messages};
use crate::queue::Queue;
use crate::records::{Opened, RECORD};
use crate::traffic::{Failure, HEADER, Keys, TAG};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// The longest protected part of a record: content with its type and padding (RFC 8446 section 5.4: 2^14 + 1 bytes), and the
/// tag, which is all that these suites add.
const MAX_BODY: usize = RECORD + 1 + TAG;
/// Records that are sealed with one key. AES-GCM allows 2^24.5 (RFC 8446 section 5.5).
const KEY_LIFE: u64 = 1 << 24;
/// Records without data that may come one after another.
const MAX_IDLE: u32 = 64;

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    #[error("a record does not verify: it was changed, lost, repeated or put in by somebody on the way")]
    Forged,
    #[error("a record of type {0} came where only protected records (type 23) may")]
    Bare(u8),
    #[error("a record of version {0:#06x} came; TLS 1.3 has 0x0303")]
    Version(u16),
    #[error("a record of {0} bytes came; TLS 1.3 has {MAX_BODY} at most")]
    TooLong(usize),
    #[error("a record of {0} bytes came, which is too short for anything")]
    TooShort(usize),
    #[error("a record without a content type came")]
    NoType,
    #[error("a record with content of type {0} came, which has no place after a handshake")]
    Type(u8),
    #[error("a record with content of type {0} came within a handshake message")]
    Interrupted(u8),
    #[error(transparent)]
    Message(#[from] MalformedMessage),
    #[error("an alert of {0} bytes came; it has 2")]
    AlertLength(usize),
    #[error("the peer ended the connection with the alert {0} ({words})", words = alert_words(*.0))]
    Alert(u8),
    #[error("{MAX_IDLE} records without data came one after another")]
    Idle,
    #[error("an earlier record was not accepted")]
    Broken,
    #[error("our direction has ended")]
    Closed,
    #[error("2^64 records were protected with one key")]
    Exhausted,
    #[error("a record could not be sealed")]
    Unsealed,
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

impl From<Failure> for Violation {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Forged => Self::Forged,
            Failure::Exhausted => Self::Exhausted,
            Failure::Unsealed => Self::Unsealed,
        }
    }
}

impl Violation {
    /// What the peer is told of it (RFC 8446 section 6.2).
    fn alert(&self) -> Option<u8> {
        match self {
            Self::Forged => Some(20),
            Self::TooLong(_) => Some(22),
            Self::Bare(_) | Self::NoType | Self::Type(_) | Self::Interrupted(_) | Self::Idle => Some(10),
            Self::Version(_) => Some(70),
            // RFC 8446 section 5.4: an alert without content.
            Self::AlertLength(0) => Some(10),
            Self::TooShort(_) | Self::AlertLength(_) => Some(50),
            Self::Message(error) => Some(error.alert()),
            Self::Exhausted | Self::Unsealed | Self::OpenSsl(_) => Some(80),
            Self::Alert(_) | Self::Broken | Self::Closed => None,
        }
    }
}

/// Our direction.
pub(crate) struct Sealer {
    keys: Keys,
    key_life: u64,
    /// The peer wants new keys.
    update_due: bool,
    state: State,
}

/// Whether anything can still be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The end was said.
    Closed,
    /// The peer would not understand, or not listen.
    Failed,
}

impl Sealer {
    /// With keys that nothing was sealed with.
    pub(crate) fn new(keys: Keys) -> Self {
        Self { keys, key_life: KEY_LIFE, update_due: false, state: State::Open }
    }

    /// Appends records with the first `most` bytes of `plain`, all its parts one after another, to `out`. Returns how many
    /// bytes that was.
    pub(crate) fn seal(
        &mut self,
        plain: &[IoSlice<'_>],
        most: usize,
        out: &mut Queue,
    ) -> Result<usize, Violation> {
        let total = plain.iter().fold(0usize, |sum, part| sum.saturating_add(part.len())).min(most);
        let mut pieces = Pieces { parts: plain, at: 0 };
        let mut sealed = 0;
        while sealed < total {
            self.answer(out)?;
            let length = (total - sealed).min(RECORD);
            self.record(APPLICATION_DATA, length, |most| pieces.next(most), out)?;
            sealed += length;
        }
        Ok(sealed)
    }

    /// Appends a key update where the peer asked for one or our key is worn out (RFC 8446 section 4.6.3).
    pub(crate) fn answer(&mut self, out: &mut Queue) -> Result<(), Violation> {
        if self.state == State::Open && (self.update_due || self.keys.sequence() >= self.key_life) {
            // key_update, one byte: update_not_requested. The peer sees to its own keys.
            self.short_record(HANDSHAKE, &[24, 0, 0, 1, 0], out)?;
            // Without new keys the peer could not open anything that follows.
            self.keys.renew().inspect_err(|_| self.state = State::Failed)?;
            self.update_due = false;
        }
        Ok(())
    }

    /// Appends the end of our direction (close_notify, RFC 8446 section 6.1), once.
    pub(crate) fn close(&mut self, out: &mut Queue) -> Result<(), Violation> {
        match self.state {
            State::Open => {
                self.short_record(ALERT, &[1, 0], out)?;
                self.state = State::Closed;
                Ok(())
            }
            State::Closed => Ok(()),
            State::Failed => Err(Violation::Closed),
        }
    }

    /// Tells the peer what was wrong; nothing can be sealed afterwards.
    fn complain(&mut self, violation: &Violation, out: &mut Queue) {
        if let Some(code) = violation.alert()
            && self.state == State::Open
        {
            // There is an error already, and the peer has nothing more to expect.
            let _ = self.short_record(ALERT, &[2, code], out);
        }
        self.state = State::Failed;
    }

    fn short_record(&mut self, content_type: u8, content: &[u8], out: &mut Queue) -> Result<(), Violation> {
        let mut pieces = Pieces { parts: &[IoSlice::new(content)], at: 0 };
        self.record(content_type, content.len(), |most| pieces.next(most), out)
    }

    /// Appends one record. Where that fails nothing more may follow: the peer would miss it.
    fn record<'a>(
        &mut self,
        content_type: u8,
        length: usize,
        plain: impl FnMut(usize) -> &'a [u8],
        out: &mut Queue,
    ) -> Result<(), Violation> {
        if self.state != State::Open {
            return Err(Violation::Closed);
        }
        let whole = HEADER + length + 1 + TAG;
        if let Err(error) = self.keys.seal(content_type, plain, &mut out.space(whole)[..whole]) {
            self.state = State::Failed;
            return Err(error.into());
        }
        out.filled(whole);
        Ok(())
    }
}

#[cfg(test)]
impl Sealer {
    /// As if with this key all was sealed that may be.
    pub(crate) fn wear_out(&mut self) {
        self.key_life = self.keys.sequence();
    }
}

/// Walks through slices.
struct Pieces<'a, 'b> {
    parts: &'a [IoSlice<'b>],
    /// In the first part.
    at: usize,
}

impl<'a> Pieces<'a, '_> {
    /// The next bytes, `most` at most; none only at the end.
    fn next(&mut self, most: usize) -> &'a [u8] {
        while let Some((first, others)) = self.parts.split_first() {
            let rest = &first[self.at..];
            if !rest.is_empty() {
                let count = rest.len().min(most);
                self.at += count;
                return &rest[..count];
            }
            (self.parts, self.at) = (others, 0);
        }
        &[]
    }
}

/// The peer's direction.
pub(crate) struct Opener {
    keys: Keys,
    messages: Messages,
    idle: u32,
    ended: bool,
    broken: bool,
}

impl Opener {
    /// With keys that nothing was opened with. Tickets come `from_server` only.
    pub(crate) fn new(keys: Keys, from_server: bool) -> Self {
        Self { keys, messages: Messages::new(from_server), idle: 0, ended: false, broken: false }
    }

    /// What the peer may send without data counts anew: it may have had much to read.
    pub(crate) fn forget_idling(&mut self) {
        self.idle = 0;
    }

    /// Nothing is opened any more.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    pub(crate) fn is_within_message(&self) -> bool {
        self.messages.is_partial()
    }

    /// Opens the next record in `input` that has data: into `buffer` where it fits in there, else into `rest`, which is to be
    /// read before this is called again. What has to be answered is left to `sealer` and appended to `out`.
    pub(crate) fn open(
        &mut self,
        input: &mut Queue,
        buffer: &mut [u8],
        rest: &mut Vec<u8>,
        sealer: &mut Sealer,
        out: &mut Queue,
    ) -> Result<Opened, Violation> {
        if self.broken {
            return Err(Violation::Broken);
        }
        let result = self.next(input, buffer, rest, sealer);
        match &result {
            // Whatever follows an end is ignored (RFC 8446 section 6.1).
            Ok(Opened::End) => self.ended = true,
            Ok(_) => {}
            Err(violation) => {
                self.broken = true;
                rest.clear();
                sealer.complain(violation, out);
            }
        }
        result
    }

    fn next(
        &mut self,
        input: &mut Queue,
        buffer: &mut [u8],
        rest: &mut Vec<u8>,
        sealer: &mut Sealer,
    ) -> Result<Opened, Violation> {
        while !self.ended {
            let Some(length) = body_length(input.waiting())? else { return Ok(Opened::Nothing) };
            let Some(record) = input.waiting_mut().get_mut(..HEADER + length) else {
                return Ok(Opened::Nothing);
            };
            let (header, body) = record.split_at_mut(HEADER);
            let text = self.keys.open(header, body)?;
            let (content_type, count) = content(text)?;
            let text = &text[..count];
            if content_type != APPLICATION_DATA || count == 0 {
                let end = self.control(content_type, text, sealer)?;
                input.taken(HEADER + length);
                if end {
                    return Ok(Opened::End);
                }
                continue;
            }
            if self.messages.is_partial() {
                return Err(Violation::Interrupted(content_type));
            }
            self.idle = 0;
            let fits = count <= buffer.len();
            if fits {
                buffer[..count].copy_from_slice(text);
            } else {
                rest.clear();
                rest.extend_from_slice(text);
            }
            input.taken(HEADER + length);
            return Ok(Opened::Bytes(if fits { count } else { 0 }));
        }
        Ok(Opened::End)
    }

    /// Takes a record that has no data; `true` when it is the end.
    fn control(&mut self, content_type: u8, content: &[u8], sealer: &mut Sealer) -> Result<bool, Violation> {
        self.idle += 1;
        if self.idle > MAX_IDLE {
            return Err(Violation::Idle);
        }
        match content_type {
            ALERT => match content {
                // close_notify. In TLS 1.3 an alert's level says nothing (section 6).
                [_, 0] => Ok(true),
                // user_canceled: an end follows (section 6.1).
                [_, 90] => Ok(false),
                [_, code] => Err(Violation::Alert(*code)),
                _ => Err(Violation::AlertLength(content.len())),
            },
            HANDSHAKE => {
                if let Some(update) = self.messages.take(content)? {
                    self.keys.renew()?;
                    sealer.update_due |= update.requested;
                }
                Ok(false)
            }
            APPLICATION_DATA if self.messages.is_partial() => Err(Violation::Interrupted(content_type)),
            // Empty (section 5.4 allows it).
            APPLICATION_DATA => Ok(false),
            other => Err(Violation::Type(other)),
        }
    }
}

/// Length of the protected part of the record that begins here; `None` where not all of its header is there.
fn body_length(waiting: &[u8]) -> Result<Option<usize>, Violation> {
    let Some(&[record_type, major, minor, high, low]) = waiting.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    if record_type != APPLICATION_DATA {
        return Err(Violation::Bare(record_type));
    }
    let version = u16::from_be_bytes([major, minor]);
    if version != 0x0303 {
        return Err(Violation::Version(version));
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_BODY {
        return Err(Violation::TooLong(length));
    }
    // At least the content's type, and a tag.
    if length <= TAG {
        return Err(Violation::TooShort(length));
    }
    Ok(Some(length))
}

/// The type of what was protected and its content's length: what is behind the type is zeros (RFC 8446 section 5.4).
fn content(text: &[u8]) -> Result<(u8, usize), Violation> {
    match text.iter().rposition(|&byte| byte != 0) {
        Some(at) => Ok((text[at], at)),
        None => Err(Violation::NoType),
    }
}

/// RFC 8446 appendix B.2.
fn alert_words(code: u8) -> &'static str {
    match code {
        10 => "unexpected_message",
        20 => "bad_record_mac: it got a record that does not verify",
        22 => "record_overflow",
        40 => "handshake_failure",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca: it does not trust the authority of our certificate",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        116 => "certificate_required",
        _ => "see RFC 8446 section 6",
    }
}

#[cfg(test)]
#[path = "record13_tests.rs"]
mod tests;
