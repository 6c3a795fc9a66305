//! The result of a handshake: an authenticated peer, possibly a delegated proxy, and protection for
//! the messages that follow. A [`Session`] does no network I/O: the caller passes received bytes in
//! and sends the records that come out. It is used by one thread at a time.

use ropewalk_tls::{RecordError, Records};

use crate::credential::Credential;
use crate::verify::Peer;

/// Why bytes could not be protected, or protected bytes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the peer ended the secured connection")]
    Closed,
    #[error("a message of the peer is cut off")]
    Incomplete,
    #[error("the reply or command is not protected: {0}")]
    Line(&'static str),
}

/// The protection of the records in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Changes are detected, but others can read.
    Integrity,
    /// Others can neither change nor read.
    Confidential,
}

/// A security context.
pub struct Session {
    records: Records,
    peer: Peer,
    delegated: Option<Credential>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("peer", &self.peer.identity)
            .field("version", &self.version())
            .field("cipher", &self.cipher())
            .finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(records: Records, peer: Peer, delegated: Option<Credential>) -> Self {
        Self { records, peer, delegated }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The proxy that the peer delegated.
    pub fn delegated(&self) -> Option<&Credential> {
        self.delegated.as_ref()
    }

    pub fn take_delegated(&mut self) -> Option<Credential> {
        self.delegated.take()
    }

    /// `TLSv1.2` or `TLSv1.3`.
    pub fn version(&self) -> &'static str {
        self.records.version()
    }

    pub fn cipher(&self) -> &'static str {
        self.records.cipher()
    }

    pub fn protection(&self) -> Protection {
        match self.records.ssl().current_cipher() {
            Some(cipher) if cipher.bits().secret > 0 => Protection::Confidential,
            _ => Protection::Integrity,
        }
    }

    /// Appends records with `plain` to `out` (`gss_wrap`).
    ///
    /// # Errors
    /// The secured connection is broken, or this side has closed its direction.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        Ok(self.records.seal(plain, out)?)
    }

    /// Takes received bytes and appends the content of their records to `plain` (`gss_unwrap`). A
    /// record may arrive in several parts. Returns `false` if the peer has closed the secured
    /// connection. The peer need not do so: GCT only closes the socket.
    ///
    /// # Errors
    /// A record is not authentic, too long or out of order.
    pub fn open(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> Result<bool, SessionError> {
        Ok(self.records.open(bytes, plain)?)
    }

    /// Releases buffers that are not needed while the connection is idle.
    pub fn shrink(&mut self) {
        self.records.shrink();
    }

    /// Bytes that TLS itself has to send (answers to key updates); usually none.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.records.take_output()
    }

    /// Converts into records, for a data connection that transfers whole records.
    pub fn into_records(self) -> Records {
        self.records
    }

    /// Returns the peer and the received bytes after the handshake that were not read. They are the
    /// first clear bytes of a data connection that is only authenticated.
    pub fn into_clear(self) -> (Peer, Vec<u8>) {
        let rest = self.records.into_rest();
        (self.peer, rest)
    }
}
