//! Why a connection has ended, for each call that comes after it.

use std::io;
use std::sync::Arc;

use quinn_proto::{ConnectionError, TransportErrorCode, VarInt};

/// The codes with which one side closes a connection: after all data was delivered, or before.
pub(crate) const DELIVERED: VarInt = VarInt::from_u32(0);
pub(crate) const ABORTED: VarInt = VarInt::from_u32(1);

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: io::ErrorKind,
    text: Arc<str>,
}

impl Failure {
    pub(crate) fn new(kind: io::ErrorKind, text: impl Into<Arc<str>>) -> Self {
        Self { kind, text: text.into() }
    }

    /// The peer reads no more.
    pub(crate) fn closed() -> Self {
        Self::new(io::ErrorKind::BrokenPipe, "the peer has closed the QUIC connection")
    }

    pub(crate) fn reset() -> Self {
        Self::new(io::ErrorKind::ConnectionReset, "the peer has aborted the QUIC connection")
    }

    /// This side has aborted the connection.
    pub(crate) fn aborted() -> Self {
        Self::new(io::ErrorKind::ConnectionAborted, "the QUIC connection was aborted here")
    }

    pub(crate) fn refused() -> Self {
        Self::new(io::ErrorKind::ConnectionRefused, "the peer refuses the QUIC connection")
    }
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) if close.error_code == DELIVERED => Self::closed(),
            ConnectionError::ApplicationClosed(_) | ConnectionError::Reset => Self::reset(),
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                Self::refused()
            }
            ConnectionError::TimedOut => Self::new(
                io::ErrorKind::TimedOut,
                "the peer of the QUIC connection has been silent for too long",
            ),
            ConnectionError::LocallyClosed => Self::aborted(),
            other => Self::new(io::ErrorKind::InvalidData, format!("QUIC connection: {other}")),
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind, failure.text.as_ref())
    }
}
