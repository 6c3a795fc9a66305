//! A TLS handshake without network I/O: it takes received bytes and returns the bytes to send. It
//! ends with an [`Established`], which contains the records, or with an error; the alert for the
//! peer is in the output then. The number of bytes that a peer may send is limited.

use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, Ssl, SslContext, SslStream, SslVersion};
use openssl::x509::X509;
use zeroize::Zeroizing;

use crate::memory::Memory;
use crate::records::{Records, Ticket, forget_errors, reason};

/// How many bytes a peer may send in a handshake.
pub const MAX_HANDSHAKE: usize = 256 << 10;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The received bytes are not TLS.
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

/// A completed handshake.
#[derive(Debug)]
pub struct Established {
    pub records: Records,
    /// Whether a session was resumed.
    pub resumed: bool,
    context: SslContext,
}

impl Established {
    /// The peer's certificate, if it has sent one.
    pub fn certificate(&self) -> Option<X509> {
        self.records.peer_certificate()
    }

    /// The context that other connections need to resume this session, see [`Records::ticket`].
    pub fn context(&self) -> &SslContext {
        &self.context
    }

    /// The session in encoded form, for a server of data connections in another program. `None`
    /// with TLS 1.3, whose clients resume with tickets only. With TLS 1.2, a client without tickets
    /// resumes the session that its server remembers.
    pub fn remembered_session(&self) -> Option<Zeroizing<Vec<u8>>> {
        let ssl = self.records.ssl();
        let session = ssl.session().filter(|_| ssl.version2() == Some(SslVersion::TLS1_2))?;
        session.to_der().ok().map(Zeroizing::new)
    }

    pub fn ticket(&self) -> Option<Ticket> {
        self.records.ticket(&self.context)
    }
}

/// One side of a handshake.
pub struct Handshake {
    stream: Option<SslStream<Memory>>,
    context: SslContext,
    received: usize,
    /// Whether a session that starts here must not be resumed.
    fleeting: bool,
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshake").field("received", &self.received).finish_non_exhaustive()
    }
}

impl Handshake {
    /// `ssl` must be set to connect or accept, and be made from `context`.
    pub(crate) fn new(ssl: Ssl, context: &SslContext) -> Result<Self, ErrorStack> {
        let stream = SslStream::new(ssl, Memory::default())?;
        Ok(Self { stream: Some(stream), context: context.clone(), received: 0, fleeting: false })
    }

    /// For a server: the handshake may resume a session, but a session that starts in it cannot be
    /// resumed.
    pub(crate) fn fleeting(mut self) -> Self {
        self.fleeting = true;
        self
    }

    /// Takes received bytes in chunks of any size (none at first) and appends the bytes to send to
    /// `out`. That includes the alert for the peer after an error. When the handshake is complete,
    /// received bytes after it are in the records.
    ///
    /// # Errors
    /// The peer does not use TLS, supports no common parameters, sends a certificate that is not
    /// accepted, sends too much or closes the connection; or the handshake was complete before.
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
            // TLS 1.2 sends the ticket after the client's last message, so the session must be
            // changed before.
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
