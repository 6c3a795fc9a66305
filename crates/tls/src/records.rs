//! What follows a handshake: bytes sealed into records and opened from them.

use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, ShutdownState, SslContext, SslRef, SslSession, SslStream};
use openssl::x509::X509;
use zeroize::Zeroizing;

use crate::memory::Memory;

/// Most plain bytes in one record.
pub const RECORD: usize = 16 << 10;

/// A record that is not genuine, too long or out of order.
#[derive(Debug, thiserror::Error)]
#[error("a record of the peer is not genuine or out of order: {0}")]
pub struct RecordError(pub String);

/// What [`Records::read`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    Bytes(usize),
    /// No whole record is there.
    Nothing,
    /// The peer has ended the secured connection (close_notify).
    End,
}

/// The two directions of a secured connection.
pub struct Records {
    stream: SslStream<Memory>,
    /// Something was sealed or opened.
    used: bool,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records")
            .field("version", &self.version())
            .field("cipher", &self.cipher())
            .finish_non_exhaustive()
    }
}

/// A session that further connections can resume.
#[derive(Clone)]
pub struct Ticket {
    /// Encoded: OpenSSL takes a session that several connections share out of use when one of them fails.
    session: Zeroizing<Vec<u8>>,
    context: SslContext,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

impl Ticket {
    pub(crate) fn session(&self) -> Result<SslSession, ErrorStack> {
        SslSession::from_der(&self.session)
    }

    pub(crate) fn context(&self) -> &SslContext {
        &self.context
    }
}

impl Records {
    /// Of a stream whose handshake is done.
    pub fn new(stream: SslStream<Memory>) -> Self {
        Self { stream, used: false }
    }

    /// Of a stream through which more than its handshake has gone.
    pub fn used(stream: SslStream<Memory>) -> Self {
        Self { stream, used: true }
    }

    pub fn ssl(&self) -> &SslRef {
        self.stream.ssl()
    }

    /// `TLSv1.2` or `TLSv1.3`.
    pub fn version(&self) -> &'static str {
        self.ssl().version_str()
    }

    pub fn cipher(&self) -> &'static str {
        self.ssl().current_cipher().map_or("none", |cipher| cipher.name())
    }

    /// The peer's certificate; in a resumed session that of the first one.
    pub fn peer_certificate(&self) -> Option<X509> {
        self.ssl().peer_certificate()
    }

    /// The session as it is now. In TLS 1.3 it can be resumed only once the server's tickets have come.
    pub fn ticket(&self, context: &SslContext) -> Option<Ticket> {
        let session = self.ssl().session()?.to_der().ok().map(Zeroizing::new)?;
        Some(Ticket { session, context: context.clone() })
    }

    /// Appends records with `plain` to `out`.
    ///
    /// # Errors
    /// The connection is broken, or our direction has ended.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.used = true;
        // TLS writes straight behind what is in `out`, which saves a copy.
        let memory = self.stream.get_mut();
        out.append(&mut memory.outgoing);
        std::mem::swap(&mut memory.outgoing, out);
        let mut rest = plain;
        let mut result = Ok(());
        while !rest.is_empty() {
            forget_errors();
            match self.stream.ssl_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => {
                    result = Err(RecordError(error.to_string()));
                    break;
                }
            }
        }
        std::mem::swap(&mut self.stream.get_mut().outgoing, out);
        result
    }

    /// A server's: the next bytes that are sealed bring another ticket. Some clients use each but once.
    pub fn renew_ticket(&mut self) {
        self.used = true;
        crate::sys::new_ticket(self.stream.ssl());
    }

    /// Appends the end of our direction (close_notify) to `out`. Nothing can be sealed afterwards.
    ///
    /// # Errors
    /// The connection is broken already.
    pub fn close(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.used = true;
        if !self.stream.get_shutdown().contains(ShutdownState::SENT) {
            forget_errors();
            // Fails only where the connection is broken already.
            self.stream.shutdown().map_err(|error| RecordError(error.to_string()))?;
        }
        out.append(&mut self.stream.get_mut().outgoing);
        Ok(())
    }

    /// Takes bytes that came and appends what was in their records to `plain`. Records may come in pieces. `false` when the
    /// peer has ended the secured connection.
    ///
    /// # Errors
    /// A record is not genuine, too long or out of order; what those before it had is in `plain`.
    pub fn open(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> Result<bool, RecordError> {
        self.stream.get_mut().feed(bytes);
        loop {
            let old = plain.len();
            plain.resize(old + RECORD, 0);
            let result = self.read(&mut plain[old..]);
            let count = if let Ok(Opened::Bytes(count)) = result { count } else { 0 };
            plain.truncate(old + count);
            match result? {
                Opened::Bytes(_) => {}
                Opened::Nothing => return Ok(true),
                Opened::End => return Ok(false),
            }
        }
    }

    /// Room for at least so many bytes from the network. With [`Records::received`] and [`Records::read`] this is
    /// [`Records::open`] without its copies.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        self.stream.get_mut().space(least)
    }

    /// So many bytes were put into [`Records::room`].
    pub fn received(&mut self, count: usize) {
        self.stream.get_mut().filled(count);
    }

    /// Opens the next record, or what fits of it; [`RECORD`] bytes always do.
    ///
    /// # Errors
    /// The record is not genuine, too long or out of order.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Opened, RecordError> {
        self.used = true;
        forget_errors();
        match self.stream.ssl_read(buffer) {
            Ok(count) => Ok(Opened::Bytes(count)),
            Err(error) => match error.code() {
                ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Ok(Opened::Nothing),
                ErrorCode::ZERO_RETURN => Ok(Opened::End),
                _ => Err(RecordError(reason(error.ssl_error(), &error))),
            },
        }
    }

    /// Gives back memory that is not needed while nothing comes.
    pub fn shrink(&mut self) {
        self.stream.get_mut().shrink();
    }

    /// What TLS itself has to send (alerts, answers to key updates); usually nothing.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.stream.get_mut().take()
    }

    /// Bytes that came and were not opened.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.rest()
    }

    pub(crate) fn rest(&mut self) -> Vec<u8> {
        self.stream.get_mut().rest()
    }

    /// What came ends within a record.
    pub(crate) fn is_torn(&self) -> bool {
        self.stream.get_ref().has_incoming() || crate::sys::has_pending(self.stream.ssl())
    }

    /// Nothing was sealed or opened, and nothing waits to be sent.
    pub(crate) fn is_fresh(&self) -> bool {
        !self.used && self.stream.get_ref().outgoing.is_empty()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // OpenSSL would forget sessions of connections that end without a word, and further connections of the same client
        // could not resume them.
        self.stream.set_shutdown(ShutdownState::SENT | ShutdownState::RECEIVED);
    }
}

/// OpenSSL keeps errors by thread, and takes one that somebody left there, of a signature that was wrong, say, for one of whatever
/// connection it reads or writes next. To be called before each step of one, and behind what may leave some.
pub fn forget_errors() {
    drop(ErrorStack::get());
}

/// OpenSSL's words for what was wrong, without its numbers.
pub(crate) fn reason(stack: Option<&ErrorStack>, error: &dyn std::fmt::Display) -> String {
    let words = stack.and_then(|stack| stack.errors().iter().rev().find_map(|e| e.reason()));
    words.map_or_else(|| error.to_string(), str::to_owned)
}
