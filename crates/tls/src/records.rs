//! The records after a handshake, with OpenSSL as the record layer: data is protected into records
//! and read from them, without network I/O. OpenSSL's error queue belongs to the thread, so it is
//! cleared before each call ([`forget_errors`]).

use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, ShutdownState, SslContext, SslRef, SslSession, SslStream};
use openssl::x509::X509;
use zeroize::Zeroizing;

use crate::memory::Memory;

/// The maximum number of plain bytes in one record.
pub const RECORD: usize = 16 << 10;

/// Why nothing more can be read or protected.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A record that is not authentic, too long or out of order.
    #[error("a record of the peer is not genuine or out of order: {0}")]
    Wrong(String),
    /// The peer has refused the certificate of this end. With TLS 1.3 it does so after the
    /// handshake of a client.
    #[error("the peer does not accept the certificate of this end ({0})")]
    CertificateRefused(String),
    #[error("the peer has ended TLS with an alert: {0}")]
    Alert(String),
}

impl RecordError {
    /// Classifies an error by OpenSSL's text for it.
    fn of(text: String) -> Self {
        match text.split_once(" alert ") {
            // "decrypt error": its signature is wrong (RFC 8446 section 6.2).
            Some((_, alert))
                if alert.contains("certificate") || matches!(alert, "unknown ca" | "decrypt error") =>
            {
                Self::CertificateRefused(text)
            }
            Some(_) => Self::Alert(text),
            None => Self::Wrong(text),
        }
    }
}

/// The result of [`Records::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    Bytes(usize),
    /// There is no complete record.
    Nothing,
    /// The peer has closed the secured connection (close_notify).
    End,
}

/// The two directions of a secured connection.
pub struct Records {
    stream: SslStream<Memory>,
    /// Whether data was protected or read.
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

/// A session that other connections can resume.
#[derive(Clone)]
pub struct Ticket {
    /// The session in encoded form, because OpenSSL disables a session that several connections
    /// share when one of them fails.
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
    /// Takes a stream whose handshake is complete.
    pub fn new(stream: SslStream<Memory>) -> Self {
        Self { stream, used: false }
    }

    /// Takes a stream that has transferred more than its handshake.
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

    /// The peer's certificate; in a resumed session, that of the original session.
    pub fn peer_certificate(&self) -> Option<X509> {
        self.ssl().peer_certificate()
    }

    /// The current session. In TLS 1.3 it can be resumed only after the server's tickets were
    /// received.
    pub fn ticket(&self, context: &SslContext) -> Option<Ticket> {
        let session = self.ssl().session()?.to_der().ok().map(Zeroizing::new)?;
        Some(Ticket { session, context: context.clone() })
    }

    /// Appends records with `plain` to `out`.
    ///
    /// # Errors
    /// The connection has failed, or this direction was closed.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.used = true;
        // TLS appends directly to the content of `out`, which saves a copy.
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
                    result = Err(RecordError::Wrong(error.to_string()));
                    break;
                }
            }
        }
        std::mem::swap(&mut self.stream.get_mut().outgoing, out);
        result
    }

    /// For a server: the next records include another ticket. Some clients use each ticket only
    /// once.
    pub fn renew_ticket(&mut self) {
        self.used = true;
        crate::sys::new_ticket(self.stream.ssl());
    }

    /// Appends the end of this direction (close_notify) to `out`. Nothing can be protected
    /// afterwards.
    ///
    /// # Errors
    /// The connection has failed already.
    pub fn close(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.used = true;
        if !self.stream.get_shutdown().contains(ShutdownState::SENT) {
            forget_errors();
            // This fails only if the connection has failed already.
            self.stream.shutdown().map_err(|error| RecordError::Wrong(error.to_string()))?;
        }
        out.append(&mut self.stream.get_mut().outgoing);
        Ok(())
    }

    /// Takes received bytes and appends the content of their records to `plain`. A record may
    /// arrive in several chunks. Returns `false` if the peer has closed the secured connection.
    ///
    /// # Errors
    /// A record is not authentic, too long or out of order. The content of the records before it is
    /// in `plain`.
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

    /// Space for at least `least` bytes from the network. With [`Records::received`] and
    /// [`Records::read`], a caller avoids the copies of [`Records::open`].
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        self.stream.get_mut().space(least)
    }

    /// Marks `count` bytes of [`Records::room`] as received.
    pub fn received(&mut self, count: usize) {
        self.stream.get_mut().filled(count);
    }

    /// Reads the next record, or as much of it as fits. A buffer of [`RECORD`] bytes is always
    /// large enough.
    ///
    /// # Errors
    /// The record is not authentic, too long or out of order.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Opened, RecordError> {
        self.used = true;
        forget_errors();
        match self.stream.ssl_read(buffer) {
            Ok(count) => Ok(Opened::Bytes(count)),
            Err(error) => match error.code() {
                ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Ok(Opened::Nothing),
                ErrorCode::ZERO_RETURN => Ok(Opened::End),
                _ => Err(RecordError::of(reason(error.ssl_error(), &error))),
            },
        }
    }

    /// Frees buffers that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.stream.get_mut().shrink();
    }

    /// Takes the bytes that TLS itself has to send (alerts, answers to key updates); usually none.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.stream.get_mut().take()
    }

    /// The received bytes that were not read.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.rest()
    }

    pub(crate) fn rest(&mut self) -> Vec<u8> {
        self.stream.get_mut().rest()
    }

    /// Whether the received bytes end within a record.
    pub(crate) fn is_torn(&self) -> bool {
        self.stream.get_ref().has_incoming() || crate::sys::has_pending(self.stream.ssl())
    }

    /// Whether no data was protected or read, and no bytes wait to be sent.
    pub(crate) fn is_fresh(&self) -> bool {
        !self.used && self.stream.get_ref().outgoing.is_empty()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // Without this, OpenSSL would discard the session of a connection that ends without
        // close_notify, and other connections of the same client could not resume it.
        self.stream.set_shutdown(ShutdownState::SENT | ShutdownState::RECEIVED);
    }
}

/// Clears OpenSSL's error queue. The queue belongs to the thread, and OpenSSL attributes an old
/// error in it, such as that of a wrong signature, to the connection that it reads or writes next.
/// Call this before each step of a connection, and after calls that may leave errors.
pub fn forget_errors() {
    drop(ErrorStack::get());
}

/// OpenSSL's text for an error, without its numbers.
pub(crate) fn reason(stack: Option<&ErrorStack>, error: &dyn std::fmt::Display) -> String {
    let words = stack.and_then(|stack| stack.errors().iter().rev().find_map(|e| e.reason()));
    words.map_or_else(|| error.to_string(), str::to_owned)
}
