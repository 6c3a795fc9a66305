//! Handshakes as GSSAPI tokens: first the TLS flights, then a byte that says whether a proxy is
//! delegated, then the delegation.
//!
//! | step | messages |
//! |---|---|
//! | TLS | TLS flights, each as one token |
//! | TLS 1.3 only | acceptor: a record with the byte 0x00 after the initiator's last flight |
//! | flag | initiator: one record with `D` (a proxy follows) or `0`, in a token of its own |
//! | after `D` | acceptor: a record with a PKCS #10 request (DER) |
//! | | initiator: a record with the certificate (DER) |
//!
//! Protected data connections use TLS only. On data connections that are only authenticated, the
//! flag is exchanged and clear bytes follow.

use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, Ssl, SslStream, SslVersion};
use openssl::x509::X509;
use ropewalk_tls::{Memory, Records, forget_errors};

use crate::chain_error::ChainError;
use crate::credential::Credential;
use crate::delegation::{self, DelegationError, ProxyRequest, ProxyTerms};
use crate::der;
use crate::host::{Expected, WrongPeer};
use crate::keys::DelegatedKeys;
use crate::proxy_info::{ProxyKind, Rights};
use crate::session::Session;
use crate::time::Timestamp;
use crate::tls::Identity;
use crate::verify::Peer;

