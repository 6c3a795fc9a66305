//! Ropewalk's own record layer for data connections: TLS 1.3 after the handshake (RFC 8446 sections
//! 4.6, 5 and 6).
//!
//! OpenSSL performs the handshake and `ring` computes the ciphers. The record layer between them is
//! here because a record that passes through OpenSSL is copied two more times. The peer may send
//! only application data, tickets (which are skipped), key updates and alerts. Anything else, or a
//! record that does not verify, ends the connection: after an error nothing more is read.

use std::io::IoSlice;

use openssl::error::ErrorStack;

use crate::messages::{MalformedMessage, Messages};
use crate::queue::Queue;
use crate::records::{Opened, RECORD};
use crate::traffic::{Failure, HEADER, Keys, TAG};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// The longest protected part of a record: content with its type and padding (RFC 8446 section 5.4:
/// 2^14 + 1 bytes), and the tag, which is all that these suites add.
const MAX_BODY: usize = RECORD + 1 + TAG;
/// How many records are protected with one key. AES-GCM allows 2^24.5 (RFC 8446 section 5.5).
const KEY_LIFE: u64 = 1 << 24;
/// How many records without data may follow one another.
const MAX_IDLE: u32 = 64;

/// Why a connection cannot continue.
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
    /// The alert for the peer (RFC 8446 section 6.2).
    fn alert(&self) -> Option<u8> {
        match self {
            Self::Forged => Some(20),
            Self::TooLong(_) => Some(22),
            Self::Bare(_) | Self::NoType | Self::Type(_) | Self::Interrupted(_) | Self::Idle => Some(10),
            Self::Version(_) => Some(70),
            // RFC 8446 section 5.4 requires this alert for an alert record without content.
            Self::AlertLength(0) => Some(10),
            Self::TooShort(_) | Self::AlertLength(_) => Some(50),
            Self::Message(error) => Some(error.alert()),
            Self::Exhausted | Self::Unsealed | Self::OpenSsl(_) => Some(80),
            Self::Alert(_) | Self::Broken | Self::Closed => None,
        }
    }
}

/// This side's direction.
pub(crate) struct Sealer {
    keys: Keys,
    key_life: u64,
    /// The peer has requested new keys.
    update_due: bool,
    state: State,
}

/// Whether this direction can still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// close_notify was sent.
    Closed,
    /// An error occurred, so the peer could not read more records or no longer reads them.
    Failed,
}

impl Sealer {
    /// Takes keys that have not been used for any record.
    pub(crate) fn new(keys: Keys) -> Self {
        Self { keys, key_life: KEY_LIFE, update_due: false, state: State::Open }
    }

    /// Appends records with the first `most` bytes of `plain` (the concatenation of its slices) to
    /// `out`. Returns how many bytes of `plain` that was.
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

    /// Appends a key update if the peer requested one or this side's key is used up (RFC 8446
    /// section 4.6.3).
    pub(crate) fn answer(&mut self, out: &mut Queue) -> Result<(), Violation> {
        if self.state == State::Open && (self.update_due || self.keys.sequence() >= self.key_life) {
            // The message is a key_update with one byte, update_not_requested. The peer decides
            // about its own keys.
            self.short_record(HANDSHAKE, &[24, 0, 0, 1, 0], out)?;
            // Without new keys here, the peer could not read anything that follows.
            self.keys.renew().inspect_err(|_| self.state = State::Failed)?;
            self.update_due = false;
        }
        Ok(())
    }

    /// Appends the end of this direction (close_notify, RFC 8446 section 6.1), once.
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

    /// Sends the alert for a violation. Nothing can be protected afterwards.
    fn complain(&mut self, violation: &Violation, out: &mut Queue) {
        if let Some(code) = violation.alert()
            && self.state == State::Open
        {
            // The connection has failed already, so an error here changes nothing.
            let _ = self.short_record(ALERT, &[2, code], out);
        }
        self.state = State::Failed;
    }

    fn short_record(&mut self, content_type: u8, content: &[u8], out: &mut Queue) -> Result<(), Violation> {
        let mut pieces = Pieces { parts: &[IoSlice::new(content)], at: 0 };
        self.record(content_type, content.len(), |most| pieces.next(most), out)
    }

    /// Appends one record. After a failure no more records may follow, because the peer would miss
    /// this one.
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
    /// Simulates a key that has protected as many records as it may.
    pub(crate) fn wear_out(&mut self) {
        self.key_life = self.keys.sequence();
    }
}

/// Iterates over the bytes of slices.
struct Pieces<'a, 'b> {
    parts: &'a [IoSlice<'b>],
    /// Position in the first slice.
    at: usize,
}

impl<'a> Pieces<'a, '_> {
    /// The next bytes, at most `most`; empty only at the end.
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
    /// Takes keys that have not been used for any record. Only a server may send tickets.
    pub(crate) fn new(keys: Keys, from_server: bool) -> Self {
        Self { keys, messages: Messages::new(from_server), idle: 0, ended: false, broken: false }
    }

    /// Resets the count of records without data, because the peer may have had much to read.
    pub(crate) fn forget_idling(&mut self) {
        self.idle = 0;
    }

    /// Refuses to read more records.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    pub(crate) fn is_within_message(&self) -> bool {
        self.messages.is_partial()
    }

    /// Reads the next record in `input` that has data. Its content goes into `buffer` if it fits
    /// there, else into `rest`, which must be consumed before the next call. Alerts are appended to
    /// `out`; an answer to a key update is left to `sealer`.
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
            // Anything after the end is ignored (RFC 8446 section 6.1).
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

    /// Processes a record without data. Returns `true` if it ends the direction.
    fn control(&mut self, content_type: u8, content: &[u8], sealer: &mut Sealer) -> Result<bool, Violation> {
        self.idle += 1;
        if self.idle > MAX_IDLE {
            return Err(Violation::Idle);
        }
        match content_type {
            ALERT => match content {
                // close_notify. In TLS 1.3 the level of an alert has no meaning (section 6).
                [_, 0] => Ok(true),
                // user_canceled: the end follows (section 6.1).
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
            // Empty application data (section 5.4 allows it).
            APPLICATION_DATA => Ok(false),
            other => Err(Violation::Type(other)),
        }
    }
}

/// Length of the protected part of the record that begins here; `None` if its header is incomplete.
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
    // A record has at least the content type and a tag.
    if length <= TAG {
        return Err(Violation::TooShort(length));
    }
    Ok(Some(length))
}

/// The type of the protected content and the content's length. The zeros after the type are padding
/// (RFC 8446 section 5.4).
fn content(text: &[u8]) -> Result<(u8, usize), Violation> {
    match text.iter().rposition(|&byte| byte != 0) {
        Some(at) => Ok((text[at], at)),
        None => Err(Violation::NoType),
    }
}

/// The names are those of RFC 8446 appendix B.2.
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
