//! An established session: the peer's principal, and the protection of messages.
//!
//! The control connection uses [`Session`], each data connection a [`Stream`]. They share one
//! security context behind a mutex, so that streams may run on threads of their own. Each checks
//! the order of its own messages; the shared state detects replays on any connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::SessionError;
use crate::framing;
use crate::sequence::Seen;
use crate::sys::{Context, Credential};

/// How a message is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Changes are detected; others can read the message (MIC, PROT S).
    Integrity,
    /// Others can neither change nor read the message (ENC, PROT P).
    Confidential,
}

/// State shared by the control connection and the data connections. Only one thread at a time uses
/// the context: RFC 2743 does not mention threads, and MIT's library does not lock it.
struct Shared {
    state: Mutex<State>,
    /// Whether data connections use the context too.
    streams: AtomicBool,
}

struct State {
    context: Context,
    seen: Seen,
}

impl Shared {
    fn wrap(&self, plain: &[u8], protection: Protection, out: &mut Vec<u8>) -> Result<(), SessionError> {
        let old = out.len();
        let wanted = protection == Protection::Confidential;
        let encrypted = self.state.lock().context.wrap(plain, wanted, out)?;
        if wanted && !encrypted {
            out.truncate(old);
            return Err(SessionError::CannotEncrypt);
        }
        Ok(())
    }

    /// Unwraps a message. Also returns its sequence number.
    fn unwrap(&self, token: &mut [u8], plain: &mut Vec<u8>) -> Result<(Protection, u64), SessionError> {
        let number = framing::number(token)?;
        let old = plain.len();
        let mut state = self.state.lock();
        let encrypted = state.context.unwrap(token, plain)?;
        // Only now is it certain that the peer set this number.
        state.seen.enter(number).inspect_err(|_| plain.truncate(old))?;
        let protection = if encrypted { Protection::Confidential } else { Protection::Integrity };
        Ok((protection, number))
    }
}

/// A security context, for a control connection; [`Session::stream`] returns its use on a data
/// connection.
///
/// All connections of a session share the context (RFC 2228 section 3) and its sequence numbers, so
/// that the numbers on each connection have gaps.
///
/// Detected: a message that arrives twice, on any connection; messages of one connection that
/// arrive out of order; a message missing on the control connection, as long as data connections
/// are not protected.
///
/// Not detected: an attacker between the peers that withholds a message of one connection and sends
/// it on another connection of the session, or removes one from a data connection. In MODE E each
/// block has its offset, and the end of data is marked; a file has a checksum.
pub struct Session {
    shared: Arc<Shared>,
    peer: String,
    server: String,
    expires: Option<SystemTime>,
    delegated: Option<Credential>,
    /// The sequence number of the last message on the control connection.
    last: Option<u64>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("peer", &self.peer)
            .field("server", &self.server)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(
        context: Context,
        peer: String,
        server: String,
        expires: Option<SystemTime>,
        delegated: Option<Credential>,
    ) -> Self {
        let state = Mutex::new(State { context, seen: Seen::default() });
        let shared = Arc::new(Shared { state, streams: AtomicBool::new(false) });
        Self { shared, peer, server, expires, delegated, last: None }
    }

    /// The principal of the peer: `ada@EXAMPLE`, `host/data.example@EXAMPLE`.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The principal of the accepting side, on either side.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// When the ticket expires; `None` if never. An established session continues after that.
    pub fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    /// Takes the ticket-granting ticket that the client forwarded.
    pub fn take_delegated(&mut self) -> Option<Credential> {
        self.delegated.take()
    }

    /// Appends a token with `plain` to `out` (`gss_wrap`).
    ///
    /// # Errors
    /// The library fails, or cannot provide this protection.
    pub fn wrap(
        &mut self,
        plain: &[u8],
        protection: Protection,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.shared.wrap(plain, protection, out)
    }

    /// Appends the content of a token of the control connection to `plain` (`gss_unwrap`). The
    /// library may change the bytes of the token.
    ///
    /// # Errors
    /// The token is not from the peer, arrived before, or is out of order.
    pub fn unwrap(&mut self, token: &mut [u8], plain: &mut Vec<u8>) -> Result<Protection, SessionError> {
        let old = plain.len();
        let (protection, number) = self.shared.unwrap(token, plain)?;
        let gaps = self.shared.streams.load(Ordering::Relaxed);
        follows(&mut self.last, number, gaps).inspect_err(|_| plain.truncate(old))?;
        Ok(protection)
    }

    /// Returns the context for one data connection.
    pub fn stream(&self, protection: Protection) -> Stream {
        self.handle().stream(protection)
    }

    /// Returns a handle that makes streams without access to the session.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }
}

/// Makes the streams of a session. It keeps the security context alive, but not the session.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

impl Handle {
    /// Declares that data connections will use the context, so that messages on the control
    /// connection may leave gaps. Call it before the peer can send data: a later message may arrive
    /// on the control connection before the data.
    pub fn expect_streams(&self) {
        self.shared.streams.store(true, Ordering::Relaxed);
    }

    /// Returns the context for one data connection.
    pub fn stream(&self, protection: Protection) -> Stream {
        self.expect_streams();
        Stream { shared: Arc::clone(&self.shared), protection, last: None }
    }
}

/// The use of a session's security context on one data connection (PROT S, PROT P). Streams may be
/// used by different threads; a mutex protects the context.
pub struct Stream {
    shared: Arc<Shared>,
    protection: Protection,
    last: Option<u64>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("protection", &self.protection)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// Appends a token with `plain` to `out`. Tokens must be sent in the order in which they were
    /// made.
    ///
    /// # Errors
    /// The library fails, or cannot provide this protection.
    pub fn wrap(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        self.shared.wrap(plain, self.protection, out)
    }

    /// Appends the content of a token to `plain`. The library may change the bytes of the token.
    ///
    /// # Errors
    /// The token is not from the peer, arrived before or out of order, or is not encrypted although
    /// the stream requires it.
    pub fn unwrap(&mut self, token: &mut [u8], plain: &mut Vec<u8>) -> Result<(), SessionError> {
        let old = plain.len();
        let (protection, number) = self.shared.unwrap(token, plain)?;
        let result = if self.protection == Protection::Confidential && protection != Protection::Confidential
        {
            Err(SessionError::NotEncrypted)
        } else {
            follows(&mut self.last, number, true)
        };
        result.inspect_err(|_| plain.truncate(old))
    }

    /// The largest number of plain bytes whose token is at most `token` bytes long
    /// (`gss_wrap_size_limit`).
    ///
    /// # Errors
    /// The library cannot compute it.
    pub fn plain_limit(&mut self, token: u32) -> Result<u32, SessionError> {
        let encrypt = self.protection == Protection::Confidential;
        Ok(self.shared.state.lock().context.plain_limit(token, encrypt)?)
    }
}

/// Checks the order of a message on its connection.
fn follows(last: &mut Option<u64>, number: u64, gaps: bool) -> Result<(), SessionError> {
    if let Some(last) = *last {
        if number <= last {
            return Err(SessionError::OutOfOrder { number, last });
        }
        if !gaps && number != last + 1 {
            return Err(SessionError::Missing { number: last + 1, found: number });
        }
    }
    *last = Some(number);
    Ok(())
}
