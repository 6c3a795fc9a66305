//! What a handshake ends in: a principal, and protection for what follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::SessionError;
use crate::framing;
use crate::sequence::Seen;
use crate::sys::{Context, Credential};

/// How much a message hides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Changes are noticed; others can read (MIC, PROT S).
    Integrity,
    /// Others can neither change nor read (ENC, PROT P).
    Confidential,
}

/// What control connection and data connections share. A context is used by one thread at a time (RFC 2743 says nothing of
/// threads, and MIT's library does not guard it).
struct Shared {
    state: Mutex<State>,
    /// Data connections use the context too.
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

    /// The number of the message as well.
    fn unwrap(&self, token: &mut [u8], plain: &mut Vec<u8>) -> Result<(Protection, u64), SessionError> {
        let number = framing::number(token)?;
        let old = plain.len();
        let mut state = self.state.lock();
        let encrypted = state.context.unwrap(token, plain)?;
        // Only now is it known that the number is the peer's.
        state.seen.enter(number).inspect_err(|_| plain.truncate(old))?;
        let protection = if encrypted { Protection::Confidential } else { Protection::Integrity };
        Ok((protection, number))
    }
}

/// A security context, for a control connection; [`Session::stream`] gives its use on a data connection.
///
/// All connections of a session share the context (RFC 2228 section 3), and so the numbers of its messages, which therefore
/// leave gaps on each of them. What is noticed: a message that comes twice, on whichever connection; messages of one connection
/// that change places; a message missing on the control connection, as long as data connections are not protected. What is not:
/// that somebody in between moves a message that he kept back from one connection of the session to another one, or takes
/// one out of a data connection; MODE E says where each block belongs and when all are there, and a file has a checksum.
pub struct Session {
    shared: Arc<Shared>,
    peer: String,
    server: String,
    expires: Option<SystemTime>,
    delegated: Option<Credential>,
    /// The last message of the control connection.
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

    /// The principal at the other end: `ada@EXAMPLE`, `host/data.example@EXAMPLE`.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The principal of the accepting side, whichever side we are.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// When the ticket ends; a session that is there then goes on. `None`: never.
    pub fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    /// The ticket-granting ticket that the client forwarded.
    pub fn take_delegated(&mut self) -> Option<Credential> {
        self.delegated.take()
    }

    /// Appends a token with `plain` to `out` (`gss_wrap`).
    ///
    /// # Errors
    /// The library cannot, or not with this protection.
    pub fn wrap(
        &mut self,
        plain: &[u8],
        protection: Protection,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.shared.wrap(plain, protection, out)
    }

    /// Appends what is in a token of the control connection to `plain` (`gss_unwrap`). The library may change the token's
    /// bytes.
    ///
    /// # Errors
    /// It is not the peer's, or came out of order.
    pub fn unwrap(&mut self, token: &mut [u8], plain: &mut Vec<u8>) -> Result<Protection, SessionError> {
        let old = plain.len();
        let (protection, number) = self.shared.unwrap(token, plain)?;
        let gaps = self.shared.streams.load(Ordering::Relaxed);
        follows(&mut self.last, number, gaps).inspect_err(|_| plain.truncate(old))?;
        Ok(protection)
    }

    /// The context on one data connection.
    pub fn stream(&self, protection: Protection) -> Stream {
        self.handle().stream(protection)
    }

    /// Makes streams where the session itself is elsewhere.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }
}

/// Makes the streams of a session. It keeps the security context, not the session.
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
    /// Data connections will use the context from now on: messages on the control connection may leave gaps. To be said before
    /// the peer can send data; a message may come on the control connection before the data that it follows.
    pub fn expect_streams(&self) {
        self.shared.streams.store(true, Ordering::Relaxed);
    }

    /// The context on one data connection.
    pub fn stream(&self, protection: Protection) -> Stream {
        self.expect_streams();
        Stream { shared: Arc::clone(&self.shared), protection, last: None }
    }
}

/// A session's security context as one data connection uses it (PROT S, PROT P). Streams may be used by threads of their own;
/// they take turns at the context.
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
    /// Appends a token with `plain` to `out`. Tokens have to leave in the order in which they were made.
    ///
    /// # Errors
    /// The library cannot, or not with this protection.
    pub fn wrap(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        self.shared.wrap(plain, self.protection, out)
    }

    /// Appends what is in a token to `plain`. The library may change the token's bytes.
    ///
    /// # Errors
    /// It is not the peer's, came twice or out of order, or is not encrypted where it should be.
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

    /// The most plain bytes whose token has no more than `token` bytes (`gss_wrap_size_limit`).
    ///
    /// # Errors
    /// The library cannot tell.
    pub fn plain_limit(&mut self, token: u32) -> Result<u32, SessionError> {
        let encrypt = self.protection == Protection::Confidential;
        Ok(self.shared.state.lock().context.plain_limit(token, encrypt)?)
    }
}

/// Whether a message stands where it should on its connection.
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