/// The most bytes that a peer may send before it is authenticated.
const MAX_TOKENS: usize = 512 << 10;
/// The largest request or certificate of a delegation, in bytes.
const MAX_DELEGATION: usize = 256 << 10;
const DELEGATE: u8 = b'D';
const NO_DELEGATION: u8 = b'0';

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the peer is not believed: {0}")]
    Chain(#[from] ChainError),
    #[error(transparent)]
    WrongPeer(#[from] WrongPeer),
    #[error("{subject} is a limited proxy, which is not accepted here")]
    LimitedProxy { subject: String },
    #[error("TLS: {0}")]
    Tls(String),
    #[error("the peer ended the connection during the handshake")]
    Closed,
    #[error("the peer sent more than {MAX_TOKENS} bytes without an end to the handshake")]
    TooLong,
    #[error("a delegation flag was expected; byte {found:#04x} came")]
    Flag { found: u8 },
    #[error("more came than the step of the handshake allows")]
    Surplus,
    #[error("delegation: {0}")]
    Delegation(#[from] DelegationError),
    #[error("the handshake is over")]
    Over,
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// Messages after TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum After {
    /// The flag, as on control connections and on data connections that are only authenticated.
    #[default]
    Flag,
    /// None, as on a protected data connection (PROT S, PROT P).
    Nothing,
}

/// The result of a step.
#[derive(Debug)]
pub enum Step {
    /// Send this if it is not empty, and wait for more.
    Continue(Vec<u8>),
    /// Send this if it is not empty; the session is then established. If tokens have no boundaries,
    /// the peer's first bytes may have come with its last token: [`Session::open`] with empty input
    /// returns them.
    Done(Vec<u8>, Box<Session>),
}

/// Options of the side that initiates.
#[derive(Clone, Debug)]
pub struct InitiatorOptions {
    pub expected: Expected,
    /// If set, a proxy with these terms is delegated to the acceptor.
    pub delegate: Option<ProxyTerms>,
    pub after: After,
    /// Sent as TLS server name, unless it is an address.
    pub server_name: Option<String>,
}

/// Options of the side that accepts.
#[derive(Clone, Debug)]
pub struct AcceptorOptions {
    pub expected: Expected,
    pub after: After,
    /// Accept limited proxies, as GCT does.
    pub accept_limited: bool,
    /// The kind of key for delegated proxies.
    pub keys: DelegatedKeys,
}

impl Default for AcceptorOptions {
    fn default() -> Self {
        Self {
            expected: Expected::Anybody,
            after: After::Flag,
            accept_limited: true,
            keys: DelegatedKeys::default(),
        }
    }
}

/// The state of a handshake.
#[derive(Debug)]
enum State {
    Tls,
    /// The initiator (TLS 1.3 only) waits for the byte 0x00, the acceptor for the flag.
    Flag,
    /// The initiator waits for the request, the acceptor for the certificate.
    Delegation(Option<ProxyRequest>),
}

/// The result of the part of a step that both sides share.
enum Advance {
    Step(Step),
    /// This token completed TLS.
    Secured {
        tls13: bool,
    },
    /// TLS was complete before.
    Later,
}

/// The state that both sides have.
struct Machine {
    stream: Option<SslStream<Memory>>,
    identity: Identity,
    expected: Expected,
    after: After,
    state: State,
    peer: Option<Peer>,
    presented: Vec<X509>,
    received: usize,
    pending: Vec<u8>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshake")
            .field("state", &self.state)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Machine {
    fn new(identity: &Identity, expected: Expected, after: After, mut ssl: Ssl) -> Result<Self, ErrorStack> {
        if after == After::Nothing {
            ropewalk_tls::for_data(&mut ssl)?;
        }
        Ok(Self {
            stream: Some(SslStream::new(ssl, Memory::default())?),
            identity: identity.clone(),
            expected,
            after,
            state: State::Tls,
            peer: None,
            presented: Vec::new(),
            received: 0,
            pending: Vec::new(),
        })
    }

    fn stream(&mut self) -> Result<&mut SslStream<Memory>, HandshakeError> {
        self.stream.as_mut().ok_or(HandshakeError::Over)
    }

    fn feed(&mut self, token: &[u8]) -> Result<(), HandshakeError> {
        self.received = self.received.saturating_add(token.len());
        if self.received > MAX_TOKENS {
            return Err(HandshakeError::TooLong);
        }
        self.stream()?.get_mut().feed(token);
        Ok(())
    }

    fn output(&mut self) -> Result<Vec<u8>, HandshakeError> {
        Ok(self.stream()?.get_mut().take())
    }

    /// Continues TLS; returns `true` when TLS is complete. The peer is checked as soon as its
    /// certificates are there, that is, before anything is sent that depends on the peer.
    fn tls(&mut self, now: Timestamp, accept_limited: bool) -> Result<bool, HandshakeError> {
        let stream = self.stream()?;
        forget_errors();
        let finished = match stream.do_handshake() {
            Ok(()) => true,
            Err(error) if matches!(error.code(), ErrorCode::WANT_READ | ErrorCode::WANT_WRITE) => false,
            Err(error) if error.code() == ErrorCode::ZERO_RETURN => return Err(HandshakeError::Closed),
            Err(error) => return Err(HandshakeError::Tls(error.to_string())),
        };
        if self.peer.is_none() {
            let ssl = self.stream()?.ssl();
            if let Some(certificate) = ssl.peer_certificate() {
                let mut presented = vec![certificate];
                for link in ssl.peer_cert_chain().into_iter().flatten() {
                    // OpenSSL includes the peer's own certificate in the chain on the initiator's
                    // side only.
                    if presented[0].as_ref() != link {
                        presented.push(link.to_owned());
                    }
                }
                let peer = self.identity.trust.verify(&presented, now)?;
                self.expected.check(&peer)?;
                if peer.is_limited() && !accept_limited {
                    return Err(HandshakeError::LimitedProxy { subject: peer.subject });
                }
                self.presented = presented;
                self.peer = Some(peer);
            } else if finished {
                return Err(HandshakeError::Chain(ChainError::Empty));
            }
        }
        Ok(finished)
    }

    /// Takes a token and performs the steps that are the same on both sides.
    fn advance(
        &mut self,
        token: &[u8],
        now: Timestamp,
        accept_limited: bool,
    ) -> Result<Advance, HandshakeError> {
        self.feed(token)?;
        if !matches!(self.state, State::Tls) {
            return Ok(Advance::Later);
        }
        if !self.tls(now, accept_limited)? {
            return self.wait().map(Advance::Step);
        }
        if self.after == After::Nothing {
            return self.done(None).map(Advance::Step);
        }
        self.state = State::Flag;
        Ok(Advance::Secured { tls13: self.is_tls13()? })
    }

    /// Sends the pending output and waits for more input.
    fn wait(&mut self) -> Result<Step, HandshakeError> {
        Ok(Step::Continue(self.output()?))
    }

    /// Writes bytes as protected records.
    fn write(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        let stream = self.stream()?;
        let mut rest = bytes;
        while !rest.is_empty() {
            forget_errors();
            let count = stream.ssl_write(rest).map_err(|error| HandshakeError::Tls(error.to_string()))?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Reads one byte if there is one. The bytes after it stay unread because they may be clear
    /// text.
    fn read_byte(&mut self) -> Result<Option<u8>, HandshakeError> {
        let mut byte = [0];
        Ok((self.read(&mut byte)? == 1).then_some(byte[0]))
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, HandshakeError> {
        let stream = self.stream()?;
        forget_errors();
        match stream.ssl_read(buffer) {
            Ok(count) => Ok(count),
            Err(error) if matches!(error.code(), ErrorCode::WANT_READ | ErrorCode::WANT_WRITE) => Ok(0),
            Err(error) if error.code() == ErrorCode::ZERO_RETURN => Err(HandshakeError::Closed),
            Err(error) => Err(HandshakeError::Tls(error.to_string())),
        }
    }

    /// Reads the available bytes and returns them once they consist of whole DER elements.
    fn read_element(&mut self) -> Result<Option<Vec<u8>>, HandshakeError> {
        let mut buffer = [0; 4096];
        loop {
            let count = self.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            self.pending.extend_from_slice(&buffer[..count]);
            if self.pending.len() > MAX_DELEGATION {
                return Err(HandshakeError::TooLong);
            }
        }
        let mut reader = der::Reader::new(&self.pending);
        while !reader.is_empty() {
            match reader.expect(der::SEQUENCE) {
                Ok(_) => {}
                Err(der::DerError::Truncated) => return Ok(None),
                Err(error) => return Err(DelegationError::Der(error).into()),
            }
        }
        Ok((!self.pending.is_empty()).then(|| std::mem::take(&mut self.pending)))
    }

    fn is_tls13(&mut self) -> Result<bool, HandshakeError> {
        Ok(self.stream()?.ssl().version2() == Some(SslVersion::TLS1_3))
    }

    fn done(&mut self, delegated: Option<Credential>) -> Result<Step, HandshakeError> {
        let out = self.output()?;
        let stream = self.stream.take().ok_or(HandshakeError::Over)?;
        let peer = self.peer.take().ok_or(HandshakeError::Chain(ChainError::Empty))?;
        let records = match self.after {
            After::Flag => Records::used(stream),
            After::Nothing => Records::new(stream),
        };
        Ok(Step::Done(out, Box::new(Session::new(records, peer, delegated))))
    }
}

/// The initiator: the client of a control connection, or the connecting side of a data connection.
#[derive(Debug)]
pub struct Initiator {
    machine: Machine,
    delegate: Option<ProxyTerms>,
}

impl Initiator {
    /// Prepares a handshake.
    ///
    /// # Errors
    /// OpenSSL does not accept the server name, or has no memory.
    pub fn new(identity: &Identity, options: InitiatorOptions) -> Result<Self, HandshakeError> {
        let mut ssl = Ssl::new(&identity.context)?;
        ssl.set_connect_state();
        if let Some(name) = &options.server_name
            && name.parse::<std::net::IpAddr>().is_err()
        {
            ssl.set_hostname(name)?;
        }
        let machine = Machine::new(identity, options.expected, options.after, ssl)?;
        Ok(Self { machine, delegate: options.delegate })
    }

    /// Takes received bytes (none at first) and returns the bytes to send. A token may come in
    /// several parts.
    ///
    /// # Errors
    /// The peer is not trusted or not the expected one, violates TLS or the protocol after it,
    /// sends too much or closes the connection; or no proxy can be made for it.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, HandshakeError> {
        self.step_at(token, Timestamp::now())
    }

    /// Like [`Initiator::step`], with `now` as the current time.
    ///
    /// # Errors
    /// The same errors as [`Initiator::step`].
    pub fn step_at(&mut self, token: &[u8], now: Timestamp) -> Result<Step, HandshakeError> {
        let machine = &mut self.machine;
        match machine.advance(token, now, true)? {
            Advance::Step(step) => return Ok(step),
            // In TLS 1.3 the initiator sends the last flight; the acceptor's byte confirms that it
            // arrived.
            Advance::Secured { tls13: true } => return machine.wait(),
            Advance::Secured { tls13: false } => return self.flag(),
            Advance::Later => {}
        }
        match machine.state {
            State::Tls => Err(HandshakeError::Over),
            State::Flag => match machine.read_byte()? {
                Some(_) => self.flag(),
                None => machine.wait(),
            },
            State::Delegation(_) => {
                let Some(request) = machine.read_element()? else {
                    return machine.wait();
                };
                let mut terms = self.delegate.unwrap_or_default();
                let issuer = machine.identity.credential.clone();
                // A limited proxy can only delegate limited proxies.
                if issuer.details().proxy.is_some_and(ProxyKind::is_limited) {
                    terms.kind = terms.kind.with_rights(Rights::Limited);
                }
                let certificate = delegation::sign_request(&issuer, &request, &terms, now)?;
                machine.write(&certificate.to_der()?)?;
                machine.done(None)
            }
        }
    }

    fn flag(&mut self) -> Result<Step, HandshakeError> {
        if self.delegate.is_none() {
            self.machine.write(&[NO_DELEGATION])?;
            return self.machine.done(None);
        }
        self.machine.write(&[DELEGATE])?;
        self.machine.state = State::Delegation(None);
        self.machine.wait()
    }
}

/// The acceptor: the server of a control connection, or the listening side of a data connection.
#[derive(Debug)]
pub struct Acceptor {
    machine: Machine,
    accept_limited: bool,
    keys: DelegatedKeys,
}

impl Acceptor {
    /// Prepares a handshake.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn new(identity: &Identity, options: AcceptorOptions) -> Result<Self, HandshakeError> {
        let mut ssl = Ssl::new(&identity.context)?;
        ssl.set_accept_state();
        let machine = Machine::new(identity, options.expected, options.after, ssl)?;
        Ok(Self { machine, accept_limited: options.accept_limited, keys: options.keys })
    }

    /// The TLS server name that the client requested, once its first token came.
    pub fn server_name(&self) -> Option<&str> {
        self.machine.stream.as_ref()?.ssl().servername(openssl::ssl::NameType::HOST_NAME)
    }

    /// Takes received bytes and returns the bytes to send. A token may come in several parts.
    ///
    /// # Errors
    /// The peer is not trusted, not the expected one, or a limited proxy although none is accepted.
    /// Or it violates TLS or the protocol after it, sends too much, closes the connection, or
    /// delegates a certificate that is not a proxy of its own.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, HandshakeError> {
        self.step_at(token, Timestamp::now())
    }

    /// Like [`Acceptor::step`], with `now` as the current time.
    ///
    /// # Errors
    /// The same errors as [`Acceptor::step`].
    pub fn step_at(&mut self, token: &[u8], now: Timestamp) -> Result<Step, HandshakeError> {
        let machine = &mut self.machine;
        match machine.advance(token, now, self.accept_limited)? {
            Advance::Step(step) => return Ok(step),
            Advance::Secured { tls13 } => {
                if tls13 {
                    machine.write(&[0])?;
                }
                // The flag is a separate message, also on connections without token boundaries.
                return machine.wait();
            }
            Advance::Later => {}
        }
        match &mut machine.state {
            State::Tls => Err(HandshakeError::Over),
            State::Flag => match machine.read_byte()? {
                None => machine.wait(),
                Some(NO_DELEGATION) => machine.done(None),
                Some(DELEGATE) => {
                    let Some(peer) = machine.presented.first() else {
                        return Err(HandshakeError::Chain(ChainError::Empty));
                    };
                    let request = ProxyRequest::new(peer, &self.keys)?;
                    machine.write(&request.to_der()?)?;
                    machine.state = State::Delegation(Some(request));
                    machine.wait()
                }
                Some(found) => Err(HandshakeError::Flag { found }),
            },
            State::Delegation(_) => {
                let Some(answer) = machine.read_element()? else {
                    return machine.wait();
                };
                let State::Delegation(Some(request)) = std::mem::replace(&mut machine.state, State::Flag)
                else {
                    return Err(HandshakeError::Over);
                };
                let Some((peer, chain)) = machine.presented.split_first() else {
                    return Err(HandshakeError::Chain(ChainError::Empty));
                };
                let credential = request.finish(&answer, peer, chain)?;
                machine.done(Some(credential))
            }
        }
    }
}
