//! The reasons for which QUIC connections end.

use std::io;

use quinn_proto::{ConnectionError, TransportErrorCode, VarInt};
use ropewalk_udp::Failure;

/// The codes with which one side closes a connection: after all data was delivered, or before.
pub(crate) const DELIVERED: VarInt = VarInt::from_u32(0);
pub(crate) const ABORTED: VarInt = VarInt::from_u32(1);

pub(crate) fn reset() -> Failure {
    Failure::new(io::ErrorKind::ConnectionReset, "the peer has aborted the QUIC connection")
}

pub(crate) fn refused() -> Failure {
    Failure::new(io::ErrorKind::ConnectionRefused, "the peer refuses the QUIC connection")
}

/// The reason that QUIC reports.
pub(crate) fn of(error: ConnectionError) -> Failure {
    match error {
        ConnectionError::ApplicationClosed(close) if close.error_code == DELIVERED => {
            Failure::new(io::ErrorKind::BrokenPipe, "the peer has closed the QUIC connection")
        }
        ConnectionError::ApplicationClosed(_) | ConnectionError::Reset => reset(),
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            refused()
        }
        ConnectionError::TimedOut => Failure::new(
            io::ErrorKind::TimedOut,
            "the peer of the QUIC connection has been silent for too long",
        ),
        ConnectionError::LocallyClosed => {
            Failure::new(io::ErrorKind::ConnectionAborted, "the QUIC connection was aborted here")
        }
        other => Failure::new(io::ErrorKind::InvalidData, format!("QUIC connection: {other}")),
    }
}
