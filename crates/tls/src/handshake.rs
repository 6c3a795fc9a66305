//! A handshake: bytes that came in, bytes to be sent out.

use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, Ssl, SslContext, SslStream};
use openssl::x509::X509;

use crate::memory::Memory;
use crate::records::{Records, Ticket, forget_errors, reason};

/// Bytes that a peer may send in a handshake.
pub const MAX_HANDSHAKE: usize = 256 << 10;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// What came is not TLS at all.
    #[error("the peer does not speak TLS here ({0})")]
    NotTls(String),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("the certificate of the peer is not accepted: {0}")]
    Certificate(String),
    #[error("the peer ended the connection during the TLS handshake")]
    Closed,
    #[error("the peer sent more than {MAX_HANDSHAKE} bytes without an end to the TLS handshake")]
    TooLong,
    #[error("the TLS handshake is over")]
    Over,
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// A handshake that is through.
#[derive(Debug)]
pub struct Established {
    pub records: Records,
    /// A session was resumed.
    pub resumed: bool,
    context: SslContext,
}

impl Established {
    /// The peer's certificate, where it has shown one.
    pub fn certificate(&self) -> Option<X509> {
        self.records.peer_certificate()
    }

    /// What further connections need to resume this session, see [`Records::ticket`].
    pub fn context(&self) -> &SslContext {
        &self.context
    }

    pub fn ticket(&self) -> Option<Ticket> {
        self.records.ticket(&self.context)
    }
}

/// Either side of a handshake.
pub struct Handshake {
    stream: Option<SslStream<Memory>>,
    context: SslContext,
    received: usize,
    /// What it begins cannot be resumed.
    fleeting: bool,
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshake").field("received", &self.received).finish_non_exhaustive()
    }
}

impl Handshake {
    /// `ssl` knows whether it connects or accepts, and is of `context`.
    pub(crate) fn new(ssl: Ssl, context: &SslContext) -> Result<Self, ErrorStack> {
        let stream = SslStream::new(ssl, Memory::default())?;
        Ok(Self { stream: Some(stream), context: context.clone(), received: 0, fleeting: false })
    }

    /// A server's: it may resume a session, but nobody can resume one that it begins.
    pub(crate) fn fleeting(mut self) -> Self {
        self.fleeting = true;
        self
    }

    /// Takes what came, in pieces of any size (nothing at first), and appends what is to be sent to `out`, also after an
    /// error: it tells the peer what was wrong. Once it is through, bytes that followed the handshake are in the records.
    ///
    /// # Errors
    /// The peer does not speak TLS or nothing that both accept, its certificate is not accepted, it sends too much or
    /// hangs up; or the handshake was over before.
    pub fn step(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Box<Established>>, HandshakeError> {
        let stream = self.stream.as_mut().ok_or(HandshakeError::Over)?;
        self.received = self.received.saturating_add(bytes.len());
        if self.received > MAX_HANDSHAKE {
            return Err(HandshakeError::TooLong);
        }
        stream.get_mut().feed(bytes);
        forget_errors();
        let result = stream.do_handshake();
        out.append(&mut stream.get_mut().outgoing);
        if self.fleeting && result.is_err() {
            // Before TLS 1.2 sends the ticket, which it does behind the client's last word.
            crate::sys::spoil_new_session(stream.ssl())?;
        }
        match result {
            Ok(()) => {}
            Err(error) => {
                return match error.code() {
                    ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Ok(None),
                    ErrorCode::ZERO_RETURN => Err(HandshakeError::Closed),
                    _ => Err(failed(stream, &error)),
                };
            }
        }
        let stream = self.stream.take().ok_or(HandshakeError::Over)?;
        let resumed = stream.ssl().session_reused();
        let context = self.context.clone();
        Ok(Some(Box::new(Established { records: Records::new(stream), resumed, context })))
    }
}

fn failed(stream: &SslStream<Memory>, error: &openssl::ssl::Error) -> HandshakeError {
    let text = reason(error.ssl_error(), error);
    match text.as_str() {
        "wrong version number" | "http request" | "https proxy request" | "record layer failure" => {
            HandshakeError::NotTls(text)
        }
        "certificate verify failed" => {
            let text = crate::revocation::told(stream.ssl());
            let words = || stream.ssl().verify_result().error_string().to_owned();
            HandshakeError::Certificate(text.unwrap_or_else(words))
        }
        _ => HandshakeError::Tls(text),
    }
}
