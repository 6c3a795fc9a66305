//! What a handshake ends in: a peer, perhaps a delegated proxy, and protection for what follows.

use openssl::ssl::{ErrorCode, SslStream};

use crate::credential::Credential;
use crate::memory::Memory;
use crate::verify::Peer;

/// Most plain bytes in one record.
pub const RECORD: usize = 16 << 10;

/// Why bytes could not be protected or opened.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("a record of the peer is not genuine or out of order: {0}")]
    Record(String),
    #[error("the peer ended the secured connection")]
    Closed,
    #[error("a message of the peer is cut off")]
    Incomplete,
    #[error("the reply or command is not protected: {0}")]
    Line(&'static str),
}

/// How much the peer's and our records hide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Changes are noticed; others can read.
    Integrity,
    /// Others can neither change nor read.
    Confidential,
}

/// What [`Session::read`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    Bytes(usize),
    /// No whole record is there.
    Nothing,
    /// The peer has ended the secured connection.
    End,
}

/// A security context.
pub struct Session {
    stream: SslStream<Memory>,
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
    pub(crate) fn new(stream: SslStream<Memory>, peer: Peer, delegated: Option<Credential>) -> Self {
        Self { stream, peer, delegated }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The proxy that the peer gave.
    pub fn delegated(&self) -> Option<&Credential> {
        self.delegated.as_ref()
    }

    pub fn take_delegated(&mut self) -> Option<Credential> {
        self.delegated.take()
    }

    /// `TLSv1.2` or `TLSv1.3`.
    pub fn version(&self) -> &'static str {
        self.stream.ssl().version_str()
    }

    pub fn cipher(&self) -> &'static str {
        self.stream.ssl().current_cipher().map_or("none", |cipher| cipher.name())
    }

    pub fn protection(&self) -> Protection {
        match self.stream.ssl().current_cipher() {
            Some(cipher) if cipher.bits().secret > 0 => Protection::Confidential,
            _ => Protection::Integrity,
        }
    }

    /// Appends records with `plain` to `out` (`gss_wrap`).
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        // TLS writes straight behind what is in `out`, which saves a copy.
        let memory = self.stream.get_mut();
        out.append(&mut memory.outgoing);
        std::mem::swap(&mut memory.outgoing, out);
        let mut rest = plain;
        let mut result = Ok(());
        while !rest.is_empty() {
            match self.stream.ssl_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => {
                    result = Err(SessionError::Record(error.to_string()));
                    break;
                }
            }
        }
        std::mem::swap(&mut self.stream.get_mut().outgoing, out);
        result
    }

    /// Takes bytes that came and appends what was in their records to `plain` (`gss_unwrap`). Records may come in pieces.
    /// `false` when the peer has ended the secured connection (it need not: GCT only closes the socket).
    pub fn open(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> Result<bool, SessionError> {
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

    /// Room for at least so many bytes from the network. With [`Session::received`] and [`Session::read`] this is
    /// [`Session::open`] without its copies.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        self.stream.get_mut().space(least)
    }

    /// So many bytes were put into [`Session::room`].
    pub fn received(&mut self, count: usize) {
        self.stream.get_mut().filled(count);
    }

    /// Opens the next record, or what fits of it; [`RECORD`] bytes always do.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Opened, SessionError> {
        match self.stream.ssl_read(buffer) {
            Ok(count) => Ok(Opened::Bytes(count)),
            Err(error) => match error.code() {
                ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Ok(Opened::Nothing),
                ErrorCode::ZERO_RETURN => Ok(Opened::End),
                _ => Err(SessionError::Record(error.to_string())),
            },
        }
    }

    /// Gives back memory that is not needed while nothing comes.
    pub fn shrink(&mut self) {
        self.stream.get_mut().shrink();
    }

    /// What TLS itself has to send (answers to key updates); usually nothing.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.stream.get_mut().take()
    }

    /// Bytes that came after the handshake and were not opened: the beginning of what follows in clear on a data
    /// connection that is only authenticated.
    pub fn into_clear(mut self) -> (Peer, Vec<u8>) {
        let rest = self.stream.get_mut().rest();
        (self.peer, rest)
    }
}
